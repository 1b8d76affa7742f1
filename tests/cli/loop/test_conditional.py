"""Points that lack a parameter, on the command line."""

import json
from pathlib import Path

import pytest
from terminal import Terminal

from bo_scale.loop import Choice, Integer, Optimizer, When

SPACE = {"kind": Choice(["a", "b"]), "x": When("kind", "a", (0.0, 1.0)), "n": When("kind", "b", Integer(1, 9))}


@pytest.fixture
def branches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of three pending points."""
    monkeypatch.chdir(tmp_path)
    with Optimizer(SPACE, objective="minimize", path="run", num_initial=4) as optimizer:
        optimizer.ask(3)


def now() -> Optimizer:
    return Optimizer.open("run", mode="r")


@pytest.mark.usefixtures("branches")
def test_what_does_not_exist_is_an_empty_cell_or_null(terminal: Terminal) -> None:
    assert "x     numbers from 0.0 to 1.0, only where 'kind' is 'a'" in terminal("status run")
    points = now().pending
    found = json.loads(terminal("pending run --json"))
    assert [{name: value for name, value in each["point"].items() if value is not None} for each in found] == points
    assert all(set(each["point"]) == {"kind", "x", "n"} for each in found)
    for number, point in enumerate(points):
        said = terminal(f"tell run --pending {number} --value {number}")
        assert ("x = " in said, "n = " in said) == ("x" in point, "n" in point)
    assert "Observations: 3." in terminal("observations run")
    assert "Best observed: value = 0" in terminal("best run")
    terminal("export run told.csv")
    assert all(",," in line for line in Path("told.csv").read_text().splitlines()[1:])


@pytest.mark.usefixtures("branches")
def test_a_point_is_typed_without_what_does_not_exist(terminal: Terminal) -> None:
    assert {"kind": "b", "n": 8} not in now().pending
    assert "the id 0: a new point, which was not pending, kind = b, n = 8." in terminal(
        "tell run --point kind=b n=8 x=.9 --value 1"
    )
    assert "--point: n missing. Give n=… too." in terminal.refused("tell run --point kind=b --value 1")
    assert "'n' takes integers from 1 to 9, only where 'kind' is 'b'" in terminal.refused(
        "tell run --point kind=b n=10 --value 1"
    )
    terminal("forget run 0")
    terminal("restore run 0")
    assert now().observations[0] == [{"kind": "b", "n": 8}]
    terminal("ask run --fixed n=4")
    assert now().pending[-1] == {"kind": "b", "n": 4}
    assert "no point with" in terminal.refused("ask run --fixed n=4 kind=a")


@pytest.mark.usefixtures("branches")
def test_a_table_may_have_empty_cells(terminal: Terminal) -> None:
    Path("past.csv").write_text("kind,x,n,value\na,0.5,,1\nb,,7,2\n")
    assert "2 observations" in terminal("tell run --csv past.csv")
    assert now().observations[0] == [{"kind": "a", "x": 0.5}, {"kind": "b", "n": 7}]
