"""Forecasts in the user's units against draws, and those of presence and amount against their limits."""

import numpy as np
import pytest
from scipy.special import expit
from scipy.stats import lognorm

from bo_scale.survey.mapping.forecast import Scaled, TwoPart, slopes
from bo_scale.survey.mapping.scales import Log

AMOUNT = np.array([0.3, -1.0, 2.0]), np.array([0.5, 1.2, 0.1])
PRESENCE = np.array([0.5, -3.0, 4.0]), np.array([1.0, 0.7, 2.0])
DRAWS = 400_000


def drawn(forecast: TwoPart) -> np.ndarray:
    rng = np.random.default_rng(0)
    (a, s), (b, t) = forecast.amount, forecast.presence
    return np.asarray(
        expit(b + t * rng.standard_normal((DRAWS, len(b)))) * np.exp(a + s * rng.standard_normal((DRAWS, len(a))))
    )


def test_presence_times_amount_is_as_drawn() -> None:
    forecast = TwoPart(AMOUNT, PRESENCE)
    draws = drawn(forecast)
    mean, sd = forecast.moments()
    np.testing.assert_allclose(mean, draws.mean(0), rtol=0.02)
    np.testing.assert_allclose(sd, draws.std(0), rtol=0.06)
    for threshold in (0.02, 0.5, 7.0):
        np.testing.assert_allclose(forecast.exceedance(threshold), (draws > threshold).mean(0), atol=0.004)
    for share in (0.025, 0.5, 0.975):
        quantile = forecast.quantile(share)
        assert [abs((each < q).mean() - share) < 0.004 for each, q in zip(draws.T, quantile, strict=True)] == [True] * 3


def test_what_is_present_everywhere_is_log_normal() -> None:
    everywhere = np.full(3, 60.0), np.full(3, 1e-3)
    forecast, plain = TwoPart(AMOUNT, everywhere), Scaled(Log(), *AMOUNT)
    for found, expected in zip(forecast.moments(), plain.moments(), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-9)
    np.testing.assert_allclose(forecast.exceedance(0.7), plain.exceedance(0.7), rtol=1e-9)
    np.testing.assert_allclose(forecast.quantile(0.9), plain.quantile(0.9), rtol=1e-9)
    np.testing.assert_allclose(plain.quantile(0.9), lognorm(AMOUNT[1], scale=np.exp(AMOUNT[0])).ppf(0.9), rtol=1e-9)


def test_what_is_known_exactly_has_no_spread() -> None:
    nothing = np.zeros(3)
    forecast = TwoPart((AMOUNT[0], nothing), (PRESENCE[0], nothing))
    value = expit(PRESENCE[0]) * np.exp(AMOUNT[0])
    mean, sd = forecast.moments()
    np.testing.assert_allclose(mean, value, rtol=1e-12)
    np.testing.assert_allclose(sd / mean, 0, atol=1e-7)
    np.testing.assert_allclose(forecast.quantile(0.2), value, rtol=1e-9)


def test_almost_nowhere_present_is_almost_zero() -> None:
    mean, sd = TwoPart((np.zeros(1), np.ones(1)), (np.full(1, -80.0), np.ones(1))).moments()
    assert 0 < mean[0] < 1e-30
    assert np.isfinite(sd[0])


@pytest.mark.parametrize("step", [1e-6])
def test_slopes_are_those_of_differences(step: float) -> None:
    log_a, logit_p = AMOUNT[0], PRESENCE[0]
    value = expit(logit_p) * np.exp(log_a)
    by_amount, by_presence = slopes(log_a, logit_p)
    np.testing.assert_allclose(by_amount, (expit(logit_p) * np.exp(log_a + step) - value) / step, rtol=1e-5)
    np.testing.assert_allclose(by_presence, (expit(logit_p + step) * np.exp(log_a) - value) / step, rtol=1e-5)
