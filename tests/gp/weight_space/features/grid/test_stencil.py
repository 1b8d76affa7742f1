"""The Gram matrix of interpolation as a stencil, and its congruences with chosen Kronecker columns."""

import pytest
import torch
from cases import in_the_margin_too, stationary
from torch import Tensor

from bo_scale.gp.linalg.kronecker import KroneckerColumns
from bo_scale.gp.weight_space.features.grid import stencil
from bo_scale.gp.weight_space.features.grid.features import GridFeatures
from bo_scale.gp.weight_space.features.grid.interpolation import Basis, Grid
from bo_scale.gp.weight_space.features.grid.stencil import StencilGram

BASES: list[Basis] = ["spline", "keys"]
SIZES = [(9,), (6, 7), (5, 4, 6), (4, 5, 4, 4)]


def features(size: tuple[int, ...], basis: Basis = "spline") -> GridFeatures:
    d = len(size)
    return GridFeatures(Grid((0.0,) * d, (1.0,) * d, size), stationary(torch.full((d,), 0.4).double()), basis)


def products(widths: tuple[int, ...], kind: str) -> Tensor:
    """Multi-indices of columns: all, those below a hyperbola, or any in any order."""
    index = torch.cartesian_prod(*[torch.arange(w) for w in widths]).reshape(-1, len(widths))
    if kind == "hyperbolic":
        return index[(index + 1).prod(-1) <= 6]
    return index if kind == "full" else index[torch.randperm(len(index))[: max(1, len(index) // 3)]]


@pytest.fixture(params=["whole", "groups"])
def grouping(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """In one piece; or with prefixes in groups, and few pairs of columns at once."""
    if request.param == "groups":
        monkeypatch.setattr(stencil, "WORTH_GROUPING", 0)
        monkeypatch.setattr(stencil, "PRODUCTS", 64)
    name: str = request.param
    return name


@pytest.mark.parametrize("basis", BASES)
@pytest.mark.parametrize("size", [(7,), (6, 5), (5, 4, 6)])
@pytest.mark.parametrize("n", [30, 700])
def test_stencil_gram_equals_the_dense_gram(basis: Basis, size: tuple[int, ...], n: int) -> None:
    F = features(size, basis)
    X, weights = torch.rand(n, len(size), dtype=torch.float64), torch.rand(n, dtype=torch.float64)
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
    summed = stencil._by_cells(Phi, weights, size)
    assert (summed is not None) == (n == 700 and len(size) > 1)  # cells of many rows are summed on their own
    few = sum((F.empty_gram().add_rows(F(x), w).values for x, w in zip(X.split(10), weights.split(10))), 0)
    torch.testing.assert_close(gram.values, few)
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


@pytest.mark.parametrize("kind", ["full", "hyperbolic", "ragged"])
@pytest.mark.parametrize("size", SIZES, ids=len)
def test_congruence_with_chosen_products_equals_the_dense_one(size: tuple[int, ...], kind: str, grouping: str) -> None:
    """Widths differ, and the narrowest dimension is not the first; gradients too."""
    F = features(size)
    gram = F.empty_gram().add_rows(F(in_the_margin_too(30, F.grid)), torch.rand(30, dtype=torch.float64))
    widths = tuple(min(m, w) for m, w in zip(size, (4, 2, 5, 3)))
    index = products(widths, kind)
    weight = torch.rand(len(index), dtype=torch.float64, requires_grad=True)
    scale = torch.tensor(1.7, dtype=torch.float64, requires_grad=True)
    factors = [torch.randn(m, w, dtype=torch.float64, requires_grad=True) for m, w in zip(size, widths)]
    R = KroneckerColumns(weight, *factors, index=index)
    ours, dense = gram.congruence(R, scale), scale * R.to_dense().mT @ gram.to_dense() @ R.to_dense()
    torch.testing.assert_close(ours, dense)
    seen = torch.randn_like(dense)
    gradients = [torch.autograd.grad((v * seen).sum(), [*factors, weight, scale]) for v in (ours, dense)]
    for found, expected in zip(*gradients, strict=True):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("size", [(5, 4), (4, 4, 4)], ids=len)
def test_a_congruences_gradient_equals_finite_differences(size: tuple[int, ...], grouping: str) -> None:
    widths = (3, 2, 2)[: len(size)]
    F = features(size)
    gram = F.empty_gram().add_rows(F(in_the_margin_too(12, F.grid)), torch.rand(12, dtype=torch.float64))
    index = products(widths, "ragged").sort(0).values
    factors = [torch.randn(m, w, dtype=torch.float64, requires_grad=True) for m, w in zip(size, widths)]
    weight, scale = torch.rand(len(index), dtype=torch.float64), torch.tensor(0.02, dtype=torch.float64)

    def congruence(*R: Tensor) -> Tensor:
        return gram.congruence(KroneckerColumns(weight, *R, index=index), scale)

    assert torch.autograd.gradcheck(congruence, factors)


@pytest.mark.parametrize("basis", ["spline", "keys"])
@pytest.mark.parametrize("size", SIZES, ids=len)
def test_rows_in_the_margin_too_add_their_outer_products(size: tuple[int, ...], basis: Basis) -> None:
    F = features(size, basis)
    X, weights = in_the_margin_too(25, F.grid), torch.randn(25, dtype=torch.float64)
    dense = F(X).to_dense()
    gram = F.empty_gram().add_rows(F(X[:10]), weights[:10]).add_rows(F(X[10:]), weights[10:])
    expected = (dense.mT * weights) @ dense
    torch.testing.assert_close(gram.to_dense(), expected)
    M = torch.randn(F.num_features, 2, dtype=torch.float64)
    torch.testing.assert_close(gram.matmul(M), expected @ M)
    assert torch.equal(gram.add_rows(F(X[:0]), weights[:0]).values, gram.values)


def test_pairs_of_prefixes_go_in_groups_by_how_many_columns_follow(grouping: str) -> None:
    index = torch.tensor([[0, j] for j in range(9)] + [[1, 0], [1, 1], [2, 0], [3, 0]])
    blocks = stencil._blocks(index[:, 0], index[:, 1], 4, 16, 1)
    counted = torch.cat([block.places for block in blocks]).sort().values
    assert torch.equal(counted, torch.arange(13 * 14 // 2))
    assert (len(blocks) > 3) == (grouping == "groups")
    computed = sum(len(block.pairs) * block.columns.shape[-1] for block in blocks)
    assert (computed < 300) == (grouping == "groups")
