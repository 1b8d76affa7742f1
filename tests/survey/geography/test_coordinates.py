import numpy as np
import pytest
import shapely
from hypothesis import given, settings
from hypothesis import strategies as st
from pyproj import CRS, Geod

from bo_scale.errors import SurveyError
from bo_scale.survey.geography.coordinates import is_true, reach
from bo_scale.survey.geography.region import (
    WGS84,
    from_metric,
    is_geographic,
    is_metric,
    make_region,
    metric_crs,
    project_shape,
    to_metric,
)

METRES = CRS.from_epsg(25832)


@pytest.mark.parametrize(
    ("lon", "lat", "name"),
    [
        ([10.1, 10.9], [51.0, 52.0], "UTM zone 32 north (EPSG:32632)"),
        ([174.7, 174.8], [-41.3, -41.2], "UTM zone 60 south (EPSG:32760)"),
        ([179.5, -179.5], [-17.0, -16.0], "UTM zone 1 south (EPSG:32701)"),
        ([179.0, -179.9], [65.0, 66.0], "UTM zone 60 north (EPSG:32660)"),
        ([-180.0, 180.0], [1.0, 1.0], "UTM zone 1 north (EPSG:32601)"),
        ([5.0, 15.0], [47.0, 55.0], "Lambert azimuthal equal area, centred at 51° N, 10° E"),
        ([170.0, -170.0], [-20.0, -10.0], "Lambert azimuthal equal area, centred at 15° S, 180° W"),
        ([30.0, 31.0], [85.0, 86.0], "Lambert azimuthal equal area, centred at 85.5° N, 30.5° E"),
        ([0.0, 90.0, 180.0, -90.0], [80.0] * 4, "Lambert azimuthal equal area, centred at 90° N"),
    ],
)
def test_a_metric_system_that_suits(lon: list[float], lat: list[float], name: str) -> None:
    crs, said = metric_crs(np.asarray(lon), np.asarray(lat))
    assert said.startswith(name)
    assert is_metric(crs)
    lonlat = np.stack([lon, lat], -1)
    xy = to_metric(lonlat, WGS84, crs)
    back = from_metric(xy, crs, WGS84)
    np.testing.assert_allclose(np.mod(back[:, 0] - lonlat[:, 0] + 180, 360) - 180, 0.0, atol=1e-8)
    np.testing.assert_allclose(back[:, 1], lonlat[:, 1], atol=1e-8)


@settings(max_examples=40, deadline=None)
@given(
    lon=st.floats(-180, 180),
    lat=st.floats(-79, 79),
    wide=st.floats(0.001, 5.9),
    bearing=st.floats(0, 360),
)
def test_distances_are_those_on_the_earth(lon: float, lat: float, wide: float, bearing: float) -> None:
    lons = (np.asarray([lon, lon + wide]) + 180) % 360 - 180
    lats = np.asarray([lat, lat])
    crs, said = metric_crs(lons, lats)
    assert said.startswith("UTM")
    end = Geod(ellps="WGS84").fwd(lons[0], lat, bearing, 1000.0)[:2]
    xy = to_metric(np.asarray([[lons[0], lat], end]), WGS84, crs)
    assert np.linalg.norm(xy[1] - xy[0]) == pytest.approx(1000.0, rel=0.006)


def test_places_that_are_none() -> None:
    for lon, lat in [([], []), ([200.0], [0.0]), ([0.0], [91.0]), ([np.nan], [0.0])]:
        with pytest.raises(SurveyError, match="within ±180"):
            metric_crs(np.asarray(lon, dtype=np.float64), np.asarray(lat, dtype=np.float64))
    with pytest.raises(SurveyError, match=r"1 of 2 points cannot be converted .* check --crs"):
        to_metric(np.asarray([[9.0, 50.0], [9.0, 5e6]]), WGS84, METRES)


def test_kinds_of_systems() -> None:
    metric = {3857: False, 32633: True, 27700: True, 2263: False, 3035: True, 4326: False, 3395: False, 2193: True}
    for code, expected in metric.items():
        assert is_metric(CRS.from_epsg(code)) == expected, code
    assert is_geographic(WGS84)
    assert is_geographic(CRS.from_user_input("OGC:CRS84"))
    assert not is_geographic(METRES)


@pytest.mark.parametrize(
    ("code", "lon", "lat", "expected"),
    [
        (4087, 10, 60, False),
        (32662, 10, 60, False),
        (6933, 10, 60, False),
        (8857, 10, 60, False),
        (32633, 20, 60, True),
        (31467, 9, 50, True),
        (28992, 5, 52, True),
        (2154, 8, 42, True),
        (3035, -25, 38, True),
        (3034, 10, 52, True),
        (5070, -120, 48, True),
        (5555, 9, 50, True),  # with heights
    ],
)
def test_systems_are_judged_by_how_they_stretch_distances(code: int, lon: float, lat: float, expected: bool) -> None:
    crs = CRS.from_epsg(code)
    xy = to_metric(np.full((3, 2), [lon, lat], dtype=np.float64), WGS84, crs)
    assert is_metric(crs)
    assert is_true(crs, xy) == expected


def test_axes_that_come_the_other_way_round_do_not_matter() -> None:
    for code in (4326, 4258):
        there = to_metric(np.asarray([[9.0, 52.0]]), CRS.from_epsg(code), METRES)
        np.testing.assert_allclose(there, [[500_000.0, 5_761_038.2]], atol=1.0)
    gauss = to_metric(np.asarray([[9.0, 52.0]]), WGS84, CRS.from_epsg(31467))
    assert gauss[0, 0] == pytest.approx(3_500_000, abs=300)


def test_places_that_span_the_globe_have_a_map_of_the_world() -> None:
    lon, lat = np.array([-58.0, 58.0, 0.0]), np.array([0.0, 0.0, 1.0])
    assert reach(lon, lat) == pytest.approx(58.0, abs=0.3)
    assert "Lambert" in metric_crs(lon, lat)[1]
    assert metric_crs(1.1 * lon, lat)[0].to_epsg() == 8857
    around = np.arange(-180.0, 180.0, 10.0)
    assert reach(around, np.full(36, -70.0)) == pytest.approx(20.0)  # a polar sea is no globe
    assert reach(np.array([0.0, 180.0]), np.zeros(2)) == 180.0
    assert reach(np.array([179.0, -179.0]), np.zeros(2)) == pytest.approx(1.0)
    assert reach(np.array([7.0]), np.array([50.0])) == pytest.approx(0.0, abs=1e-5)


def test_long_edges_follow_the_parallel() -> None:
    box = shapely.box(5.0, 50.0, 15.0, 55.0)
    crs, _ = metric_crs(np.asarray([5.0, 15.0]), np.asarray([50.0, 55.0]))
    area = make_region(project_shape(box, WGS84, crs), [], crs)
    edge = np.stack([np.linspace(5, 15, 301), np.full(301, 50.0)], -1)
    assert area.contains(to_metric(edge[1:-1] + np.asarray([0, 2e-6]), WGS84, crs)).all()
    assert not area.contains(to_metric(edge[1:-1] - np.asarray([0, 2e-6]), WGS84, crs)).any()
    exact = abs(Geod(ellps="WGS84").geometry_area_perimeter(shapely.segmentize(box, 0.05))[0])
    assert area.area == pytest.approx(exact, rel=1e-5)
    assert project_shape(box, WGS84, WGS84) is box
