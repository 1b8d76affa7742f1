from pathlib import Path

import numpy as np
import pytest
import shapely
from ways import FAR, box, by_hand, check, matrix, spikes

from bo_scale.errors import SurveyError
from bo_scale.survey.routes.distances import Around, Given, Straight, given_ways


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
    with pytest.raises(SurveyError, match="no route around the barriers from place 0 to place 2; leave"):
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
    with pytest.raises(SurveyError, match="no route from place 0 to place 2"):
        ways.path(0, 2)
    with pytest.raises(SurveyError, match=r"3 places need a 3 × 3 matrix, but its shape is \(2, 3\)"):
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
        (",A,B\nA,0,1\n", "there is no row B; rows and columns need the same names"),
        (",A,B\nA,0,1\nB,1,0\nC,1,0\n", "row 4: there is no column C"),
        (",A,B\nA,0,1\nC,1,0\n", "row 3: there is no column C; rows and columns need the same names"),
        (",A,A\nA,0,1\nB,1,0\n", "column 3: A is also in column 2"),
        (",A,B\nA,0,1\n\nA,1,0\n", "row 4: A is also in row 2"),
        (",A,\nA,0,1\nB,1,0\n", "column 3: the name is missing"),
        (",A,B\nA,0,1\n,1,0\n", "row 3: the name is missing"),
        (",A,B\nA,0,-1\nB,1,0\n", r"row 2, column 3 \(B\): -1 is not a distance or a time; leave the field blank"),
        (",A,B\nA,0,inf\nB,1,0\n", r"row 2, column 3 \(B\): inf is not a distance or a time"),
        (",A,B\nA,0,1\nB,far,0\n", r"row 3, column 2 \(A\): far is not a number; leave the field blank"),
        (",A,B\nA,0,1,5\nB,1,0\n", "row 2: 4 fields, but the header has 3"),
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
