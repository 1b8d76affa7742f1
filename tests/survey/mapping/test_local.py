"""Sites around a place, by directions, and beyond a hole; spacing of sites."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from bo_scale.survey.mapping.local import drawn_from, in_directions, spacing_of


@pytest.mark.parametrize("beyond", [0.0, 300.0])
def test_sites_in_each_direction_are_the_nearest_there(beyond: float) -> None:
    rng = np.random.default_rng(0)
    xy, place = rng.random((2000, 2)) * 4000, np.array([2000.0, 1800.0])
    (every, *some) = drawn_from(xy)
    found = in_directions(xy, every, place, 3, beyond)
    offset = xy - place
    distance, eighth = np.linalg.norm(offset, axis=1), np.floor(np.arctan2(*offset.T[::-1]) / (np.pi / 4)).astype(int)
    expected = []
    for direction in np.unique(eighth):
        there = np.flatnonzero((eighth == direction) & (distance > beyond))
        expected += there[np.argsort(distance[there])][:3].tolist()
    assert_array_equal(np.sort(found), np.sort(expected))
    for tree, rows in some:
        assert set(in_directions(xy, (tree, rows), place, 3, beyond)) <= set(rows)


def test_few_sites_and_sites_on_one_side() -> None:
    xy = np.array([[1.0, 1.0], [2.0, 1.0], [3.0, 3.0]])
    (every, *_) = drawn_from(xy)
    assert set(in_directions(xy, every, np.zeros(2), 5)) == {0, 1, 2}
    assert set(in_directions(xy, every, np.zeros(2), 5, beyond=3.0)) == {2}
    assert len(in_directions(xy, every, np.zeros(2), 5, beyond=30.0)) == 0


def test_repeated_sites_have_the_spacing_of_their_places() -> None:
    line = np.stack([np.arange(20) * 50.0, np.zeros(20)], -1)
    assert spacing_of(np.repeat(line, 3, 0)) == 50.0
    assert spacing_of(np.ones((5, 2))) == 0.0
