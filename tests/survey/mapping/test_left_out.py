"""Measurements predicted from all others, and the choice between the nearest sites and a grid."""

import numpy as np
import pytest

from bo_scale.survey.mapping import model as module
from bo_scale.survey.mapping.left_out import grid_is_better, log_densities, rows_of
from bo_scale.survey.mapping.model import fit_model, predict
from bo_scale.survey.mapping.sites import Sites

BOX = (0.0, 0.0, 1e5, 1e5)


def test_the_densities_are_those_of_models_without_the_measurement() -> None:
    rng = np.random.default_rng(0)
    x, noise = rng.random(12), rng.uniform(0.05, 1.0, 12)
    K = np.exp(-0.5 * np.square((x[:, None] - x) / 0.3))
    z = rng.multivariate_normal(np.zeros(12), K + np.diag(noise))
    solved = np.linalg.solve(K + np.diag(noise), K)
    found = log_densities((solved.T @ z, np.sqrt(1 - (K * solved).sum(0))), z, noise)
    for i in range(12):
        rest = np.arange(12) != i
        weights = np.linalg.solve(K[np.ix_(rest, rest)] + np.diag(noise[rest]), K[rest, i])
        mean, variance = weights @ z[rest], 1 - weights @ K[rest, i] + noise[i]
        expected = -0.5 * np.log(2 * np.pi * variance) - 0.5 * (z[i] - mean) ** 2 / variance
        np.testing.assert_allclose(found[i], expected, rtol=1e-6)


def test_values_known_exactly_and_forecasts_that_know_nothing_are_harmless() -> None:
    z = np.array([0.0, 1.0, 2.0])
    assert np.isfinite(log_densities((z, np.zeros(3)), z, np.full(3, 1e-6))).all()
    assert np.isfinite(log_densities((z, np.full(3, 1e9)), z, np.full(3, 1e-6))).all()


def test_the_grid_must_be_surer_and_say_more() -> None:
    worse, better, sure, unsure = np.full(5, -2.0), np.full(5, -1.0), np.full(5, 0.1), np.full(5, 0.2)
    assert grid_is_better(worse, better, unsure, sure)
    assert not grid_is_better(worse, better, sure, unsure)
    assert not grid_is_better(better, worse, unsure, sure)


def test_so_many_are_left_out() -> None:
    assert len(rows_of(7)) == 7
    assert len(rows_of(20_000)) == 10_000


@pytest.mark.parametrize(("noise", "alone"), [(3.0, True), (0.01, False)])
def test_a_noisy_map_is_made_from_all_sites(noise: float, alone: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a precise one from the nearest, which resolve what the grid does not."""
    rng = np.random.default_rng(1)
    monkeypatch.setattr(module, "EXACT", 300)
    monkeypatch.setattr(module, "FINE_POINTS", 100)
    xy = rng.uniform(0, 1e5, (1500, 2))
    k = rng.normal(size=(200, 2)) / (40_000.0 if alone else 8000.0)
    f = np.cos(xy @ k.T + rng.uniform(0, 6.3, 200)).sum(1) / 10.0
    sites = Sites(xy[:1000], f[:1000] + noise * rng.standard_normal(1000), None)
    fit, model = fit_model(sites, BOX, "matern52")
    assert (fit.nearest is None) == alone
    mean, sd = predict(model, fit, sites, xy[1000:], False)
    assert np.sqrt(np.square(mean - f[1000:]).mean()) < 0.6
    assert (np.abs(mean - f[1000:]) < 2 * sd).mean() > 0.75
