"""Congruences of the stencil with chosen Kronecker columns, features in the prior's eigenbasis, a rank that limits."""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import assert_alike, data, end_to_end, stationary
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel
from torch import Tensor

from bo_scale import WISKI, draw_posterior_functions, load_model, save_model
from bo_scale.gp.linalg.kronecker import KroneckerColumns
from bo_scale.gp.weight_space.evidence import log_evidence
from bo_scale.gp.weight_space.features.grid import features as grid
from bo_scale.gp.weight_space.features.grid import stencil
from bo_scale.gp.weight_space.features.grid.features import GridFeatures, SpectralFeatures
from bo_scale.gp.weight_space.features.grid.interpolation import Basis, Grid
from bo_scale.gp.weight_space.features.sums import SumFeatures
from bo_scale.gp.weight_space.posterior import WeightSpacePosterior
from bo_scale.gp.weight_space.statistics import SufficientStatistics

NOISE, MU = torch.tensor(0.02, dtype=torch.float64), torch.tensor(0.3, dtype=torch.float64)
SIZES = [(9,), (6, 7), (5, 4, 6), (4, 5, 4, 4)]


def features(size: tuple[int, ...], basis: Basis = "spline", name: str = "rbf", **options: Any) -> GridFeatures:
    d = len(size)
    lengthscales = torch.linspace(0.25, 0.45, d, dtype=torch.float64)
    return GridFeatures(Grid((0.0,) * d, (1.0,) * d, size), stationary(lengthscales, name), basis, **options)


def in_the_margin_too(n: int, F: GridFeatures) -> Tensor:
    """Points up to the last node on every side."""
    lower, spacing, last = (torch.tensor(v, dtype=torch.float64) for v in (F.grid.lower, F.grid.spacing, F.grid.size))
    X = torch.rand(n, len(F.grid.size), dtype=torch.float64) * (last - 1)
    X[:3] = X[:3].round()
    X[3], X[4] = 0.0, last - 1
    return lower + (X - 1) * spacing


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


@pytest.mark.parametrize("kind", ["full", "hyperbolic", "ragged"])
@pytest.mark.parametrize("size", SIZES, ids=len)
def test_congruence_with_chosen_products_equals_the_dense_one(size: tuple[int, ...], kind: str, grouping: str) -> None:
    """Widths differ, and the narrowest dimension is not the first; gradients too."""
    F = features(size)
    gram = F.empty_gram().add_rows(F(in_the_margin_too(30, F)), torch.rand(30, dtype=torch.float64))
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
    gram = F.empty_gram().add_rows(F(in_the_margin_too(12, F)), torch.rand(12, dtype=torch.float64))
    index = products(widths, "ragged").sort(0).values
    factors = [torch.randn(m, w, dtype=torch.float64, requires_grad=True) for m, w in zip(size, widths)]
    weight = torch.rand(len(index), dtype=torch.float64)

    def congruence(*R: Tensor) -> Tensor:
        return gram.congruence(KroneckerColumns(weight, *R, index=index), NOISE)

    assert torch.autograd.gradcheck(congruence, factors)


@pytest.mark.parametrize("basis", ["spline", "keys"])
@pytest.mark.parametrize("size", SIZES, ids=len)
def test_rows_in_the_margin_too_add_their_outer_products(size: tuple[int, ...], basis: Basis) -> None:
    F = features(size, basis)
    X, weights = in_the_margin_too(25, F), torch.randn(25, dtype=torch.float64)
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


# ---------------------------------------------------------------- the eigenbasis


@pytest.mark.parametrize("rank", [None, 15])
@pytest.mark.parametrize("basis", ["spline", "keys"])
@pytest.mark.parametrize("size", [(12,), (8, 7), (5, 4, 6)], ids=len)
def test_features_in_the_eigenbasis_are_those_of_the_prior(
    size: tuple[int, ...], basis: Basis, rank: int | None
) -> None:
    F = features(size, basis, rank=rank)
    X, R = in_the_margin_too(8, F), F.prior_root()
    psi = SpectralFeatures(F, R)
    dense = F(X).to_dense() @ R.to_dense()
    torch.testing.assert_close(psi(X), dense)
    torch.testing.assert_close(psi(X.unflatten(0, (2, 1, 4))), dense.unflatten(0, (2, 1, 4)))
    torch.testing.assert_close(psi.prior_covariance(X), dense @ dense.mT)
    torch.testing.assert_close(F.prior_covariance(X), dense @ dense.mT, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(F.prior_variance(X), dense.square().sum(-1), rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(psi.prior_variance(X), dense.square().sum(-1))
    torch.testing.assert_close(psi.interpolation_variance(X), F.interpolation_variance(X))
    whole = R.to_dense().mT @ F.box_gram().to_dense() @ R.to_dense()
    torch.testing.assert_close(psi.box_gram().to_dense(), whole)
    assert psi.num_features == psi.max_rank == len(dense.mT) <= F.max_rank
    x = (0.1 + 0.8 * torch.rand(2, len(size), dtype=torch.float64)).requires_grad_()
    assert torch.autograd.gradcheck(psi, (x,))


@pytest.mark.parametrize("rank", [None, 12])
def test_reduced_features_give_the_posterior_of_the_dense_root(
    rank: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    F = features((9, 8), rank=rank)
    X, Y = data(20, 2)
    stats = SufficientStatistics.from_data(F, X[:15], Y[:15])
    Xt = in_the_margin_too(6, F)
    found = []
    for limit in (0, 1 << 24):
        monkeypatch.setattr(grid, "DENSE_ROOT", limit)
        posterior = WeightSpacePosterior.from_statistics(F, stats, NOISE, MU)
        prior = WeightSpacePosterior.prior(F, MU)
        by_rows = prior.update(prior.locate(X[:15]), Y[:15, 0], NOISE.expand(15))
        assert isinstance(posterior.features, SpectralFeatures) == (limit == 0)
        assert posterior.root.shape[0] == (posterior.rank if limit == 0 else 72)
        again = WeightSpacePosterior.restored(F, posterior.state())
        assert type(again.features) is type(posterior.features)
        more = posterior.update(posterior.locate(X[15:]), Y[15:, 0], NOISE.expand(5))
        found.append([f(Xt) for p in (posterior, by_rows, again, more) for f in (p.mean, p.covariance)])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


# ---------------------------------------------------------------- a rank that limits


def evidence(lengthscales: Tensor, stats: SufficientStatistics, rank: int) -> Tensor:
    F = GridFeatures(Grid((0.0,) * 2, (1.0,) * 2, (9, 8)), stationary(lengthscales), rank=rank)
    return log_evidence(F.prior_root(), stats, NOISE, MU)


def test_the_evidence_of_a_limited_rank_is_smooth_where_eigenpairs_swap() -> None:
    """Along a scan of one lengthscale values are continuous, and their differences those of the gradient."""
    X, Y = data(25, 2)
    F, rank = features((9, 8)), 12
    stats = SufficientStatistics.from_data(F, X, Y)
    scan = torch.linspace(0.25, 0.45, 81, dtype=torch.float64)
    values, slopes, kept = [], [], set()
    for length in scan:
        lengthscales = torch.stack([length, torch.tensor(0.33, dtype=torch.float64)]).requires_grad_()
        value = evidence(lengthscales, stats, rank)
        values.append(value.detach())
        slopes.append(torch.autograd.grad(value, lengthscales)[0][0])
        spectrum = GridFeatures(F.grid, stationary(lengthscales.detach()), rank=rank).spectrum
        kept.add(tuple(map(tuple, spectrum.pairs.tolist())))
    assert len(kept) > 2
    change, slope = torch.stack(values).diff(), torch.stack(slopes)
    by_slope = (slope[1:] + slope[:-1]) / 2 * scan.diff()
    torch.testing.assert_close(change, by_slope, rtol=0, atol=0.05 * change.abs().max().item())


@pytest.mark.parametrize("rank", [7, 12, 20])
def test_the_gradient_of_a_limited_rank_equals_finite_differences(rank: int) -> None:
    X, Y = data(25, 2)
    stats = SufficientStatistics.from_data(features((9, 8)), X, Y)
    lengthscales = torch.tensor([0.31, 0.4], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda v: evidence(v, stats, rank), (lengthscales,), atol=1e-5)


@pytest.mark.parametrize("rank", [None, 10])
@pytest.mark.parametrize("basis", ["spline", "keys"])
def test_what_interpolation_and_rank_lose_is_their_mean_over_the_box(basis: Basis, rank: int | None) -> None:
    """By four Gauss points a cell they are the integrals of the dense definitions, here by the midpoint rule."""
    F = features((7, 6), basis, rank=rank)
    side = (torch.arange(120, dtype=torch.float64) + 0.5) / 120
    X, nodes = torch.cartesian_prod(side, side), F.grid.nodes()
    k = torch.stack([a[:, :, None] * b[:, None, :] for a, b in [F.factors(list(X.unbind(-1)), nodes)]])[0].flatten(1)
    Q, K = torch.kron(*[values for values in F.node_kernels]), F.prior_root().to_dense()
    W = F(X).to_dense()
    whole = ((W @ torch.kron(*F.prefilter) @ Q) * (W @ torch.kron(*F.prefilter))).sum(-1)
    kept = (W @ K).square().sum(-1)
    # f_U is what the kept eigenpairs span: its covariance with f(x) is k(x, U) E w Eᵀ, with the roots' weights w
    E = torch.kron(*[Q for _, Q in F.spectrum.eigen])
    flat = F.spectrum.pairs[:, 0] * F.grid.size[1] + F.spectrum.pairs[:, 1]
    span = E[:, flat] if rank is not None else E
    weight = F.spectrum.weight if rank is not None else torch.ones(len(E), dtype=torch.float64)
    cross = (((k @ span) * weight) * (W @ torch.kron(*F.prefilter) @ span)).sum(-1)
    error = 1.0 - 2 * cross + kept
    torch.testing.assert_close(F.interpolation_variance(X), error.clamp_min(0.0), rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(F.mean_interpolation_variance(), error.mean(), rtol=2e-3, atol=1e-8)
    torch.testing.assert_close(F.rank_loss(), 1 - kept.mean() / whole.mean(), rtol=2e-3, atol=1e-6)
    assert (F.rank_loss() > 1e-3) == (rank is not None)
    missing = (1.0 - kept).clamp_min(0.0)
    torch.testing.assert_close(F.missing_variance(X), missing, rtol=1e-6, atol=1e-8)
    if rank is None:
        torch.testing.assert_close(F.mean_missing_variance(), missing.mean(), rtol=2e-2, atol=1e-8)
    else:
        torch.testing.assert_close(F.mean_missing_variance(), (1.0 - kept).mean(), rtol=2e-3, atol=1e-8)


@pytest.mark.parametrize("name", ["rbf", "exponential"])
def test_a_rank_that_keeps_all_that_counts_changes_nothing(name: str) -> None:
    F = features((6, 7), name=name)
    whole, same = F.prior_root().to_dense(), replace(F, rank=42).prior_root().to_dense()
    torch.testing.assert_close(same, whole)
    assert not replace(F, rank=42).limited
    assert replace(F, rank=5).limited
    assert replace(F, rank=5).max_rank == 5


# ---------------------------------------------------------------- end to end


def model(rank: int | None, m: int = 1) -> WISKI:
    X, Y = data(60, 2, m)
    batch = torch.Size([m] if m > 1 else [])
    kernel = ScaleKernel(RBFKernel(ard_num_dims=2, batch_shape=batch), batch_shape=batch)
    fitted = WISKI(X, Y, grid_size=(9, 8), covar_module=kernel, rank=rank)
    fitted.covar_module.base_kernel.lengthscale = torch.tensor([0.4, 0.6], dtype=torch.float64)
    fitted.likelihood.noise = 0.05
    return fitted.eval()


@pytest.mark.parametrize(("rank", "m"), [(None, 1), (12, 2)])
def test_a_model_of_reduced_features_is_that_of_the_dense_root(
    rank: int | None, m: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    said, draws, X = [], [], data(5, 2, seed=3)[0]
    for limit in (1 << 24, 0):
        monkeypatch.setattr(grid, "DENSE_ROOT", limit)
        each = model(rank, m)
        said.append(end_to_end(each))
        fantasies = each.condition_on_observations(X[:2].unsqueeze(0), torch.ones(1, 2, m, dtype=torch.float64))
        for source in (each, fantasies):
            draw = draw_posterior_functions(source, torch.Size([3]), torch.Generator().manual_seed(0))
            draws.append(draw(X))
    assert_alike(*said)
    torch.testing.assert_close(draws[0], draws[2], rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(draws[1], draws[3], rtol=1e-7, atol=1e-7)
    streamed = each.condition_on_observations(X, torch.ones(5, m, dtype=torch.float64))
    save_model(streamed, tmp_path / "model.pt")
    loaded = load_model(model(rank, m), tmp_path / "model.pt")
    expected = end_to_end(streamed)
    for same in (loaded, copy.deepcopy(streamed)):
        assert_alike(expected, end_to_end(same), 0.0)


def test_a_rank_counts_as_interpolation_error_and_in_the_conservative_option() -> None:
    few, many = model(12), model(None)
    assert (few.interpolation_error > 10 * many.interpolation_error).all()
    assert few.rank_loss.item() == pytest.approx(few._grid_features(0)[0].rank_loss().item())
    assert many.rank_loss.item() < 1e-6
    X, Y = data(30, 2)
    rough = WISKI(X, Y, grid_size=12, rank=20, covar_module=MaternKernel(1.5), conservative=True)
    plain = WISKI(X, Y, grid_size=12, rank=20, covar_module=MaternKernel(1.5))
    noise, error = plain.inference.noise, plain.interpolation_error
    torch.testing.assert_close(rough.inference.noise.detach(), (noise + error).detach())
    torch.testing.assert_close(
        rough.inference.extra_variance(X, 0), plain._grid_features(0)[0].interpolation_variance(X).detach()
    )


@pytest.mark.parametrize("name", ["rbf", "exponential"])
def test_a_flat_spectrum_does_not_fade_away(name: str) -> None:
    """Where all eigenvalues are nearly equal, a cut at some rank leaves about that share of the variance."""
    length = torch.full((2,), 0.01, dtype=torch.float64)
    full = GridFeatures(Grid((0.0, 0.0), (1.0, 1.0), (20, 20)), stationary(length, name))
    limited = replace(full, rank=300)
    assert limited.limited
    assert limited.rank_loss() < 1.4 * (1 - 300 / 400)


def test_a_sum_of_sums_is_one_sum() -> None:
    length = torch.full((2,), 0.3, dtype=torch.float64)
    a, b, c = (GridFeatures(Grid((0.0, 0.0), (1.0, 1.0), (m, m)), stationary(length)) for m in (5, 6, 7))
    X = torch.rand(4, 2, dtype=torch.float64)
    nested, flat = SumFeatures((SumFeatures((a, b)), c)), SumFeatures((a, b, c))
    assert nested == flat
    torch.testing.assert_close(nested(X).to_dense(), torch.cat([phi(X).to_dense() for phi in (a, b, c)], -1))
