import numpy as np
import pytest
import torch
from posteriors import THRESHOLD, Case, scores
from scipy import stats

from bo_scale.survey.choice.misclassification import expected_misclassification


def test_expected_misclassification_is_that_of_simulated_measurements(exact: Case) -> None:
    state = exact.state()
    found = scores(state, "misclassification")
    weights, mean, variance, cross = (part.numpy() for part in state.cells())
    u = np.random.default_rng(0).normal(size=20_000)
    for index in (2, 13):
        gain = cross[index] / float(state.variances()[index] + state.noise)  # E[f | y] = m + gain (y − m(x))
        s = np.sqrt(variance - gain * cross[index])
        y = float(state.variances()[index] + state.noise) ** 0.5 * u
        p = stats.norm.cdf((mean + gain * y[:, None] - THRESHOLD) / s)
        now = stats.norm.cdf((mean - THRESHOLD) / np.sqrt(variance))
        fall = np.minimum(now, 1 - now) @ weights - np.minimum(p, 1 - p) @ weights
        assert fall.mean() == pytest.approx(float(found[index]), abs=5 * fall.std() / 20_000**0.5)
    assert (found >= 0).all()


def test_expected_misclassification_at_its_limits() -> None:
    mean = torch.tensor([0.0, 0.5, 1.0, 3.0, -2.0], dtype=torch.float64)
    variance = torch.tensor([1.0, 0.3, 2.0, 0.5, 4.0], dtype=torch.float64)
    now = stats.norm.cdf(-(mean - 1).abs() / variance.sqrt())
    for nothing in (0.0, 1e-14):
        found = expected_misclassification(mean, variance, nothing * variance[None], 1.0)[0]
        np.testing.assert_allclose(found, now, rtol=1e-5)
    everything = expected_misclassification(mean, variance, variance[None], 1.0)
    np.testing.assert_allclose(everything, np.zeros((1, 5)), atol=1e-7)
    beyond = expected_misclassification(mean, variance, variance[None] * (1 + 1e-9), 1.0)
    np.testing.assert_array_equal(beyond[0] < 1e-7, np.ones(5, dtype=bool))
    shares = torch.linspace(0, 1, 30, dtype=torch.float64)[:, None] * variance
    falling = expected_misclassification(mean, variance, shares, 1.0)
    assert (falling.diff(dim=0) < 1e-15).all()
    assert (falling[-4] < 0.9 * falling[0]).all()
    certain = expected_misclassification(mean[3:4], torch.zeros(1).double(), torch.zeros(1, 1).double(), 1.0)
    assert float(certain) == 0.0
