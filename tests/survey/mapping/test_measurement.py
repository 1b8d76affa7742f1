"""Forecasts of new measurements, against simulations and exact distributions."""

import numpy as np
import pytest
from scipy import stats
from scipy.special import expit

from bo_scale.survey.mapping.forecast import Scaled
from bo_scale.survey.mapping.measurement import MeasuredAmount, MeasuredCount, Measurement, crps
from bo_scale.survey.mapping.scales import Identity, Log

DRAWS = 60_000
MEAN, SD = np.array([-2.0, 0.3, 1.1]), np.array([0.5, 0.05, 1.0])
OF = np.array([20.0, 7.0, 1.0])
RATE = np.array([3.5, 400.0, 0.2])


def crps_of_normal(mean: np.ndarray, sd: np.ndarray, value: np.ndarray) -> np.ndarray:
    """σ (z (2 Φ(z) − 1) + 2 φ(z) − 1/√π)."""
    z = (value - mean) / sd
    return np.asarray(sd * (z * (2 * stats.norm.cdf(z) - 1) + 2 * stats.norm.pdf(z) - np.pi**-0.5))


def cases() -> dict[str, tuple[Measurement, np.ndarray]]:
    """Forecasts, and draws of what they are about."""
    rng = np.random.default_rng(3)
    z = MEAN + SD * rng.normal(size=(DRAWS, 3))
    present = rng.random((DRAWS, 3)) < expit(MEAN + 1.5 * rng.normal(size=(DRAWS, 3)))
    return {
        "log1p": (Scaled(Log(1.0, "log1p"), MEAN + 2, SD), np.maximum(np.exp(z + 2) - 1, 0)),
        "share": (MeasuredCount(MEAN, SD, OF, False), rng.binomial(OF.astype(int), expit(z)) / OF),
        "rate": (MeasuredCount(MEAN, SD, RATE, True), rng.poisson(RATE * np.exp(z)) / RATE),
        "amount": (
            MeasuredAmount.of((MEAN, SD), (MEAN, np.full(3, 1.5))), np.where(present, np.exp(z), 0.0)
        ),
    }  # fmt: skip


@pytest.mark.parametrize("name", cases())
def test_distributions_are_those_of_draws(name: str) -> None:
    forecast, drawn = cases()[name]
    mean, sd = forecast.moments()
    np.testing.assert_allclose(mean, drawn.mean(0), rtol=0.03)
    np.testing.assert_allclose(sd, drawn.std(0), rtol=0.05)
    for threshold in (0.0, 0.31, 2.0):
        np.testing.assert_allclose(forecast.exceedance(threshold), (drawn > threshold).mean(0), atol=0.008)
    for share in (0.025, 0.5, 0.975):
        ends = forecast.quantile(share)
        assert ((drawn <= ends).mean(0) >= share - 0.006).all()
        assert ((drawn < ends).mean(0) <= share + 0.006).all()
    at = np.array([0.15, 0.0, 5.0])
    np.testing.assert_allclose(forecast.below(at), (drawn < at).mean(0) / 2 + (drawn <= at).mean(0) / 2, atol=0.008)


def test_a_count_that_is_certain_has_an_interval_of_one_number() -> None:
    never = MeasuredCount(np.array([-60.0]), np.array([0.1]), np.array([50.0]), exposed=False)
    assert never.quantile(0.975) == 0
    often = MeasuredCount(np.array([np.log(4.0)]), np.array([0.0]), np.array([1e6]), exposed=True)
    np.testing.assert_allclose(often.quantile(0.975) * 1e6, stats.poisson.ppf(0.975, 4e6), rtol=1e-9)


def test_the_score_is_that_of_a_normal() -> None:
    value = np.array([-2.5, 0.3, 4.0])
    found = crps(Scaled(Identity(), MEAN, SD), value)
    np.testing.assert_allclose(found, crps_of_normal(MEAN, SD, value), rtol=2e-3, atol=1e-4)
