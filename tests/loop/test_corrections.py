"""What was told wrongly: corrected, taken out, told twice; and points that gave no value."""

import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from loops import asked, cheap, events, f, single_task, tell, variances

from bo_scale.errors import InvalidArgumentError, InvalidDataError, SpaceError
from bo_scale.loop import Choice, Integer, Optimizer, Real, When
from bo_scale.loop.history.observations import Observations

NAMED = {"x": (0.0, 1.0), "y": (-2.0, 3.0)}
MODELS = pytest.mark.parametrize("model", ["wiski", "cagp", single_task], ids=["wiski", "cagp", "SingleTaskGP"])


def columns(loop: Optimizer) -> Any:
    return loop.history.told.first(loop.num_observations)


# ---------------------------------------------------------------- ids


def test_observations_are_numbered_as_they_are_told() -> None:
    loop = cheap()
    X = loop.ask(3)
    assert loop.tell(X[1:], f(X[1:])) == [0, 1]
    assert loop.tell(X[:1], f(X[:1]), id="first") == ["first"]
    assert loop.tell(X[:1] * 0.5, [1.0], id=[7]) == [7]
    assert loop.tell([[0.2, 0.3]] * 3, [1.0, 2.0, 3.0]) == [2, 3, 4]
    assert loop.tell([[0.1, 0.3]] * 3, [1.0, 2.0, 3.0]) == [5, 6, 8]  # 7 is taken
    assert loop.tell([[0.1, 0.2]], [1.0], id=np.array([np.int64(12)])) == [12]


def test_the_same_observation_told_twice_is_one(tmp_path: Path) -> None:
    with cheap(tmp_path) as loop:
        X = loop.ask(2)
        names = loop.tell(X, f(X), id=["a", "b"])
        before = events(tmp_path)
        assert loop.tell(X, f(X), id=["a", "b"]) == names
        assert loop.tell(X[1:], f(X[1:]), id="b") == ["b"]
        assert events(tmp_path) == before
        assert loop.tell(torch.cat([X[:1], X[:1] + 0.1]), [float(f(X[:1])), 2.0], id=["a", "c"]) == ["a", "c"]
        assert loop.num_observations == 3
    with cheap(tmp_path) as again:
        assert again.tell(X, f(X), id=["a", "b"]) == names
        assert again.num_observations == 3


@pytest.mark.parametrize(
    ("names", "point", "value", "message"),
    [
        ("a", [0.5, 0.5], 2.0, r"'a' was told before as \[1.0\].*revise\('a', value\)"),
        ("a", [0.6, 0.5], 1.0, "'a' was told before"),
        (["a", "b"], [0.5, 0.5], 1.0, "2 ids for 1 points"),
        (1.5, [0.5, 0.5], 1.0, "neither a string nor a whole number"),
        (True, [0.5, 0.5], 1.0, "neither"),
        ([None], [0.5, 0.5], 1.0, "neither"),
        ("", [0.5, 0.5], 1.0, "neither"),
    ],
)
def test_ids_of_other_observations_are_refused(names: Any, point: Any, value: float, message: str) -> None:
    loop = cheap()
    loop.tell([[0.5, 0.5]], [1.0], id="a")
    with pytest.raises((InvalidDataError, InvalidArgumentError), match=message):
        loop.tell([point], [value], id=names)
    assert loop.num_observations == 1


def test_an_id_is_given_once_in_a_call() -> None:
    with pytest.raises(InvalidArgumentError, match="'a' given twice"):
        cheap().tell([[0.5, 0.5]] * 2, [1.0, 1.0], id=["a", "a"])


def test_known_variances_belong_to_the_observation() -> None:
    loop = cheap()
    loop.tell([[0.5, 0.5]], [1.0], [0.1], id="a")
    loop.tell([[0.5, 0.5]], [1.0], [0.1], id="a")
    with pytest.raises(InvalidDataError, match="told before"):
        loop.tell([[0.5, 0.5]], [1.0], [0.2], id="a")
    loop.tell([[0.5, 0.5]], [1.0], id="a")
    assert loop.num_observations == 1


# ---------------------------------------------------------------- revise, forget


@MODELS
def test_a_corrected_run_has_the_model_of_the_right_values(model: Any) -> None:
    """A typing error is told, corrected, and leaves no trace in the model; so does one that is taken out."""
    wrong, right = cheap(model=model), cheap(model=model)
    X = torch.rand(8, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 0.9
    right.tell(X, f(X))
    Y = f(X)
    Y[3] = 1e6
    wrong.tell(X, Y)
    wrong.tell([[0.95, 0.95]], [-1e6], id="broken")
    assert wrong.best().observed_y == 1e6
    wrong.revise(3, f(X)[3])
    wrong.forget("broken")
    assert all(torch.equal(a, b) for a, b in zip(columns(wrong)[:2], columns(right)[:2], strict=True))
    assert wrong.best().mean == pytest.approx(right.best().mean, rel=1e-9)
    torch.testing.assert_close(wrong.ask(2), right.ask(2), rtol=0, atol=1e-9)
    assert wrong.pending.shape == right.pending.shape


@MODELS
def test_a_corrected_point_is_as_if_it_had_been_told_right(model: Any) -> None:
    wrong, right = cheap(model=model, space=NAMED), cheap(model=model, space=NAMED)
    X = torch.rand(8, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 0.9
    points = [{"x": x, "y": y} for x, y in X.tolist()]
    right.tell(points, f(X))
    swapped = [{"x": points[1]["y"], "y": points[1]["x"]}, {**points[4], "x": 0.95}]
    told = [points[0], swapped[0], *points[2:4], swapped[1], *points[5:]]
    wrong.tell(told, f(X), attributes={"operator": "Ann"})
    wrong.tell([points[1]], failed=True)  # which it did not, as the correction says
    wrong.revise([4, 1], X=[points[4], points[1]])
    assert wrong.observations[0] == points
    assert torch.equal(wrong.observations[1], f(X))
    assert wrong.history.told.attributes[4] == {"operator": "Ann"}
    assert len(wrong.history.failures) == 0
    assert wrong.best().mean == pytest.approx(right.best().mean, rel=1e-9)
    for ours, theirs in zip(wrong.ask(2), right.ask(2), strict=True):
        assert ours == pytest.approx(theirs, abs=1e-9)


def test_a_value_of_the_past_that_was_mistyped_can_be_corrected() -> None:
    loop = cheap(space=NAMED)
    loop.tell([{"x": 0.1, "y": 0.2}, {"x": 0.3, "y": 0.4}], [1.0, 2.0])
    loop.migrate({**NAMED, "layers": Integer(1, 4)}, values={"layers": 3})  # it was 2
    loop.revise(range(2), X=[{**point, "layers": 2} for point in loop.observations[0]])
    assert loop.observations[0] == [{"x": 0.1, "y": 0.2, "layers": 2}, {"x": 0.3, "y": 0.4, "layers": 2}]


def test_what_was_forgotten_comes_back_whole(tmp_path: Path) -> None:
    with cheap(tmp_path, space=NAMED) as loop:
        points = [{"x": x, "y": 0.0} for x in (0.1, 0.2, 0.2, 0.9)]
        loop.tell(points, [1.0, 2.0, 2.5, 3.0], [0.1, 0.2, 0.3, 0.4], attributes={"operator": "Ann"}, cost=[1.0] * 4)
        loop.migrate({"x": (0.0, 0.5), "y": (-2.0, 3.0)})  # sets 3 aside
        before = loop.observations_frame()
        loop.forget([2, 1])
        whole = loop.observations_frame(every=True)
        assert whole["status"].tolist() == ["told", "set aside", "forgotten", "forgotten"]
        assert whole["id"].tolist() == [0, 3, 2, 1]
        assert whole["x"].tolist() == [0.1, 0.9, 0.2, 0.2]
        assert whole["value"].tolist() == [1.0, 3.0, 2.5, 2.0]
        assert whole["operator"].tolist() == ["Ann"] * 4
        loop.forget(3)
        loop.migrate({"x": (0.0, 0.8), "y": (-2.0, 3.0), "z": (0.0, 1.0)}, values={"z": 0.5})
        with pytest.raises(InvalidArgumentError, match=r"\[0\] were not forgotten.*Forgotten: \[2, 1, 3\]"):
            loop.restore([1, 0])
        with pytest.raises(InvalidArgumentError, match=r"\[2\] were forgotten. restore"):
            loop.revise([0, 2], [1.0, 2.0])
        loop.restore(3)
        loop.restore([1, 2])
        assert loop.observations_frame().drop(columns="z").equals(before)
        assert loop.observations_frame()["z"].tolist() == [0.5] * 3
        assert [each.name for each in loop.history.aside] == [3]
        loop.tell([{**points[0], "z": 0.5}], [1.0])
        assert loop.history.told.ids == [0, 1, 2, 4]
    with cheap(tmp_path, space=loop.space) as again:
        assert again.observations_frame().equals(loop.observations_frame())
        assert [each.name for each in again.history.aside] == [3]


def test_a_migration_asks_for_values_of_what_was_forgotten_too(tmp_path: Path) -> None:
    branches = {"kind": Choice(["a", "b"]), "m": When("kind", "b", Real(0.0, 1.0))}
    loop = cheap(tmp_path, space=branches, model="cagp")
    loop.tell([{"kind": "a"}, {"kind": "b", "m": 0.5}], [1.0, 2.0])
    loop.forget(0)
    loop.migrate({**branches, "kind": Choice(["a", "b", "c"])})
    before = events(tmp_path)
    plain = {"kind": Choice(["a", "b", "c"]), "m": Real(0.0, 1.0)}
    with pytest.raises(SpaceError, match=r"'m' exists at 1 points"):
        loop.migrate(plain)
    assert events(tmp_path) == before
    loop.migrate(plain, values={"m": 0.25})
    loop.restore(0)
    assert loop.observations[0] == [{"kind": "b", "m": 0.5}, {"kind": "a", "m": 0.25}]


def test_a_new_parameter_is_not_called_as_a_column_of_variances() -> None:
    loop = cheap(space=NAMED)
    with pytest.raises(InvalidArgumentError, match="value_variance"):
        loop.migrate({**NAMED, "value_variance": (0.0, 1.0)}, values={"value_variance": 0.5})


def corrected(loop: Optimizer, step: int) -> None:
    """Corrections of every kind, between asks."""
    if step == 1:
        loop.tell([[0.3, 0.1]], [50.0], id="odd")
    elif step == 2:
        loop.revise(["odd", 0], [1.0, 0.5])
        loop.revise(["odd", 1], X=[[0.35, 0.1], [0.2, 0.25]])
    elif step == 3:
        loop.forget(["odd", 2])
    elif step == 4:
        loop.restore([2])
        loop.tell(loop.ask(1), failed=True)
    elif step == 5:
        loop.migrate([(0.0, 2.0), (-2.0, 3.0)])
    asked(loop, 1)


@pytest.mark.parametrize("stops", [range(1, 8), (6,)], ids=str)
def test_a_resumed_run_knows_of_corrections(tmp_path: Path, stops: Any) -> None:
    with cheap(tmp_path / "whole") as whole:
        for step in range(8):
            corrected(whole, step)
        expected = whole.best()
    loop = cheap(tmp_path / "part")
    for step in range(8):
        if step in stops:
            loop.close()
            loop = Optimizer.open(tmp_path / "part")
        corrected(loop, step)
    assert events(tmp_path / "part") == events(tmp_path / "whole")
    assert loop.best().mean == expected.mean
    assert loop.history.told.ids == whole.history.told.ids
    for name in ("told", "pending", "failed", "forgotten"):
        found, there = ([e for e in each.history.ledger.entries() if e.status == name] for each in (loop, whole))
        assert found == there
    loop.close()


def test_a_forgotten_observation_is_gone_and_may_be_told_again(tmp_path: Path) -> None:
    with cheap(tmp_path, space=NAMED, objective="minimize") as loop:
        points = loop.ask(4)
        loop.tell(points, [4.0, 3.0, 2.0, 1.0], id=list("abcd"))
        loop.forget(["b", "d"])
        assert loop.num_observations == 2
        assert loop.observations[0] == [points[0], points[2]]
        assert loop.observations[1].tolist() == [4.0, 2.0]
        assert loop.best().observed_y == 2.0
        with pytest.raises(InvalidArgumentError, match=r"\['b'\] were forgotten"):
            loop.forget(["b"])
        loop.tell(points[1:2], [2.5], id="b")
        assert loop.observations[1].tolist() == [4.0, 2.0, 2.5]
        loop.forget([])
    with Optimizer.open(tmp_path) as again:
        assert again.history.told.ids == ["a", "c", "b"]
        assert again.observations[0] == [points[0], points[2], points[1]]


def test_all_may_be_forgotten() -> None:
    loop = cheap()
    X = loop.ask(4)
    loop.forget(loop.tell(X, f(X), variances(X)))
    assert loop.num_observations == 0
    tell(loop, loop.ask(4))  # without variances, since none of those is left
    assert loop.tell(X, f(X)) == [8, 9, 10, 11]
    loop.ask(1)


def test_variances_are_corrected_with_values() -> None:
    loop = cheap()
    X = loop.ask(2)
    tell(loop, X, noisy=True)
    loop.revise(1, 5.0, 0.5)
    loop.revise(0, 4.0)
    assert loop.observations[1].tolist() == [4.0, 5.0]
    assert loop.observations[2].tolist() == [float(variances(X)[0]), 0.5]
    plain = cheap()
    plain.tell(X, f(X))
    plain.revise(0, 1.0, 0.5)
    assert plain.observations[2][0] == 0.5
    plain.revise(0, Yvar=[None])
    assert plain.observations[2] is None


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda o: o.revise("frist", 1.0), "Did you mean 'first'"),
        (lambda o: o.revise(9, 1.0), r"no observation has \[9\]"),
        (lambda o: o.revise(0, float("nan")), "NaN"),
        (lambda o: o.revise(0, [1.0, 2.0]), "expected 1"),
        (lambda o: o.revise(0, [None]), "not numbers"),
        (lambda o: o.revise(0, None), "nothing to correct"),
        (lambda o: o.revise([0, "first"], X=[[0.1, 0.2]]), "1 points for 2 observations"),
        (lambda o: o.revise(0, X=[[float("nan"), 0.2]]), "NaN"),
        (lambda o: o.forget(None), "neither"),
        (lambda o: o.forget([0, 99]), r"\[99\]"),
        (lambda o: o.forget({0: 1.0}), "neither"),
        (lambda o: o.tell([[0.1, 0.1]], failed=True, attributes={}), "Leave them out"),
    ],
)
def test_a_refused_correction_changes_nothing(tmp_path: Path, call: Any, message: str) -> None:
    with cheap(tmp_path) as loop:
        loop.tell([[0.5, 0.5]], [1.0])
        loop.tell([[0.6, 0.5]], [1.0], id="first")
        before = events(tmp_path)
        with pytest.raises((InvalidArgumentError, InvalidDataError), match=message):
            call(loop)
        assert events(tmp_path) == before
        assert loop.observations[1].tolist() == [1.0, 1.0]


def test_several_outcomes_are_corrected_together() -> None:
    loop = cheap(space=NAMED, acquisition="qLogNEHVI", objectives={"loss": "minimize", "gain": "maximize"})
    points = loop.ask(4)
    loop.tell(points, [{"loss": i, "gain": -i} for i in range(4)], id=list("abcd"))
    loop.revise("c", {"loss": 9.0, "gain": 1.0})
    assert loop.observations[1][2] == {"loss": 9.0, "gain": 1.0}
    loop.ask(1)


# ---------------------------------------------------------------- failed


def test_failed_points_are_no_longer_pending_and_avoided(tmp_path: Path) -> None:
    with cheap(tmp_path) as loop:
        X = loop.ask(4)
        assert loop.tell(X[:1], failed=True) == []
        assert loop.tell(X[1:2], float("nan"), failed=True) == []
        for _ in range(2):  # as a service that repeats its calls
            loop.tell([[0.31, 0.41]], failed=True, id="odd")
            loop.tell(X[:2], failed=True)
        assert torch.equal(loop.pending, X[2:])
        assert loop.num_observations == 0
        avoided = loop.history.pending.avoided(2)
        assert avoided is not None
        assert len(avoided) == 5
    with cheap(tmp_path) as again:
        assert torch.equal(again.pending, X[2:])
        found = again.history.pending.avoided(2)
        assert found is not None
        assert torch.equal(found, avoided)
        assert [entry.status for entry in again.history.ledger.entries()].count("failed") == 3


def test_values_that_are_missing_say_what_to_do() -> None:
    with pytest.raises(InvalidDataError, match="failed=True"):
        cheap().tell([[0.5, 0.5]])


# ---------------------------------------------------------------- attributes


def test_notes_come_back(tmp_path: Path) -> None:
    with cheap(tmp_path) as loop:
        loop.tell([[0.5, 0.5]], [1.0], attributes={"who": "Ann", "batch": 3})
        loop.tell([[0.6, 0.5]] * 2, [1.0, 2.0], attributes=[{"who": "Bo"}, {}], id=["p", "q"])
        for bad in ("text", [{}], {"when": object()}, {"x": float("nan")}):
            with pytest.raises(InvalidArgumentError, match="attributes"):
                loop.tell([[0.6, 0.5]] * 2, [1.0, 2.0], attributes=bad)
        notes = {0: {"who": "Ann", "batch": 3}, "p": {"who": "Bo"}}
        assert loop.history.told.attributes == notes
    with cheap(tmp_path) as again:
        assert again.history.told.attributes == notes
        again.forget("p")
        assert again.history.told.attributes == {0: notes[0]}


def test_ids_come_in_any_collection() -> None:
    loop = cheap()
    loop.tell([[0.1 * i, 0.0] for i in range(6)], [1.0] * 6, id=list("abcdef"))
    loop.forget({"a"})
    loop.forget(name for name in "bc")
    loop.forget(np.array(["d"]))
    assert loop.history.told.ids == ["e", "f"]


def test_numbers_of_forgotten_observations_are_not_given_again() -> None:
    loop = cheap()
    loop.tell([[0.1, 0.0]], [1.0], id=1)
    loop.forget(1)
    assert loop.tell([[0.1, 0.0]] * 2, [1.0, 2.0]) == [0, 2]
    loop.migrate([(0.5, 1.0), (-2.0, 3.0)])
    assert loop.tell([[0.6, 0.0]], [1.0]) == [3]
    loop.migrate([(0.0, 1.0), (-2.0, 3.0)])
    assert sorted(loop.history.told.ids, key=str) == [0, 2, 3]


def test_sets_have_no_order() -> None:
    loop = cheap()
    for call in (lambda: loop.tell([[0.1, 0.0]], [1.0], id={"a"}), lambda: loop.revise({"a"}, 1.0)):
        with pytest.raises(InvalidArgumentError, match="order"):
            call()


def test_telling_and_looking_at_once_loses_nothing() -> None:
    """The rows that were appended last are joined by whoever reads first."""
    told, stop, values = Observations(2), threading.Event(), torch.arange(2000).double()

    def look() -> None:
        while not stop.is_set():
            told.first(told.count)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    threads = [threading.Thread(target=look) for _ in range(3)]
    try:
        for thread in threads:
            thread.start()
        for value in values.view(-1, 1, 1):
            told.append(torch.zeros(1, 2).double(), value, None)
    finally:
        stop.set()
        sys.setswitchinterval(interval)
        for thread in threads:
            thread.join()
    assert torch.equal(told.first(2000)[1].squeeze(-1), values)
