"""The error of interpolation from a grid, at points and over the box, against dense definitions."""

from typing import Any

import pytest
import torch
from cases import stationary

from bo_scale.errors import GridError
from bo_scale.gp.weight_space.features.grid.error import InterpolationError, sum_of_products
from bo_scale.gp.weight_space.features.grid.features import GridFeatures
from bo_scale.gp.weight_space.features.grid.interpolation import Basis, Grid

BASES: list[Basis] = ["spline", "keys"]


def features(size: tuple[int, ...], basis: Basis = "spline", name: str = "rbf", **options: Any) -> GridFeatures:
    d = len(size)
    lengthscales = options.pop("lengthscales", torch.linspace(0.25, 0.45, d, dtype=torch.float64))
    return GridFeatures(Grid((0.0,) * d, (1.0,) * d, size), stationary(lengthscales, name), basis, **options)


@pytest.mark.parametrize("basis", BASES)
@pytest.mark.parametrize("name", ["rbf", "exponential"])
def test_interpolation_variance_equals_its_definition(basis: Basis, name: str) -> None:
    F = features((8, 7), basis, name, lengthscales=torch.full((2,), 0.25).double())
    X, nodes = torch.rand(6, 2, dtype=torch.float64), F.grid.nodes()
    K = torch.kron(*F.factors(nodes, nodes))
    k = (lambda a, b: a.unsqueeze(-1) * b.unsqueeze(-2))(*F.factors(list(X.unbind(-1)), nodes)).flatten(1)
    W = F(X).to_dense() @ torch.kron(*F.prior.prefilter)
    expected = 1.0 - 2 * (W * k).sum(-1) + ((W @ K) * W).sum(-1)
    torch.testing.assert_close(F.error.at(X), expected, rtol=1e-8, atol=1e-10)
    dense_mean = F.error.at(torch.rand(40_000, 2, dtype=torch.float64)).mean()
    torch.testing.assert_close(F.error.mean(), dense_mean, rtol=0.03, atol=1e-12)


def test_splines_interpolate_better_than_keys() -> None:
    for name, factor in (("rbf", 2.0), ("exponential", 0.9)):
        length = torch.full((1,), 0.2).double()
        errors = [features((15,), basis, name, lengthscales=length).error.mean().item() for basis in BASES]
        assert factor * errors[0] < errors[1]


@pytest.mark.parametrize("rank", [None, 10])
@pytest.mark.parametrize("basis", ["spline", "keys"])
def test_what_interpolation_and_rank_lose_is_their_mean_over_the_box(basis: Basis, rank: int | None) -> None:
    """By four Gauss points a cell they are the integrals of the dense definitions, here by the midpoint rule."""
    F = features((7, 6), basis, rank=rank)
    side = (torch.arange(120, dtype=torch.float64) + 0.5) / 120
    X, nodes = torch.cartesian_prod(side, side), F.grid.nodes()
    k = torch.stack([a[:, :, None] * b[:, None, :] for a, b in [F.factors(list(X.unbind(-1)), nodes)]])[0].flatten(1)
    Q, K = torch.kron(*[values for values in F.prior.node_kernels]), F.prior_root().to_dense()
    W = F(X).to_dense()
    whole = ((W @ torch.kron(*F.prior.prefilter) @ Q) * (W @ torch.kron(*F.prior.prefilter))).sum(-1)
    kept = (W @ K).square().sum(-1)
    # f_U is what the kept eigenpairs span: its covariance with f(x) is k(x, U) E w Eᵀ, with the roots' weights w
    E = torch.kron(*[Q for _, Q in F.prior.spectrum.eigen])
    flat = F.prior.spectrum.pairs[:, 0] * F.grid.size[1] + F.prior.spectrum.pairs[:, 1]
    span = E[:, flat] if rank is not None else E
    weight = F.prior.spectrum.weight if rank is not None else torch.ones(len(E), dtype=torch.float64)
    cross = (((k @ span) * weight) * (W @ torch.kron(*F.prior.prefilter) @ span)).sum(-1)
    error = 1.0 - 2 * cross + kept
    torch.testing.assert_close(F.error.at(X), error.clamp_min(0.0), rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(F.error.mean(), error.mean(), rtol=2e-3, atol=1e-8)
    torch.testing.assert_close(F.error.rank_loss(), 1 - kept.mean() / whole.mean(), rtol=2e-3, atol=1e-6)
    assert (F.error.rank_loss() > 1e-3) == (rank is not None)
    missing = (1.0 - kept).clamp_min(0.0)
    torch.testing.assert_close(F.missing_variance(X), missing, rtol=1e-6, atol=1e-8)
    if rank is None:
        torch.testing.assert_close(F.error.mean_missing_variance(), missing.mean(), rtol=2e-2, atol=1e-8)
    else:
        torch.testing.assert_close(F.error.mean_missing_variance(), (1.0 - kept).mean(), rtol=2e-3, atol=1e-8)


@pytest.mark.parametrize("basis", BASES)
def test_the_error_of_a_dimension_is_that_of_a_grid_with_this_dimension_alone(basis: Basis) -> None:
    lengthscales = torch.tensor([0.2, 0.5], dtype=torch.float64)
    both = features((9, 7), basis, lengthscales=lengthscales).error
    for axis, m in enumerate((9, 7)):
        alone = features((m,), basis, lengthscales=lengthscales[axis : axis + 1]).error
        assert both.of_axis(axis) == pytest.approx(alone.mean().item(), rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("rank", [None, 10])
def test_errors_have_gradients_towards_points_and_lengthscales(rank: int | None) -> None:
    X = (0.1 + 0.8 * torch.rand(3, 2, dtype=torch.float64)).requires_grad_()
    lengthscales = torch.tensor([0.2, 0.3], dtype=torch.float64, requires_grad=True)

    def errors(X: torch.Tensor, lengthscales: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        error = InterpolationError(features((6, 5), lengthscales=lengthscales, rank=rank).prior)
        return error.at(X), error.mean()

    assert torch.autograd.gradcheck(errors, (X, lengthscales), atol=1e-5)


def test_points_outside_are_refused_and_batches_keep_their_shape() -> None:
    error, X = features((8, 7)).error, torch.rand(2, 3, 4, 2, dtype=torch.float64)
    torch.testing.assert_close(error.at(X), error.at(X.reshape(-1, 2)).reshape(2, 3, 4))
    with pytest.raises(GridError, match="outside the grid"):
        error.at(X + 2)


def test_sums_of_products_go_in_chunks_of_rows() -> None:
    tables = [torch.rand(5, m, dtype=torch.float64) for m in (3, 4)]
    index, weight = torch.tensor([[0, 1], [2, 3], [1, 0]]), torch.rand(3, dtype=torch.float64)
    whole = (tables[0][:, index[:, 0]] * tables[1][:, index[:, 1]]) @ weight
    torch.testing.assert_close(sum_of_products(tables, index, weight), whole)
    assert sum_of_products([], index, weight).shape == (0,)
