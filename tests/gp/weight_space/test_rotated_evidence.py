"""The evidence in the rotated basis against dense Gaussians, and its quadratures against brute force."""

import math

import pytest
import torch
from cases import data, eigenfunctions
from torch import Tensor
from torch.distributions import MultivariateNormal

from bo_scale.errors import InvalidDataError
from bo_scale.gp.weight_space.features.base import FeatureMap
from bo_scale.gp.weight_space.langevin import langevin
from bo_scale.gp.weight_space.rotated_evidence import LogNormal, Quadrature, Rotated
from bo_scale.gp.weight_space.statistics import SufficientStatistics

WEIGHTS = LogNormal(1.2370, 1.2370)
SCALE, CONSTANT = torch.tensor(1.7).double(), torch.tensor(0.4).double()

D_ROWS = pytest.mark.parametrize("n", [40, 11, 5, 1], ids=lambda n: f"n={n}")


def float64(values: object) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


class Setting:
    """Eleven eigenfunctions, n rows of unequal noise, and the data's Rotated."""

    def __init__(self, n: int) -> None:
        self.features: FeatureMap = eigenfunctions(float64([0.4, 0.6]))
        self.X, self.Y = data(n, 2)
        self.D = torch.linspace(0.5, 2.0, n, dtype=torch.float64)
        stats = SufficientStatistics.from_data(self.features, self.X, self.Y, self.D)
        self.rotated = Rotated.of(stats, SCALE, CONSTANT)
        g = torch.Generator().manual_seed(3)
        self.log_weights = 0.8 * torch.randn(4, len(self.rotated.gram), generator=g, dtype=torch.float64)
        self.log_noise = float64([-3.0, -1.0, 0.0, 1.0])

    def rows(self, X: Tensor) -> Tensor:
        """F: features of unit prior weights along the directions of V."""
        return SCALE.sqrt() * self.features(X) @ self.rotated.rotation

    def dense(self, s: int) -> tuple[Tensor, Tensor, Tensor]:
        """F at the data, all ρ of one sample, and the covariance of its noise."""
        F = self.rows(self.X)
        rho = torch.ones(F.shape[-1], dtype=torch.float64)
        rho[: len(self.rotated.gram)] = self.log_weights[s].exp()
        return F, rho, (self.log_noise[s].exp() * self.D).diag()


def rotated(gram: list[float], z: list[float], rest: float, count: int) -> Rotated:
    return Rotated(torch.eye(len(gram)).double(), float64(gram), float64(z), float64(rest), float(count), float64(0.0))


# ---------------------------------------------------------------- priors


@pytest.mark.parametrize(("mode", "variance"), [(1.0, 100.0), (0.01, 0.04), (3.0, 0.04), (1e-6, 0.04)])
def test_a_log_normal_has_its_mode_and_variance(mode: float, variance: float) -> None:
    prior = LogNormal.of_mode(mode, variance)
    assert math.exp(prior.mean - prior.variance) == pytest.approx(mode, rel=1e-9)
    t = math.exp(prior.variance)
    assert t * (t - 1) * math.exp(2 * prior.mean) == pytest.approx(variance, rel=1e-6)


def test_the_papers_prior_of_weights() -> None:
    prior = LogNormal.of_mode(1.0, 100.0)
    assert prior.mean == pytest.approx(1.2370, abs=5e-5)
    assert prior.variance == pytest.approx(1.2370, abs=5e-5)


def test_noise_that_is_huge_beside_the_priors_variance_has_a_prior() -> None:
    assert LogNormal.of_mode(1e9, 0.04).variance > 0


# ---------------------------------------------------------------- evidence and posterior


@D_ROWS
def test_evidence_is_the_dense_log_density(n: int) -> None:
    case = Setting(n)
    value = case.rotated.log_evidence(case.log_weights, case.log_noise)[0]
    for s in range(4):
        F, rho, noise = case.dense(s)
        expected = MultivariateNormal(CONSTANT.expand(n), (F * rho) @ F.mT + noise).log_prob(case.Y[:, 0])
        torch.testing.assert_close(value[s], expected, rtol=1e-8, atol=1e-8)


@D_ROWS
def test_gradients_of_the_evidence_are_those_of_its_value(n: int) -> None:
    case = Setting(n)
    u, v = case.log_weights.requires_grad_(), case.log_noise.requires_grad_()
    value, by_weights, by_noise = case.rotated.log_evidence(u, v)
    expected = torch.autograd.grad(value.sum(), (u, v))
    torch.testing.assert_close(by_weights, expected[0])
    torch.testing.assert_close(by_noise, expected[1])
    step = 1e-5
    up, down = (case.rotated.log_evidence(u.detach(), v.detach() + sign * step)[0] for sign in (1, -1))
    torch.testing.assert_close(by_noise.detach(), (up - down) / (2 * step), rtol=1e-5, atol=1e-6)


@D_ROWS
def test_posterior_moments_are_those_of_the_dense_gp(n: int) -> None:
    case = Setting(n)
    means, variances = case.rotated.posterior_moments(case.log_weights, case.log_noise)
    Z = data(7, 2, seed=1)[0]
    for s in range(4):
        F, rho, noise = case.dense(s)
        G = case.rows(Z)
        gain = torch.linalg.solve((F * rho) @ F.mT + noise, (F * rho) @ G.mT).mT
        torch.testing.assert_close(G @ means[s], gain @ (case.Y[:, 0] - CONSTANT), rtol=1e-6, atol=1e-8)
        covariance = (G * rho) @ G.mT - gain @ (F * rho) @ G.mT
        torch.testing.assert_close((G * variances[s]) @ G.mT, covariance, rtol=1e-6, atol=1e-8)


@D_ROWS
def test_the_rank_is_that_of_the_data(n: int) -> None:
    case = Setting(n)
    assert len(case.rotated.gram) == min(n, 11)
    V = case.rotated.rotation
    torch.testing.assert_close(V.mT @ V, torch.eye(11).double())


def test_without_data_nothing_is_known() -> None:
    empty = SufficientStatistics.empty(eigenfunctions(float64([0.4, 0.6])), 1)
    nothing = Rotated.of(empty, SCALE, CONSTANT)
    none = torch.zeros(2, 0).double()
    assert len(nothing.gram) == 0
    assert nothing.log_evidence(none, torch.zeros(2).double())[0].tolist() == [0.0, 0.0]
    means, variances = nothing.posterior_moments(none, torch.zeros(2).double())
    assert (means == 0).all()
    assert (variances == 1).all()


def test_an_offset_of_the_targets_costs_no_digits() -> None:
    case = Setting(40)
    stats = SufficientStatistics.from_data(case.features, case.X, case.Y + 1e5, case.D)
    value = Rotated.of(stats, SCALE, CONSTANT + 1e5).log_evidence(case.log_weights, case.log_noise)[0]
    torch.testing.assert_close(
        value, case.rotated.log_evidence(case.log_weights, case.log_noise)[0], rtol=1e-6, atol=1e-6
    )


def test_statistics_of_several_outputs_are_refused() -> None:
    X, Y = data(8, 2, 2)
    stats = SufficientStatistics.from_data(eigenfunctions(float64([0.4, 0.6])), X, Y)
    with pytest.raises(InvalidDataError, match="one output, got 2"):
        Rotated.of(stats, SCALE, CONSTANT)


# ---------------------------------------------------------------- quadrature


def brute_force(r: Rotated, noise: LogNormal, per_axis: int) -> tuple[Tensor, Tensor]:
    """Means and variances of log ρ and, last, of log σ², on a grid of all of them at once."""
    like = [WEIGHTS] * len(r.gram) + [noise]
    reach = [7 * prior.variance**0.5 for prior in like]
    axes = [torch.linspace(p.mean - w, p.mean + w, per_axis).double() for p, w in zip(like, reach, strict=True)]
    grid = torch.cartesian_prod(*axes)
    log_density = r.log_evidence(grid[:, :-1], grid[:, -1])[0]
    for column, prior in zip(grid.mT, like, strict=True):
        log_density = log_density - 0.5 * (column - prior.mean).square() / prior.variance
    share = log_density.softmax(0).unsqueeze(-1)
    mean = (share * grid).sum(0)
    return mean, (share * (grid - mean).square()).sum(0)


def noise_moments(found: Quadrature) -> tuple[Tensor, Tensor]:
    share = found.log_density.softmax(0)
    mean = (share * found.log_noise).sum()
    return mean, (share * (found.log_noise - mean).square()).sum()


CASES = [
    pytest.param([5.0, 0.3], [2.0, -1.0], 0.5, 6, 0.05, 61, id="two"),
    pytest.param([5.0, 0.3], [30.0, 0.0], 0.5, 6, 0.05, 61, id="huge"),
    pytest.param([2.0, 0.5], [1.0, 0.3], 0.0, 2, 0.05, 61, id="rank=n"),
    pytest.param([3.0, 1.0, 0.1], [1.5, 0.2, -1.0], 0.3, 5, 0.1, 21, id="three"),
]


@pytest.mark.parametrize(("gram", "z", "rest", "count", "mode", "per_axis"), CASES)
def test_noise_and_weights_have_the_moments_of_brute_force(
    gram: list[float], z: list[float], rest: float, count: int, mode: float, per_axis: int
) -> None:
    r, noise = rotated(gram, z, rest, count), LogNormal.of_mode(mode, 0.04)
    mean, variance = brute_force(r, noise, per_axis)
    found = Quadrature.of(r, WEIGHTS, noise)
    moments, expected = torch.stack(noise_moments(found)), torch.stack([mean[-1], variance[-1]])
    torch.testing.assert_close(moments, expected, rtol=0.01, atol=5e-3)
    log_weights, log_noise = found.draw(1000, torch.Generator().manual_seed(0))
    drawn = torch.cat([log_weights, log_noise.unsqueeze(-1)], -1)
    standard_error = (variance / len(drawn)).sqrt()
    assert ((drawn.mean(0) - mean).abs() < 5 * standard_error).all()
    torch.testing.assert_close(drawn.var(0), variance, rtol=0.2, atol=0.0)


def noise_on_a_grid(r: Rotated, noise: LogNormal) -> tuple[Tensor, Tensor]:
    """Log σ² far beyond its prior, and the probability of each node: every weight integrated on a fine grid."""
    reach = 12 * noise.variance**0.5
    nodes = torch.linspace(noise.mean - reach, noise.mean + reach, 1201).double()
    u = torch.linspace(-12.0, 30.0, 401).double()
    total = r.gram.reshape(-1, 1, 1) * u.exp() + nodes.exp().unsqueeze(-1)
    inner = -0.5 * (r.projection.reshape(-1, 1, 1).square() / total + total.log())
    inner = inner - 0.5 * (u - WEIGHTS.mean).square() / WEIGHTS.variance
    log_density = inner.logsumexp(-1).sum(0) - 0.5 * (nodes - noise.mean).square() / noise.variance
    free = r.count - len(r.gram)
    return nodes, (log_density - 0.5 * (r.rest / nodes.exp() + free * nodes)).softmax(0)


POSTERIORS = [
    pytest.param([5.0], [1.0], 0.0, 1, 1e-2, id="one-row"),
    pytest.param([], [], 0.0, 0, 1e-2, id="no-rows"),
    pytest.param([], [], 1.0, 5, 1e-4, id="no-weights"),
    pytest.param([5.0, 3.0], [1e4, 0.1], 1.0, 50, 1e-6, id="huge"),
    pytest.param([50.0, 30.0, 1e-3], [0.0] * 3, 0.0, 3, 1e-6, id="constant"),
    pytest.param([0.005] * 10, [0.5] * 10, 1e-6, 11, 1e-6, id="noisy"),
    pytest.param([0.1] * 10, [1.0] * 10, 0.0, 10, 1e-4, id="plateau"),
    pytest.param([0.02] * 10, [1.0] * 10, 3e-6, 13, 1e-6, id="two-modes"),
]


@pytest.mark.parametrize(("gram", "z", "rest", "count", "mode"), POSTERIORS)
def test_nodes_of_the_noise_miss_no_mass_and_have_its_moments(
    gram: list[float], z: list[float], rest: float, count: int, mode: float
) -> None:
    r, noise = rotated(gram, z, rest, count), LogNormal.of_mode(mode, 0.04)
    found = Quadrature.of(r, WEIGHTS, noise)
    nodes, share = noise_on_a_grid(r, noise)
    missed = share[(nodes < found.log_noise[0]) | (nodes > found.log_noise[-1])].sum()
    assert missed < 1e-3
    mean = (share * nodes).sum()
    sd = (share * (nodes - mean).square()).sum().sqrt()
    found_mean, found_variance = noise_moments(found)
    assert abs(found_mean - mean) < 0.03 * sd
    torch.testing.assert_close(found_variance.sqrt(), sd, rtol=0.03, atol=0.0)


def test_draws_of_the_noise_follow_its_distribution() -> None:
    r, noise = rotated([2.0, 0.5], [1.0, 0.3], 0.2, 4), LogNormal.of_mode(0.05, 0.04)
    drawn = Quadrature.of(r, WEIGHTS, noise).draw(1000, torch.Generator().manual_seed(1))[1].sort().values
    nodes, share = noise_on_a_grid(r, noise)
    cumulative = (share.cumsum(0) - 0.5 * share)[torch.searchsorted(nodes, drawn).clamp_max(len(nodes) - 1)]
    steps = torch.linspace(0.0, 1.0, len(drawn)).double()
    assert (cumulative - steps).abs().max() * len(drawn) ** 0.5 < 2.4  # Kolmogorov and Smirnov, at 0.002 %


def test_the_moments_are_those_of_long_chains() -> None:
    r, noise = rotated([30.0, 2.0, 0.1], [4.0, -0.5, 1.0], 0.4, 9), LogNormal.of_mode(0.05, 0.04)

    def target(state: Tensor) -> tuple[Tensor, Tensor]:
        value, by_weights, by_noise = r.log_evidence(state[:, :3], state[:, 3])
        means, variances = (
            float64([WEIGHTS.mean] * 3 + [noise.mean]),
            float64([WEIGHTS.variance] * 3 + [noise.variance]),
        )
        off = (state - means) / variances
        value = value - 0.5 * (off * (state - means)).sum(-1)
        return value, torch.cat([by_weights, by_noise.unsqueeze(-1)], -1) - off

    scale = float64([1.0, 1.0, 1.0, 0.4])
    start = float64([0.0, 0.0, 0.0, -3.0]).expand(100, 4)
    chains = langevin(target, start, scale, 1000, 300, 5, torch.Generator().manual_seed(0)).states.flatten(0, 1)
    log_weights, log_noise = Quadrature.of(r, WEIGHTS, noise).draw(1200, torch.Generator().manual_seed(0))
    drawn = torch.cat([log_weights, log_noise.unsqueeze(-1)], -1)
    assert ((drawn.mean(0) - chains.mean(0)).abs() < 0.18 * chains.std(0)).all()
    torch.testing.assert_close(drawn.std(0), chains.std(0), rtol=0.12, atol=0.0)


def test_known_noise_is_one_value() -> None:
    found = Quadrature.of(rotated([5.0, 0.3], [2.0, -1.0], 0.5, 6), WEIGHTS, None)
    log_weights, log_noise = found.draw(500, torch.Generator().manual_seed(0))
    assert log_weights.shape == (500, 2)
    assert (log_noise == 0).all()
    u = torch.linspace(-10.0, 12.0, 2001).double()
    total = 5.0 * u.exp() + 1.0
    share = (-0.5 * (4.0 / total + total.log()) - 0.5 * (u - 1.2370).square() / 1.2370).softmax(0)
    mean = (share * u).sum()
    assert abs(log_weights[:, 0].mean() - mean) < 4 * log_weights[:, 0].std() / 500**0.5


def test_draws_without_data_are_of_the_prior_and_have_no_weights() -> None:
    noise = LogNormal.of_mode(0.05, 0.04)
    log_weights, log_noise = Quadrature.of(rotated([], [], 0.0, 0), WEIGHTS, noise).draw(1000)
    assert log_weights.shape == (1000, 0)
    assert abs(log_noise.mean() - noise.mean) < 4 * (noise.variance / 1000) ** 0.5
    torch.testing.assert_close(log_noise.var(), float64(noise.variance), rtol=0.2, atol=0.0)


def test_draws_are_a_function_of_the_generator() -> None:
    found = Quadrature.of(rotated([5.0, 0.3], [2.0, -1.0], 0.5, 6), WEIGHTS, LogNormal.of_mode(0.05, 0.04))
    a, b, c = (found.draw(5, torch.Generator().manual_seed(seed))[0] for seed in (1, 1, 2))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)


@pytest.mark.parametrize(("z", "mode"), [(1e8, 1e-6), (0.0, 1e-6), (1e-8, 10.0), (1e8, 10.0)])
def test_extremes_give_finite_draws(z: float, mode: float) -> None:
    r = rotated([1e4, 1.0, 1e-9], [z, z, z], z**2 * 1e-3, 20)
    for part in Quadrature.of(r, WEIGHTS, LogNormal.of_mode(mode, 0.04)).draw(20):
        assert part.isfinite().all()
