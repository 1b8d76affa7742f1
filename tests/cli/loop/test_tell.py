import math
from pathlib import Path

import pytest
from terminal import Terminal

from bo_scale.loop import Fixed, Optimizer


def now() -> Optimizer:
    return Optimizer.open("run", mode="r")


def typed(point: dict[str, object]) -> str:
    return " ".join(f"{name}={value}" for name, value in point.items())


def test_a_pending_point_by_its_number(run: Optimizer, terminal: Terminal) -> None:
    said = terminal("tell run --pending 5 --value 1.25")
    assert "Told value = 1.25 under the id 4: pending point 5, x = " in said
    assert "Observations: 5. Pending: 1." in said
    assert now().observations[0][-1] == run.pending[1]
    assert now().observations[1][-1] == 1.25
    assert "5 is not pending: it was told, failed or abandoned before. Choose from [4]." in terminal.refused(
        "tell run --pending 5 --value 1.25"
    )
    assert "no point has this number" in terminal.refused("tell run --pending 50 --value 1.25")


def test_a_point_that_is_pending_or_new(run: Optimizer, terminal: Terminal) -> None:
    assert "pending point 4," in terminal(f"tell run --point {typed(run.pending[0])} --value -1e-3")
    said = terminal("tell run --point x=.5 n=3 --point t=100.5 kind=b --value -2.5 --id run-17")
    assert "Told value = -2.5 under the id run-17: a new point, which was not pending, x = 0.5, kind = b" in said
    assert now().observations[1][-2:].tolist() == [-1e-3, -2.5]
    again = "tell run --point x=.5 n=3 t=100.5 kind=b --id run-17 --value"
    assert "Nothing changes." in terminal(f"{again} -2.5")
    assert "'run-17' was told before" in terminal.refused(f"{again} 2.5")
    assert now().num_observations == 6


def test_numbers_may_have_a_decimal_comma(run: Optimizer, terminal: Terminal) -> None:
    said = terminal("tell run --point x=0,5 n=3 t=100,5 kind=b --value -2,75 --variance 0,1 --cost 1,5 --id a")
    assert "Told value = -2.75 under the id a: a new point, which was not pending, x = 0.5, kind = b" in said
    terminal("revise run a 2,5")
    loop = now()
    assert loop.observations[1][-1] == 2.5
    assert loop.observations[2][-1] == pytest.approx(0.1)
    assert loop.history.told.costs[-1] == 1.5


def test_undoing_is_what_it_says(run: Optimizer, terminal: Terminal) -> None:
    said = terminal("tell run --point x=.5 n=3 t=100.5 kind=b --value 3 --id run-17")
    undo = next(line for line in said.splitlines() if line.startswith("To undo: "))
    terminal(undo.removeprefix("To undo: bo-scale loop "))
    assert now().observations[0] == run.observations[0]


def test_a_point_copied_from_the_table_is_not_taken_for_another(run: Optimizer, terminal: Terminal) -> None:
    rounded = {name: f"{each:.6g}" if isinstance(each, float) else each for name, each in run.pending[1].items()}
    said = terminal.refused(f"tell run --point {typed(rounded)} --value 1")
    assert "it is pending point 5, rounded to six digits. Tell --pending 5 instead." in said
    terminal(said.split("bo-scale loop ")[1])
    assert "a new point" in terminal(f"tell run --point {typed(rounded)} --value 1")


def test_failures(run: Optimizer, terminal: Terminal) -> None:
    assert "Failed: pending point 4, x = " in terminal("tell run --pending 4 --failed")
    assert "Failed: a new point, which was not pending" in terminal("tell run --point x=1 kind=a n=1 t=101 --failed")
    assert (len(now().pending), now().num_observations) == (1, 4)


def test_several_outcomes_and_variances(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, terminal: Terminal) -> None:
    monkeypatch.chdir(tmp_path)
    space = {"x": (0.0, 1.0), "lamp": Fixed("on")}
    with Optimizer(space, objectives={"loss": "minimize"}, constraints=["cost <= 3"], path="run"):
        pass
    said = terminal("tell run --point x=0.5 --value loss=0.2 --value cost=3 --variance cost=0.1 loss=0.2")
    assert "Told loss = 0.2, cost = 3 under the id 0: a new point, which was not pending, x = 0.5, lamp = on." in said
    assert now().observations == ([{"x": 0.5, "lamp": "on"}], [{"loss": 0.2, "cost": 3}], [{"loss": 0.2, "cost": 0.1}])
    for words, remedy in (
        ("--value loss=0.2", "--value: cost missing. All outcomes of a point are told together: add cost=…."),
        ("--value 0.2", "'0.2' has no name. Write it like loss=… cost=…"),
        ("--value los=0.2 cost=3", "'los' is no outcome. Did you mean 'loss'?"),
        ("--value loss=0.2 cost=3 --variance los=1", "Did you mean 'loss'?"),
        ("--value loss=0.2 cost=3 --cost none", "--cost: none is no number"),
    ):
        assert remedy in terminal.refused(f"tell run --point x=0.6 {words}")
    terminal("tell run --point x=0.6 --value loss=0.2 cost=3 --variance loss=1 cost=unknown --cost 12")
    variances = now().observations[2][1]
    assert variances["loss"] == 1
    assert math.isnan(variances["cost"])
    assert list(now().history.told.costs)[1:] == [12.0]


def test_a_table(run: Optimizer, terminal: Terminal) -> None:
    one = run.pending[0]
    rows = [f"p,{one['x']},{one['kind']},{one['n']},{one['t']},1.5", "7,0.1,a,2,100.5,2.5", "8,0.2,a,2,100.5,"]
    Path("new.csv").write_text("\n".join(["id,x,kind,n,t,result", *rows]))
    said = terminal("tell run --csv new.csv")
    assert "Told from new.csv: 2 observations, 1 of pending points." in said
    assert "Note: new.csv: 1 of 3 rows have no value" in terminal.errors
    assert now().history.told.ids[-2:] == ["p", 7]
    assert "Told from new.csv: 0 observations" in terminal("tell run --csv new.csv --column result")
    Path("out.csv").write_text("x,kind,n,t,value\n3,a,2,100.5,1\n0.3,a,2,100.5,1\n")
    assert "rows outside the space: ['out.csv:2']" in terminal.refused("tell run --csv out.csv")
    assert "1 observations" in terminal("tell run --csv out.csv --outside skip")
    Path("two.csv").write_text('x,kind,n,t,value\n0.4,a,2,100.5,"1,250"\n')
    assert "two.csv: line 2 has '1,250' in column 'value'" in terminal.refused("tell run --csv two.csv")
    terminal("tell run --csv two.csv --decimal point")
    assert now().observations[1][-1] == 1250.0
    Path("bad.csv").write_bytes("x,kind,n,t,größe\n".encode("latin-1"))
    assert "Save the table as CSV in UTF-8" in terminal.refused("tell run --csv bad.csv")
    assert "none.csv" in terminal.refused("tell run --csv none.csv")


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        ("--pending 4", "--value: none given. Give --value NUMBER, or --failed"),
        ("--pending 4 --value 1 --failed", "--value: a failed point has none"),
        ("--pending 4 --value many", "--value: many is no number: write it without units, such as 12.5."),
        ("--pending 4 --value 1,250", "--value: 1,250 may be 1250 or 1.250; write one of these."),
        ("--pending 4 --value nan", "--value: nan is no finite number"),
        ("--pending 4 --value 1 2", "--value: '1' has no name"),
        ("--pending 4 --value 1 --variance -1", "not positive"),
        ("--point x=0.5 --value 1", "--point: kind, n, t missing. Give kind=… n=… t=… too."),
        ("--point x=0.5 kin=a n=1 t=100 --value 1", "--point: 'kin' is no parameter. Did you mean 'kind'?"),
        ("--point x=0.5 kind=d n=1 t=100 --value 1", "--point: kind=d is outside the space: 'kind' takes one of"),
        ("--point x=1.5 kind=a n=1 t=100 --value 1", "--point: x=1.5 is outside the space"),
        ("--point x=0.5 kind=a n=1.5 t=100 --value 1", "--point: n=1.5 is outside the space: 'n' takes integers"),
        ("--point x=half kind=a n=1 t=100 --value 1", "--point x: half is no number"),
        ("--csv new.csv --value 1", "--value: with --csv it comes from the table"),
        ("--pending 4 --value 1 --column y", "--column, --decimal, --outside: they are for --csv"),
    ],
)
def test_refusals_say_what_to_do(words: str, remedy: str, run: Optimizer, terminal: Terminal) -> None:
    before = Path("run/journal.jsonl").read_bytes()
    assert remedy in terminal.refused(f"tell run {words}")
    assert Path("run/journal.jsonl").read_bytes() == before


@pytest.mark.parametrize("words", ["--value 1", "--value 1 --pending 4 --point x=1", "--value 1 --pending"])
def test_a_point_is_said_in_one_way(words: str, run: Optimizer, terminal: Terminal) -> None:
    with pytest.raises(SystemExit) as end:
        terminal(f"tell run {words}")
    assert end.value.code == 2
