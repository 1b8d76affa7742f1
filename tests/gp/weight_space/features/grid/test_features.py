from dataclasses import replace

import pytest
import torch
from cases import stationary
from hypothesis import given, settings
from hypothesis import strategies as st

from bo_scale.errors import GridError
from bo_scale.gp.linalg.kronecker import KroneckerColumns
from bo_scale.gp.weight_space.features.grid.features import GridFeatures
from bo_scale.gp.weight_space.features.grid.interpolation import Basis, Grid, cubic_weights
from bo_scale.gp.weight_space.features.grid.stencil import StencilGram

BASES: list[Basis] = ["spline", "keys"]


def features(size: tuple[int, ...], basis: Basis = "spline", length: float = 0.4, name: str = "rbf") -> GridFeatures:
    d = len(size)
    return GridFeatures(Grid((0.0,) * d, (1.0,) * d, size), stationary(torch.full((d,), length).double(), name), basis)


@pytest.mark.parametrize("basis", BASES)
@given(u=st.floats(-0.1, 1.1))
@settings(max_examples=30, deadline=None)
def test_weights_reproduce_low_degree_polynomials(basis: Basis, u: float) -> None:
    """Keys' convolution interpolates quadratics exactly between the bounds, prefiltered splines cubics everywhere."""
    F = features((13,), basis)
    nodes = F.grid.nodes()[0]
    inside = 0.0 <= u <= 1.0
    x = torch.tensor([[u]], dtype=torch.float64)
    for degree in range(4 if basis == "spline" else (3 if inside else 2)):
        value = F(x).to_dense() @ (F.prefilter[0] @ nodes**degree)
        torch.testing.assert_close(value, x[0] ** degree, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("basis", BASES)
def test_a_function_is_met_at_the_nodes_between_the_bounds(basis: Basis) -> None:
    F = features((9,), basis)
    nodes = F.grid.nodes()[0][1:-1]
    f = torch.randn(9, dtype=torch.float64)
    torch.testing.assert_close(F(nodes.unsqueeze(-1)).to_dense() @ (F.prefilter[0] @ f), f[1:-1])


@pytest.mark.parametrize(("basis", "order"), [("spline", 2), ("keys", 1)])
def test_weights_are_as_smooth_as_their_name_says(basis: Basis, order: int) -> None:
    """C² for splines, C¹ for Keys: one-sided derivatives agree at the knots."""
    knot, step = 0.25, 1e-9
    sides = []
    for side in (-step, step):
        u = torch.tensor([knot + side], dtype=torch.float64, requires_grad=True)
        weights, first = cubic_weights(8 * u + 1, 11.0, basis)
        value = torch.zeros(12, dtype=torch.float64).index_add(0, first[0].long() + torch.arange(4), weights[0])
        derivative = (value * torch.arange(12.0).double().sin()).sum()
        for _ in range(order):
            (derivative,) = torch.autograd.grad(derivative, u, create_graph=True)
        sides.append(derivative.item())
    assert sides[0] == pytest.approx(sides[1], rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("basis", BASES)
@pytest.mark.parametrize("size", [(7,), (6, 5), (5, 4, 6)])
def test_stencil_gram_equals_the_dense_gram(basis: Basis, size: tuple[int, ...]) -> None:
    F = features(size, basis)
    X, weights = torch.rand(30, len(size), dtype=torch.float64), torch.rand(30, dtype=torch.float64)
    Phi = F(X)
    gram, dense = F.empty_gram().add_rows(Phi, weights), Phi.to_dense()
    expected = dense.mT @ (weights.unsqueeze(-1) * dense)
    torch.testing.assert_close(gram.to_dense(), expected)
    M = torch.randn(F.num_features, 3, dtype=torch.float64)
    torch.testing.assert_close(gram.matmul(M), expected @ M)
    R = F.prior_root()
    scale = torch.tensor(2.5, dtype=torch.float64)
    whole = 2.5 * R.to_dense().mT @ expected @ R.to_dense()
    torch.testing.assert_close(gram.congruence(R, scale), whole)
    weight = torch.rand(len(R.weight[::2]), dtype=torch.float64)
    some = KroneckerColumns(weight, *R.factors, index=R.index[::2])
    torch.testing.assert_close(gram.congruence(some, scale), weight.unsqueeze(-1) * whole[::2, ::2] * weight)
    assert isinstance(gram.combine(gram, -1.0), StencilGram)
    assert gram.combine(gram, -1.0).to_dense().abs().max() == 0


@pytest.mark.parametrize("widths", [(7, 2, 4), (1, 6, 3), (3, 3, 1), (7, 6, 5)])
@pytest.mark.parametrize("share", [0.2, 1.0])
def test_congruence_with_unequal_ranks_equals_the_dense_one(widths: tuple[int, ...], share: float) -> None:
    """Columns a root may have: any subset of the products, in any order, with weights; fewer in one dimension."""
    size = (7, 6, 5)
    F = features(size)
    gram = F.empty_gram().add_rows(F(torch.rand(40, 3, dtype=torch.float64)), torch.rand(40, dtype=torch.float64))
    index = torch.cartesian_prod(*[torch.arange(w) for w in widths])
    index = index[torch.randperm(len(index))[: max(1, int(share * len(index)))]]
    factors = [torch.randn(m, w, dtype=torch.float64, requires_grad=True) for m, w in zip(size, widths, strict=True)]
    weight = torch.rand(len(index), dtype=torch.float64, requires_grad=True)
    scale = torch.tensor(1.7, dtype=torch.float64, requires_grad=True)
    R = KroneckerColumns(weight, *factors, index=index)
    ours, dense = gram.congruence(R, scale), scale * R.to_dense().mT @ gram.to_dense() @ R.to_dense()
    torch.testing.assert_close(ours, dense)
    seen = torch.randn_like(dense)
    gradients = [torch.autograd.grad((value * seen).sum(), [*factors, weight, scale]) for value in (ours, dense)]
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("name", ["rbf", "exponential"])
def test_prior_root_loses_nothing_above_its_tolerance(name: str) -> None:
    F = features((9, 8), "spline", name=name)
    nodes = F.grid.nodes()
    K = torch.kron(*F.factors(nodes, nodes))
    T = torch.kron(*F.prefilter)
    R = F.prior_root().to_dense()
    torch.testing.assert_close(R @ R.mT, T @ K @ T.mT, rtol=0, atol=1e-7)


@pytest.mark.parametrize("negligible", [1e-9, 1e-6, 1e-4])
def test_a_root_leaves_out_little_more_than_what_is_negligible(negligible: float) -> None:
    F = features((12, 11), "keys", length=0.2)
    whole = F.prior_root().to_dense().square().sum(-1)
    part = replace(F, negligible=negligible).prior_root()
    lost = (whole - part.to_dense().square().sum(-1)).mean()
    assert 0 < lost <= 100 * negligible
    assert part.shape[-1] < F.prior_root().shape[-1]


@pytest.mark.parametrize("basis", BASES)
@pytest.mark.parametrize("name", ["rbf", "exponential"])
def test_interpolation_variance_equals_its_definition(basis: Basis, name: str) -> None:
    F = features((8, 7), basis, length=0.25, name=name)
    X, nodes = torch.rand(6, 2, dtype=torch.float64), F.grid.nodes()
    K = torch.kron(*F.factors(nodes, nodes))
    k = (lambda a, b: a.unsqueeze(-1) * b.unsqueeze(-2))(*F.factors(list(X.unbind(-1)), nodes)).flatten(1)
    W = F(X).to_dense() @ torch.kron(*F.prefilter)
    expected = 1.0 - 2 * (W * k).sum(-1) + ((W @ K) * W).sum(-1)
    torch.testing.assert_close(F.interpolation_variance(X), expected, rtol=1e-8, atol=1e-10)
    dense_mean = F.interpolation_variance(torch.rand(40_000, 2, dtype=torch.float64)).mean()
    torch.testing.assert_close(F.mean_interpolation_variance(), dense_mean, rtol=0.03, atol=1e-12)


def test_splines_interpolate_better_than_keys() -> None:
    for name, factor in (("rbf", 2.0), ("exponential", 0.9)):
        errors = [features((15,), basis, 0.2, name).mean_interpolation_variance().item() for basis in BASES]
        assert factor * errors[0] < errors[1]


def test_box_gram_is_the_mean_outer_product_over_the_box() -> None:
    F = features((7, 6))
    g = torch.linspace(0, 1, 401, dtype=torch.float64)
    mid = (g[1:] + g[:-1]) / 2
    Phi = F(torch.cartesian_prod(mid, mid)).to_dense()
    torch.testing.assert_close(F.box_gram().to_dense(), Phi.mT @ Phi / len(Phi), rtol=1e-3, atol=1e-7)


def test_points_a_cell_outside_are_served_and_farther_ones_refused() -> None:
    F = features((8, 8))
    F(torch.tensor([[-0.19, 1.19]], dtype=torch.float64))
    for bad in ([-0.21, 0.5], [0.5, 1.21], [float("nan"), 0.5]):
        with pytest.raises(GridError, match=r"rows \[1\].*bounds"):
            F(torch.tensor([[0.5, 0.5], bad], dtype=torch.float64))


@pytest.mark.parametrize(("lower", "upper", "size"), [(0.0, 1.0, 3), (1.0, 1.0, 8), (0.0, float("inf"), 8)])
def test_impossible_grids_are_refused(lower: float, upper: float, size: int) -> None:
    with pytest.raises(GridError):
        Grid((lower,), (upper,), (size,))
