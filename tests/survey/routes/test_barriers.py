import numpy as np
import pytest
import shapely
from ways import FAR, box, by_hand, length, matrix

from bo_scale.errors import SurveyError
from bo_scale.survey.routes.distances import Around


def test_barriers_that_overlap_are_one_and_nothing_is_none() -> None:
    points = FAR + np.array([[-500.0, 10], [1500, 10]])
    halves = [box(0, y, 1000, y + 600, FAR) for y in (-500, -50)]
    whole = Around(points, shapely.union_all(halves)).starting(0)

    np.testing.assert_allclose(Around(points, shapely.GeometryCollection(halves)).starting(0), whole)
    np.testing.assert_allclose(Around(points, shapely.MultiPolygon()).starting(0), [0, 2000])
    assert len(Around(np.zeros((0, 2)), halves[0]).points) == 0


def coast(count: int) -> shapely.Geometry:
    """A rough ring around a lagoon, with a gap of 30 m in it, and an islet before the gap."""
    angles = np.linspace(0, 2 * np.pi, count, endpoint=False)
    rough = np.random.default_rng(3).uniform(-8, 8, count)
    circle = np.stack([np.cos(angles), np.sin(angles)], -1)
    ring = shapely.Polygon((6000 + rough)[:, None] * circle, [(5000 + rough)[:, None] * circle])
    ring = ring.difference(shapely.box(0, -15, 9000, 15))
    return shapely.transform(ring.union(shapely.box(7000, -100, 7200, 100)), lambda xy: xy + FAR)


def test_simplified_outlines_keep_gaps_and_walls() -> None:
    shore = coast(3000)
    vertices = shapely.get_coordinates(shore)[::30] - FAR
    beach = FAR + 1.0001 * vertices[np.linalg.norm(vertices, axis=-1) > 5900]
    beach = beach[~shapely.intersects_xy(shore, *beach.T)]
    points = np.concatenate([FAR + np.array([[0.0, 0], [9000, 0], [-9000, 0], [5500, 2000]]), beach])
    ways = Around(points, shore)
    exact = by_hand(points[:3], coast(100))

    assert 0 < ways.deviation < 50
    assert len(vertices) > 150
    assert np.isinf(ways.starting(0)[3])
    np.testing.assert_allclose(ways.starting(0)[[1, 2]], exact[0, 1:], rtol=0.01)
    lengths, deep = matrix(ways), shapely.buffer(shore, -ways.deviation - 0.01)
    shapely.prepare(deep)
    np.testing.assert_allclose(lengths, lengths.T, rtol=1e-12)
    assert len(beach) > 50
    assert np.isfinite(lengths[0, 4:]).all()
    for j in (1, 2, *range(4, len(points))):
        line = ways.path(0, j)
        np.testing.assert_array_equal(line[[0, -1]], points[[0, j]])
        assert length(line) == pytest.approx(lengths[0, j], rel=1e-12)
        assert not shapely.intersects(deep, shapely.LineString(line))


def test_a_simplified_wall_has_no_hole() -> None:
    angles = np.linspace(0, 2 * np.pi, 6000, endpoint=False)
    wave = 20 * np.sin(200 * angles)
    inner, outer = (FAR + (r + wave)[:, None] * np.stack([np.cos(angles), np.sin(angles)], -1) for r in (4000, 4002))
    wall = shapely.Polygon(np.roll(outer, 1507, 0), [inner])  # simplified, its two sides do not keep the same vertices
    ways = Around(FAR + np.array([[0.0, 0], [3000, 0], [9000, 0], [-9000, 0]]), wall)

    assert ways.deviation > 6
    assert np.isinf(ways.starting(0)[2:]).all()
    assert ways.starting(0)[1] == pytest.approx(3000)
    around = 4026 * (np.pi - 2 * np.arccos(4026 / 9000)) + 2 * np.sqrt(9000**2 - 4026**2)
    assert ways.starting(2)[3] == pytest.approx(around, rel=0.01)


def test_too_many_barriers_are_told() -> None:
    x, y = (part.ravel() * 100.0 for part in np.mgrid[0:23, 0:23])
    with pytest.raises(SurveyError, match=r"2,116 corners, even after simplification by .* m.* Leave out the smallest"):
        Around(np.zeros((1, 2)), shapely.MultiPolygon(list(shapely.box(x, y, x + 70, y + 70))))
