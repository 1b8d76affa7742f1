import time

import numpy as np
import pytest
import shapely
from pyproj import CRS
from shapely import MultiPolygon, Point, Polygon

from bo_scale.errors import SurveyError
from bo_scale.survey.geography.region import (
    WGS84,
    Region,
    buffered_hull,
    make_region,
    polygons,
)

METRES = CRS.from_epsg(25832)


def region(shape: shapely.Geometry, *forbidden: shapely.Geometry) -> Region:
    return make_region(shape, list(forbidden), METRES)


def ring_of_lakes() -> Region:
    """Not convex, in two parts, with a hole and a forbidden corner."""
    horseshoe = Polygon([(0, 0), (100, 0), (100, 100), (70, 100), (70, 30), (30, 30), (30, 100), (0, 100)])
    hole = Polygon([(75, 40), (95, 40), (85, 90)])
    return region(MultiPolygon([horseshoe.difference(hole), shapely.box(200, 0, 210, 5)]), shapely.box(-5, -5, 12, 12))


SHAPES = {
    "square": region(shapely.box(0, 0, 50, 50)),
    "ring of lakes": ring_of_lakes(),
    "river": region(shapely.LineString([(0, 0), (5e4, 3e4)]).buffer(4.0)),
    "islands far apart": region(MultiPolygon([shapely.box(0, 0, 2, 1), shapely.box(1e5, 9e4, 1e5 + 3, 9e4 + 1)])),
    "far from the origin": region(shapely.box(500_000, 5_700_000, 500_000.02, 5_700_000.01)),
}


@pytest.fixture(params=SHAPES)
def some(request: pytest.FixtureRequest) -> Region:
    return SHAPES[request.param]


def test_points_of_a_region_are_within_and_those_on_its_edge() -> None:
    lakes = ring_of_lakes()
    left, bottom, right, top = lakes.bounds
    x, y = np.meshgrid(np.arange(left - 5, right + 5, 2.5), np.arange(bottom - 5, top + 5, 2.5))
    xy = np.stack([x.ravel(), y.ravel()], -1)
    brute = np.asarray([lakes.shape.intersects(Point(at)) for at in xy])
    np.testing.assert_array_equal(lakes.contains(xy), brute)
    edge = np.asarray([[0, 100], [70, 50], [30, 40], [85, 90], [12, 5], [200, 2], [100, 0]], dtype=np.float64)
    assert lakes.contains(edge).all()
    out = np.asarray([[5, 5], [50, 60], [85, 60], [150, 2], [0, 0]], dtype=np.float64)
    assert not lakes.contains(out).any()
    assert lakes.contains(np.zeros((0, 2))).shape == (0,)


def test_area_is_what_is_left() -> None:
    horseshoe = 100 * 100 - 40 * 70
    assert ring_of_lakes().area == pytest.approx(horseshoe - 20 * 50 / 2 + 50 - 144)


def test_quasi_random_points_are_within_and_spread_by_area(some: Region) -> None:
    xy = some.points(256, seed=3)
    assert xy.shape == (256, 2)
    assert some.contains(xy).all()
    for part in some.shape.geoms:
        share = shapely.intersects_xy(part, xy[:, 0], xy[:, 1]).mean()
        assert share == pytest.approx(part.area / some.area, abs=0.05)


def test_points_fill_a_region_more_evenly_than_chance() -> None:
    lakes = ring_of_lakes()
    cells = lakes.cells(size=1.0).centres
    xy = lakes.points(512, seed=0)
    rng = np.random.default_rng(0)
    chance = rng.permutation(cells)[:512] + rng.uniform(-0.5, 0.5, (512, 2))

    def imbalance(points: np.ndarray) -> float:
        shares = [(points[:, 0] < at).mean() - (cells[:, 0] < at).mean() for at in range(5, 100, 5)]
        return float(np.abs(shares).max())

    assert imbalance(xy) < 0.6 * imbalance(chance)


def test_points_follow_from_the_seed(some: Region) -> None:
    np.testing.assert_array_equal(some.points(100, seed=5), some.points(300, seed=5)[:100])
    assert not np.array_equal(some.points(100, seed=5), some.points(100, seed=6))
    assert some.points(0, seed=1).shape == (0, 2)


def test_a_region_too_thin_for_points_says_so() -> None:
    hair = Region(MultiPolygon([Polygon([(0, 0), (1e6, 7e5), (1e6, 7e5 + 1e-7)])]), METRES)
    with pytest.raises(SurveyError, match="too thin"):
        hair.points(100, seed=0)


@pytest.mark.parametrize("size", [0.7, 3.0, 9.5])
def test_cells_are_those_whose_centres_are_within(size: float) -> None:
    lakes = ring_of_lakes()
    raster = lakes.cells(size=size)
    rows, columns = raster.inside.shape
    x = raster.left + (np.arange(columns) + 0.5) * size
    y = raster.top - (np.arange(rows) + 0.5) * size
    brute = lakes.contains(np.stack([np.tile(x, rows), np.repeat(y, columns)], -1)).reshape(rows, columns)
    np.testing.assert_array_equal(raster.inside, brute)
    left, bottom, right, top = lakes.bounds
    assert raster.left <= left
    assert raster.top >= top
    assert raster.left + columns * size >= right
    assert raster.top - rows * size <= bottom
    assert lakes.contains(raster.centres).all()
    assert raster.crs == METRES


def test_about_as_many_cells_as_asked_for(some: Region) -> None:
    if some is SHAPES["islands far apart"]:
        with pytest.raises(SurveyError, match="split the area"):
            some.cells(count=2000)
        return
    slack = 0.3 if some is SHAPES["river"] else 0.1  # narrower than a cell
    for count in (2000, 3000):
        assert some.cells(count=count).count == pytest.approx(count, rel=slack)
    assert some.cells(count=1).count >= 1


def test_a_region_has_ten_thousand_cells_if_nobody_says() -> None:
    assert ring_of_lakes().cells().count == pytest.approx(10_000, rel=0.02)


def test_parts_far_apart_have_fewer_cells() -> None:
    fields = region(MultiPolygon([shapely.box(0, 0, 10, 10), shapely.box(5000, 4000, 5010, 4010)]))
    raster = fields.cells(count=10_000)
    assert raster.inside.size <= 25_100_000
    assert raster.count * raster.size**2 == pytest.approx(fields.area, rel=0.15)


def test_cells_that_cannot_be() -> None:
    lakes = ring_of_lakes()
    with pytest.raises(SurveyError, match="choose smaller cells"):
        region(shapely.box(0, 0, 10, 1).union(shapely.box(0, 0, 1, 10))).cells(size=10.0)
    with pytest.raises(SurveyError, match="larger cells, or split"):
        SHAPES["islands far apart"].cells(size=1.0)
    for size in (1e-4, 1e-300):
        with pytest.raises(SurveyError, match=r"GB of memory.* Give at least 0\.01\d* metres, for 25,000,000 cells"):
            lakes.cells(size=size)
    with pytest.raises(SurveyError, match=r"cells=1,000,000,000 .* about 500 GB of memory.* Give at most 25,000,000, "):
        lakes.cells(10**9)
    for count in (0, -1):
        with pytest.raises(SurveyError, match="give a number from 1 to 25,000,000"):
            lakes.cells(count)
    assert lakes.cells(1).count >= 1
    for wrong in (0.0, -1.0, float("nan")):
        with pytest.raises(SurveyError, match="positive width"):
            lakes.cells(size=wrong)


def test_a_million_cells_of_a_rugged_region_take_seconds() -> None:
    angle = np.linspace(0, 2 * np.pi, 20_000, endpoint=False)
    radius = 1e4 * (1 + 0.3 * np.sin(50 * angle))
    rugged = region(Polygon(np.stack([radius * np.cos(angle), radius * np.sin(angle)], -1)))
    start = time.process_time()
    assert rugged.cells(count=1_000_000).count == pytest.approx(1_000_000, rel=0.01)
    assert time.process_time() - start < 4.0


def test_the_hull_of_sites() -> None:
    xy = np.random.default_rng(0).uniform(0, [300.0, 400.0], (500, 2))
    hull = region(buffered_hull(xy))
    assert hull.contains(xy).all()
    diagonal = np.linalg.norm(xy.max(0) - xy.min(0))
    np.testing.assert_allclose(hull.bounds[0], xy[:, 0].min() - 0.05 * diagonal, rtol=1e-4)
    for few in ([[5.0, 5.0]], [[5.0, 5.0]] * 3, [[0.0, 0.0], [30.0, 40.0], [60.0, 80.0]]):
        at = np.asarray(few)
        small = region(buffered_hull(at))
        assert small.area > 0
        assert small.contains(at).all()
        assert small.points(16, seed=0).shape == (16, 2)
    with pytest.raises(SurveyError, match="no sites"):
        buffered_hull(np.zeros((0, 2)))


def test_shapes_that_cross_themselves_are_mended() -> None:
    bow = Polygon([(0, 0), (10, 10), (10, 0), (0, 10)])
    mended = region(bow)
    assert mended.shape.is_valid
    assert mended.area == pytest.approx(50.0)
    over = MultiPolygon([shapely.box(0, 0, 2, 2), shapely.box(1, 1, 3, 3)])
    assert region(over).area == pytest.approx(7.0)
    mixed = shapely.GeometryCollection([shapely.box(0, 0, 1, 1), Point(9, 9), shapely.GeometryCollection([over])])
    assert polygons(mixed).area == pytest.approx(7.0, abs=1.0)
    assert polygons(shapely.LineString([(0, 0), (1, 1)])).is_empty


def test_what_is_forbidden_is_cut_out() -> None:
    square = shapely.box(0, 0, 10, 10)
    cut = region(square, shapely.box(4, -1, 6, 11), Polygon([(0, 0), (2, 2), (2, 0), (0, 2)]))
    assert len(cut.shape.geoms) >= 2
    assert cut.area == pytest.approx(80.0 - 2.0)
    touching = region(square, shapely.box(10, 0, 20, 10))
    assert touching.shape.equals(square)
    with pytest.raises(SurveyError, match="nothing is left"):
        region(square, shapely.box(-1, -1, 5, 11), shapely.box(5, -1, 11, 11))
    with pytest.raises(SurveyError, match="the area is empty"):
        region(shapely.LineString([(0, 0), (1, 1)]))
    with pytest.raises(SurveyError, match="metric"):
        make_region(square, [], WGS84)
