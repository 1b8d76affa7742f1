"""Knots in gaps: against the posterior of all sites, without edges, with a trend, and where there can be none."""

from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from scipy.linalg import cho_factor, cho_solve
from scipy.spatial.distance import cdist

from bo_scale import WISKI
from bo_scale.survey.mapping import knots as module
from bo_scale.survey.mapping import model as mapping
from bo_scale.survey.mapping.fit import Fit
from bo_scale.survey.mapping.gaps import Gaps
from bo_scale.survey.mapping.knots import Knots
from bo_scale.survey.mapping.matern import matern
from bo_scale.survey.mapping.model import predict
from bo_scale.survey.mapping.nearest import Nearest
from bo_scale.survey.mapping.sites import Sites

GIVEN = Nearest([0.5, 1.5], [150.0, 900.0], [0.4, 3.0], 5.0, 0.02)
MIDDLE, RADIUS = np.array([1700.0, 1100.0]), 600.0


def covariance(a: np.ndarray, b: np.ndarray, given: Nearest = GIVEN) -> np.ndarray:
    r, parts = cdist(a, b), zip(given.smoothness, given.lengthscales, given.variances, strict=True)
    return np.asarray(sum(variance * matern(nu, r / length) for nu, length, variance in parts))


def around_a_hole(n: int = 1500, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Sites around a hole, and places in it."""
    rng = np.random.default_rng(seed)
    xy = rng.random((n, 2)) * [4000.0, 2000.0]
    away = np.linalg.norm(xy - MIDDLE, axis=1)
    return xy[away > RADIUS], xy[away < 0.9 * RADIUS]


def dense(xy: np.ndarray, z: np.ndarray, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    factor, k = cho_factor(covariance(xy, xy) + GIVEN.noise * np.eye(len(xy))), covariance(xy, at)
    variance = sum(GIVEN.variances) - (k * cho_solve(factor, k)).sum(0)
    return GIVEN.mean + k.T @ cho_solve(factor, z - GIVEN.mean), np.sqrt(variance)


def measured(xy: np.ndarray, seed: int = 1) -> np.ndarray:
    rng = np.random.default_rng(seed)
    root = np.linalg.cholesky(covariance(xy, xy) + GIVEN.noise * np.eye(len(xy)))
    return np.asarray(GIVEN.mean + root @ rng.standard_normal(len(xy)))


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> WISKI:
    """A model of a grid that forecasts what is known before there are measurements, and has no say in gaps."""
    monkeypatch.setattr(mapping, "KNOTS", 1.0)
    monkeypatch.setattr(mapping, "forecast", lambda model, fit, xy, *_: (np.zeros(len(xy)), np.ones(len(xy))))
    return WISKI(torch.rand(3, 2, dtype=torch.float64), torch.zeros(3, 1, dtype=torch.float64), grid_size=8)


def fit_of(given: Nearest = GIVEN) -> Fit:
    return Fit("two-scale", 2000, (0.0, 0.0, 4000.0, 2000.0), 5.0, 1.8, [[40, 20], [10, 5]], {}, nearest=asdict(given))


def test_in_a_hole_it_is_the_posterior_of_all_sites() -> None:
    xy, at = around_a_hole()
    z = measured(xy)
    mean, sd = dense(xy, z, at)
    knots = GIVEN.knots(xy, z, None)
    assert knots is not None
    found = GIVEN.forecast(xy, z, None, at, False, knots=knots)
    nearest = GIVEN.forecast(xy, z, None, at, False)
    assert np.abs(found[0] - mean).max() < 0.12 * sd.max()
    assert np.abs(found[0] - mean).mean() < 0.25 * np.abs(nearest[0] - mean).mean()
    assert_allclose(found[1], sd, rtol=0.05)
    at_knots, spread = dense(xy, z, knots.xy)
    assert_allclose(GIVEN.mean + knots.means[:, 0], at_knots, atol=0.06 * spread.max())
    assert_allclose(np.sqrt(np.diag(knots.covariance)), spread, rtol=0.05)


def test_their_covariance_is_that_of_the_posterior(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DEEP", 0)
    monkeypatch.setattr(module, "FEW", (1000,))
    monkeypatch.setattr(module, "BEFORE", 1000)
    xy, _ = around_a_hole(400)
    z = measured(xy)
    knots = GIVEN.knots(xy, z, None)
    assert knots is not None
    assert len(knots.xy) > 5
    K = covariance(xy, xy) + GIVEN.noise * np.eye(len(xy))
    k = covariance(xy, knots.xy)
    assert_allclose(knots.covariance, covariance(knots.xy, knots.xy) - k.T @ np.linalg.solve(K, k), atol=1e-6)
    assert_allclose(GIVEN.mean + knots.means[:, 0], dense(xy, z, knots.xy)[0], atol=1e-6)


def test_a_map_has_no_edges_in_gaps_and_at_their_rims(model: WISKI) -> None:
    xy, _ = around_a_hole()
    z, fit = measured(xy), fit_of()
    sites = Sites(xy, z, None)
    line = MIDDLE + np.linspace(0, 1.5 * RADIUS, 8000)[:, None] * np.array([0.6, 0.8])
    mean, sd = predict(model, fit, sites, line, False)
    plain, _ = GIVEN.forecast(xy, z, None, line, False)
    assert (np.abs(np.diff(mean)) / sd[1:]).max() < 0.02
    assert (Gaps(fit, sites).weights(line)[:4000] == 1).all()
    assert_allclose(predict(model, fit, sites, xy[:50], False)[0], GIVEN.forecast(xy, z, None, xy[:50], False)[0])
    assert np.abs(mean - plain)[:2000].max() > 0.05 * sd.max()


def test_a_trend_is_carried_through_knots() -> None:
    """With coefficients known exactly it is the process alone; else their uncertainty is that of universal kriging."""
    xy, at = around_a_hole(500)
    columns = [np.sin(part[:, :1] / 300) for part in (xy, at)]
    z = measured(xy) + 2 * columns[0][:, 0]
    for spread in (np.zeros((2, 2)), np.array([[0.05, 0.01], [0.01, 0.3]])):
        given = replace(GIVEN, coefficients=[0.1, 2.0], spread=spread.tolist())
        knots = given.knots(xy, z, None, columns[0])
        assert knots is not None
        mean, sd = given.forecast(xy, z, None, at, False, (columns[0], columns[1]), knots)
        H, h = (np.concatenate([np.ones((len(part), 1)), part], 1) for part in columns)
        K, k = covariance(xy, xy) + GIVEN.noise * np.eye(len(xy)), covariance(xy, at)
        w = np.linalg.solve(K, k)
        left = h - w.T @ H
        expected = GIVEN.mean + h @ [0.1, 2.0] + w.T @ (z - GIVEN.mean - H @ [0.1, 2.0])
        variance = sum(GIVEN.variances) - (k * w).sum(0) + ((left @ spread) * left).sum(1)
        assert np.abs(mean - expected).mean() < 0.06 * np.sqrt(variance).mean()
        assert_allclose(sd, np.sqrt(variance), rtol=0.08)


@pytest.mark.parametrize("kind", ["one place", "two sites", "a line", "repeated"])
def test_where_sites_are_odd_it_is_finite(kind: str, model: WISKI) -> None:
    xy = {
        "one place": np.ones((50, 2)),
        "two sites": np.array([[0.0, 0.0], [900.0, 0.0]]),
        "a line": np.stack([np.linspace(0, 4000, 300), np.full(300, 7.0)], -1),
        "repeated": np.repeat(around_a_hole(200)[0], 3, 0),
    }[kind]
    z = np.sin(xy[:, 0] / 500)
    at = np.random.default_rng(0).random((40, 2)) * [4000.0, 2000.0]
    mean, sd = predict(model, fit_of(), Sites(xy, z, None), at, False)
    assert np.isfinite(mean).all()
    assert np.isfinite(sd).all()


def test_smooth_fields_without_noise_are_predicted(model: WISKI) -> None:
    xy, at = around_a_hole(800)
    given = Nearest([2.5, 2.5], [900.0, 9000.0], [1.0, 100.0], 0.0, 1e-6)
    z = np.sin(xy[:, 0] / 600) * np.cos(xy[:, 1] / 500)
    mean, sd = predict(model, fit_of(given), Sites(xy, z, None), at, False)
    expected = np.sin(at[:, 0] / 600) * np.cos(at[:, 1] / 500)
    assert np.abs(mean - expected).max() < 0.1
    assert np.isfinite(sd).all()


def test_there_are_not_too_many_and_none_between_dense_sites(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = np.meshgrid(np.linspace(0, 4000, 600), np.linspace(0, 2000, 6))
    tracks = np.stack([x.ravel(), y.ravel()], -1)
    assert 0 < len(module._in_gaps(tracks)) <= module.MOST
    monkeypatch.setattr(module, "MOST", 50)
    assert len(module._in_gaps(tracks)) <= 50
    x, y = np.meshgrid(np.linspace(0, 4000, 60), np.linspace(0, 2000, 30))
    grid = np.stack([x.ravel(), y.ravel()], -1)
    assert Knots.inferred(grid, np.zeros((len(grid), 1)), np.zeros(len(grid)), GIVEN.theta, GIVEN.smoothness) is None


def test_the_model_of_a_grid_has_its_say_in_gaps(model: WISKI, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a mixture: its mean and its variance."""
    xy, at = around_a_hole()
    sites = Sites(xy, measured(xy), None)
    deep = at[np.linalg.norm(at - MIDDLE, axis=1) < RADIUS / 2]
    mean, sd = predict(model, fit_of(), sites, deep, False)
    monkeypatch.setattr(mapping, "KNOTS", 0.75)
    both, spread = predict(model, fit_of(), sites, deep, False)
    assert_allclose(both, 0.75 * mean)
    assert_allclose(spread**2, 0.75 * sd**2 + 0.25 + 0.1875 * mean**2)
