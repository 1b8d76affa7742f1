import pytest

from bo_scale.errors import SpaceError
from bo_scale.loop import Integer, Linear, Space


@pytest.mark.parametrize(
    ("text", "weights", "upper"),
    [
        ("x + 2 * y <= 3", {"x": 1, "y": 2}, 3),
        ("x >= 1", {"x": -1}, -1),
        ("3 - x <= y * 2 + x / 4", {"x": -1.25, "y": -2}, -3),
        ("-(x - 2*y) <= 1e-3", {"x": -1, "y": 2}, 1e-3),
        ("x - x + y <= 0", {"y": 1}, 0),
        ("2 * 3 * x <= 1 + 1", {"x": 6}, 2),
    ],
)
def test_constraints_are_read(text: str, weights: dict[str, float], upper: float) -> None:
    assert Linear.of(text) == Linear(weights, upper)
    assert Linear.of(str(Linear.of(text))) == Linear.of(text)


@pytest.mark.parametrize(
    ("text", "weights", "upper"),
    [
        ("a + b + c == 1", {"a": 1, "b": 1, "c": 1}, 1),
        ("1 == a + b", {"a": 1, "b": 1}, 1),
        ("a + 1 == 2 * b", {"a": 1, "b": -2}, -1),
    ],
)
def test_equalities_are_read_and_described(text: str, weights: dict[str, float], upper: float) -> None:
    read = Linear.of(text)
    assert read == Linear(weights, upper, equal=True)
    assert Linear.of(str(read)) == read
    assert Linear.described(read.describe()) == read
    assert read.describe()["equal"] is True
    below = Linear(weights, upper)
    assert below != read
    assert "equal" not in below.describe()
    assert Linear.described(below.describe()) == below


@pytest.mark.parametrize(
    "text",
    [
        *("x < 1", "x = 1", "x == x", "x == 1 == y", "x", "x * y <= 1", "1 <= 2", "x <= y <= 2", "x <=", "f(x) <= 1"),
        "x / y <= 1",
    ],
)
def test_constraints_that_cannot_be_read_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="constraint"):
        Linear.of(text)


def test_constraints_hold_in_raw_units_also_without_names() -> None:
    named = Space.of({"x": (-1.0, 3.0), "n": Integer(1, 5)}, ["2 * x + n <= 4"])
    plain = Space.of([(-1.0, 3.0), Integer(1, 5)], [Linear({0: 2.0, 1: 1.0}, 4.0)])
    for space in (named, plain):
        assert space.admissible is not None
        points = space.rows(space.decode(space.admissible.sample(200, 0)))
        assert (2 * points[:, 0] + points[:, 1] <= 4 + 1e-9).all()
        assert (2 * points[:, 0] + points[:, 1]).max() > 3.5
        space.encode([[0.5, 3]])
        with pytest.raises(SpaceError, match=r"rows \[1\] violate parameter_constraints: 2 \* "):
            space.encode([[0.5, 3], [0.6, 3]])
