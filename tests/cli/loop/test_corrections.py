"""revise, forget, abandon: what was before, and how to undo it."""

import shlex
from pathlib import Path

import pytest
import torch
from terminal import Terminal

from bo_scale.cli import main
from bo_scale.loop import Choice, Integer, Optimizer


def now() -> Optimizer:
    return Optimizer.open("run", mode="r")


def undo(said: str) -> None:
    """Type the commands that a command says undo it."""
    for line in said[said.index("To undo:") :].splitlines():
        if "bo-scale loop" in line:
            assert main(shlex.split(line[line.index("bo-scale") :])[1:]) == 0


def test_a_value_is_revised_and_back(run: Optimizer, terminal: Terminal) -> None:
    before = run.observations[1].tolist()
    said = terminal("revise run 2 -1e-3")
    assert f"Before: value = {before[2]:.6g}. Now: value = -0.001." in said
    assert now().observations[1].tolist() == [*before[:2], -1e-3, before[3]]
    undo(said)
    assert now().observations[1].tolist() == before


def test_observations_are_forgotten_and_back(run: Optimizer, terminal: Terminal) -> None:
    points, values, _ = run.observations
    said = terminal("forget run 1 2")
    assert f"Forgotten: observation 1, value = {values[1]:.6g} at x = {points[1]['x']:.6g}" in said
    assert "Observations: 2." in said
    assert now().history.told.ids == [0, 3]
    undo(said)
    assert now().history.told.ids == [0, 3, 1, 2]
    assert "were not forgotten" in terminal.refused("restore run 1")
    assert now().observations[0] == [points[row] for row in (0, 3, 1, 2)]
    assert now().observations[1].tolist() == values[[0, 3, 1, 2]].tolist()


def test_costs_and_unknown_variances_are_told_again(run: Optimizer, terminal: Terminal) -> None:
    terminal("revise run 1 2 --variance 0.5")
    undo(terminal.output)
    assert now().observations[2] is None
    terminal("tell run --point x=0.5 kind=a n=2 t=100.5 --value 1 --variance 0.3 --cost 7 --id p")
    assert "7" in terminal("observations run")
    undo(terminal("forget run p"))
    assert list(now().history.told.costs)[-1] == 7.0
    assert now().observations[2].tolist()[-1] == 0.3


def test_a_point_is_corrected(run: Optimizer, terminal: Terminal) -> None:
    before = now().observations
    said = terminal("revise run 1 --point x=0.25 kind=b")
    assert now().observations[0][1] == {**before[0][1], "x": 0.25, "kind": "b"}
    assert torch.equal(now().observations[1], before[1])
    assert "x = 0.25" in said
    undo(said)
    assert now().observations[0] == before[0]
    assert "nothing to correct" in terminal.refused("revise run 1")


def test_outcomes_with_names_variances_and_ids_with_spaces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, terminal: Terminal
) -> None:
    monkeypatch.chdir(tmp_path)
    space = {"x": (0.0, 1.0), "oven": Choice(["old one", "new one"])}
    with Optimizer(space, objectives={"loss": "minimize", "gain": "maximize"}, path="run") as optimizer:
        points = [{"x": 0.5, "oven": "old one"}, {"x": 0.6, "oven": "new one"}]
        values, variances = [{"loss": 1 / 3, "gain": 1.0}, {"loss": 2.0, "gain": 4.0}], [{"loss": 0.1, "gain": 0.2}] * 2
        optimizer.tell(points, values, variances, id=["first run", "b"], attributes={"who": "me"})
    assert main(["loop", "revise", "run", "first run", "gain=3", "--variance", "loss=0.3"]) == 0
    assert now().observations[1][0] == {"loss": 1 / 3, "gain": 3.0}
    assert now().observations[2][0] == {"loss": 0.3, "gain": 0.2}
    assert main(["loop", "revise", "run", "first run", "gain=2", "--variance", "loss=0.3"]) == 0
    terminal("revise run b gain=9 --variance gain=1")
    undo(terminal.output)
    assert now().observations[1][1] == values[1]
    assert now().observations[2][1] == variances[1]
    terminal._capsys.readouterr()
    assert main(["loop", "forget", "run", "first run"]) == 0
    said = terminal._capsys.readouterr().out
    undo(said)
    assert now().history.told.attributes["first run"] == {"who": "me"}
    assert now().observations[0] == points[::-1]
    assert now().observations[1][1] == {"loss": 1 / 3, "gain": 2.0}
    assert now().history.told.ids == ["b", "first run"]


def test_pending_points_are_given_up(run: Optimizer, terminal: Terminal) -> None:
    said = terminal("abandon run --pending 5 4 5")
    assert "Given up: pending point 4, x = " in said
    assert "Given up: pending point 5, x = " in said
    assert "Pending: 0. If a value comes after all:" in said
    late = said.splitlines()[-1].strip().replace("VALUE", "0.5")
    assert main(shlex.split(late)[1:]) == 0
    assert now().observations[0][-1] == run.pending[1]


def test_points_without_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, terminal: Terminal) -> None:
    monkeypatch.chdir(tmp_path)
    with Optimizer([(0.0, 1.0), Integer(1, 9)], objective="maximize", path="run") as optimizer:
        optimizer.ask(3)
    assert "Given up: pending point 1, x0 = " in terminal("abandon run --pending 1")
    assert [each["number"] for each in terminal.json("pending run")] == [0, 2]
    assert "pending point 2" in terminal("tell run --pending 2 --value 1")
    undo(terminal("forget run 0"))
    assert now().num_observations == 1


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        ("revise run 9 1", "no observation has [9]"),
        ("revise run nine 1", "no observation has ['nine']"),
        ("revise run 1 much", "VALUE: much is no number"),
        ("revise run 1 1 --variance -2", "Yvar: variances in rows [0] are not positive"),
        ("forget run 1 9", "no observation has [9]"),
        ("forget run 1 1", "1 given twice"),
        ("abandon run --pending 3", "3 is not pending: it was told"),
        ("abandon run --pending 4 44", "44 is not pending: no point has this number. Choose from [4, 5]."),
    ],
)
def test_refusals_say_what_to_do(words: str, remedy: str, run: Optimizer, terminal: Terminal) -> None:
    before = Path("run/journal.jsonl").read_bytes()
    assert remedy in terminal.refused(words)
    assert Path("run/journal.jsonl").read_bytes() == before


def test_observations_set_aside_are_left_alone(run: Optimizer, terminal: Terminal) -> None:
    with Optimizer.open("run") as optimizer:
        xs = [point["x"] for point in optimizer.observations[0]]
        optimizer.migrate(
            {**dict(zip(run.space.names or (), run.space.parameters, strict=True)), "x": (0.0, max(xs) - 1e-3)}
        )
    (name,) = (row for row, x in enumerate(xs) if x == max(xs))
    for words in (f"revise run {name} 1", f"forget run {name}"):
        assert "lie outside the space and are set aside" in terminal.refused(words)
    assert "Observations: 3" in terminal("status run")
