from pathlib import Path

import pytest
from terminal import Terminal

from bo_scale.loop import Optimizer


def test_points_are_those_that_python_would_get(run: Optimizer, terminal: Terminal) -> None:
    said = terminal("ask run -q 2")
    points = Optimizer.open("run", mode="r").pending[2:]
    assert [line.split()[0] for line in said.splitlines()[1:3]] == ["6", "7"]
    assert f"{points[1]['x']:.6g}" in said.splitlines()[2]
    assert "bo-scale loop tell run --pending 6 --value VALUE" in said
    (one,) = terminal.json("ask run --fixed kind=c t=100.5")
    assert one["number"] == 8
    assert (one["point"]["kind"], one["point"]["t"]) == ("c", 100.5)
    assert Optimizer.open("run", mode="r").pending[4] == one["point"]


def test_points_without_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, terminal: Terminal) -> None:
    monkeypatch.chdir(tmp_path)
    with Optimizer([(0.0, 1.0), (0.0, 2.0)], objective="maximize", path="run"):
        pass
    (one,) = terminal.json("ask run --fixed x1=1.5")
    assert one["point"]["x1"] == 1.5
    assert terminal("ask run").split()[:3] == ["number", "x0", "x1"]


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        ("-q 0", "q=0: must be at least 1"),
        ("--fixed s=3", "--fixed: 's' is no parameter. Choose from x, kind, n, t."),
        ("--fixed t=warm", "warm is no number"),
        ("--fixed t=21", "--fixed: t=21 is outside the space: 't' takes numbers from 100.0 to 101.0."),
        ("--fixed t", "--fixed: 't' has no name. Write it like x=… kind=… n=… t=…"),
        ("--fixed t=100.1 t=100.2", "'t' is there twice"),
    ],
)
def test_refusals_say_what_to_do(words: str, remedy: str, run: Optimizer, terminal: Terminal) -> None:
    before = Path("run/journal.jsonl").read_bytes()
    assert remedy in terminal.refused(f"ask run {words}")
    assert Path("run/journal.jsonl").read_bytes() == before
