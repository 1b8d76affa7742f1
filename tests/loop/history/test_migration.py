"""A run carried over to another space."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from loops import asked, cheap, events, f

from bo_scale.errors import InvalidArgumentError, SpaceError
from bo_scale.loop import Choice, Fixed, Integer, Optimizer, Real

NAMED = {"x": (0.0, 1.0), "y": (-2.0, 3.0)}
SPACE = {"x": (0.0, 1.0), "y": (-2.0, 3.0), "kind": Choice(("a", "b", "c"))}


def value(point: dict[str, Any]) -> float:
    return point["x"] + 0.1 * point["y"] + "abc".index(point["kind"])


def begun(path: Path | None = None, **options: Any) -> Optimizer:
    """Six observations, two points pending, one abandoned."""
    loop = cheap(path, space=SPACE, model="cagp", acquisition="qLogEI", **options)
    points = loop.ask(9)
    loop.tell(points[:6], list(map(value, points[:6])), id=list("uvwxyz"))
    loop.abandon(points[8:])
    return loop


def test_a_wider_space_keeps_everything(tmp_path: Path) -> None:
    with begun(tmp_path) as loop:
        before, waiting = loop.observations, loop.pending
        wider = {"x": (-1.0, 4.0), "y": (-5.0, 5.0), "kind": Choice(("a", "b", "c", "d"))}
        loop.migrate(wider)
        assert loop.observations[0] == before[0]
        assert torch.equal(loop.observations[1], before[1])
        assert loop.pending == waiting
        assert loop.history.told.ids == list("uvwxyz")
        torch.testing.assert_close(loop.history.told.first(6)[0], loop.space.encode(before[0]))
        loop.tell(waiting[:1], [1.0])
        assert loop.pending == waiting[1:]
        found = loop.ask(3)
    with Optimizer(wider, path=tmp_path) as again:
        assert again.pending[-3:] == found
        again.ask(1)
    with pytest.raises(Exception, match="begun with other arguments"):
        Optimizer(SPACE, path=tmp_path)
    assert "migrate" in [event["event"] for event in events(tmp_path)]


def test_observations_outside_are_set_aside_and_come_back(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with begun(tmp_path) as loop:
        points, values, _ = loop.observations
        inside = [i for i, point in enumerate(points) if point["x"] <= 0.6 and point["kind"] != "c"]
        assert 0 < len(inside) < 6
        loop.migrate({"x": (0.0, 0.6), "y": (-2.0, 3.0), "kind": Choice(("a", "b"))})
        assert loop.observations[0] == [points[i] for i in inside]
        assert loop.observations[1].tolist() == [values[i] for i in inside]
        assert f"{6 - len(inside)} observations are outside" in caplog.text
        assert {each.name for each in loop.history.aside} == {"uvwxyz"[i] for i in range(6) if i not in inside}
        asked_before = len(loop.steps)
    with Optimizer.open(tmp_path) as again:
        assert again.num_observations == len(inside)
        again.migrate(SPACE)
        whole = dict(zip(again.history.told.ids, again.observations[0], strict=True))
        assert whole == dict(zip("uvwxyz", points, strict=True))
        assert len(again.steps) == asked_before
        some = next(each for each in "uvwxyz" if each not in {"uvwxyz"[i] for i in inside})
        again.revise(some, 3.0)


def test_a_new_parameter_has_a_value_for_the_past() -> None:
    loop = begun()
    points = loop.observations[0]
    loop.migrate({**SPACE, "n": Integer(1, 8), "rate": Real(1e-4, 1.0, log=True)}, values={"n": 2, "rate": 1e-2})
    assert loop.observations[0] == [{**point, "n": 2, "rate": 1e-2} for point in points]
    assert set(loop.ask(1)[0]) == {"x", "y", "kind", "n", "rate"}
    assert loop.ask(1)


def test_scales_change_and_parameters_are_fixed() -> None:
    loop = cheap(space={"x": (0.1, 1.0), "n": Integer(1, 4)}, model="cagp")
    loop.tell([{"x": 0.1, "n": 1}, {"x": 1.0, "n": 2}, {"x": 0.5, "n": 2}], [1.0, 2.0, 3.0])
    loop.migrate({"x": Real(0.01, 1.0, log=True), "n": Fixed(2)})
    assert loop.num_observations == 2
    torch.testing.assert_close(loop.history.told.first(2)[0][0], torch.tensor([1.0], dtype=torch.float64))
    asked_points = loop.ask(5)
    assert all(point["n"] == 2 for point in asked_points)


def test_rows_without_names_are_carried_over() -> None:
    loop = cheap()
    X = loop.ask(4)
    loop.tell(X, f(X))
    loop.migrate([(0.0, 2.0), (-4.0, 3.0)])
    assert torch.equal(loop.observations[0], X)
    asked(loop, 2)


@pytest.mark.parametrize(
    ("space", "values", "message"),
    [
        ({"x": (0.0, 1.0), "y": (-2.0, 3.0)}, {}, r"\['kind'\] are missing.*Fixed"),
        ({**SPACE, "n": Integer(1, 3)}, {}, r"new parameters \['n'\] need the value"),
        ({**SPACE, "n": Integer(1, 3)}, {"n": 7}, "takes .*, and got"),
        (SPACE, {"x": 1.0}, r"\['x'\] are not new"),
        ([(0.0, 1.0)] * 3, {}, "name all parameters"),
        ({**SPACE, "x": (1.0, 0.0)}, {}, "'x'"),
    ],
)
def test_a_refused_migration_changes_nothing(tmp_path: Path, space: Any, values: Any, message: str) -> None:
    with begun(tmp_path) as loop:
        before, description = events(tmp_path), loop.space.describe()
        with pytest.raises(SpaceError, match=message):
            loop.migrate(space, values=values)
        assert events(tmp_path) == before
        assert loop.space.describe() == description
        loop.ask(1)


def test_the_model_must_serve_the_new_space() -> None:
    named = cheap(space={"x": (0.0, 1.0), "y": (0.0, 1.0)})
    with pytest.raises((InvalidArgumentError, SpaceError), match=r"wiski|WISKI"):
        named.migrate({c: (0.0, 1.0) for c in "xyabcde"}, values=dict.fromkeys("abcde", 0.5))
    asked(named, 2)


def test_what_is_set_aside_is_corrected_and_taken_out(tmp_path: Path) -> None:
    with cheap(tmp_path, space={"x": (0.0, 1.0)}, model="cagp", acquisition="qLogEI") as loop:
        loop.tell([{"x": 0.1}, {"x": 0.9}, {"x": 0.8}], [1.0, 2.0, 3.0], id=list("abc"))
        loop.migrate({"x": (0.0, 0.5)})
        loop.revise(["b", "a"], [5.0, 6.0])
        loop.forget("c")
    with Optimizer.open(tmp_path) as again:
        again.migrate({"x": (0.0, 1.0)})
        assert dict(zip(again.history.told.ids, again.observations[1].tolist(), strict=True)) == {"a": 6.0, "b": 5.0}


def test_points_without_a_value_stay_what_they_are() -> None:
    loop = begun()
    loop.tell(loop.ask(1), failed=True)
    loop.forget("u")
    before = sorted(entry.status for entry in loop.history.ledger.entries() if entry.status != "forgotten")
    avoided = loop.history.pending.avoided(loop.space.dimension)
    loop.migrate({**SPACE, "y": (-2.0, 4.0)})
    assert sorted(entry.status for entry in loop.history.ledger.entries()) == before
    after = loop.history.pending.avoided(loop.space.dimension)
    assert avoided is not None
    assert after is not None
    assert len(after) == len(avoided)


def test_what_was_set_aside_has_values_of_later_parameters() -> None:
    loop = cheap(space={"x": (0.0, 1.0)}, model="cagp", acquisition="qLogEI")
    loop.tell([{"x": 0.1}, {"x": 0.9}], [1.0, 2.0])
    loop.migrate({"x": (0.0, 0.5), "y": (0.0, 1.0)}, values={"y": np.float32(0.5)})
    loop.migrate({"x": (0.0, 0.5), "y": (0.0, 1.0), "n": Integer(1, 3)}, values={"n": 2})
    loop.migrate({"x": (0.0, 1.0), "y": (0.0, 1.0), "n": Integer(1, 3)})
    assert loop.observations[0] == [{"x": 0.1, "y": 0.5, "n": 2}, {"x": 0.9, "y": 0.5, "n": 2}]


def test_points_at_the_edge_stay() -> None:
    loop = cheap(space={"x": (0.0, 0.1), "y": (0.0, 1.0)}, model="cagp", acquisition="qLogEI")
    loop.tell(torch.tensor([[0.1, 0.5]], dtype=torch.float32), [1.0])
    loop.migrate({"x": (0.0, 0.1), "y": (0.0, 2.0)})
    assert loop.num_observations == 1


def test_without_names_parameters_stay_as_many() -> None:
    with pytest.raises(SpaceError, match="number of parameters"):
        cheap().migrate([(0.0, 1.0)] * 3, values={"2": 0.5})


def test_a_migration_is_replayed_with_the_slack_it_was_made_with(tmp_path: Path) -> None:
    with cheap(tmp_path, NAMED, match_tolerance=0.01) as loop:
        loop.tell([{"x": 0.503, "y": 0.0}, {"x": 0.2, "y": 0.0}], [1.0, 2.0])
        loop.migrate({"x": (0.0, 0.5), "y": (-2.0, 3.0)})
        assert loop.num_observations == 2
        loop.revise(0, 3.0)
    for tolerance in (None, 1e-6, 0.1):
        with Optimizer.open(tmp_path, mode="r", match_tolerance=tolerance) as again:
            assert again.history.told.ids == [0, 1]


def test_values_for_the_past_need_not_satisfy_constraints_alone() -> None:
    loop = cheap(space=NAMED)
    loop.tell([{"x": 0.1, "y": 0.0}], [1.0])
    loop.migrate({**NAMED, "z": (0.0, 1.0)}, values={"z": 0.1}, parameter_constraints=["x + z <= 0.5"])
    assert loop.observations[0] == [{"x": 0.1, "y": 0.0, "z": 0.1}]
    with pytest.raises(SpaceError, match=r"'w' takes numbers from 0.0 to 1.0, and got 'a'"):
        loop.migrate({**NAMED, "z": (0.0, 1.0), "w": (0.0, 1.0)}, values={"w": "a"})
