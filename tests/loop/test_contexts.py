"""Parameters that cannot be chosen: proposals and best points with their values."""

from pathlib import Path
from typing import Any

import pytest
import torch
from loops import cheap, events

from bo_scale.errors import SpaceError
from bo_scale.loop import Choice, Integer, Optimizer

SPACE = {"x": (0.0, 1.0), "t": (10.0, 30.0), "kind": Choice(("a", "b", "c")), "n": Integer(1, 5)}


def value(point: dict[str, Any]) -> float:
    """Best where x is a twentieth of t less a half."""
    return -((point["x"] - (point["t"] - 10) / 20) ** 2) + {"a": 0.0, "b": 0.1, "c": -0.1}[point["kind"]]


@pytest.mark.parametrize("fixed", [{"t": 21.0}, {"kind": "b"}, {"n": 3, "t": 12.5}, {"x": 0.0, "kind": "c", "n": 5}])
def test_proposals_have_the_fixed_values(tmp_path: Path, fixed: dict[str, Any]) -> None:
    with cheap(tmp_path, space=SPACE, model="cagp", acquisition="qLogEI") as loop:
        for _ in range(3):
            points = loop.ask(3, fixed=fixed)
            assert all(point[name] == pytest.approx(each) for point in points for name, each in fixed.items())
            assert len({tuple(point.values()) for point in points}) == 3
            loop.tell(points, list(map(value, points)))
        free = loop.ask(2)
    assert [event.get("fixed") for event in events(tmp_path) if event["event"] == "ask"] == [[*fixed]] * 3 + [None]
    with Optimizer.open(tmp_path) as again:
        assert again.pending == free
        again.ask(1, fixed=fixed)


def test_the_best_of_a_context_follows_it() -> None:
    loop = cheap(space={"x": (0.0, 1.0), "t": (10.0, 30.0), "kind": Choice(("a", "b", "c"))}, model="cagp")
    points = loop.ask(40)
    loop.tell(points, list(map(value, points)))
    for t in (14.0, 21.0, 27.0):
        found = loop.best(fixed={"t": t})
        assert isinstance(found.x, dict)
        assert found.x["t"] == t
        assert found.x["x"] == pytest.approx((t - 10) / 20, abs=0.1)
        assert found.x["kind"] == "b"
        assert found.observed_x is None
    seen = loop.best(fixed={"kind": "c"})
    assert isinstance(seen.observed_x, dict)
    assert seen.observed_x["kind"] == "c"
    assert seen.observed_y == max(value(point) for point in points if point["kind"] == "c")


def test_columns_without_names_and_constraints() -> None:
    loop = cheap(model="cagp")
    X = loop.ask(4, fixed={1: 2.5})
    assert torch.equal(X[:, 1], torch.full((4,), 2.5, dtype=torch.float64))
    several = cheap(
        space={"x": (0.0, 1.0), "y": (0.0, 1.0)},
        objectives={"gain": "maximize"},
        constraints=["cost <= 0.5"],
        model="cagp",
        acquisition="qLogEI",
    )
    points = several.ask(12)
    several.tell(points, [{"gain": p["x"], "cost": p["x"] * p["y"]} for p in points])
    found = several.best(fixed={"y": 1.0})
    assert isinstance(found.x, dict)
    assert found.feasible
    assert 0.3 < found.x["x"] < 0.6


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("fixed", "message"),
    [
        ({"tt": 20.0}, "Did you mean 't'"),
        ({"t": 31.0}, "t"),
        ({"kind": "d"}, "kind"),
        ({"n": 2.5}, "n"),
        ({"t": float("nan")}, "t"),
    ],
)
def test_values_that_cannot_be_are_refused(fixed: Any, message: str) -> None:
    loop = cheap(space=SPACE, model="cagp", acquisition="qLogEI")
    for call in (loop.ask, loop.best):
        with pytest.raises(SpaceError, match=message):
            call(fixed=fixed)
    assert len(loop.steps) == 0
