from pathlib import Path

import numpy as np
import pytest
import shapely
from scipy.sparse.csgraph import floyd_warshall

from bo_scale.errors import SurveyError
from bo_scale.survey.routes.distances import Around, Given, Straight, Ways, given_ways

FAR = np.array([380_000.0, 5_800_000.0])
"""Where coordinates have few digits to spare."""


def box(left: float, bottom: float, right: float, top: float, origin: np.ndarray) -> shapely.Polygon:
    return shapely.box(*(origin + np.array([left, bottom])), *(origin + np.array([right, top])))


def matrix(ways: Ways) -> np.ndarray:
    return np.stack([ways.starting(i) for i in range(len(ways.points))])


def length(line: np.ndarray) -> float:
    return float(np.linalg.norm(np.diff(line, axis=0), axis=-1).sum())


def inside(line: np.ndarray, barriers: shapely.Geometry) -> float:
    """Metres of a line in the inside of barriers."""
    parts = shapely.intersection(
        shapely.linestrings(np.stack([line[:-1], line[1:]], 1)), shapely.buffer(barriers, -0.01)
    )
    return float(shapely.length(parts).sum())


def check(ways: Ways, barriers: shapely.Geometry) -> None:
    """Laws of shortest ways, and that they are ways."""
    lengths = matrix(ways)
    np.testing.assert_allclose(lengths, lengths.T, rtol=1e-12)
    np.testing.assert_array_equal(np.diag(lengths), 0.0)
    for i in range(len(lengths)):
        np.testing.assert_allclose(ways.ending(i), lengths[:, i], rtol=1e-12)
        with np.errstate(invalid="ignore"):
            assert (lengths <= lengths[:, i : i + 1] + lengths[i] + 1e-6).all()
        for j in np.nonzero(np.isfinite(lengths[i]))[0]:
            line = ways.path(i, int(j))
            np.testing.assert_array_equal(line[[0, -1]], ways.points[[i, j]])
            assert length(line) == pytest.approx(lengths[i, j], rel=1e-12, abs=1e-9)
            assert inside(line, barriers) == 0.0


def spikes(generator: np.random.Generator, centre: np.ndarray, count: int) -> shapely.Geometry:
    angles = np.sort(generator.uniform(0, 2 * np.pi, count))
    radii = generator.uniform(300.0, 1500.0, count)
    return shapely.Polygon(centre + radii[:, None] * np.stack([np.cos(angles), np.sin(angles)], -1)).buffer(0.0)


def by_hand(points: np.ndarray, barriers: shapely.Geometry) -> np.ndarray:
    """All vertices, and every line whose part in the inside has no length."""
    nodes = np.concatenate([points, np.unique(shapely.get_coordinates(barriers), axis=0)])
    first, second = np.triu_indices(len(nodes), 1)
    lines = shapely.linestrings(np.stack([nodes[first], nodes[second]], 1))
    free = shapely.length(shapely.intersection(lines, shapely.buffer(barriers, -1e-3, join_style="mitre"))) == 0.0
    lengths = np.full((len(nodes), len(nodes)), np.inf)
    lengths[first[free], second[free]] = shapely.length(lines[free])
    return floyd_warshall(lengths, directed=False)[: len(points), : len(points)]


@pytest.mark.parametrize("corner", [np.zeros(2), FAR], ids=["origin", "far"])
def test_a_way_goes_round_the_end_of_a_wall(corner: np.ndarray) -> None:
    wall = box(0, -10_000, 100, 3000, corner)
    points = corner + np.array([[-4000.0, 0], [4100, 0], [-4000, 6100], [0, -1000]])
    ways = Around(points, wall)

    assert ways.deviation == 0.0
    assert ways.starting(0)[1] == pytest.approx(5000 + 100 + 5000)
    np.testing.assert_allclose(ways.path(0, 1), corner + np.array([[-4000, 0], [0, 3000], [100, 3000], [4100, 0]]))
    assert ways.starting(0)[2] == pytest.approx(6100.0)
    assert ways.starting(2)[1] == pytest.approx(np.hypot(8100, 6100))
    assert len(ways.path(2, 1)) == 2
    assert ways.starting(3)[1] == pytest.approx(4000 + 100 + 5000)  # along the wall itself
    check(ways, wall)


def test_the_hole_of_a_barrier_is_a_court_nobody_reaches() -> None:
    ring = shapely.box(0, 0, 1000, 1000).difference(shapely.box(300, 300, 700, 700))
    ways = Around(np.array([[-500.0, 500], [1500, 500], [400, 400], [600, 650], [100, 100], [200, 200], [0, 0]]), ring)
    lengths = matrix(ways)

    assert lengths[0, 1] == pytest.approx(2 * np.hypot(500, 500) + 1000)
    assert lengths[2, 3] == pytest.approx(np.hypot(200, 250))
    assert lengths[0, 6] == pytest.approx(np.hypot(500, 500))  # on the boundary
    apart = [(0, 2), (1, 3), (2, 6), (4, 0), (4, 2), (4, 5), (5, 6)]
    assert all(np.isinf(lengths[i, j]) and np.isinf(lengths[j, i]) for i, j in apart)
    with pytest.raises(SurveyError, match="no way around the barriers from place 0 to place 2: leave"):
        ways.path(0, 2)
    check(ways, ring)


def test_a_way_goes_between_two_islands() -> None:
    islands = shapely.MultiPolygon([shapely.box(0, 100, 1000, 500), shapely.box(0, -500, 1000, 80)])
    ways = Around(np.array([[-100.0, 50], [1100, 50], [500, 900]]), islands)

    assert ways.starting(0)[1] == pytest.approx(1000 + 2 * np.hypot(100, 30))
    assert ways.starting(0)[2] == pytest.approx(np.hypot(100, 450) + np.hypot(500, 400))
    check(ways, islands)


def test_a_way_goes_through_where_two_barriers_touch() -> None:
    squares = shapely.MultiPolygon([shapely.box(0, 0, 500, 500), shapely.box(500, -500, 1000, 0)])
    ways = Around(np.array([[0.0, -500], [1000, 500], [100, -100]]), squares)

    assert ways.starting(0)[1] == pytest.approx(np.hypot(1000, 1000))
    assert ways.starting(2)[1] == pytest.approx(np.hypot(400, 100) + np.hypot(500, 500))
    check(ways, squares)


@pytest.mark.parametrize("seed", range(6))
def test_ways_are_the_shortest_of_a_graph_of_everything(seed: int) -> None:
    generator = np.random.default_rng(seed)
    centres = FAR + np.array([[0.0, 0], [2200, 300], [800, 2300]]) + generator.uniform(-200, 200, (3, 2))
    barriers = shapely.union_all([spikes(generator, centre, 9) for centre in centres])
    barriers = barriers.difference(box(-150, -150, 150, 150, FAR))
    points = FAR + generator.uniform(-2000, 4000, (25, 2))
    points = points[~shapely.intersects_xy(barriers, *points.T)]
    points = np.concatenate([points, shapely.get_coordinates(barriers)[:2], FAR[None]])
    ways = Around(points, barriers)

    np.testing.assert_allclose(matrix(ways), by_hand(points, barriers), rtol=1e-9)
    check(ways, barriers)


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
    with pytest.raises(SurveyError, match=r"2,116 corners, even simplified by .* m: leave out the smallest"):
        Around(np.zeros((1, 2)), shapely.MultiPolygon(list(shapely.box(x, y, x + 70, y + 70))))


def test_straight_ways() -> None:
    points = FAR + np.random.default_rng(1).uniform(0, 1000, (7, 2))
    ways = Straight(points)

    np.testing.assert_allclose(matrix(ways), np.linalg.norm(points[:, None] - points, axis=-1))
    check(ways, shapely.MultiPolygon())


def test_given_ways_may_differ_there_and_back() -> None:
    lengths = np.array([[0.0, 5.0, np.nan], [7.0, np.nan, 1.0], [2.0, 3.0, 0.0]])
    before, points = lengths.copy(), np.random.default_rng(1).uniform(0, 9, (3, 2))
    ways = Given(points, lengths)

    np.testing.assert_array_equal(ways.starting(0), [0, 5, np.inf])
    np.testing.assert_array_equal(ways.ending(0), [0, 7, 2])
    np.testing.assert_array_equal(ways.starting(1), [7, 0, 1])
    np.testing.assert_array_equal(ways.path(2, 0), points[[2, 0]])
    np.testing.assert_array_equal(lengths, before)
    with pytest.raises(SurveyError, match="no way from place 0 to place 2"):
        ways.path(0, 2)
    with pytest.raises(SurveyError, match=r"3 places need 3 × 3 of them, not \(2, 3\)"):
        Given(points, lengths[:2])
    with pytest.raises(SurveyError, match="negative"):
        Given(points, -lengths)


@pytest.mark.parametrize(
    "text",
    [
        "from/to,A,B,C d\nA,0,1.5,\nB,2,0,-\nC d,,3e1,0\n",
        "\ufeff;A;B;C d\r\nC d;;30;0\r\nA;0;1,5;\r\n\r\nB;2;0;n/a\r\n",
        "x\tA\tB\tC d\nA\t0\t1.5\nB\t2\t0\t\nC d\t\t30\t0\n",
    ],
    ids=["commas", "decimal-commas", "tabs"],
)
def test_a_matrix_is_read(tmp_path: Path, text: str) -> None:
    (tmp_path / "ways.csv").write_text(text, encoding="utf-8")
    names, lengths = given_ways(tmp_path / "ways.csv")

    assert names == ["A", "B", "C d"]
    np.testing.assert_array_equal(lengths, [[0, 1.5, np.nan], [2, 0, np.nan], [np.nan, 30, 0]])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (",A,B\nA,0,1\n", "there is no row B; a matrix of ways has one for each column"),
        (",A,B\nA,0,1\nB,1,0\nC,1,0\n", "row 4: there is no column C"),
        (",A,B\nA,0,1\nC,1,0\n", "row 3: there is no column C; rows and columns need the same names"),
        (",A,A\nA,0,1\nB,1,0\n", "column 3: A is there already, in column 2"),
        (",A,B\nA,0,1\n\nA,1,0\n", "row 4: A is there already, in row 2"),
        (",A,\nA,0,1\nB,1,0\n", "column 3: it has no name"),
        (",A,B\nA,0,1\n,1,0\n", "row 3: it has no name"),
        (",A,B\nA,0,-1\nB,1,0\n", r"row 2, column 3 \(B\): -1 is not a length; leave the field blank"),
        (",A,B\nA,0,inf\nB,1,0\n", r"row 2, column 3 \(B\): inf is not a length"),
        (",A,B\nA,0,1\nB,far,0\n", r"row 3, column 2 \(A\): far is no number; leave the field blank"),
        (",A,B\nA,0,1,5\nB,1,0\n", "row 2: 4 fields where the header has 3"),
        ("", "the file is empty"),
    ],
)
def test_what_is_wrong_with_a_matrix_is_told(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "ways.csv").write_text(text)
    with pytest.raises(SurveyError, match=rf"ways\.csv.*{message}"):
        given_ways(tmp_path / "ways.csv")


def test_a_matrix_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SurveyError, match="there is no such file"):
        given_ways(tmp_path / "ways.csv")
