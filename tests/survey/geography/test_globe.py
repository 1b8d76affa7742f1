"""Distances on the globe, against geodesics."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyproj import CRS, Geod

from bo_scale.survey.geography.coordinates import WGS84, to_metric
from bo_scale.survey.geography.globe import in_space, on_ground, straight

GEOD = Geod(ellps="WGS84")
WORLD = CRS.from_epsg(8857)
LON, LAT = st.floats(-180, 180), st.floats(-90, 90)


def apart(a: tuple[float, float], b: tuple[float, float]) -> float:
    one, other = in_space(to_metric(np.array([a, b]), WGS84, WORLD), WORLD)
    return on_ground(float(np.linalg.norm(one - other)), WORLD)


@given(a=st.tuples(LON, LAT), b=st.tuples(LON, LAT))
def test_distances_are_those_on_the_earth(a: tuple[float, float], b: tuple[float, float]) -> None:
    exact = GEOD.inv(*a, *b)[2]
    assert apart(a, b) == pytest.approx(exact, rel=0.006 if exact < 1.5e7 else 0.05, abs=2.0)


@pytest.mark.parametrize(("lon", "lat"), [(180.0, 0.0), (-179.9, 66.0), (12.0, 89.0), (45.0, -80.0), (90.0, 30.0)])
def test_short_distances_are_as_exact_as_can_be(lon: float, lat: float) -> None:
    for bearing in range(0, 360, 30):
        there = GEOD.fwd(lon, lat, bearing, 50_000.0)[:2]
        assert apart((lon, lat), there) == pytest.approx(50_000.0, rel=1e-4, abs=0.5)


@given(distance=st.floats(1e-3, 2.0e7))
def test_a_straight_line_and_the_way_on_the_ground_belong_together(distance: float) -> None:
    line = straight(distance, WORLD)
    assert line <= distance
    assert on_ground(line, WORLD) == pytest.approx(distance, rel=1e-6)
    plane = CRS.from_epsg(32631)
    assert straight(distance, plane) == on_ground(distance, plane) == distance


def test_places_on_other_maps_stay_as_they_are() -> None:
    xy = np.random.default_rng(0).random((5, 2))
    assert in_space(xy, CRS.from_epsg(3035)) is xy
    assert in_space(xy[:0], WORLD).shape == (0, 3)


def test_nothing_is_farther_than_the_antipode() -> None:
    assert straight(1e9, WORLD) == pytest.approx(2 * 6_371_008.8)
