"""Maps of the whole earth: areas against geodesics, edges, poles, and the way back."""

import numpy as np
import pytest
import shapely
from pyproj import CRS, Geod, Transformer

from bo_scale.survey.geography.coordinates import WGS84, project_shape, to_metric
from bo_scale.survey.geography.region import make_region
from bo_scale.survey.geography.world import MAPS, earth, is_world, middle_of, rows, world_crs

EARTH = 510_065_621.7e6
"""Surface of the ellipsoid, square metres."""
GEOD = Geod(ellps="WGS84")
CODES = list(MAPS)


def area_of(box: tuple[float, float, float, float], crs: CRS) -> float:
    return make_region(project_shape(shapely.box(*box), WGS84, crs), [], crs).area


def exact(box: tuple[float, float, float, float]) -> float:
    return abs(GEOD.geometry_area_perimeter(shapely.segmentize(shapely.box(*box), 0.01))[0])


@pytest.mark.parametrize("code", CODES)
def test_the_whole_earth_has_its_area_and_all_places(code: int) -> None:
    crs = CRS.from_epsg(code)
    whole = make_region(earth(crs), [], crs)
    assert whole.area == pytest.approx(EARTH, rel=3e-6)
    assert area_of((-180, -90, 180, 90), crs) == pytest.approx(EARTH, rel=3e-6)
    lon = np.array([-180.0, 180.0, 180.0, -180.0, 0.0, 77.0, middle_of(crs) - 180, 90.0, -30.0])
    lat = np.array([0.0, 0.0, 66.6, -89.9, 90.0, -90.0, 12.3, 45.0, -45.0])
    assert whole.contains(to_metric(np.stack([lon, lat], -1), WGS84, crs)).all()
    raster = whole.cells(20_000)
    assert raster.count * raster.size**2 == pytest.approx(EARTH, rel=0.01)
    places = to_metric(raster.centres, crs, WGS84)  # each cell has a place
    assert (np.abs(places) <= [180, 90]).all()


@pytest.mark.parametrize("code", CODES)
def test_areas_are_right_also_across_the_edge(code: int) -> None:
    crs, rng = CRS.from_epsg(code), np.random.default_rng(code)
    for _ in range(8):
        west, south = rng.uniform(-180, 90), rng.uniform(-90, 60)
        box = (west, south, west + rng.uniform(1, 90), south + rng.uniform(1, 30))
        assert area_of(box, crs) == pytest.approx(exact(box), rel=2e-5)


def test_an_area_that_touches_the_antimeridian_on_both_sides_is_one() -> None:
    halves = shapely.union_all([shapely.box(170, -20, 180, 10), shapely.box(-180, -20, -170, 10)])
    pacific = make_region(project_shape(halves, WGS84, CRS.from_epsg(8859)), [], CRS.from_epsg(8859))
    assert len(pacific.shape.geoms) == 1
    common = make_region(project_shape(halves, WGS84, CRS.from_epsg(8857)), [], CRS.from_epsg(8857))
    assert len(common.shape.geoms) == 2
    assert common.area == pytest.approx(pacific.area, rel=5e-5)
    left, _, right, _ = common.bounds
    assert common.area < 0.2 * (right - left) * 3e6, "no streak around the earth"


@pytest.mark.parametrize("code", CODES)
def test_an_area_in_another_projection_is_cut_at_the_edge(code: int) -> None:
    crs = CRS.from_epsg(code)
    polar = CRS.from_epsg(3031)  # around the south pole
    edge = np.stack([np.linspace(-180, 180, 721), np.full(721, -70.0)], -1)
    cap = shapely.Polygon(to_metric(edge, WGS84, polar))
    expected = exact((-180, -90, 180, -70))
    assert make_region(project_shape(cap, polar, crs), [], crs).area == pytest.approx(expected, rel=1e-4)
    mercator = CRS.from_proj4("+proj=merc +lon_0=150 +datum=WGS84")
    outer = (140.0, -10.0, 240.0, 30.0)
    for inner in ((160.0, 0.0, 179.0, 10.0), (170.0, 0.0, 190.0, 10.0), (185.0, 0.0, 220.0, 10.0)):
        box, hole = (
            shapely.box(*to_metric(np.reshape(each, (2, 2)), WGS84, mercator).ravel()) for each in (outer, inner)
        )
        found = make_region(project_shape(box.difference(hole), mercator, crs), [], crs)
        assert found.area == pytest.approx(exact(outer) - exact(inner), rel=1e-4)


def test_the_map_is_cut_where_there_is_nothing_if_there_is_such_a_place() -> None:
    for lon, code in (
        ([-170.0, 0.0, 169.0], 8857),
        ([100.0, 175.0, -175.0, -80.0], 8859),
        ([-175.0, -60.0, 20.0, 60.0, 110.0, 176.0], 8859),
        ([178.0, -30.0, -170.0, 60.0], 8858),
        (list(np.arange(-180.0, 180.0)), 8857),
    ):
        crs, said = world_crs(np.asarray(lon))
        assert crs.to_epsg() == code
        assert f"(EPSG:{code})" in said
        assert is_world(crs)
        assert is_world(CRS.from_wkt(crs.to_wkt()))
    assert not is_world(CRS.from_epsg(6933))
    assert not is_world(WGS84)


@pytest.mark.parametrize("code", CODES)
def test_rows_tell_longitude_and_latitude(code: int) -> None:
    middle, table = rows(CRS.from_epsg(code))
    assert middle == MAPS[code]
    rng = np.random.default_rng(0)
    lon, lat = rng.uniform(middle - 179.9, middle + 179.9, 500), rng.uniform(-89, 89, 500)
    x, y = Transformer.from_crs(4326, code, always_xy=True).transform(lon, lat)
    np.testing.assert_allclose(np.interp(y, table[:, 1], table[:, 0]), lat, atol=2e-3)
    found = middle + 180 * x / np.interp(y, table[:, 1], table[:, 2])
    np.testing.assert_allclose(found, lon, atol=2e-2)
