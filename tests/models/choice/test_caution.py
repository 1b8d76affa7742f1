"""Cautious noise, compared with its equation and with predictions of left-out rows by dense matrices."""

from dataclasses import replace

import pytest
import torch
from scipy import stats
from torch import Tensor

from bo_scale.models.choice import caution
from bo_scale.models.choice.caution import FEWEST_ROWS, PRIOR_ROWS, UNEXPLAINED_ROWS, GaussianNoise, cautious_noise
from bo_scale.models.choice.plan import Plan
from bo_scale.models.fitting.exact import ExactGP


def exact(n: int, noise: float) -> tuple[ExactGP, Tensor]:
    """An exact GP at its initial hyperparameters, and errors of its rows as predicted from the others, one by one."""
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(n, 2, generator=generator, dtype=torch.float64)
    model = Plan("exact", "matern32").build(X, torch.sin(5 * X[:, :1]))
    gp = ExactGP.of(model)
    gp.modules.likelihood.noise = noise
    with torch.no_grad():
        A = gp.modules.covar_module(gp.X).to_dense() + noise * torch.eye(n)
        y, errors = gp.Y[:, 0] - gp.modules.mean_module.constant, torch.empty(n).double()
        for i in range(n):
            others = [j for j in range(n) if j != i]
            errors[i] = y[i] - A[i, others] @ torch.linalg.solve(A[others][:, others], y[others])
    return gp, errors


@pytest.mark.parametrize(("n", "counts"), [(12, FEWEST_ROWS), (70, 70)])
def test_it_is_the_mean_of_squares_with_prior_rows(n: int, counts: int) -> None:
    gp, errors = exact(n, noise=1e-3)
    prior = PRIOR_ROWS * errors.square().mean() + UNEXPLAINED_ROWS * gp.Y.var(unbiased=False)
    expected = (counts * 1e-3 + prior) / (counts + PRIOR_ROWS + UNEXPLAINED_ROWS)
    torch.testing.assert_close(cautious_noise(gp, n), expected.unsqueeze(0))
    torch.testing.assert_close(gp.noise_scale(), torch.tensor([1e-3]).double())


def test_it_costs_at_most_a_premium(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most rows have a close neighbour with the same value, and one of the others lies far off."""
    X = torch.cat([torch.arange(20).double(), torch.arange(20).double() + 0.01]).unsqueeze(-1)
    Y = torch.sin(2 * X.floor())
    X, Y = (
        torch.cat([X, torch.tensor([[30.0], [40.0]]).double()]),
        torch.cat([Y, torch.tensor([[6.0], [-6.0]]).double()]),
    )
    gp = ExactGP.of(Plan("exact", "matern32").build(X, Y))
    gp.modules.covar_module.base_kernel.lengthscale = 0.5
    gp.modules.likelihood.noise = 1e-4
    costs, noises = [], []
    for premium in (100.0, 0.5, 0.1):
        monkeypatch.setattr(caution, "PREMIUM", premium)
        gp.modules.likelihood.noise = 1e-4
        noises.append(cautious_noise(gp, len(X)).item())
        before = log_density(gp)
        gp.modules.likelihood.noise = noises[-1]
        costs.append(before - log_density(gp))
    assert costs[0] > 0.5 >= costs[1] > 0.1 >= costs[2]
    assert noises[0] > noises[1] > noises[2] >= 1e-4
    gp.modules.likelihood.noise = 1e-4
    monkeypatch.setattr(caution, "PREMIUM", 0.5)
    many = cautious_noise(gp, 10_000)  # at most .01 nats
    gp.modules.likelihood.noise = many
    assert log_density(gp) > before - 0.01


def log_density(gp: ExactGP) -> float:
    errors, variances = gp.left_out()
    return -0.5 * (errors.square() / variances + variances.log()).mean().item()


def test_the_prior_fades_as_rows_are_added_and_never_lowers_the_noise() -> None:
    gp, errors = exact(30, noise=1e-3)
    few, many = cautious_noise(gp, 100), cautious_noise(gp, 10_000)
    assert 1e-3 < many < few < errors.square().mean()
    noisy, errors = exact(30, noise=4.0)
    assert errors.square().mean() < 4.0
    torch.testing.assert_close(cautious_noise(noisy, 30), torch.tensor([4.0]).double())


def overconfident(noise: float = 1e-6) -> ExactGP:
    """An exact GP with hyperparameters of a smooth function, and rows of one with noise of standard deviation .3."""
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(200, 2, generator=generator, dtype=torch.float64)
    Y = torch.sin(5 * X[:, :1]) + 0.3 * torch.randn(200, 1, generator=generator, dtype=torch.float64)
    gp = ExactGP.of(Plan("exact", "rbf").build(X, Y))
    gp.modules.covar_module.base_kernel.lengthscale = 0.7
    gp.modules.likelihood.noise = noise
    return gp


def test_noise_that_left_out_rows_contradict_is_doubled_while_their_density_rises(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Hyperparameters of a fit to other rows say that there is no noise, and caution may cost nothing."""
    monkeypatch.setattr(caution, "PREMIUM", 0.0)
    monkeypatch.setattr(caution, "UNEXPLAINED_ROWS", 0.0)
    monkeypatch.setattr(caution, "PRIOR_ROWS", 0.0)
    gp = overconfident()
    noise = cautious_noise(gp, 10_000)
    exponent = (noise / 1e-6).log2()
    torch.testing.assert_close(exponent, exponent.round())
    densities = {}
    for factor in (0.5, 1.0, 2.0):
        gp.modules.likelihood.noise = factor * noise
        densities[factor] = log_density(gp)
    assert densities[1.0] > max(densities[0.5], densities[2.0])
    truth = 0.3**2 / 0.62  # in units of the variance of the targets
    assert truth / 2 < noise < truth * 2


def test_noise_that_left_out_rows_do_not_contradict_stays() -> None:
    gp = overconfident(noise=1.0)
    errors, variances = gp.left_out()
    assert (errors.square() / variances).mean() < 0.5  # far above the true noise; the mean is .25
    found = caution._enough(gp, gp.noise_scale(), GaussianNoise(), errors, variances)
    torch.testing.assert_close(found, gp.noise_scale())


def test_student_t_noise_with_many_degrees_of_freedom_is_gaussian(monkeypatch: pytest.MonkeyPatch) -> None:
    gp, _ = exact(30, noise=1e-3)
    monkeypatch.setattr(caution, "UNEXPLAINED_ROWS", 0.0)  # values about their median, or their mean
    monkeypatch.setattr(caution, "PREMIUM", torch.inf)
    monkeypatch.setattr(caution, "TOTAL_PREMIUM", torch.inf)
    torch.testing.assert_close(cautious_noise(gp, 30, 1e6), cautious_noise(gp, 30), rtol=1e-3, atol=0.0)


def test_of_student_t_noise_it_is_the_mean_of_squares_of_its_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are left out one by one with the noise variances that two updates of weights give them."""
    monkeypatch.setattr(caution, "PREMIUM", torch.inf)
    monkeypatch.setattr(caution, "TOTAL_PREMIUM", torch.inf)
    gp, _ = exact(30, noise=1e-3)
    gp.Y[4] += 3.0
    gp = replace(gp, D=torch.rand(30, 1, generator=torch.Generator().manual_seed(1), dtype=torch.float64) + 0.5)
    with torch.no_grad():
        K, y = gp.modules.covar_module(gp.X).to_dense(), gp.Y[:, 0] - gp.modules.mean_module.constant
        V, errors = 1e-3 * gp.D[:, 0], torch.empty(30).double()
        for update in range(3):
            A = K + V.diag()
            left, variances = y - K @ torch.linalg.solve(A, y), (K - K @ torch.linalg.solve(A, K)).diagonal()
            squares = (left.square() + variances) / 1e-3
            if update < 2:
                V = 1e-3 * (3 + squares) / 4
        for i in range(30):
            others = [j for j in range(30) if j != i]
            errors[i] = y[i] - A[i, others] @ torch.linalg.solve(A[others][:, others], y[others])
    centred = gp.Y[:, 0] - gp.Y[:, 0].median()
    scales = [stats.t.fit(values.numpy(), fdf=3.0, floc=0.0)[2] for values in (errors, centred)]
    prior = PRIOR_ROWS * scales[0] ** 2 + UNEXPLAINED_ROWS * scales[1] ** 2
    expected = (50 * 1e-3 + prior) / (50 + PRIOR_ROWS + UNEXPLAINED_ROWS)
    assert cautious_noise(gp, 30, 3.0).item() == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("size", [3.0, 1e4])
def test_student_t_noise_is_cautious_whatever_the_size_of_outliers(size: float) -> None:
    """Its squares, of rows left out and of all targets, are those of the scale of most values."""
    gp, _ = exact(30, noise=1e-3)
    spoilt = gp.Y.clone()
    spoilt[4] += size
    D = torch.ones_like(gp.D)
    D[4] = size**2 / 1e-3 / 4  # 1/E[w] of three degrees of freedom
    with_outlier, without = replace(gp, Y=spoilt, D=D), replace(gp, D=torch.ones_like(gp.D))
    raised, expected = cautious_noise(with_outlier, 30, 3.0), cautious_noise(without, 30, 3.0)
    assert expected > 1.5e-3
    assert 0.5 * expected < raised < 2 * expected
