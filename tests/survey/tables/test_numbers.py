from pathlib import Path

import pytest
from samples import saved

from bo_scale.errors import SurveyError
from bo_scale.survey.tables.numbers import SECOND
from bo_scale.survey.tables.table import Refused, read_table


def test_each_column_has_its_own_decimals(tmp_path: Path) -> None:
    table = read_table(saved(tmp_path, "lon;lat;v;sd\n7.125;51.25;1.234,5;0,5\n7.5;51.5;2,5;0,25\n"), "v", error="sd")
    assert table.frame[["x", "y", "value", "error"]].to_numpy().tolist() == [
        [7.125, 51.25, 1234.5, 0.5],
        [7.5, 51.5, 2.5, 0.25],
    ]
    assert "Decimals are written with a comma in v, sd." in table.notes
    assert "v: points between thousands were left out." in table.notes
    assert table.dialect.settings == {"separator": ";", "decimal": ",", "encoding": "utf-8"}


def test_a_column_with_both_marks_is_read_and_noted(tmp_path: Path) -> None:
    table = read_table(saved(tmp_path, "lon;lat;v\n7.12;51.25;0,5\n7.5;51.5;2.5\n"), "v")
    assert table.frame.value.tolist() == [0.5, 2.5]
    assert "v: some rows have a decimal comma and others a decimal point. Both were read." in table.notes


def test_what_other_columns_decide_is_noted(tmp_path: Path) -> None:
    table = read_table(saved(tmp_path, "lon;lat;v\n7,12;51,25;1,234\n"), "v")
    assert table.frame.value.tolist() == [1.234]
    assert "v: 1,234 was read as 1.234. If that is wrong, pass --decimal point." in table.notes
    other = read_table(saved(tmp_path, "lon;lat;v\n7,12;51,25;1,234\n"), "v", decimal="point")
    assert other.frame[["x", "value"]].to_numpy().tolist() == [[7.12, 1234.0]]


def test_quoted_commas_are_decimals_between_commas(tmp_path: Path) -> None:
    table = read_table(saved(tmp_path, 'lon,lat,v\n"7,12","51,25","2,5"\n'), "v")
    assert table.frame[["x", "y", "value"]].to_numpy().tolist() == [[7.12, 51.25, 2.5]]


def test_thousands_in_metres_are_told_by_the_column_that_shows_them(tmp_path: Path) -> None:
    path = saved(tmp_path, 'x,y,v\n"360,500","5,650,000",3\n')
    assert read_table(path, "v", crs="EPSG:25832").frame[["x", "y"]].to_numpy().tolist() == [[360500.0, 5650000.0]]
    path = saved(tmp_path, "x;y;v\n360500;5650000;1,234\n360600;5650000;12,345\n")
    with pytest.raises(SurveyError, match="v: 1,234 in row 2, 12,345 in row 3 may have a decimal mark"):
        read_table(path, "v", crs="EPSG:25832")


def test_a_row_of_units_is_called_that(tmp_path: Path) -> None:
    table = read_table(saved(tmp_path, "lon;lat;v\n°;°;mg/kg\n7,1;51,2;3\n"), "v")
    assert table.refused == [Refused(2, "°;°;mg/kg", SECOND)]
    assert table.frame.row.tolist() == [3]
