from pathlib import Path

import pandas as pd
import pytest
from commands import run, sites

from bo_scale.cli import main
from bo_scale.survey import Survey


def test_rows_that_are_there_are_taken_once_more_only_if_wanted(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "Left out because the survey has them already: 24 " in run(capsys, "update s.gpkg sites.csv")
    said = run(capsys, "update s.gpkg sites.csv --repeats")
    assert "Measurements added: 24." in said
    assert "Left out" not in said


def test_an_update_of_which_nothing_is_used_fails(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = sites().head(3).assign(pb="?")
    bad.to_csv("bad.csv", index=False)
    for told in ("3 rows were set aside (row 2: pb is not a number: ?)", "all rows with a value were set aside before"):
        assert main(["survey", "update", "s.gpkg", "bad.csv"]) == 1
        said = capsys.readouterr()
        assert "Measurements added: 0." in said.out
        assert "bo-scale: bad.csv: nothing was added" in said.err
        assert told in said.err
    bad.loc[0, "pb"] = "21.0"
    bad.to_csv("some.csv", index=False)
    said = run(capsys, "update s.gpkg some.csv")
    assert "Measurements added: 1." in said
    assert "2 of them set aside" in said
    assert main(["survey", "update", "s.gpkg", "some.csv"]) == 1  # of which one row is in use
    said = capsys.readouterr()
    assert "'aside': 2.\n  some.csv, row 3: pb is not a number: ?\n" in said.out
    assert "some.csv: nothing was added: 2 rows were set aside before (row 3: pb is not a number: ?)." in said.err
    bad.iloc[[2]].to_csv("one.csv", index=False)
    assert main(["survey", "update", "s.gpkg", "one.csv", "--repeats"]) == 1
    assert "nothing was added, and 1 row was set aside (row 2: pb" in capsys.readouterr().err


def test_a_value_that_was_replaced_is_no_failure(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = sites().assign(site=[f"W{k}" for k in range(24)])
    table.to_csv("first.csv", index=False)
    run(capsys, "init first.csv --value pb --kernel matern32 --out w.gpkg")
    table.iloc[[3]].assign(pb=25.25).to_csv("mended.csv", index=False)
    assert "W3: the earlier value was set aside." in run(capsys, "update w.gpkg mended.csv --replace")
    assert "24, 1 of them set aside" in run(capsys, "update w.gpkg first.csv")


def test_options_of_an_update_arrive(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "plan s.gpkg --batch 1 --out next.xlsx")
    with pd.ExcelWriter("lab.xlsx") as book:
        pd.DataFrame({"Bericht": ["Labor"]}).to_excel(book, sheet_name="Deckblatt", index=False)
        table = pd.DataFrame({"Nr": ["P1"], "Blei": ["1,234"]})
        table.to_excel(book, sheet_name="Werte", index=False)
    said = run(capsys, "update s.gpkg lab.xlsx --sheet Werte --value Blei --site Nr --decimal comma")
    assert "Planned sites measured: P1." in said
    assert Survey("s.gpkg").sites.value.iloc[-1] == 1.234


def test_options_of_reading_arrive_at_a_beginning(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = sites().assign(pb=[f"1,{k:03d}" for k in range(24)], Probe=range(24))
    table.to_excel("t.xlsx", sheet_name="Werte", index=False)
    words = "init t.xlsx --value pb --sheet Werte --decimal point --site Probe --kernel matern32 --out t.gpkg"
    run(capsys, words)
    survey = Survey("t.gpkg")
    assert survey.sites.value.tolist() == [1000.0 + k for k in range(24)]
    assert survey.sites.site.tolist() == [str(k) for k in range(24)]
