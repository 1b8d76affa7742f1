"""pending, observations, suspects, export."""

import csv
from pathlib import Path

import pytest
from terminal import Terminal

from bo_scale.loop import Optimizer


def test_pending_points_keep_their_numbers(run: Optimizer, terminal: Terminal) -> None:
    assert terminal.json("pending run") == [
        {"number": 4, "point": run.pending[0]},
        {"number": 5, "point": run.pending[1]},
    ]
    first, second = terminal("pending run").splitlines()[1:3]
    assert first.split() == ["4", *(f"{v:.6g}" if isinstance(v, float) else str(v) for v in run.pending[0].values())]
    assert second.split()[0] == "5"
    terminal("tell run --pending 4 --value 1")
    said = terminal("pending run")
    assert said.splitlines()[1].split()[0] == "5"
    assert "bo-scale loop tell run --pending 5 --value VALUE" in said
    terminal("tell run --pending 5 --value 1")
    assert terminal("pending run") == "No point is pending.\n"
    assert terminal.json("pending run") == []


def test_observations_are_a_table(run: Optimizer, terminal: Terminal) -> None:
    lines = terminal("observations run").splitlines()
    assert lines[0].split() == ["id", "x", "kind", "n", "t", "value", "time", "(UTC)"]
    assert [line.split()[0] for line in lines[1:5]] == ["0", "1", "2", "3"]
    assert lines[3].split()[5] == f"{run.observations[1][2]:.6g}"
    assert lines[-1] == "Observations: 4."
    last = terminal("observations run --last 3").splitlines()
    assert last[-1] == "The last 3 of 4 observations."
    assert last[1:4] == lines[2:5]
    assert "--last: 0 is below 1" in terminal.refused("observations run --last 0")


def test_observations_as_json_are_exact_and_whole(run: Optimizer, terminal: Terminal) -> None:
    with Optimizer.open("run") as optimizer:
        more = [{**run.pending[0], "x": x / 100} for x in range(30)]
        optimizer.tell(more, [float(x) for x in range(30)], attributes={"oven": "B"})
        found = terminal.json("observations run")
        assert [each["point"] for each in found] == optimizer.observations[0]
        assert [each["outcomes"]["value"] for each in found] == optimizer.observations[1].tolist()
        assert found[0]["variances"] is None
        assert found[-1]["notes"] == {"oven": "B"}
        assert len(terminal.json("observations run --last 2")) == 2
        said = terminal("observations run")
        assert "oven (note)" in said
        assert said.endswith("The last 20 of 34 observations.\n")


def test_an_export_is_that_of_the_optimizer(run: Optimizer, terminal: Terminal) -> None:
    assert terminal("export run out.csv") == "Written: out.csv, 4 observations.\n"
    run.to_csv("own.csv")
    assert Path("out.csv").read_text() == Path("own.csv").read_text()
    with Path("out.csv").open() as file:
        assert [float(row["value"]) for row in csv.DictReader(file)] == run.observations[1].tolist()
    assert terminal.json("export run out.csv") == {"file": "out.csv", "observations": 4}
    assert "ends in .csv" in terminal.refused("export run out.xlsx")


def test_suspects_come_with_their_remedies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, terminal: Terminal) -> None:
    monkeypatch.chdir(tmp_path)
    with Optimizer({"x": (0.0, 1.0)}, objective="minimize", path="run") as optimizer:
        optimizer.tell([{"x": x / 20} for x in range(20)], [(x / 20 - 0.3) ** 2 + 50 * (x == 7) for x in range(20)])
        optimizer.tell([{"x": 0.98}], [-40.0], id="typo")
        assert terminal.json("best run")["suspect"]
        assert "far from what the others predict: see `bo-scale loop suspects`" in terminal("best run")
        optimizer.forget("typo")
        assert not terminal.json("best run")["suspect"]
        (one,) = terminal.json("suspects run")
        assert (one["id"], one["point"], one["value"]) == (7, {"x": 0.35}, pytest.approx(50.0025))
        assert one["z"] > 5
        said = terminal("suspects run")
        assert said.splitlines()[1].split()[:4] == ["7", "0.35", "value", "50.0025"]
        assert "bo-scale loop revise run ID VALUE" in said
        assert "bo-scale loop forget run ID" in said
    terminal("revise run 7 0.0025")
    assert terminal("suspects run") == "No observation stands apart from the others.\n"
    assert terminal.json("suspects run") == []


@pytest.mark.parametrize("words", ["status", "best", "pending", "observations", "export"])
def test_reading_works_while_another_process_holds_the_run(words: str, run: Optimizer, terminal: Terminal) -> None:
    with Optimizer.open("run"):
        before = Path("run/journal.jsonl").read_bytes()
        terminal(f"{words} run{' out.csv' if words == 'export' else ''}")
        assert Path("run/journal.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    "words",
    ["ask", "tell --pending 4 --value 1", "revise 0 1", "forget 0", "abandon --pending 4"],
)
def test_writing_says_that_another_process_holds_the_run(words: str, run: Optimizer, terminal: Terminal) -> None:
    name, *rest = words.split()
    with Optimizer.open("run"):
        said = terminal.refused(f"{name} run {' '.join(rest)}")
    assert "another process holds this journal" in said
    assert "`bo-scale loop status`" in said


@pytest.mark.parametrize("name", ["status", "best", "pending", "observations", "suspects", "ask"])
def test_a_path_without_a_journal_is_refused_and_nothing_is_made(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, terminal: Terminal
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "path='none': there is no journal" in terminal.refused(f"{name} none")
    assert not list(tmp_path.iterdir())


def test_a_damaged_journal_names_the_line(run: Optimizer, terminal: Terminal) -> None:
    journal = Path("run/journal.jsonl")
    lines = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join([*lines[:2], lines[2].replace("tell", "sell"), *lines[3:]]))
    assert "line 3 was edited" in terminal.refused("status run")
    assert "line 3 was edited" in terminal.refused("tell run --pending 4 --value 1")
