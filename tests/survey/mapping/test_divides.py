"""Divides: distances around them, and maps on both sides."""

import numpy as np
import pytest
import shapely
from scipy.spatial.distance import cdist

from bo_scale.errors import SurveyError
from bo_scale.survey.mapping import model as module
from bo_scale.survey.mapping.divides import APART, Divided
from bo_scale.survey.mapping.fit import Fit
from bo_scale.survey.mapping.model import fit_model, model_of, predict
from bo_scale.survey.mapping.sites import Sites
from bo_scale.survey.mapping.temporal import Time
from bo_scale.survey.routes.distances import Around

SIDE = 1e5
BOX = (0.0, 0.0, SIDE, SIDE)
WALL = shapely.MultiPolygon([shapely.box(49_900, -1, 50_100, 70_000)])
RING = shapely.MultiPolygon([shapely.Point(5e4, 5e4).buffer(3e4, 8) - shapely.Point(5e4, 5e4).buffer(2.9e4, 8)])
LAKE = shapely.MultiPolygon([shapely.Point(5e4, 5e4).buffer(2.5e4, 8)])


def places(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(0, SIDE, (n, 2))


def lengths(shape: shapely.MultiPolygon, xy: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Straight, around, and as the model has them."""
    ways = Around(xy, shape)
    around = np.stack([ways.starting(i) for i in range(len(xy))])
    straight = cdist(xy, xy)
    given = np.concatenate([xy, Divided(shape, BOX).coordinates(xy)], 1)
    pairs = np.triu_indices(len(xy), 1)
    return straight[pairs], around[pairs], cdist(given, given)[pairs]


@pytest.mark.parametrize("shape", [WALL, LAKE])
def test_distances_are_those_of_the_ways(shape: shapely.MultiPolygon) -> None:
    xy = places(150)
    straight, around, found = lengths(shape, xy[~Around(xy, shape).inside])
    parted = around > 1.05 * straight
    assert np.median(np.abs(found / around - 1)[parted]) < 0.12
    assert np.quantile(found[parted] / straight[parted], 0.05) > 1.0
    seen = around <= straight * (1 + 1e-9)
    assert (found >= straight - 1e-6).all()
    assert np.mean(found[seen] / straight[seen]) < 1.06
    error, without = np.square(found - around).mean(), np.square(straight - around).mean()
    assert error < without


def test_places_that_no_way_joins_are_far_apart() -> None:
    xy = places(100)
    _, around, found = lengths(RING, xy[~Around(xy, RING).inside])
    apart = ~np.isfinite(around)
    assert apart.any()
    assert found[apart].min() > 0.6 * APART * np.sqrt(2) * SIDE
    assert np.mean(found[~apart] / around[~apart]) < 1.05


def test_a_divide_off_the_map_changes_nothing() -> None:
    found = Divided(shapely.MultiPolygon([shapely.box(3e5, 3e5, 3.1e5, 3.2e5)]), BOX)
    assert found.width == 0
    assert found.coordinates(places(5)).shape == (5, 0)


def test_places_in_a_divide_and_beyond_the_map_have_those_nearby() -> None:
    given = Divided(LAKE, BOX)
    inside, shore = np.array([[50_000.0, 74_000.0]]), np.array([[50_000.0, 75_500.0]])
    np.testing.assert_allclose(given.coordinates(inside), given.coordinates(shore), atol=4000.0)
    beyond, edge = np.array([[-5000.0, 20_000.0]]), np.array([[0.0, 20_000.0]])
    np.testing.assert_allclose(given.coordinates(beyond), given.coordinates(edge), atol=1.0)
    everywhere = Divided(shapely.MultiPolygon([shapely.box(-1e6, -1e6, 1e6, 1e6)]), BOX)
    assert np.isfinite(everywhere.coordinates(places(4))).all()


def two_sided(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Places, and a quantity that is another one on the other side of the wall, but where this is open."""
    xy = places(n, seed)
    left, right = np.sin(xy[:, 1] / 15_000), 4 + np.cos(xy[:, 1] / 12_000)
    closed = 1 / (1 + np.exp((xy[:, 1] - 80_000) / 3000))
    return xy, np.where(xy[:, 0] < 50_000, left, right) * closed + 2 * (1 - closed)


@pytest.mark.parametrize("exact", [True, False])
def test_a_map_has_another_value_on_the_other_side(exact: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not exact:
        monkeypatch.setattr(module, "EXACT", 100)
        monkeypatch.setattr(module, "GLOBE_POINTS", 100)
    xy, z = two_sided(360)
    noisy = z + 0.05 * np.random.default_rng(1).standard_normal(360)
    sites, held = Sites(xy[:160], noisy[:160], None), slice(160, None)
    near = np.abs(xy[held, 0] - 50_000) < 8000
    errors = []
    for divides in (None, WALL.wkt):
        fit, model = fit_model(sites, BOX, "matern32", divides=divides)
        mean, sd = predict(model, fit, sites, xy[held], False)
        errors.append(np.sqrt(np.square(mean - z[held])[near].mean()))
        assert np.isfinite(sd).all()
    assert errors[1] < 0.8 * errors[0]
    again = Fit.of(fit.saved)
    np.testing.assert_allclose(predict(model_of(sites, again), again, sites, xy[held], False), (mean, sd), atol=1e-6)


def test_with_divides_many_sites_have_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EXACT", 50)
    xy, z = two_sided(60)
    when = np.linspace(0, 9, 60)[:, None]
    with pytest.raises(SurveyError, match="--divide none"):
        fit_model(Sites(xy, z, None, None, when), BOX, "matern32", time=Time(0.0, 9.0, False), divides=WALL.wkt)
