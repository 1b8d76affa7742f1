import datetime
import sys
from pathlib import Path

import openpyxl
import pandas as pd
import pytest

from bo_scale.errors import MissingDependencyError, SurveyError
from bo_scale.survey.tables.reading import read_records
from bo_scale.survey.tables.table import read_table
from bo_scale.survey.tables.workbook import workbook_of


def book(path: Path, *sheets: list[list[object]]) -> Path:
    made = openpyxl.Workbook()
    made.remove(made.active)
    for number, rows in enumerate(sheets, start=1):
        page = made.create_sheet(f"Blatt {number}")
        for row in rows:
            page.append(row)
    made.save(path)
    return path


def test_numbers_dates_and_texts_are_read(tmp_path: Path) -> None:
    day = datetime.datetime(2024, 5, 3)
    rows = [
        ["Länge", "Breite", "Zink (mg/kg)", "Datum", "Uhr", "ok"],
        [7.125, 51.0, 1.234, day, day.replace(hour=9), True],
        [],
        ["7,25", "51,5", "0,5", datetime.date(2024, 5, 4), datetime.time(9, 30), None],
        [7.5, 51.25, "<5", None, None, None],
        [7.5, 51.25, "#DIV/0!", None, None, None],
    ]
    path = book(tmp_path / "t.xlsx", rows)
    records = read_records(path)
    assert records.cells[0] == ["7.125", "51", "1.234", "2024-05-03", "2024-05-03 09:00:00", "True"]
    assert records.cells[1][3:5] == ["2024-05-04", "09:30:00"]
    table = read_table(path, "Zink (mg/kg)")
    assert table.frame.row.tolist() == [2, 4, 5]
    assert table.frame.value.tolist() == [1.234, 0.5, 5.0]  # a number is one, whatever the texts of its column
    assert table.frame.below.tolist() == [0, 0, 1]
    assert [(one.row, one.reason) for one in table.refused] == [(6, "Zink (mg/kg) is not a number: #DIV/0!")]
    assert table.dialect.settings == {"separator": ",", "decimal": ".", "encoding": "utf-8"}


def test_a_sheet_is_chosen_by_name(tmp_path: Path) -> None:
    path = book(tmp_path / "t.xlsx", [["Bericht"], ["2024"]], [["lon", "lat", "v"], [7.1, 51.2, 3]])
    with pytest.raises(SurveyError, match=r"no column v.*The first sheet, Blatt 1, was read.*Blatt 2 \(--sheet\)"):
        read_table(path, "v")
    assert read_table(path, "v", sheet="Blatt 2").frame.value.tolist() == [3.0]
    with pytest.raises(SurveyError, match=r"no sheet Blatt 3; pass one of these \(--sheet\): Blatt 1, Blatt 2"):
        read_table(path, "v", sheet="Blatt 3")
    (tmp_path / "t.csv").write_text("lon,lat,v\n1,2,3\n")
    with pytest.raises(SurveyError, match="not a workbook, so it has no sheets"):
        read_table(tmp_path / "t.csv", "v", sheet="Blatt 1")


def test_a_formula_without_its_value_is_told(tmp_path: Path) -> None:
    path = book(tmp_path / "t.xlsx", [["lon", "lat", "v"], [7.1, 51.2, "=1+1"], [7.1, 51.2, 4]])
    table = read_table(path, "v")
    assert table.frame.value.tolist() == [4.0]
    assert "the formula in v has no stored value" in table.refused[0].reason


def test_a_title_above_the_header_is_told(tmp_path: Path) -> None:
    path = book(tmp_path / "t.xlsx", [["Kampagne 2024"], [], ["lon", "lat", "v"], [7.1, 51.2, 4]])
    with pytest.raises(SurveyError, match=r"row 3 looks like the header\. Delete the rows above it"):
        read_table(path, "v")


def test_a_table_is_written_with_types_and_without_formulas(tmp_path: Path) -> None:
    path = tmp_path / "n.xlsx"
    table = pd.DataFrame({"site": ["P1", "=1+1"], "-zinc": ["", "-5"], "predicted": [-1.5, float("nan")]})
    path.write_bytes(workbook_of(table, path))
    page = openpyxl.load_workbook(path).active
    assert [[cell.value for cell in row] for row in page.iter_rows()] == [
        ["site", "-zinc", "predicted"],
        ["P1", None, -1.5],
        ["=1+1", "-5", None],
    ]
    assert {cell.data_type for cell in page["A"]} == {"s"}
    assert page["A3"].quotePrefix
    assert page["C2"].data_type == "n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1 and so on", "an old kind .* save it as .xlsx or CSV"),
        (b"PK\x03\x04 and so on", "damaged workbook; save the table as CSV"),
        (b"<html><table>", "a web page"),
    ],
)
def test_other_files_are_refused_with_the_remedy(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "t.xlsx"
    path.write_bytes(content)
    with pytest.raises(SurveyError, match=message):
        read_records(path)


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = book(tmp_path / "t.xlsx", [["lon", "lat", "v"], [7.1, 51.2, 4]])
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'bo_scale\[survey\]'. Or use CSV"):
        read_records(path)
