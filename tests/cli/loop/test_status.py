from pathlib import Path

import pytest
from terminal import Terminal

from bo_scale.loop import Optimizer


def test_it_says_what_there_is(run: Optimizer, terminal: Terminal) -> None:
    said = terminal("status run")
    size = Path("run/journal.jsonl").stat().st_size
    for part in (
        f"Journal: run, {size / 1000:.1f} kB. Asks: 3.",
        "x     numbers from 0.0 to 1.0\n",
        "n     integers from 1 to 100, on a logarithmic scale",
        "Objectives: minimize value.",
        "model auto, acquisition qLogNEI, seed 0, num_initial 8",
        "Observations: 4, from 20",
        "Other points: 2 pending.",
        f"Best observed: value = {min(run.observations[1].tolist()):.6g} at x = ",
    ):
        assert part in said


def test_json_is_exact(run: Optimizer, terminal: Terminal) -> None:
    said = terminal.json("status run")
    best = int(run.observations[1].argmin())
    assert said["best_observed"]["value"]["point"] == run.observations[0][best]
    assert said["best_observed"]["value"]["outcomes"] == {"value": run.observations[1][best].item()}
    assert (said["observations"], said["pending"], said["asks"]) == (4, 2, 3)
    assert said["space"]["n"] == {"kind": "integer", "lower": 1, "upper": 100, "log": True}
    assert said["first"] <= said["last"]


def test_what_became_of_points_is_counted(run: Optimizer, terminal: Terminal) -> None:
    with Optimizer.open("run") as optimizer:
        optimizer.tell(optimizer.pending[0], failed=True)
        optimizer.abandon(optimizer.pending[0])
        optimizer.forget(0)
        assert "0 pending" not in terminal("status run")
    assert "Other points: 1 failed, 1 abandoned, 1 forgotten." in terminal("status run")
    with Optimizer.open("run") as optimizer:
        x = max(point["x"] for point in optimizer.observations[0])
        optimizer.migrate({"x": (0.0, x - 1e-3), **dict(list(zip(run.space.names or (), run.space.parameters))[1:])})
    assert "1 set aside" in terminal("status run")
    assert terminal.json("status run")["set_aside"] == 1


def test_runs_without_observations_names_and_with_several_objectives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, terminal: Terminal
) -> None:
    monkeypatch.chdir(tmp_path)
    with Optimizer([(0.0, 1.0), (0.0, 2.0)], objective="maximize", path="bare"):
        said = terminal("status bare")
        assert "x1  numbers from 0.0 to 2.0" in said
        assert "Observations: 0.\nOther points: none." in said
        assert terminal.json("status bare")["best_observed"] == {}
    objectives = {"loss": "minimize", "gain": "maximize"}
    with Optimizer({"x": (0.0, 1.0)}, objectives=objectives, constraints=["cost <= 3"], path="two") as optimizer:
        optimizer.tell([{"x": 0.5}], [{"loss": 1.0, "gain": 2.0, "cost": 5.0}])
        assert "it violates a constraint, as all do" in terminal("status two")
        optimizer.tell([{"x": 0.6}], [{"loss": 7.0, "gain": 1.0, "cost": 2.0}])
        said = terminal("status two")
        assert "Objectives: minimize loss, maximize gain.\n  with 1 * cost <= 3" in said
        assert said.count("Best observed: loss = 7, gain = 1, cost = 2 at x = 0.6 (id 1).") == 2
