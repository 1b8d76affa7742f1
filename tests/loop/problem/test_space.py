import json
import logging
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bo_scale.errors import InvalidDataError, SpaceError
from bo_scale.loop import Choice, Fixed, Integer, Real, Space

NAMED = Space.of({"x": (-1.0, 2.0), "y": (10.0, 30.0)})
PLAIN = Space.of([(-1.0, 2.0), (10.0, 30.0)])

numbers = st.floats(-1e6, 1e6)


@given(lower=numbers, extent=st.floats(1e-3, 1e6), unit=st.lists(st.floats(0.0, 1.0), min_size=1, max_size=5))
@settings(deadline=None)
def test_raw_points_lie_in_the_box_and_encode_to_where_they_came_from(
    lower: float, extent: float, unit: list[float]
) -> None:
    space, points = Space.of([(lower, lower + extent)]), torch.tensor(unit, dtype=torch.float64).unsqueeze(-1)
    raw = space.decode(points)
    assert (raw >= space.lower[0]).all()
    assert (raw <= space.upper[0]).all()
    torch.testing.assert_close(space.encode(raw, slack=1e-12), points, rtol=0, atol=1e-6)


@pytest.mark.parametrize("space", [[(-1, 2), (10, 30)], torch.tensor([[-1.0, 10.0], [2.0, 30.0]]), PLAIN])
def test_pairs_and_a_tensor_of_bounds_are_the_same_space(space: Any) -> None:
    assert Space.of(space) == PLAIN
    assert PLAIN.dimension == 2


def test_a_pair_of_whole_numbers_is_real_and_the_log_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="bo_scale.loop"):
        assert Space.of({"x": (1, 8), "y": (0.0, 1), "n": Integer(1, 8)}) == Space.of(
            {"x": (1.0, 8.0), "y": (0.0, 1.0), "n": Integer(1, 8)}
        )
    (record,) = caplog.records
    assert record.message == "parameter 'x' is taken as real; use Integer(1, 8) for whole numbers."


def test_a_pair_over_decades_is_linear_and_the_log_says_so(caplog: pytest.LogCaptureFixture) -> None:
    quiet = {"a": (1e-3, 0.9), "b": (0.0, 1e6), "c": (-1e4, -1.0), "d": Real(1e-5, 1e-1), "e": Integer(1, 10_000)}
    Space.of(quiet)
    assert not caplog.records
    Space.of({"rate": (1e-5, 1e-1)})
    (record,) = caplog.records
    assert "'rate' has a linear scale" in record.message
    assert "Real(1e-05, 0.1, log=True)" in record.message


def test_points_of_a_space_with_names_are_dictionaries_and_the_corners_exact() -> None:
    unit = torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=torch.float64)
    assert NAMED.decode(unit) == [{"x": -1.0, "y": 30.0}, {"x": 2.0, "y": 10.0}]
    assert torch.equal(PLAIN.decode(unit), torch.tensor([[-1.0, 30.0], [2.0, 10.0]], dtype=torch.float64))


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ([], "it has no parameters"),
        ({}, "it has no parameters"),
        ({"a": (0.0, 1.0), "b": (1.0, 1.0)}, "'b'.*lower one smaller"),
        ([(0.0, 1.0), (2.0, 1.0)], "parameter 1 .*lower one smaller"),
        ([(0.0, float("inf"))], "finite"),
        ([(float("nan"), 1.0)], "finite"),
        ([0.0, 1.0], "pair"),
        ({"a": 3.0}, "pair"),
        ([("a", "b")], "pair"),
        (torch.zeros(3, 2), r"\(3, 2\).*2 × d"),
        (torch.zeros(2), "2 × d"),
    ],
)
def test_impossible_spaces_are_refused_by_parameter(space: Any, message: str) -> None:
    with pytest.raises(SpaceError, match=message):
        Space.of(space)


@pytest.mark.parametrize("outside", [-1e-7, 1 + 1e-7])
def test_slack_is_a_share_of_the_range(outside: float) -> None:
    raw = torch.tensor([[-1.0, 10.0]], dtype=torch.float64) + torch.tensor([[3.0, 20.0]]) * outside
    PLAIN.encode(raw, slack=2e-7)
    with pytest.raises(SpaceError):
        PLAIN.encode(raw, slack=0.5e-7)


def test_a_description_tells_spaces_apart() -> None:
    others = [PLAIN, Space.of({"x": (-1.0, 2.0), "z": (10.0, 30.0)}), Space.of({"x": (-1.0, 2.0), "y": (10.0, 31.0)})]
    assert all(space.describe() != NAMED.describe() for space in others)
    assert Space.of({"x": (-1, 2), "y": (10, 30)}).describe() == NAMED.describe()


# ---------------------------------------------------------------- held parameters


KINDS = Space.of(
    {
        "rate": Real(1e-3, 10.0, log=True),
        "kind": Choice(("a", "b", "c")),
        "layers": Integer(1, 5),
        "seed": Fixed(3),
        "flag": Choice((False, True)),
    }
)


def test_held_values_are_columns_of_the_unit_cube() -> None:
    assert KINDS.held({}) == {}
    assert KINDS.held({"kind": "b", "layers": 2, "flag": True}) == {1: 0.0, 2: 1.0, 3: 0.0, 4: 0.25, 5: 1.0}
    assert KINDS.held({"rate": 0.1, "seed": 3}) == {0: pytest.approx(0.5)}
    assert PLAIN.held({1: 15}) == {1: 0.25}
    point = {"rate": 10.0, "kind": "c", "layers": 5, "seed": 3, "flag": False}
    assert torch.tensor([*KINDS.held(point).values()]).tolist() == KINDS.encode(point)[0].tolist()


@pytest.mark.parametrize(
    ("fixed", "message"),
    [
        ({"rates": 1.0}, "'rates' is no parameter. Did you mean 'rate'?"),
        ({"zzz": 1.0}, "'zzz' is no parameter. Choose from"),
        ({"rate": 11.0}, "'rate' takes numbers from 0.001 to 10.0, and got 11.0"),
        ({"rate": "a"}, "'rate' takes numbers .*got 'a'"),
        ({"rate": float("nan")}, "'rate' takes numbers .*got nan"),
        ({"layers": 2.5}, "'layers' takes integers from 1 to 5, and got 2.5"),
        ({"layers": 6}, "'layers' takes"),
        ({"kind": "d"}, "'kind' takes one of"),
        ({"seed": 4}, "'seed' takes only 3"),
    ],
)
def test_values_that_cannot_be_held_are_refused_by_name(fixed: dict[str, Any], message: str) -> None:
    with pytest.raises(SpaceError, match=f"fixed: {message}"):
        KINDS.held(fixed)


def test_held_values_must_leave_room_under_the_constraints() -> None:
    space = Space.of({"x": (0.0, 1.0), "y": (0.0, 2.0)}, ["x + y <= 1"])
    assert space.held({"x": 0.5}) == {0: 0.5}
    assert space.held({"x": 0.5, "y": 0.5}) == {0: 0.5, 1: 0.25}
    with pytest.raises(SpaceError, match=r"fixed: no point with .*'y': 1.5.* satisfies parameter_constraints: "):
        space.held({"y": 1.5})


@pytest.mark.parametrize(
    "space",
    [
        Space.of({"x": (0.0, 1.5), "y": (2.0, 3.0)}),
        Space.of([(0.0, 1.0), Integer(2, 5)]),
        Space.of([Real(0.0, 1.0, digits=2), (0.0, 1.0)]),
        Space.of(
            {
                "a": Real(1e-3, 1.0, log=True),
                "b": Real(0.0, 1.0, digits=2),
                "c": Integer(1, 9, log=True),
                "d": Choice((1, 2, 3), ordered=True),
                "e": Choice(("x", True, 2.5)),
                "f": Fixed("north"),
                "g": (0.0, 4.0),
            },
            ["b + 2 * g <= 3", "d >= 2"],
        ),
    ],
)
def test_a_space_is_read_from_its_description(space: Space) -> None:
    again = Space.described(json.loads(json.dumps(space.describe())))
    assert again == space
    assert again.describe() == space.describe()


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ((-1e308, 1e308), r"beyond ±1e\+150"),
        ((0, 10**400), "needs a pair"),
    ],
)
def test_bounds_that_floats_do_not_hold_are_refused(entry: tuple, message: str) -> None:
    with pytest.raises(SpaceError, match=message):
        Space.of({"x": entry})


def test_so_are_whole_numbers() -> None:
    with pytest.raises(SpaceError, match=r"beyond ±9.0072e\+15"):
        Integer(0, 10**400)
    with pytest.raises(InvalidDataError, match="row 0 has a number of 401 digits, which no float holds"):
        Space.of({"x": (0.0, 1.0)}).encode([{"x": 10**400}])
