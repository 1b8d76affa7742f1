from pathlib import Path

import openpyxl
import pandas as pd
import pytest
from samples import filled, sites_table, write

from bo_scale.errors import SurveyError
from bo_scale.survey import Survey
from bo_scale.survey.plan.sheet import write_table
from bo_scale.survey.tables.records import Dialect

pytestmark = pytest.mark.usefixtures("small")


@pytest.mark.parametrize("name", ["predicted", "predicted_sd", "site", "name", "day", "team", "stop"])
def test_a_column_that_plans_have_is_refused(tmp_path: Path, name: str) -> None:
    table = write(tmp_path, "sites.csv", sites_table(8).rename(columns={"zinc": name}))
    with pytest.raises(SurveyError, match=f"{name}: the tables of plans have a column of that name"):
        Survey.create(tmp_path / "s.gpkg", table, name)
    assert not (tmp_path / "s.gpkg").exists()


def test_a_table_that_was_lost_is_written_again(path: Path) -> None:
    survey = Survey(path)
    table = survey.plan(3).table
    pd.testing.assert_frame_equal(survey.pending(), table)
    survey.update(write(path.parent, "done.csv", filled(table, P2=5.0)))
    assert survey.pending().site.tolist() == ["P1", "P3"]


def test_a_plan_is_written_like_the_first_table(tmp_path: Path) -> None:
    text = sites_table(12).rename(columns={"lon": "Länge", "lat": "Breite"}).to_csv(index=False, sep=";", decimal=",")
    for encoding in ("utf-8-sig", "cp1252", "utf-16"):
        (tmp_path / "sites.csv").write_bytes(text.encode(encoding))
        path = tmp_path / f"{encoding}.gpkg"
        survey = Survey.create(path, tmp_path / "sites.csv", "zinc", kernel="matern32")
        survey.plan(2).write(tmp_path / "next.csv")
        lines = (tmp_path / "next.csv").read_bytes().decode(encoding).splitlines()
        assert lines[0] == "site;Länge;Breite;zinc;predicted;predicted_sd"
        assert [line.count(",") for line in lines] == [0, 4, 4]
        assert (tmp_path / "next.csv").read_bytes().startswith("\ufeff".encode("utf-8")) == (encoding == "utf-8-sig")
        filled_in = [lines[0], lines[1].replace(";;", ";5,25;"), lines[2]]
        (tmp_path / "next.csv").write_bytes("\r\n".join([*filled_in, "", ""]).encode(encoding))
        arrival = survey.update(tmp_path / "next.csv")
        assert (arrival.added, arrival.blank, arrival.matched) == (1, 1, ["P1"])
        assert survey.sites.value.iloc[-1] == 5.25
        survey.require_replaceable(tmp_path / "next.csv")
        assert survey.write_pending(tmp_path / "next.csv").site.tolist() == ["P2"]
        assert (tmp_path / "next.csv").read_bytes().decode(encoding).splitlines()[1].startswith("P2;5,7")


def test_letters_that_the_encoding_lacks_are_not_lost(tmp_path: Path) -> None:
    table = pd.DataFrame({"site": ["P1"], "name": ["Łódź"], "Länge": [7.5]})
    write_table(table, tmp_path / "t.csv", Dialect(";", ",", "cp1252"))
    assert (tmp_path / "t.csv").read_text("utf-8-sig").splitlines() == ["site;name;Länge", "P1;Łódź;7,5"]


def test_texts_are_not_run_as_formulas_and_numbers_stay(tmp_path: Path) -> None:
    table = pd.DataFrame({"name": ["=1+1", "-5", "@x", "well"], "=zinc": "", "predicted": [-1.5, 2.0, 3.0, 4.0]})
    write_table(table, tmp_path / "t.csv")
    assert (tmp_path / "t.csv").read_text().splitlines() == [
        "name,'=zinc,predicted", "'=1+1,,-1.5", "-5,,2.0", "'@x,,3.0", "well,,4.0",
    ]  # fmt: skip
    made = sites_table(8).rename(columns={"zinc": "=zinc"})
    survey = Survey.create(tmp_path / "s.gpkg", write(tmp_path, "s.csv", made), "=zinc", kernel="matern32")
    plan = survey.plan(1)
    plan.write(tmp_path / "n.csv")
    (tmp_path / "n.csv").write_text((tmp_path / "n.csv").read_text().replace(",,", ",7.5,"))
    assert survey.update(tmp_path / "n.csv").matched == ["P1"]


def test_a_plan_as_a_workbook_comes_back(path: Path) -> None:
    survey, file = Survey(path), path.with_name("next.xlsx")
    survey.plan(2).write(file)
    book = openpyxl.load_workbook(file)
    page = book.active
    assert [cell.value for cell in page[1]] == ["site", "lon", "lat", "zinc", "predicted", "predicted_sd"]
    assert {cell.data_type for cell in page[2][1:3]} == {"n"}
    page.cell(2, 4, 5.25)
    book.save(file)
    with pytest.raises(SurveyError, match=r"values that are not in the survey yet \(1\)"):
        survey.require_replaceable(file)
    arrival = survey.update(file)
    assert (arrival.added, arrival.blank, arrival.matched) == (1, 1, ["P1"])
    survey.require_replaceable(file)
    for name in ("next.xls", "next.ods"):
        with pytest.raises(SurveyError, match=r"written as \.csv or \.xlsx"):
            survey.plan(1).write(path.with_name(name))
