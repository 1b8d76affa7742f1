"""The prior over the weights of a grid: its root, a rank that limits it, its sparse precision."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from cases import data, grid_features, stationary
from torch import Tensor

from bo_scale.gp.linalg.banded import stencil_matmul
from bo_scale.gp.weight_space.evidence import log_evidence
from bo_scale.gp.weight_space.features.grid import prior as priors
from bo_scale.gp.weight_space.features.grid.error import InterpolationError
from bo_scale.gp.weight_space.features.grid.features import GridFeatures
from bo_scale.gp.weight_space.features.grid.interpolation import Basis, Grid
from bo_scale.gp.weight_space.features.grid.prior import GridPrior
from bo_scale.gp.weight_space.statistics import SufficientStatistics

NOISE, MU = torch.tensor(0.02, dtype=torch.float64), torch.tensor(0.3, dtype=torch.float64)


def prior(size: tuple[int, ...], basis: Basis = "spline", name: str = "rbf", **options: Any) -> GridPrior:
    d = len(size)
    lengthscales = options.pop("lengthscales", torch.linspace(0.25, 0.45, d, dtype=torch.float64))
    return GridPrior(Grid((0.0,) * d, (1.0,) * d, size), stationary(lengthscales, name), basis, **options)


def whole(found: GridPrior) -> Tensor:
    """S, dense."""
    nodes, T = found.grid.nodes(), torch.kron(*found.prefilter)
    return T @ torch.kron(*found.factors(nodes, nodes)) @ T.mT


@pytest.mark.parametrize("name", ["rbf", "exponential"])
def test_a_root_loses_nothing_above_its_tolerance(name: str) -> None:
    found = prior((9, 8), name=name)
    R = found.root().to_dense()
    torch.testing.assert_close(R @ R.mT, whole(found), rtol=0, atol=1e-7)


@pytest.mark.parametrize("negligible", [1e-9, 1e-6, 1e-4])
def test_a_root_leaves_out_little_more_than_what_is_negligible(negligible: float) -> None:
    found = prior((12, 11), "keys", lengthscales=torch.full((2,), 0.2).double())
    all_of_it, part = found.root(), replace(found, negligible=negligible).root()
    lost = (all_of_it.to_dense().square().sum(-1) - part.to_dense().square().sum(-1)).mean()
    assert 0 < lost <= 100 * negligible
    assert part.shape[-1] < all_of_it.shape[-1]


@pytest.mark.parametrize("basis", ["spline", "keys"])
def test_variances_and_covariances_are_those_of_the_weights(basis: Basis) -> None:
    found, X = prior((8, 7), basis, "exponential"), torch.rand(6, 2, dtype=torch.float64)
    Phi = GridFeatures(found.grid, found.factors, basis)(X).to_dense()
    covariance, points = Phi @ whole(found) @ Phi.mT, list(X.unbind(-1))
    torch.testing.assert_close(found.covariance(points), covariance)
    torch.testing.assert_close(found.variance(points), covariance.diagonal())


def test_what_a_frozen_kernel_gives_is_computed_once() -> None:
    frozen = prior((6, 5))
    assert frozen.spectrum is frozen.spectrum
    assert frozen.node_kernels is frozen.node_kernels
    lengthscales = torch.tensor([0.3, 0.4], dtype=torch.float64, requires_grad=True)
    learned = replace(frozen, factors=stationary(lengthscales))
    assert learned.spectrum is not learned.spectrum
    assert learned.node_kernels is not learned.node_kernels


# ---------------------------------------------------------------- a rank that limits


def evidence(lengthscales: Tensor, stats: SufficientStatistics, rank: int) -> Tensor:
    return log_evidence(prior((9, 8), lengthscales=lengthscales, rank=rank).root(), stats, NOISE, MU)


def statistics(d: int, size: tuple[int, ...]) -> SufficientStatistics:
    """Sums over 25 rows; they do not depend on the kernel."""
    X, Y = data(25, d)
    return SufficientStatistics.from_data(grid_features(size)(torch.full((d,), 0.3).double()), X, Y)


def test_the_evidence_of_a_limited_rank_is_smooth_where_eigenpairs_swap() -> None:
    """Along a scan of one lengthscale values are continuous, and their differences those of the gradient."""
    stats, rank = statistics(2, (9, 8)), 12
    scan = torch.linspace(0.25, 0.45, 81, dtype=torch.float64)
    values, slopes, kept = [], [], set()
    for length in scan:
        lengthscales = torch.stack([length, torch.tensor(0.33, dtype=torch.float64)]).requires_grad_()
        value = evidence(lengthscales, stats, rank)
        values.append(value.detach())
        slopes.append(torch.autograd.grad(value, lengthscales)[0][0])
        spectrum = prior((9, 8), lengthscales=lengthscales.detach(), rank=rank).spectrum
        kept.add(tuple(map(tuple, spectrum.pairs.tolist())))
    assert len(kept) > 2
    change, slope = torch.stack(values).diff(), torch.stack(slopes)
    by_slope = (slope[1:] + slope[:-1]) / 2 * scan.diff()
    torch.testing.assert_close(change, by_slope, rtol=0, atol=0.05 * change.abs().max().item())


@pytest.mark.parametrize("rank", [7, 12, 20])
def test_the_gradient_of_a_limited_rank_equals_finite_differences(rank: int) -> None:
    stats = statistics(2, (9, 8))
    lengthscales = torch.tensor([0.31, 0.4], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda v: evidence(v, stats, rank), (lengthscales,), atol=1e-5)


@pytest.mark.parametrize("name", ["rbf", "exponential"])
def test_a_rank_that_keeps_all_that_counts_changes_nothing(name: str) -> None:
    found = prior((6, 7), name=name)
    torch.testing.assert_close(replace(found, rank=42).root().to_dense(), found.root().to_dense())
    assert not replace(found, rank=42).limited
    assert replace(found, rank=5).limited
    assert len(replace(found, rank=5).spectrum.pairs) == 5


@pytest.mark.parametrize("name", ["rbf", "exponential"])
def test_a_flat_spectrum_does_not_fade_away(name: str) -> None:
    """Where all eigenvalues are nearly equal, a cut at some rank leaves about that share of the variance."""
    length = torch.full((2,), 0.01, dtype=torch.float64)
    limited = prior((20, 20), name=name, lengthscales=length, rank=300)
    assert limited.limited
    assert InterpolationError(limited).rank_loss() < 1.4 * (1 - 300 / 400)


# ---------------------------------------------------------------- a sparse precision


@pytest.mark.parametrize("size", [(9,), (7, 6), (5, 4, 6)], ids=len)
@pytest.mark.parametrize("basis", ["spline", "keys"])
def test_the_precision_of_a_product_of_exponential_kernels_is_the_inverse_of_the_prior(
    size: tuple[int, ...], basis: Basis
) -> None:
    found = prior(size, basis, "exponential", exponential=True)
    assert found.sparse
    values, logdet = found.precision()
    K = torch.ones(1, 1, dtype=torch.float64)
    for T, k in zip(found.prefilter, found.node_kernels, strict=True):
        K = torch.kron(K, T @ k @ T.mT)
    eye = torch.eye(found.grid.num_points, dtype=torch.float64)
    torch.testing.assert_close(stencil_matmul(values, size, K), eye, rtol=0, atol=1e-8)
    torch.testing.assert_close(logdet, -torch.linalg.slogdet(K).logabsdet, rtol=1e-8, atol=1e-8)


def test_only_what_is_rough_in_every_dimension_and_affordable_is_sparse(monkeypatch: pytest.MonkeyPatch) -> None:
    found = prior((7, 6), name="exponential", exponential=True)
    assert found.sparse
    assert not replace(found, exponential=False).sparse
    assert not replace(found, factors=stationary(torch.full((2,), 1e6).double(), "exponential")).sparse
    assert not replace(found, rank=5).limited
    monkeypatch.setattr(priors, "BANDED_WORK", 100.0)
    assert not found.sparse
    assert replace(found, rank=5).limited
