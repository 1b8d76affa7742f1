"""Inputs that stand idle where others do not take certain places."""

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from bo_scale.decisions.ascent import ascend
from bo_scale.decisions.candidates import Admissible, Lattice
from bo_scale.decisions.conditions import Condition
from bo_scale.errors import SpaceError

FIRST, SECOND, THIRD = (1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)
ON_TWO = (((0, 1, 2), (SECOND, THIRD)),)
"""The first parameter is a choice of three. At its second and third value there is a lattice, and where that is at its
last place, a choice of two inputs. At the first value there is an interval."""
TREE = Admissible(
    7,
    {3: Lattice(4)},
    ((0, 1, 2), (4, 5)),
    conditions=(
        Condition((3,), 0.5, ON_TWO),
        Condition((4, 5), 0.5, (((3,), ((1.0,),)), *ON_TWO)),
        Condition((6,), 0.5, (((0, 1, 2), (FIRST,)),)),
    ),
)
DISCRETE = Admissible(6, TREE.lattices, TREE.choices, conditions=TREE.conditions[:2])


def exact(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def by_hand(point: tuple[float, ...]) -> tuple[float, ...]:
    """A point of the tree with its idle inputs in the middle."""
    first, lattice, rest = point[:3], point[3], point[4:]
    exists = first != FIRST
    pair = rest[:2] if exists and lattice == 1 else (0.5, 0.5)
    return (*first, lattice if exists else 0.5, *pair, *((rest[2] if not exists else 0.5,) if len(rest) > 2 else ()))


def test_all_points_of_a_small_space_are_those_of_a_list_by_hand() -> None:
    lists = itertools.product((FIRST, SECOND, THIRD), (0, 1 / 3, 2 / 3, 1), ((1.0, 0.0), (0.0, 1.0)))
    wanted = {by_hand((*first, place, *pair)) for first, place, pair in lists}
    assert DISCRETE.points is not None
    found = [tuple(point) for point in DISCRETE.points.tolist()]
    assert len(found) == DISCRETE.count == 11
    assert {tuple(round(each, 9) for each in point) for point in found} == {
        tuple(round(each, 9) for each in point) for point in wanted
    }


def test_a_deep_tree_is_listed_though_its_product_is_large() -> None:
    """Eleven lattices of four places, each only where the one before is at its first: 3 · 11 + 1 points, not 4¹¹."""
    tests = [tuple(((i,), ((0.0,),)) for i in range(k - 1, -1, -1)) for k in range(11)]
    conditions = tuple(Condition((k,), 0.5, tests[k]) for k in range(1, 11))
    deep = Admissible(11, {i: Lattice(4) for i in range(11)}, conditions=conditions)
    assert deep.points is not None
    assert len(deep.points) == deep.count == 34
    assert torch.equal(deep.snap(deep.points), deep.points)


def test_samples_and_neighbours_are_settled_and_distinct() -> None:
    points = TREE.sample(300, seed=0)
    assert torch.equal(TREE.snap(points), points)
    assert [by_hand(tuple(point)) for point in points.tolist()] == [tuple(point) for point in points.tolist()]
    assert len(points.unique(dim=0)) == 300
    near = TREE.neighbours(points)
    assert torch.equal(TREE.snap(near), near)


def test_what_is_idle_becomes_active_with_what_it_depends_on() -> None:
    start = exact([*FIRST, 0.5, 0.5, 0.5, 0.9])
    near = {tuple(point) for point in TREE.neighbours(start).tolist()}
    for place, pair in ((1.0, (1.0, 0.0)), (1.0, (0.0, 1.0)), (1 / 3, (0.5, 0.5))):
        assert (*SECOND, place, *pair, 0.5) in near


def test_a_climb_leaves_idle_inputs_and_moves_those_that_an_exchange_awakes() -> None:
    """The function is highest at the third value with the second of the pair, and flat in what is idle there."""
    peak = exact([*THIRD, 1.0, 0.0, 1.0, 0.5])
    start = TREE.sample(8, seed=1)
    found, _ = ascend(lambda x: -(x - peak).square().sum(-1), start, TREE, 20)
    torch.testing.assert_close(found, peak.expand(8, 7))
    low = exact([*FIRST, 0.5, 0.5, 0.5, 0.2])
    found, _ = ascend(lambda x: -(x - low).square().sum(-1) + 0.3 * x[..., 3], start, TREE, 20)
    torch.testing.assert_close(found, low.expand(8, 7), atol=1e-6, rtol=0)


def test_idle_inputs_have_no_gradient() -> None:
    start = exact([[*SECOND, 1.0, 1.0, 0.0, 0.5], [*FIRST, 0.5, 0.5, 0.5, 0.3]])
    wanted = exact([[*SECOND, 1.0, 1.0, 0.0, 0.9], [*FIRST, 0.1, 0.1, 0.7, 0.9]]).requires_grad_()
    moved = TREE.retract(wanted, start)
    torch.testing.assert_close(moved[:, 6], exact([0.5, 0.9]))
    assert torch.equal(moved[:, :6], start[:, :6])
    (gradient,) = torch.autograd.grad(moved.sum(), wanted)
    assert gradient.nonzero().tolist() == [[1, 6]]


def test_holding_a_value_limits_what_it_depends_on() -> None:
    held = TREE.holding({3: 1 / 3})
    assert held.choices == ((1, 2),)
    assert {tuple(point) for point in held.sample(8, 0)[:, :3].tolist()} == {SECOND, THIRD}
    deeper = TREE.holding({4: 0.0, 5: 1.0})
    assert deeper.held[3] == 1.0
    assert (deeper.sample(8, 0)[:, 0] == 0).all()
    lone = TREE.holding({6: 0.75})
    assert lone.points is not None
    assert lone.points.tolist() == [[*FIRST, 0.5, 0.5, 0.5, 0.75]]


def test_some_places_of_a_lattice_remain_where_several_awake_what_is_held() -> None:
    conditions = (Condition((1,), 0.5, (((0,), ((0.2,), (0.4,), (1.0,))),)),)
    held = Admissible(2, {0: Lattice(6), 1: Lattice(3)}, conditions=conditions).holding({1: 0.5})
    assert held.points is not None
    assert held.points.tolist() == [[0.2, 0.5], [0.4, 0.5], [1.0, 0.5]]
    torch.testing.assert_close(held.snap(exact([[0.65, 0.0], [0.9, 0.0]])), exact([[0.4, 0.5], [1.0, 0.5]]))
    assert torch.equal(held.snap(held.neighbours(held.points)), held.neighbours(held.points))


def test_conditions_that_held_values_decide_are_gone() -> None:
    first = TREE.holding(dict(enumerate(FIRST)))
    assert first.conditions == ()
    assert first.free.nonzero().tolist() == [[6]]
    assert first.count == math.inf
    second = TREE.holding(dict(enumerate(SECOND)))
    assert [each.inputs for each in second.conditions] == [(4, 5)]
    assert second.count == 5


def test_a_value_where_it_is_idle_is_refused() -> None:
    with pytest.raises(SpaceError, match="idle"):
        TREE.holding({**dict(enumerate(FIRST)), 3: 1.0})


def test_told_points_keep_a_held_value_only_where_it_is_active() -> None:
    points = exact([[*SECOND, 1 / 3, 0.5, 0.5, 0.5], [*FIRST, 0.5, 0.5, 0.5, 0.5]])
    assert TREE.keeps(points, {6: 0.5}).tolist() == [False, True]
