"""Spaces of more than intervals: what goes in, what comes out, what is refused."""

import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bo_scale.errors import InvalidDataError, SpaceError
from bo_scale.loop import Choice, Fixed, Integer, Optimizer, Real, Space


def exact(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


KINDS = {
    "rate": Real(1e-4, 1e-1, log=True),
    "layers": Integer(1, 5),
    "width": Integer(8, 512, log=True),
    "size": Choice((16, 32, 128), ordered=True),
    "kind": Choice(("relu", "tanh", "gelu")),
    "bias": Choice((False, True)),
    "seed": Fixed(7),
    "share": (0.0, 0.5),
}
MIXED = Space.of(KINDS)
POINT = {
    **{"rate": 1e-3, "layers": 2, "width": 64, "size": 32, "kind": "tanh", "bias": True, "seed": 7, "share": 0.25},
}
ROW = [2 / 3 - 1 / 3, 0.25, 0.5, 0.5, 0.0, 1.0, 0.0, 1.0, 0.5]


def test_every_kind_has_its_inputs_and_places() -> None:
    assert MIXED.dimension == 9
    torch.testing.assert_close(MIXED.encode(POINT), exact([ROW]))


def test_types_come_out_as_they_were_declared() -> None:
    (point,) = MIXED.decode(exact([ROW]))
    assert {name: type(value) for name, value in point.items()} == {name: type(value) for name, value in POINT.items()}
    assert {**point, "rate": 0.0} == {**POINT, "rate": 0.0}
    assert point["rate"] == pytest.approx(1e-3)


@given(st.lists(st.lists(st.floats(0, 1), min_size=9, max_size=9), min_size=1, max_size=4))
@settings(deadline=None)
def test_whatever_is_decoded_encodes_to_the_nearest_admissible_place(rows: list[list[float]]) -> None:
    unit = torch.tensor(rows, dtype=torch.float64)
    points = MIXED.decode(unit)
    assert MIXED.admissible is not None
    torch.testing.assert_close(MIXED.encode(points, slack=1e-12), MIXED.admissible.snap(unit), rtol=0, atol=1e-9)
    assert MIXED.decode(MIXED.encode(points, slack=1e-12))[0]["kind"] == points[0]["kind"]
    assert json.loads(json.dumps(MIXED.settled(points))) == [list(point.values()) for point in points]


def test_what_is_fixed_may_be_left_out_and_scalars_of_numpy_are_values() -> None:
    without = {name: value for name, value in POINT.items() if name != "seed"}
    scalars = {**POINT, "layers": np.int64(2), "bias": np.bool_(True), "rate": exact(1e-3)}
    assert torch.equal(MIXED.encode(without), MIXED.encode(POINT))
    assert torch.equal(MIXED.encode([scalars]), MIXED.encode(POINT))
    assert MIXED.settled([scalars]) == [list(POINT.values())]
    assert type(MIXED.settled([scalars])[0][1]) is int
    assert torch.equal(MIXED.encode([list(POINT.values())]), MIXED.encode(POINT))
    assert torch.equal(MIXED.encode(list(POINT.values())), MIXED.encode(POINT))


def test_spaces_of_numbers_may_do_without_names() -> None:
    space = Space.of([(0.0, 1.0), Integer(1, 5), Choice((0.1, 0.2, 0.7)), Fixed(3)])
    unit = exact([[0.5, 0.3, 0.0, 0.0, 1.0]])
    raw = space.decode(unit)
    assert torch.equal(raw, exact([[0.5, 2.0, 0.7, 3.0]]))
    assert torch.equal(space.encode(raw.float()), space.encode(raw))
    assert torch.equal(space.rows(raw), raw)
    assert space.settled(raw.float()) == [[0.5, 2, 0.7, 3]]


@pytest.mark.parametrize(
    ("changed", "kind", "message"),
    [
        ({"layers": 2.5}, SpaceError, r"rows \[0\] lie outside.*'layers' takes integers from 1 to 5"),
        ({"layers": 6}, SpaceError, "'layers'"),
        ({"size": 64}, SpaceError, r"'size' takes one of \[16, 32, 128\]"),
        ({"kind": "sigmoid"}, SpaceError, "'kind'"),
        ({"kind": 1}, SpaceError, "'kind'"),
        ({"bias": "yes"}, SpaceError, "'bias'"),
        ({"seed": 8}, SpaceError, "'seed' takes only 7"),
        ({"rate": 0.0}, SpaceError, "'rate' takes numbers from 0.0001 to 0.1"),
        ({"rate": -1.0}, SpaceError, "'rate'"),
        ({"rate": math.nan}, InvalidDataError, r"NaN or inf in rows \[0\]"),
        ({"rate": "much"}, InvalidDataError, "row 0 has 'much' where a number"),
        ({"size": None}, SpaceError, "'size'"),
        ({"rte": 1.0}, SpaceError, r"unknown parameters \['rte'\]"),
    ],
)
def test_values_that_do_not_fit_are_refused(changed: dict[str, Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        MIXED.encode([{**POINT, **changed}])


def test_slack_forgives_rounding_and_a_journal_everything_that_is_near() -> None:
    near = {**POINT, "layers": 2.0000001, "rate": 1e-4 * (1 - 1e-7)}
    assert MIXED.encode(near, slack=1e-6)[0, 1] == 0.25
    assert MIXED.settled(near)[0][1] == 2
    with pytest.raises(SpaceError):
        MIXED.encode(near)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Real(1.0, 1.0), "lower one smaller"),
        (lambda: Real(0.0, 1.0, log=True), "above zero"),
        (lambda: Integer(3, 2), "lower one smaller"),
        (lambda: Integer(0, 8, log=True), "above zero"),
        (lambda: Choice(("a",)), "at least two.*Fixed"),
        (lambda: Choice(("a", "a")), "all different"),
        (lambda: Choice((1, True)), "all different"),
        (lambda: Choice((1.0, math.nan)), "finite"),
        (lambda: Fixed(math.inf), "finite"),
        (lambda: Space.of({"a": Fixed(1)}), "every parameter is Fixed"),
        (lambda: Space.of([Choice(("a", "b"))]), "Name all of them"),
        (lambda: Space.of({"a": "b"}), "'a' needs a pair"),
        (lambda: Space.of({"x": (0, 1)}, ["y <= 1"]), r"parameter_constraints: .*\['y'\] are not parameters"),
        (lambda: Space.of({"x": (0, 1)}, ["x * x <= 1"]), "parameter_constraints: .*not linear"),
        (lambda: Space.of(KINDS, ["rate + share <= 1"]), "'rate' is on a logarithmic scale"),
        (lambda: Space.of(KINDS, ["kind <= 1"]), "'kind' takes one of .*Only Real and Integer"),
        (lambda: Space.of(KINDS, ["seed <= 1"]), "'seed' takes only 7"),
    ],
)
def test_parameters_that_cannot_be_are_refused(make: Any, message: str) -> None:
    with pytest.raises(SpaceError, match=message):
        make()


def test_a_description_tells_kinds_apart_and_survives_json() -> None:
    others = [
        Space.of({**KINDS, "layers": Integer(1, 6)}),
        Space.of({**KINDS, "layers": (1, 5)}),
        Space.of({**KINDS, "rate": (1e-4, 1e-1)}),
        Space.of({**KINDS, "size": Choice((16, 32, 128))}),
        Space.of(KINDS, ["share <= 0.4"]),
        Space.of(KINDS, ["share <= 0.3"]),
    ]
    assert len({json.dumps(space.describe()) for space in [MIXED, *others]}) == 7
    assert json.loads(json.dumps(MIXED.describe())) == MIXED.describe()
    assert not MIXED.is_box
    assert Space.of({"x": (0, 1)}).admissible is None


@pytest.mark.parametrize("log", [False, True])
def test_integers_of_a_wide_range_are_not_taken_for_each_other(log: bool) -> None:
    space = Space.of({"n": Integer(1, 10_000_000, log=log), "x": (0.0, 1.0)})
    tolerances = space.tolerances(1e-6)
    near = space.encode([{"n": 9_999_998, "x": 0.5}, {"n": 9_999_999, "x": 0.5}, {"n": 9_999_999, "x": 0.5000009}])
    assert ((near[1:] - near[:-1]).abs() <= tolerances).all(-1).tolist() == [False, True]


@pytest.mark.parametrize(
    ("value", "taken"), [(1000.0000001, True), (1000.4, False), (1001.5, False), (10_000_001, False)]
)
def test_integers_are_whole_in_any_range(value: float, taken: bool) -> None:
    space = Space.of({"n": Integer(1, 10_000_000)})
    if taken:
        assert space.settled({"n": value}) == [[1000]]
        space.encode({"n": value}, slack=1e-6)
    else:
        with pytest.raises(SpaceError, match="n"):
            space.encode({"n": value}, slack=1e-6 if value < 1e7 else 1e-8)


# ---------------------------------------------------------------- decimals


@pytest.mark.parametrize("log", [False, True])
def test_numbers_of_few_digits_are_proposed_and_others_told(log: bool) -> None:
    real = Real(0.011, 0.999, log, digits=2)
    assert (real.lower, real.upper) == (0.02, 0.99)
    assert real.lattice is not None
    assert real.lattice.count == 98
    values = [round(0.01 * k, 2) for k in range(2, 100)]
    unit, outside = real.encode(values)
    assert (outside == 0).all()
    torch.testing.assert_close(unit.squeeze(-1), real.lattice.position(torch.arange(98)), rtol=0, atol=1e-12)
    assert real.decode(unit) == values
    assert real.settled([0.12345]) == [0.12345]
    assert real.describe()["digits"] == 2
    assert "digits" not in Real(0.0, 1.0).describe()


def test_digits_too_few_for_the_bounds_are_refused() -> None:
    with pytest.raises(SpaceError, match="fewer than two numbers between them have 1 digits"):
        Real(0.11, 0.19, digits=1)


def test_asked_points_have_the_digits_and_obey_constraints() -> None:
    space = Space.of({"x": Real(0.0, 1.0, digits=1), "y": (0.0, 1.0)}, ["x + y <= 0.75"])
    loop = Optimizer(space, model="wiski", model_options={"grid_size": 8}, num_initial=3)
    for _ in range(4):
        points = loop.ask(2)
        assert all(point["x"] == round(point["x"], 1) for point in points)
        loop.tell(points, [point["x"] for point in points])
    assert not space.is_box


# ---------------------------------------------------------------- constraints on choices


def test_evenly_spaced_choices_are_linear() -> None:
    assert Choice((0.0, 0.25, 0.5), ordered=True).span == (0.0, 0.5)
    assert Choice((6, 4, 2), ordered=True).span == (6.0, 2.0)
    for each in (Choice((1, 2, 4), ordered=True), Choice((1, 2, 3)), Choice(("a", "b"), ordered=True)):
        assert each.span is None


@pytest.mark.parametrize("values", [(0.0, 0.25, 0.5, 0.75, 1.0), (1.0, 0.5, 0.0)])
def test_evenly_spaced_choices_can_be_constrained(values: tuple[float, ...]) -> None:
    space = Space.of({"x": (0.0, 1.0), "k": Choice(values, ordered=True)}, ["x + k <= 0.6"])
    assert space.admissible is not None
    points = space.decode(space.admissible.sample(40, 0))
    assert all(point["x"] + point["k"] <= 0.6 + 1e-9 for point in points)  # type: ignore[index]
    assert len({point["k"] for point in points}) > 1  # type: ignore[index]
    with pytest.raises(SpaceError, match="violate"):
        space.encode({"x": 0.5, "k": 0.5})
