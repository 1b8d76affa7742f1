"""Observations as tables, there and back."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from loops import CHEAP, cheap, events, f

from bo_scale.errors import InvalidArgumentError, InvalidDataError, SpaceError
from bo_scale.loop import Choice, Fixed, Integer, Optimizer, Real

SPACE = {"x": (0.0, 1.0), "n": Integer(1, 8), "kind": Choice(("a", "b", 3)), "site": Fixed("north")}
OPTIONS = {name: value for name, value in CHEAP.items() if name != "acquisition"}


def begun(**options: Any) -> Optimizer:
    loop = Optimizer(SPACE, **{**OPTIONS, **options})
    points = [{"x": 0.1 * i, "n": i + 1, "kind": ("a", "b", 3)[i % 3]} for i in range(6)]
    loop.tell(points[:4], [1.5, 2.0, -3.0, 4.25], attributes={"who": "Ann"})
    loop.tell(points[4:], [5.0, 6.0], id=["p", "q"])
    return loop


def test_a_frame_has_all_that_was_told() -> None:
    loop = begun(objective="minimize")
    frame = loop.observations_frame()
    assert list(frame) == ["id", "x", "n", "kind", "site", "value", "time", "who"]
    assert frame["id"].tolist() == [0, 1, 2, 3, "p", "q"]
    assert frame["value"].tolist() == [1.5, 2.0, -3.0, 4.25, 5.0, 6.0]
    assert frame["kind"].tolist() == ["a", "b", 3] * 2
    assert (frame["time"] <= pd.Timestamp.now("UTC")).all()
    assert frame["who"].tolist()[:4] == ["Ann"] * 4
    again = Optimizer(SPACE)
    again.tell(frame[["x", "n", "kind", "site"]], frame["value"], id=frame["id"])
    assert again.observations[0] == loop.observations[0]


def test_points_without_names_and_outcomes_with_variances() -> None:
    loop = cheap()
    X = torch.rand(3, 2, dtype=torch.float64)
    loop.tell(X, f(X), [0.1, 0.2, 0.3])
    frame = loop.observations_frame()
    assert list(frame) == ["id", "x0", "x1", "value", "value_variance", "time"]
    assert frame["value_variance"].tolist() == [0.1, 0.2, 0.3]
    several = Optimizer({"id": (0.0, 1.0)}, objectives={"time": "minimize", "gain": "maximize"})
    several.tell([{"id": 0.5}], [{"time": 1.0, "gain": 2.0}])
    assert list(several.observations_frame()) == ["id", "id_", "time", "gain", "time_"]


@pytest.mark.parametrize("noisy", [False, True])
def test_there_and_back(tmp_path: Path, noisy: bool) -> None:
    loop = cheap(space={"x": (0.0, 1.0), "y": (-2.0, 3.0)}, objective="minimize")
    points = loop.ask(4)
    loop.tell(points, [1.0, 1 / 3, 2.0, 1e-30], [0.1, 0.2, 0.3, 1 / 7] if noisy else None, id=["a", 5, "c", "d"])
    loop.to_csv(tmp_path / "all.csv")
    again = Optimizer.from_csv(tmp_path / "all.csv", {"x": (0.0, 1.0), "y": (-2.0, 3.0)}, objective="minimize")
    assert again.observations[0] == loop.observations[0]
    assert torch.equal(again.observations[1], loop.observations[1])
    assert (again.observations[2] is None) != noisy
    assert again.history.told.ids == ["a", 5, "c", "d"]


def table(folder: Path, text: str) -> Path:
    path = folder / "past.csv"
    path.write_text(text)
    return path


PAST = "x,n,kind,yield\n0.1,1,a,3.5\n0.2,2,b,\n0.3,3,3,4.5\n"


def test_a_table_of_the_past_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, options = table(tmp_path, PAST), {**OPTIONS, "objective": "maximize", "path": tmp_path / "run"}
    with Optimizer.from_csv(path, SPACE, **options) as loop:
        assert loop.observations[1].tolist() == [3.5, 4.5]
        assert loop.observations[0][1] == {"x": 0.3, "n": 3, "kind": 3, "site": "north"}
        assert loop.history.told.ids == ["past.csv:2", "past.csv:4"]
        assert "1 of 3 rows have no value" in caplog.text
        loop.ask(1)
    path.write_text(PAST.replace("0.2,2,b,\n", "0.2,2,b,9\n"))
    with Optimizer.from_csv(path, SPACE, **options) as loop:
        assert loop.observations[1].tolist() == [3.5, 4.5, 9.0]
        assert len(loop.pending) == 1
    before = events(tmp_path / "run")
    path.write_text(PAST.replace("3.5", "35"))
    with pytest.raises(InvalidDataError, match=r"'past.csv:2' was told before as \[3.5\].*revise"):
        Optimizer.from_csv(path, SPACE, **options)
    assert events(tmp_path / "run") == before
    with Optimizer.open(tmp_path / "run") as loop:
        loop.revise("past.csv:2", 35.0)
    Optimizer.from_csv(path, SPACE, **options).close()


@pytest.mark.parametrize(
    "text",
    [
        "x;n;kind;yield\n0,1;1;a;3,5\n",
        "\ufeffx\tn\tkind\tyield\n0.1\t1\ta\t3.5\n\n",
        "time,kind, x ,n,yield\n2020,a,0.1,1.0,3.5\n",
        'x,n,kind,yield\r\n"0.1",1," a",3.5\r\n',
    ],
)
def test_tables_of_other_lands_are_read(tmp_path: Path, text: str) -> None:
    loop = Optimizer.from_csv(table(tmp_path, text), SPACE)
    assert loop.observations[0] == [{"x": 0.1, "n": 1, "kind": "a", "site": "north"}]
    assert loop.observations[1].tolist() == [3.5]


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("", InvalidDataError, "no header"),
        ("x,n,knd,yield\n", InvalidArgumentError, "value"),
        ("x,n,knd,value\n", InvalidDataError, r"\['kind'\] are missing.*Did you mean 'knd'"),
        ("x,n,kind,a,b\n", InvalidArgumentError, r"one of \['a', 'b'\]"),
        ("x,n,kind,y\n0.1,1,a,3\n0.1,?,a,3\n", InvalidDataError, r"line 3 has '\?' in column 'n'"),
        ("x,n,kind,y\n0.1,1,c,3\n", InvalidDataError, "line 2 has 'c' in column 'kind'"),
        ("x,n,kind,y\n0.1,1,a,high\n", InvalidDataError, "line 2 has 'high' in column 'y'"),
        ("x,n,kind,y\n0.1,1,a,3\n7.5,1,a,3\n", SpaceError, r"past.csv:3.*'x' takes numbers from 0.0 to 1.0"),
        ("x,n,kind,y,id\n0.1,1,a,3,k\n0.5,1,a,3,k\n", InvalidArgumentError, "'k' given twice"),
        ("x,n,kind,y\n0.1,1,a,3\n0.1,1,a,5,25\n", InvalidDataError, "line 3 has 5 cells, but the header has 4. Quote"),
        ("x,n,kind,y,y\n0.1,1,a,3,4\n", InvalidDataError, r"columns \['y'\] are there more than once. Rename"),
        ("x,n,kind,y,x\n0.1,1,a,3,4\n", InvalidDataError, r"columns \['x'\] are there more than once"),
        ("x,n,kind,y,id,id\n0.1,1,a,3,4,5\n", InvalidDataError, r"columns \['id'\] are there more than once"),
        (
            "x,n,kind,value,value_variance,value_variance\n0.1,1,a,3,4,5\n",
            InvalidDataError,
            r"columns \['value_variance'\] are there more than once",
        ),
    ],
)
def test_a_table_that_cannot_be_read_names_the_line(tmp_path: Path, text: str, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        Optimizer.from_csv(table(tmp_path, text), SPACE)


def yields(folder: Path, cells: list[str], **options: Any) -> list[float]:
    """What is told of a column of values."""
    rows = "".join(f"0.{i};1;a;{cell}\n" for i, cell in enumerate(cells))
    loop = Optimizer.from_csv(table(folder, f"x;n;kind;yield\n{rows}"), SPACE, **OPTIONS, **options)
    told: list[float] = loop.observations[1].tolist()
    return told


@pytest.mark.parametrize(
    ("cells", "told"),
    [
        (["1,250", "2,75"], [1.25, 2.75]),
        (["1,250,000", "1,250"], [1250000.0, 1250.0]),
        (["1.250", "-3"], [1.25, -3.0]),
        (["0,125", "1250,125"], [0.125, 1250.125]),
        (["1.250,5", "2e-3"], [1250.5, 0.002]),
    ],
)
def test_a_column_shows_what_its_commas_are(tmp_path: Path, cells: list[str], told: list[float]) -> None:
    assert yields(tmp_path, cells) == told


@pytest.mark.parametrize("cells", [["1,250"], ["3", "-1,250"], ["2.75", "3", "12,500"], ["2,75", "1.250"]])
def test_a_number_that_may_be_read_in_two_ways_is_refused(tmp_path: Path, cells: list[str]) -> None:
    message = rf"past.csv: line {len(cells) + 1} has '{cells[-1]}' in column 'yield', which may .* decimal='comma' "
    with pytest.raises(InvalidDataError, match=message):
        yields(tmp_path, cells)


@pytest.mark.usefixtures("unchecked")
def test_the_user_decides_what_a_comma_is(tmp_path: Path) -> None:
    assert yields(tmp_path, ["1,250", "2,75"], decimal="comma") == [1.25, 2.75]
    assert yields(tmp_path, ["1,250", "2.75"], decimal="point") == [1250.0, 2.75]
    with pytest.raises(InvalidArgumentError, match=r"decimal=','.*'comma' or 'point'"):
        yields(tmp_path, ["1,250"], decimal=",")
    path = table(tmp_path, "size;y\n1,250;3\n")
    space = {"size": Choice([1.25, 1250.0], ordered=True)}
    with pytest.raises(InvalidDataError, match="line 2 has '1,250' in column 'size', which may"):
        Optimizer.from_csv(path, space, value="y")
    told = Optimizer.from_csv(path, space, value="y", decimal="point").observations
    assert told[0] == [{"size": 1250.0}]


def test_rows_with_cells_left_over_and_columns_that_nobody_reads_do_no_harm(tmp_path: Path) -> None:
    path = table(tmp_path, "\nx,n,kind,value,note,note\n0.1,1,a,3,,,,\n0.2,1,a\n0.3,1,a,5\n")
    assert Optimizer.from_csv(path, SPACE).observations[1].tolist() == [3.0, 5.0]


@pytest.mark.usefixtures("unchecked")
def test_rows_outside_may_be_left_out(tmp_path: Path) -> None:
    path = table(tmp_path, "x,n,kind,y\n0.1,1,a,3\n7.5,1,a,3\n")
    assert Optimizer.from_csv(path, SPACE, outside="skip").num_observations == 1
    with pytest.raises(InvalidArgumentError, match="outside"):
        Optimizer.from_csv(path, SPACE, outside="drop")


def test_several_outcomes_are_read(tmp_path: Path) -> None:
    goals: dict[str, Any] = {"objectives": {"gain": "maximize"}, "constraints": ["cost <= 3"]}
    path = table(tmp_path, "x,cost,gain\n0.1,1,2\n0.2,,2\n0.3,3,4\n")
    loop = Optimizer.from_csv(path, {"x": Real(0.0, 1.0)}, **goals)
    assert loop.observations[1] == [{"gain": 2.0, "cost": 1.0}, {"gain": 4.0, "cost": 3.0}]
    with pytest.raises(InvalidArgumentError, match="value"):
        Optimizer.from_csv(path, {"x": Real(0.0, 1.0)}, value="gain", **goals)


def test_awkward_names_come_back(tmp_path: Path) -> None:
    space = {"value": (0.0, 9.0), "time": (0.0, 9.0)}
    loop = Optimizer(space, **OPTIONS)
    loop.tell([{"value": 3.0, "time": 4.0}], [100.0], id="007", attributes={"value_variance": 0.01})
    loop.to_csv(tmp_path / "all.csv")
    again = Optimizer.from_csv(tmp_path / "all.csv", space, value="value_", **OPTIONS)
    assert again.observations[0] == loop.observations[0]
    assert again.observations[1].tolist() == [100.0]
    assert again.observations[2] is None
    assert again.history.told.ids == ["007"]
    with pytest.raises(InvalidArgumentError, match="'id'"):
        Optimizer({"id": (0.0, 1.0)}).to_csv(tmp_path / "no.csv")


def test_choices_that_differ_by_blanks_come_back(tmp_path: Path) -> None:
    space = {"x": (0.0, 1.0), "kind": Choice(["a", "a ", " b"])}
    loop = cheap(space=space)
    points = [{"x": 0.1 * i, "kind": kind} for i, kind in enumerate(["a ", "a", " b", "a "])]
    loop.tell(points, [1.0, 2.0, 3.0, 4.0])
    loop.to_csv(tmp_path / "past.csv")
    again = Optimizer.from_csv(tmp_path / "past.csv", space, model="cagp")
    assert again.observations[0] == points


def test_an_outcome_named_as_the_ids_has_no_tables(tmp_path: Path) -> None:
    goals: dict[str, Any] = {"objectives": {"id": "maximize"}}
    with pytest.raises(InvalidArgumentError, match=r"objectives: an outcome is named 'id'.*Rename it"):
        Optimizer({"x": (0.0, 1.0)}, **goals).to_csv(tmp_path / "no.csv")
    with pytest.raises(InvalidArgumentError, match="objectives: an outcome is named 'id'"):
        Optimizer.from_csv(table(tmp_path, "id,x\n7,0.5\n"), {"x": (0.0, 1.0)}, **goals)


@pytest.mark.parametrize("name", [" x", "x\n", "\tx "])
def test_names_that_begin_or_end_with_blanks_come_back(tmp_path: Path, name: str) -> None:
    space = {name: (0.0, 9.0), "x": (0.0, 1.0)}
    goals: dict[str, Any] = {"objectives": {f"y{name}": "maximize", "y": "minimize"}}
    loop = Optimizer(space, **goals)
    loop.tell([{name: 3.0, "x": 0.5}], [[1.0, 2.0]])
    loop.to_csv(tmp_path / "all.csv")
    assert Optimizer.from_csv(tmp_path / "all.csv", space, **goals).observations == loop.observations


@pytest.mark.parametrize(
    ("space", "goals"),
    [
        (["value_variance"], {"objective": "maximize"}),
        (["gain_variance"], {"objectives": {"gain": "maximize"}}),
        (["x"], {"objectives": {"gain": "maximize", "gain_variance": "minimize"}}),
    ],
)
def test_names_of_columns_of_variances_are_refused_at_the_start(
    tmp_path: Path, space: list[str], goals: dict[str, Any]
) -> None:
    with pytest.raises(InvalidArgumentError, match=r"_variance'\] name the noise variances.*Rename"):
        Optimizer(dict.fromkeys(space, (0.0, 1.0)), path=tmp_path / "run", **goals)
    assert not (tmp_path / "run").exists()


def test_what_was_taken_out_stays_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, options = table(tmp_path, PAST), {**OPTIONS, "objective": "maximize", "path": tmp_path / "run"}
    with Optimizer.from_csv(path, SPACE, **options) as loop:
        loop.forget("past.csv:2")
    with Optimizer.from_csv(path, SPACE, **options) as loop:
        assert loop.history.told.ids == ["past.csv:4"]
    assert "1 rows were taken out" in caplog.text


def test_a_table_that_is_refused_begins_nothing(tmp_path: Path) -> None:
    path = table(tmp_path, "x,n,kind,y\n7.5,1,a,3\n")
    with pytest.raises(SpaceError):
        Optimizer.from_csv(path, SPACE, path=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_copy_of_a_table_is_noticed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, options = table(tmp_path, PAST), {**OPTIONS, "objective": "maximize", "path": tmp_path / "run"}
    Optimizer.from_csv(path, SPACE, **options).close()
    path.rename(tmp_path / "corrected.csv")
    Optimizer.from_csv(tmp_path / "corrected.csv", SPACE, **options).close()
    assert "2 rows equal observations that have other ids" in caplog.text
