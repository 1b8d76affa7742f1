"""Statistics that an earlier grid gathered, seen through the interpolation of a later one, against dense matrices."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from cases import data, stationary
from torch import Tensor

from bo_scale.gp.linalg.kronecker import KroneckerColumns, kronecker_matmul
from bo_scale.gp.weight_space.evidence import log_evidence
from bo_scale.gp.weight_space.features.grid.features import GridFeatures
from bo_scale.gp.weight_space.features.grid.inherited_gram import InheritedGram, inherited, transfer
from bo_scale.gp.weight_space.features.grid.interpolation import Basis, Grid
from bo_scale.gp.weight_space.posterior import WeightSpacePosterior
from bo_scale.gp.weight_space.statistics import SufficientStatistics

NOISE, MU = torch.tensor(0.02, dtype=torch.float64), torch.tensor(0.3, dtype=torch.float64)
OLD = Grid((0.0, 0.0), (1.0, 1.0), (6, 5))
"""Cells of 1/3 and 1/2."""
GROWN = Grid((-1 / 3, 0.0), (1.0, 2.0), (7, 7))
FINE = Grid((-2 / 3, -0.5), (4 / 3, 2.5), (16, 16))
"""Cells of 2/13 and 3/13: other nodes, among them all margins of the grids before."""
LINES = [pytest.param((GROWN, OLD), id="grown"), pytest.param((FINE, OLD), id="fine"),
         pytest.param((FINE, GROWN, OLD), id="two")]  # fmt: skip


def features(line: tuple[Grid, ...], basis: Basis) -> GridFeatures:
    lengthscales = torch.tensor([0.5, 0.7], dtype=torch.float64)
    return GridFeatures(line[0], stationary(lengthscales), basis, ancestors=line[1:])


def through(line: tuple[Grid, ...], basis: Basis, X: Tensor) -> Tensor:
    """Rows that the last grid of a line saw, as rows on its first: φ_k T_k W_k, W the interpolation of node values."""
    rows = features(line[-1:], basis)(X).to_dense()
    for new, old in pairwise(reversed(line)):  # from the earliest on: new is the older of the two here
        before, after = features((new,), basis), features((old,), basis)
        nodes = torch.cartesian_prod(*new.nodes()).reshape(-1, 2)
        rows = rows @ torch.kron(*before.prior.prefilter) @ after(nodes).to_dense()
    return rows


@pytest.mark.parametrize("basis", ["spline", "keys"])
@pytest.mark.parametrize("line", LINES)
def test_a_gram_of_several_grids_equals_the_dense_sum(line: tuple[Grid, ...], basis: Basis) -> None:
    """Also after more rows, on the newest grid."""
    (X, Y), Xn = data(20, 2), data(8, 2, seed=1)[0]
    weights = torch.rand(28, dtype=torch.float64)
    stats = SufficientStatistics.from_data(features(line[-1:], basis), X, Y, 1 / weights[:20])
    for i in range(len(line) - 2, -1, -1):
        stats = inherited(stats, features(line[i:], basis))
    phi = features(line, basis)
    gram = stats.gram
    assert isinstance(gram, InheritedGram)
    assert [part.size for part in gram.parts] == [grid.size for grid in line]
    gram = gram.add_rows(phi(Xn), weights[20:])
    seen, new = through(line, basis, X), phi(Xn).to_dense()
    whole = (seen.mT * weights[:20]) @ seen + (new.mT * weights[20:]) @ new
    torch.testing.assert_close(gram.to_dense(), whole)
    torch.testing.assert_close(gram.combine(gram.scale(0.25), -1.0).to_dense(), 0.75 * whole)
    torch.testing.assert_close(gram.to(torch.device("cpu")).to_dense(), whole)
    M = torch.randn(len(whole), 3, dtype=torch.float64)
    torch.testing.assert_close(gram.matmul(M), whole @ M)
    scale = torch.tensor(2.5, dtype=torch.float64)
    R = phi.prior_root()
    some = KroneckerColumns(0.5 + torch.rand(len(R.index[::3])).double(), *R.factors, index=R.index[::3])
    for root in (R, some):
        dense = root.to_dense()
        torch.testing.assert_close(gram.congruence(root, scale), 2.5 * dense.mT @ whole @ dense)
    assert phi.empty_gram().to_dense().abs().max() == 0
    precision = weights[:20]
    z = Y[:, 0] - stats.center
    torch.testing.assert_close(stats.projection[:, 0], seen.mT @ (precision * z))
    torch.testing.assert_close(stats.feature_sum, seen.mT @ precision)


@pytest.mark.parametrize("basis", ["spline", "keys"])
@pytest.mark.parametrize("line", LINES)
def test_the_posterior_is_that_of_the_old_pseudo_likelihood_under_the_new_prior(
    line: tuple[Grid, ...], basis: Basis
) -> None:
    """Evidence, its gradient towards the lengthscales, and posterior, with more data after the change."""
    (X, Y), (Xn, Yn), Xt = data(20, 2), data(8, 2, seed=1), data(5, 2, seed=2)[0]
    stats = SufficientStatistics.from_data(features(line[-1:], basis), X, Y)
    for i in range(len(line) - 2, -1, -1):
        stats = inherited(stats, features(line[i:], basis))
    stats = stats.observe(features(line, basis), Xn, Yn)
    lengthscales = torch.tensor([0.5, 0.7], dtype=torch.float64, requires_grad=True)
    phi = replace(features(line, basis), factors=stationary(lengthscales))
    R = phi.prior_root()
    F, Ft = (
        rows @ R.to_dense() for rows in (torch.cat([through(line, basis, X), phi(Xn).to_dense()]), phi(Xt).to_dense())
    )
    y, A = torch.cat([Y, Yn])[:, 0], F @ F.mT + NOISE * torch.eye(28, dtype=torch.float64)
    reference = torch.distributions.MultivariateNormal(MU.expand(28), A).log_prob(y)
    ours = log_evidence(R, stats, NOISE, MU)
    torch.testing.assert_close(ours, reference, rtol=1e-9, atol=1e-9)
    gradients = [torch.autograd.grad(v, lengthscales, retain_graph=True)[0] for v in (ours, reference)]
    torch.testing.assert_close(*gradients, rtol=1e-6, atol=1e-6)
    posterior = WeightSpacePosterior.from_statistics(features(line, basis), stats, NOISE, MU)
    G = torch.linalg.solve(A, F @ Ft.mT).detach()
    mean, covariance = MU + G.mT @ (y - MU), Ft @ Ft.mT - Ft @ F.mT @ G
    torch.testing.assert_close(posterior.mean(Xt), mean.detach(), rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(posterior.covariance(Xt), covariance.detach(), rtol=1e-8, atol=1e-8)


def test_an_inherited_gram_is_restored_from_its_values() -> None:
    phi, (X, Y) = features((GROWN, OLD), "spline"), data(10, 2)
    stats = inherited(SufficientStatistics.from_data(features((OLD,), "spline"), X, Y), phi)
    again = SufficientStatistics.empty(phi, 1).restored(stats.state())
    assert torch.equal(again.gram.to_dense(), stats.gram.to_dense())


@pytest.mark.parametrize("basis", ["spline", "keys"])
def test_a_transfer_takes_coefficients_of_a_function_to_those_on_the_old_grid(basis: Basis) -> None:
    w, X = torch.rand(FINE.num_points, 1, dtype=torch.float64), torch.cartesian_prod(*OLD.nodes())
    seen = kronecker_matmul(transfer(OLD, FINE, basis), w)
    old, new = features((OLD,), basis), features((FINE,), basis)
    inner = ((X >= 0) & (X <= 1)).all(-1) if basis == "keys" else torch.ones(len(X), dtype=torch.bool)
    torch.testing.assert_close((old(X) @ seen)[inner], (new(X) @ w)[inner])
