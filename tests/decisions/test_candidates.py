"""Points of the unit cube that stand for points of a space."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bo_scale.decisions.candidates import ENUMERATED, TOLERANCE, Admissible, Lattice, already
from bo_scale.errors import SpaceError


def exact(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


SIMPLEX = {"weights": torch.ones(1, 3, dtype=torch.float64) / 3**0.5, "limits": exact([1 / 3**0.5])}
"""u₀ + u₁ + u₂ ≤ 1."""
MIXED = Admissible(6, {0: Lattice(5), 1: Lattice(8, first=1)}, ((3, 4, 5),))
"""Five even places, the integers from 1 to 8 by their logarithm, an interval, and a choice of three."""


def places(lattice: Lattice) -> Tensor:
    return lattice.position(torch.arange(lattice.count))


@given(count=st.integers(2, 5000), first=st.one_of(st.none(), st.integers(1, 1000)))
@settings(deadline=None, max_examples=30)
def test_places_rise_from_zero_to_one_and_are_found_again(count: int, first: int | None) -> None:
    at = places(Lattice(count, first))
    assert at[0] == 0
    assert at[-1] == pytest.approx(1)
    assert (at.diff() > 0).all()
    assert torch.equal(Lattice(count, first).index(at), torch.arange(count))


def test_places_are_even_or_even_in_the_logarithm() -> None:
    torch.testing.assert_close(places(Lattice(5)), torch.linspace(0, 1, 5).double())
    torch.testing.assert_close(places(Lattice(8, first=1)), torch.arange(1.0, 9.0).double().log() / math.log(8))


def test_the_nearest_integer_is_nearest_in_its_own_unit() -> None:
    """Of 1 and 2, 1.49 is 1, though it lies beyond half the way by the logarithm."""
    unit = exact([math.log(1.49) / math.log(8), math.log(1.51) / math.log(8), -1.0, 2.0])
    assert Lattice(8, first=1).index(unit).tolist() == [0, 1, 0, 7]


def test_snapping_rounds_lattices_picks_the_largest_of_a_choice_and_leaves_intervals() -> None:
    unit = exact([[0.3, 0.0, 0.123, 0.2, 0.9, 0.8], [0.9, 1.0, 0.5, 0.3, 0.1, 0.2]])
    expected = exact([[0.25, 0.0, 0.123, 0, 1, 0], [1.0, 1.0, 0.5, 1, 0, 0]])
    torch.testing.assert_close(MIXED.snap(unit), expected)
    assert torch.equal(MIXED.snap(expected), expected)
    assert unit[0, 0] == 0.3


def test_small_spaces_have_all_their_points() -> None:
    small = Admissible(4, {0: Lattice(3)}, ((1, 2, 3),))
    assert small.count == 9
    points = small.points
    assert points is not None
    assert torch.equal(points, small.snap(points))
    assert len(points.unique(dim=0)) == 9
    assert Admissible(1, {0: Lattice(ENUMERATED + 1)}).points is None
    assert MIXED.points is None
    assert MIXED.count == math.inf


def test_constraints_thin_out_all_points() -> None:
    grid = Admissible(2, {0: Lattice(3), 1: Lattice(3)}, (), exact([[0.6, 0.8]]), exact([0.7]))
    assert grid.points is not None
    kept = [(0.6 * a + 0.8 * b <= 0.7) for a in (0, 0.5, 1) for b in (0, 0.5, 1)]
    assert len(grid.points) == sum(kept) == 5


@pytest.mark.parametrize("admissible", [MIXED, Admissible(3, {0: Lattice(7)}, (), **SIMPLEX), Admissible(3, **SIMPLEX)])
def test_samples_are_admissible_a_sequence_and_distinct(admissible: Admissible) -> None:
    points = admissible.sample(100, seed=3)
    torch.testing.assert_close(admissible.snap(points), points)
    assert admissible.feasible(points).all()
    assert len(points.unique(dim=0)) == 100
    assert torch.equal(torch.cat([admissible.sample(40, 3), admissible.sample(60, 3, first=40)]), points)
    assert not torch.equal(admissible.sample(100, seed=4), points)


def test_values_of_choices_and_places_of_lattices_come_equally_often() -> None:
    points = MIXED.sample(1000, seed=0)
    assert (points[:, 3:].mean(0) - 1 / 3).abs().max() < 0.02
    counts = torch.bincount(MIXED.lattices[1].index(points[:, 1]), minlength=8)
    assert (counts - 125).abs().max() < 10


def test_where_points_run_out_each_has_come_once_before_any_comes_again() -> None:
    small = Admissible(4, {0: Lattice(3)}, ((1, 2, 3),))
    points = small.sample(20, seed=0)
    assert len(points[:9].unique(dim=0)) == 9
    assert torch.equal(points[9:18], points[:9])


def test_a_thin_simplex_is_sampled_from_within() -> None:
    """Of the cube in ten dimensions it is 1/10!; means of its coordinates are 1/11."""
    thin = Admissible(10, weights=torch.ones(1, 10, dtype=torch.float64) / 10**0.5, limits=exact([1 / 10**0.5]))
    points = thin.sample(300, seed=0)
    assert thin.feasible(points).all()
    assert points.mean() == pytest.approx(1 / 11, rel=0.1)
    assert torch.equal(thin.sample(5, 0), points[:5])


def test_contradictions_are_told() -> None:
    weights, limits = exact([[1.0, 0.0], [-1.0, 0.0]]), exact([0.2, -0.4])
    with pytest.raises(SpaceError, match="parameter_constraints: no admissible point"):
        Admissible(2, weights=weights, limits=limits).sample(1, 0)


def test_retracting_projects_onto_constraints_and_keeps_what_is_discrete() -> None:
    """The third ends where a bound and the constraint meet, from a start that is on the constraint."""
    admissible = Admissible(3, {2: Lattice(3)}, (), **SIMPLEX)
    start = exact([[0.1, 0.1, 0.5], [0.1, 0.1, 0.5], [0.3, 0.2, 0.5]])
    wanted = exact([[0.2, 0.2, 1.0], [0.5, 0.1, 0.0], [0.9, 0.0, 0.5]])
    expected = exact([[0.2, 0.2, 0.5], [0.45, 0.05, 0.5], [0.5, 0.0, 0.5]])
    torch.testing.assert_close(admissible.retract(wanted, start), expected)
    assert admissible.feasible(admissible.retract(wanted, start)).all()


def test_points_that_cannot_be_mended_are_taken_back_towards_their_start() -> None:
    """Two constraints in an acute angle, to whose corner projections in turn take long."""
    weights = torch.nn.functional.normalize(exact([[1.0, 0.02], [-1.0, 0.02]]))
    admissible = Admissible(2, weights=weights, limits=weights @ exact([0.5, 0.5]))
    start = exact([[0.5, 0.1]]).expand(50, 2)
    found = admissible.retract(torch.rand(50, 2, dtype=torch.float64), start)
    assert admissible.feasible(found).all()
    assert (found != start).any(-1).all()


def test_gradients_of_a_retracted_point_are_those_of_differences() -> None:
    admissible = Admissible(3, **SIMPLEX)
    start = exact([0.1, 0.2, 0.05])
    for point in ([0.2, 0.1, 0.3], [0.9, 0.4, 0.3]):
        unit = torch.tensor(point, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(lambda u: admissible.retract(u, start), unit)


def test_neighbours_differ_in_one_coordinate_and_reach_everything() -> None:
    start = MIXED.snap(exact([0.5, 0.4, 0.3, 1.0, 0.0, 0.0]))
    near = MIXED.neighbours(start)
    assert torch.equal(MIXED.snap(near), near)
    differing = torch.stack([near[:, 0] != start[0], near[:, 1] != start[1], (near[:, 3:] != start[3:]).any(-1)])
    assert (differing.sum(0) <= 1).all()
    assert (near[:, 2] == start[2]).all()
    assert len(near[:, 0].unique()) == 5
    assert len(near[:, 1].unique()) == 8
    assert len(near[:, 3:].unique(dim=0)) == 3
    assert Lattice(10**6).strides()[::2] == [2**k for k in range(20)]


def test_excess_is_a_distance() -> None:
    admissible = Admissible(3, **SIMPLEX)
    assert admissible.excess(torch.full((1, 3), 2 / 3).double()).item() == pytest.approx(1 / 3**0.5)
    assert admissible.excess(torch.zeros(1, 3).double()).item() == 0
    assert MIXED.excess(torch.ones(2, 6).double()).tolist() == [0, 0]


def test_points_among_those_taken() -> None:
    points = exact([[0.1, 0.2], [0.3, 0.4]])
    assert already(points, points[1:] + TOLERANCE / 2).tolist() == [False, True]
    assert already(points, points[:0]).tolist() == [False, False]


# ---------------------------------------------------------------- held values


HELD = MIXED.holding({1: 1.0, 2: 0.3, 3: 0.0, 4: 1.0, 5: 0.0})
"""Only five even places are left."""


@pytest.mark.parametrize("held", [{2: 0.3}, {0: 0.5, 2: 0.25}, {3: 0.0, 4: 1.0, 5: 0.0}, {1: 0.0}])
def test_held_values_are_those_of_every_point(held: dict[int, float]) -> None:
    some = MIXED.holding(held)
    unit = torch.rand(50, 6).double()
    columns, values = list(held), exact(list(held.values()))
    start = some.sample(50, 0)
    for points in (start, some.snap(unit), some.retract(unit, start), some.neighbours(start).flatten(0, 1)):
        assert torch.equal(points[:, columns], values.expand(len(points), -1))
    torch.testing.assert_close(MIXED.snap(start), start)
    assert len(start.unique(dim=0)) > 10
    assert not some.free[columns].any()


def test_what_is_left_is_counted() -> None:
    assert HELD.count == 5
    assert HELD.points is not None
    assert HELD.points[:, 0].tolist() == [0, 0.25, 0.5, 0.75, 1]
    assert HELD.discrete
    one = HELD.holding({0: 0.25})
    assert (one.count, one.discrete) == (1, False)
    assert one.points is not None
    assert torch.equal(one.points, one.sample(3, 0)[:1])
    assert len(one.sample(3, 0)) == 3
    assert torch.equal(one.neighbours(one.points), torch.empty(1, 0, 6).double())


def test_a_held_value_uses_up_part_of_a_constraint() -> None:
    simplex = Admissible(3, **SIMPLEX).holding({0: 0.7})
    points = simplex.sample(200, 0)
    assert (points[:, 0] == 0.7).all()
    assert (points[:, 1:].sum(-1) <= 0.3 + 1e-9).all()
    assert points[:, 1:].sum(-1).max() > 0.28
    repaired = simplex.repair(exact([[0.7, 0.9, 0.1]]))
    torch.testing.assert_close(repaired, exact([[0.7, 0.3, 0.0]]))
    with pytest.raises(SpaceError, match="1 inputs are held"):
        Admissible(3, **SIMPLEX).holding({0: 1.1}).sample(1, 0)


def test_little_room_beside_a_held_value_is_sampled_from_within() -> None:
    """Of the square of the others 1/800."""
    points = Admissible(3, **SIMPLEX).holding({0: 0.95}).sample(100, 0)
    assert (points[:, 0] == 0.95).all()
    assert points[:, 1:].mean() == pytest.approx(0.05 / 3, rel=0.2)
