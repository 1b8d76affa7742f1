import time
from pathlib import Path

import pytest
from samples import saved

from bo_scale.errors import SurveyError
from bo_scale.survey.tables.table import Refused, read_table


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b"\n \n", "empty"),
        (b"lon,lat,v\n", "no row below"),
        (b"lon,lat,v\n\n,,\n", "no row below"),
        (b"PK\x03\x04rest of a workbook", "save the table as CSV"),
        (b"lon,lat,v\n1,2,\0\n", "save the table as CSV"),
    ],
)
def test_files_without_measurements(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "sites.csv"
    with pytest.raises(SurveyError, match="no such file"):
        read_table(path, "v")
    path.write_bytes(content)
    with pytest.raises(SurveyError, match=message):
        read_table(path, "v")


def test_lines_are_counted_as_a_spreadsheet_does(tmp_path: Path) -> None:
    text = 'lon,lat,v,note\r\n1,2,3,"two\r\nlines"\r\n\r\n1,2,x,\r\n1,2,5,"a ""b"""\r\n'
    table = read_table(saved(tmp_path, text), "v")
    assert table.frame.row.tolist() == [2, 5]
    assert table.frame.text.tolist() == ['1,2,3,"two\nlines"', '1,2,5,"a ""b"""']
    assert table.refused == [Refused(4, "1,2,x,", "v is not a number: x")]


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("lon;lat;v\n1,5;2,25;3\n1;2;-4,5e1\n", [3.0, -45.0]),
        ("lon\tlat\tv\n1,5\t2\t3,5\n", [3.5]),
        ("lon;lat;v;n, all\n1.5;2.5;3.25;a, b\n", [3.25]),
        ("\ufefflon,lat,v\n1,2,3\n", [3.0]),
        ('"lon","lat","v"\n"1","2","3"\n', [3.0]),
    ],
)
def test_separators_and_decimals(tmp_path: Path, text: str, values: list[float]) -> None:
    table = read_table(saved(tmp_path, text), "v")
    assert table.frame.value.tolist() == values
    assert ("Decimals are written with a comma." in table.notes) == (",5" in text)


def test_encodings(tmp_path: Path) -> None:
    text = "lon,lat,v,Höhe\n1,2,3,größer\n"
    for encoding, named in [("utf-8", ""), ("cp1252", "Windows-1252"), ("utf-16", "UTF-16")]:
        table = read_table(saved(tmp_path, text, encoding), "v")
        assert table.frame.text.tolist() == ["1,2,3,größer"]
        assert any("not UTF-8" in said for said in table.notes) == bool(named)
        assert named in " ".join(table.notes)


def test_many_quotes_that_are_not_closed_take_seconds(tmp_path: Path) -> None:
    lines = ['1,2,3,"5' if k % 2 else "1,2,3,5" for k in range(6_000)]
    start = time.process_time()
    table = read_table(saved(tmp_path, "\n".join(["lon,lat,v,note", *lines])), "v")
    assert time.process_time() - start < 3.0
    assert len(table.frame) == len(table.refused) == 3_000


def test_a_table_from_an_office(tmp_path: Path) -> None:
    text = "\ufeffLänge;Breite;Zink (mg/kg);\r\n7,1;51,2;3,5;\r\n7,2;51,3;4;\n7,3;51,4;5;;\r;;;\r\n \r\n\r\n"
    table = read_table(saved(tmp_path, text), "Zink (mg/kg)")
    assert (table.columns.x, table.columns.y) == ("Länge", "Breite")
    assert table.frame[["row", "x", "y", "value"]].to_numpy().tolist() == [
        [2, 7.1, 51.2, 3.5],
        [3, 7.2, 51.3, 4.0],
        [4, 7.3, 51.4, 5.0],
    ]
    assert table.refused == []
    assert table.dialect.settings == {"separator": ";", "decimal": ",", "encoding": "utf-8-sig"}


def test_a_line_that_says_what_separates_is_followed(tmp_path: Path) -> None:
    table = read_table(saved(tmp_path, "sep=;\nlon;lat;v,w\n7,5;51;3\n"), "v,w")
    assert table.frame[["row", "x", "value"]].to_numpy().tolist() == [[3, 7.5, 3.0]]


def test_a_title_above_the_header_is_told(tmp_path: Path) -> None:
    text = "Messkampagne 2024\n\nlon;lat;v\n7,5;51;3\n"
    with pytest.raises(SurveyError, match=r"row 3 looks like the header\. Delete the rows above it, such as a title"):
        read_table(saved(tmp_path, text), "v")
