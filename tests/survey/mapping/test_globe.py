"""Models of the globe, against dense computations with chords."""

from dataclasses import replace

import numpy as np
import pytest
from pyproj import CRS
from scipy.spatial.distance import cdist

from bo_scale.survey.geography.coordinates import WGS84, to_metric
from bo_scale.survey.geography.globe import in_space
from bo_scale.survey.geography.world import earth
from bo_scale.survey.mapping import model as module
from bo_scale.survey.mapping.fit import Fit
from bo_scale.survey.mapping.kernels import Box
from bo_scale.survey.mapping.model import coordinates, fit_model, forecast, model_of, predict
from bo_scale.survey.mapping.roughness import left_out_squares, roughness
from bo_scale.survey.mapping.sites import Sites

WORLD = CRS.from_epsg(8857)
WKT = WORLD.to_wkt()
BOX: Box = tuple(earth(WORLD).bounds)
DIAMETER = 2 * 6_378_137.0


def everywhere(n: int, seed: int = 0) -> np.ndarray:
    """Longitudes and latitudes, even over the sphere."""
    v = np.random.default_rng(seed).normal(size=(n, 3))
    return np.degrees(np.stack([np.arctan2(v[:, 1], v[:, 0]), np.arctan2(v[:, 2], np.hypot(v[:, 0], v[:, 1]))], -1))


def field(degrees: np.ndarray) -> np.ndarray:
    """Smooth everywhere, also at the poles and across the antimeridian."""
    lon, lat = np.radians(degrees).T
    x, y, z = np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat)
    return 10 + 3 * z + 2 * np.sin(3 * x) + np.cos(4 * y * z)


def measured(n: int, noise: float = 0.1, known: bool = False, seed: int = 0) -> Sites:
    degrees = everywhere(n, seed)
    z = field(degrees) + noise * np.random.default_rng(seed + 1).normal(size=n)
    return Sites(to_metric(degrees, WGS84, WORLD), z, np.full(n, noise**2) if known else None)


@pytest.mark.parametrize("known", [False, True])
def test_the_exact_model_is_that_of_chords(known: bool) -> None:
    sites = measured(150, known=known)
    fit, model = fit_model(sites, BOX, "matern32", globe=WKT)
    assert fit.isotropic
    part = model.covar_module
    length, variance = float(part.base_kernel.lengthscale.detach()), float(part.outputscale.detach())
    if sites.variance is None:
        noise = np.full(150, float(model.measurement_noise(0).detach()))
    else:
        noise = sites.variance / fit.unit**2 + fit.nugget
    at = to_metric(everywhere(40, 9), WGS84, WORLD)
    a, b = in_space(sites.xy, WORLD), in_space(at, WORLD)

    def k(one: np.ndarray, other: np.ndarray) -> np.ndarray:
        r = 3**0.5 * cdist(one, other) / (length * DIAMETER)
        return variance * (1 + r) * np.exp(-r)

    constant = float(model.mean_module.constant.detach())
    solved = np.linalg.solve(k(a, a) + np.diag(noise), k(a, b))
    mean = constant + solved.T @ ((sites.z - fit.offset) / fit.unit - constant)
    sd = np.sqrt(variance - (k(a, b) * solved).sum(0))
    found = forecast(model, fit, at, progress=False)
    np.testing.assert_allclose(found[0], fit.offset + fit.unit * mean, atol=1e-6)
    np.testing.assert_allclose(found[1], fit.unit * sd, rtol=1e-5)


@pytest.mark.parametrize("n", [200, 1200])
def test_predictions_know_neither_the_antimeridian_nor_the_poles(n: int) -> None:
    sites = measured(n)
    fit, model = fit_model(sites, BOX, "matern52", globe=WKT)
    for edge in (
        np.array([[-179.9999, 30.0], [179.9999, 30.0]]),
        np.array([[-120.0, 89.9999], [60.0, 89.9999]]),
        np.array([[0.0, -90.0], [180.0, -90.0]]),
    ):
        mean, sd = predict(model, fit, sites, to_metric(edge, WGS84, WORLD), progress=False)
        assert mean[0] == pytest.approx(mean[1], abs=5e-3)
        assert sd[0] == pytest.approx(sd[1], rel=5e-3)
    degrees = everywhere(500, 7)
    mean, sd = predict(model, fit, sites, to_metric(degrees, WGS84, WORLD), progress=False)
    error = mean - field(degrees)
    assert np.sqrt(np.square(error).mean()) < 0.12
    assert (np.abs(error) < 3 * sd).mean() > 0.97


@pytest.mark.parametrize(("kernel", "known"), [("matern12", False), ("two-scale", True), ("auto", False)])
def test_a_model_of_many_sites_around_the_globe(kernel: str, known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GLOBE_POINTS", 300)
    sites = measured(600, known=known)
    fit, model = fit_model(sites, BOX, kernel, exact_up_to=500, globe=WKT)
    assert fit.grids
    degrees = everywhere(400, 3)
    at = to_metric(degrees, WGS84, WORLD)
    mean, sd = forecast(model, fit, at, progress=False)
    assert np.sqrt(np.square(mean - field(degrees)).mean()) < 0.3
    assert (sd > 0).all()
    again = model_of(sites, Fit.of(fit.__dict__))
    np.testing.assert_allclose(forecast(again, fit, at, progress=False), (mean, sd), rtol=1e-6)
    more = measured(700, known=known)
    later = model_of(more, fit)
    assert forecast(later, fit, at, progress=False)[1].mean() < sd.mean()
    assert coordinates(model, fit, at).shape == (400, 3)
    assert (coordinates(model, fit, at) - 0.5).norm(dim=-1).max() < 0.5 + 1e-9


def test_it_is_rough_where_it_varies_also_across_the_antimeridian() -> None:
    degrees = everywhere(300)
    rng, wild = np.random.default_rng(0), np.abs(degrees[:, 0]) > 150
    z = field(degrees) + np.where(wild, 2.0, 0.05) * rng.normal(size=300)
    sites = Sites(to_metric(degrees, WGS84, WORLD), z, None)
    fit, model = fit_model(sites, BOX, "matern52", globe=WKT)
    at = to_metric(np.array([[179.9, 0.0], [-179.9, 0.0], [0.0, 0.0]]), WGS84, WORLD)
    found = roughness(model, fit, sites, at)
    assert found[0] == pytest.approx(found[1], rel=0.02)
    assert found[0] > 2 * found[2]
    assert np.isfinite(left_out_squares(model, fit, sites)).all()


def test_a_fit_without_the_globe_is_one_on_a_plane() -> None:
    fit, _ = fit_model(replace(measured(20), xy=np.random.default_rng(0).random((20, 2))), (0.0, 0.0, 1.0, 1.0))
    saved = {key: value for key, value in fit.__dict__.items() if key != "globe"}
    assert Fit.of(saved) == fit
