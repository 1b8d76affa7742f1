"""Trends in covariates against dense universal kriging."""

import json

import numpy as np
import pytest
import torch

from bo_scale.survey.mapping.coefficients import coefficients
from bo_scale.survey.mapping.exceedance import exceeding
from bo_scale.survey.mapping.fit import Fit
from bo_scale.survey.mapping.local import covariance_of
from bo_scale.survey.mapping.model import coordinates, fit_model, forecast, model_of, predict
from bo_scale.survey.mapping.nearest import Nearest, _regressed
from bo_scale.survey.mapping.roughness import left_out_squares
from bo_scale.survey.mapping.scales import Identity
from bo_scale.survey.mapping.sites import Sites
from bo_scale.survey.mapping.trend import Trend

BOX = (0.0, 0.0, 1000.0, 800.0)
NAMES, KINDS = ["height", "soil"], ["linear", "categorical"]


def beside(xy: np.ndarray) -> np.ndarray:
    return np.stack([200 + 50 * np.sin(xy[:, 0] / 150), np.floor(xy[:, 1] / 300)], -1)


def sites_of(n: int, seed: int = 0) -> Sites:
    rng = np.random.default_rng(seed)
    xy = rng.uniform((0, 0), (1000, 800), (n, 2))
    covariates = beside(xy)
    z = 0.04 * covariates[:, 0] + np.array([0.0, 1.5, -1.0])[covariates[:, 1].astype(int)]
    return Sites(xy, z + np.sin(xy[:, 0] / 90) + 0.1 * rng.normal(size=n), None, covariates=covariates)


def fit_of(sites: Sites, grids: list[list[int]], kernel: str = "matern32") -> Fit:
    trend = Trend.of(NAMES, KINDS, sites.covariates)
    return Fit(kernel, len(sites.z), BOX, 3.0, 2.0, grids, {}, trend=trend.saved(), beside=beside)


def dense(K: np.ndarray, noise: float, y: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of the last of jointly normal values given noisy ones of the first n."""
    gain = np.linalg.solve(K[:n, :n] + noise * np.eye(n), K[:n, n:]).T
    return gain @ y, K[n:, n:] - gain @ K[:n, n:]


@pytest.mark.parametrize(
    ("kernel", "grids"),
    [("matern32", []), ("matern32", [[12, 10]]), ("matern12", [[30, 24]]), ("two-scale", [[30, 24], [8, 8]])],
)
def test_the_model_is_the_field_and_the_prior_of_coefficients(kernel: str, grids: list[list[int]]) -> None:
    sites, at = sites_of(40), sites_of(7, 1).xy
    fit = fit_of(sites, grids, kernel)
    model = model_of(sites, fit)
    mean, sd = forecast(model, fit, at, False)
    X = torch.cat([coordinates(model, fit, xy) for xy in (sites.xy, at)])
    with torch.no_grad():
        if grids:
            K = model._feature_map(0).prior_covariance(X).numpy()
        else:
            K = model.covar_module(X).to_dense().numpy()
            H = np.concatenate([fit.columns(xy) for xy in (sites.xy, at)])
            field = model.covar_module.kernels[0](X).to_dense().numpy()
            np.testing.assert_allclose(K, field + H @ H.T, rtol=1e-5)
    expected, covariance = dense(K, float(model.measurement_noise(0)), (sites.z - 3) / 2 - _mean(model), 40)
    np.testing.assert_allclose(mean, 3 + 2 * (expected + _mean(model)), rtol=1e-6)
    np.testing.assert_allclose(sd, 2 * np.sqrt(np.diag(covariance)), rtol=1e-5)


def _mean(model: torch.nn.Module) -> float:
    return model.mean_module.constant.item()


def test_wide_priors_are_universal_kriging() -> None:
    sites, at = sites_of(40), sites_of(7, 1).xy
    trend = Trend.of(["height"], ["linear"], sites.covariates[:, :1])
    fit = Fit("matern32", 40, BOX, 3.0, 2.0, [], {}, trend=trend.saved(), beside=lambda xy: beside(xy)[:, :1])
    sites = Sites(sites.xy, sites.z, None, covariates=sites.covariates[:, :1])
    model = model_of(sites, fit)
    model.covar_module.kernels[1].outputscale = 1e6
    X = torch.cat([coordinates(model, fit, xy) for xy in (sites.xy, at)])
    with torch.no_grad():
        K = model.covar_module.kernels[0](X).to_dense().numpy()
    C, k, noise = K[:40, :40], K[:40, 40:], float(model.measurement_noise(0))
    C = C + noise * np.eye(40)
    H, h = fit.columns(sites.xy), fit.columns(at)
    y = (sites.z - 3) / 2 - _mean(model)
    V = np.linalg.inv(H.T @ np.linalg.solve(C, H))
    beta = V @ H.T @ np.linalg.solve(C, y)
    left = h - k.T @ np.linalg.solve(C, H)
    mean, sd = forecast(model, fit, at, False)
    expected = h @ beta + k.T @ np.linalg.solve(C, y - H @ beta)
    variance = K[40:, 40:].diagonal() - (k * np.linalg.solve(C, k)).sum(0) + (left @ V * left).sum(1)
    np.testing.assert_allclose(mean, 3 + 2 * (expected + _mean(model)), rtol=1e-5)
    np.testing.assert_allclose(sd, 2 * np.sqrt(variance), rtol=1e-4)
    found = coefficients(model, fit, {})
    np.testing.assert_allclose(found.estimate, 2 * beta / trend.scales[0], rtol=1e-4)
    np.testing.assert_allclose(found.sd, 2 * np.sqrt(V[0]) / trend.scales[0], rtol=1e-4)


def test_coefficients_of_the_nearest_sites_are_generalized_least_squares() -> None:
    rng = np.random.default_rng(0)
    xy, theta = rng.uniform(0, 1000, (60, 2)), torch.tensor([60.0, 300.0, 0.5, 1.0, 0.1], dtype=torch.float64)
    values, errors, prior = rng.normal(size=(60, 3)), rng.uniform(0, 0.2, 60), np.array([100.0, 2.0])
    r = torch.cdist(torch.from_numpy(xy), torch.from_numpy(xy))
    C = covariance_of(r, theta, (0.5, 1.5)).numpy() + np.diag(0.1 + errors)
    process = Nearest((0.5, 1.5), (60.0, 300.0), (0.5, 1.0), 0.0, 0.1)
    beta, V = _regressed(xy, values, errors, process, prior)
    H = values[:, :2]
    expected = np.linalg.inv(H.T @ np.linalg.solve(C, H) + np.diag(1 / prior))
    np.testing.assert_allclose(V, expected, rtol=1e-6)
    np.testing.assert_allclose(beta, expected @ H.T @ np.linalg.solve(C, values[:, 2]), rtol=1e-6)


def test_many_sites_given_those_before_are_close_to_all() -> None:
    rng = np.random.default_rng(0)
    xy, theta = rng.uniform(0, 1000, (500, 2)), torch.tensor([60.0, 200.0, 0.5, 1.0, 0.1], dtype=torch.float64)
    H = np.stack([np.ones(500), np.sin(xy[:, 0] / 100)], -1)
    r = torch.cdist(torch.from_numpy(xy), torch.from_numpy(xy))
    C = covariance_of(r, theta, (0.5, 1.5)).numpy() + 0.1 * np.eye(500)
    z = H @ [1.0, 2.0] + np.linalg.cholesky(C) @ rng.normal(size=500)
    process = Nearest((0.5, 1.5), (60.0, 200.0), (0.5, 1.0), 0.0, 0.1)
    beta, V = _regressed(xy, np.c_[H, z], np.zeros(500), process, np.full(2, 1e6))
    expected = np.linalg.inv(H.T @ np.linalg.solve(C, H))
    np.testing.assert_allclose(np.diag(V), np.diag(expected), rtol=0.2)
    assert abs(beta[1] - (expected @ H.T @ np.linalg.solve(C, z))[1]) < 0.3 * np.sqrt(expected[1, 1])


def test_the_nearest_predict_as_universal_kriging() -> None:
    rng = np.random.default_rng(0)
    xy, at = rng.uniform(0, 1000, (30, 2)), rng.uniform(0, 1000, (5, 2))
    H, h, V = rng.normal(size=(30, 1)), rng.normal(size=(5, 1)), np.diag([0.3, 0.2])
    found = Nearest((0.5, 1.5), (60.0, 300.0), (0.5, 1.0), 2.0, 0.1, [0.1, 1.5], V.tolist())
    z = rng.normal(size=30)
    mean, sd = found.forecast(xy, z, None, at, False, (H, h))
    plain = Nearest((0.5, 1.5), (60.0, 300.0), (0.5, 1.0), 2.0, 0.1)
    own, narrow = plain.forecast(xy, z - 0.1 - 1.5 * H[:, 0], None, at, False)
    np.testing.assert_allclose(mean, own + 0.1 + 1.5 * h[:, 0], rtol=1e-9)
    weights = np.stack([plain.forecast(xy, 2 + row, None, at, False)[0] - 2 for row in np.eye(30)], -1)  # linear in z
    left = np.c_[np.ones(5), h] - weights @ np.c_[np.ones(30), H]
    np.testing.assert_allclose(sd, np.sqrt(narrow**2 + (left @ V * left).sum(1)), rtol=1e-8)


def test_columns_are_standardised_and_classes_have_one_more() -> None:
    values = np.array([[1.0, 2.0], [3.0, 7.0], [5.0, 2.0]])
    trend = Trend.of(NAMES, KINDS, values)
    columns = trend.columns(np.array([[3.0, 7.0], [5.0, 4.0], [np.nan, np.nan]]))
    np.testing.assert_allclose(columns[0], [0, 0, 1, 0])
    np.testing.assert_allclose(columns[1], [np.sqrt(1.5), 0, 0, 1])
    assert np.isnan(columns[2]).all()
    assert trend.groups == [[0], [1, 2, 3]]
    assert Trend(**json.loads(json.dumps(trend.saved()))) == trend


@pytest.mark.parametrize("exact_up_to", [None, 10])
def test_a_fit_with_a_trend_is_saved_whole_and_predicts(exact_up_to: int | None) -> None:
    sites, at = sites_of(90), sites_of(200, 3)
    trend = Trend.of(NAMES, KINDS, sites.covariates)
    fit, model = fit_model(sites, BOX, "matern32", exact_up_to=exact_up_to, trend=trend, beside=beside)
    again = Fit.of(json.loads(json.dumps(fit.saved)), beside)
    assert again == fit
    mean, _ = predict(model_of(sites, again), again, sites, at.xy, False)
    np.testing.assert_allclose(mean, predict(model, fit, sites, at.xy, False)[0], rtol=1e-6)
    assert np.sqrt(np.mean((mean - at.z) ** 2)) < 0.4
    found = coefficients(model, fit, {}).set_index(["covariate", "class"])
    assert abs(found.estimate["height", ""] - 0.04) < 3 * found.sd["height", ""]
    assert found.lower["soil", "1"] < 1.5 - 0.5 / 3 < found.upper["soil", "1"]
    assert len(left_out_squares(model, fit, sites)) == 90
    area = exceeding(model, fit, Identity(), at.xy, 8e5, None, 9.0, draws=50)
    assert abs(area.share.mean - (at.z > 9).mean()) < 0.15


def test_smooth_effects_are_followed() -> None:
    rng = np.random.default_rng(0)
    xy, c = rng.uniform((0, 0), (1000, 800), (90, 2)), rng.normal(size=(90, 1))
    z = np.cos(2.5 * c[:, 0]) + 0.1 * rng.normal(size=90)
    sites, trend = Sites(xy[:70], z[:70], None, covariates=c[:70]), Trend.of(["c"], ["kernel"], c[:70])
    fit, model = fit_model(sites, BOX, "matern32", trend=trend, beside=lambda xy: c[70:])
    mean, _ = forecast(model, fit, xy[70:], False)
    assert np.sqrt(np.mean((mean - np.cos(2.5 * c[70:, 0])) ** 2)) < 0.25


def test_nodes_make_the_smooth_effect() -> None:
    c = np.random.default_rng(0).normal(size=(50, 2))
    trend = Trend.of(["a", "b"], ["kernel", "kernel"], c).with_nodes(c, [0.8, 1.5])
    columns = trend.columns(c)[:, 2:]
    Z = (c - c.mean(0)) / c.std(0) / [0.8, 1.5]
    r = 5**0.5 * np.linalg.norm(Z[:, None] - Z, axis=-1)
    np.testing.assert_allclose(columns @ columns.T, (1 + r + r**2 / 3) * np.exp(-r), atol=1e-6)
    assert trend.groups == [[0, 1], list(range(2, 52))]
