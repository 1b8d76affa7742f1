import csv
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyproj import CRS

from bo_scale.errors import SurveyError
from bo_scale.survey.tables.table import Columns, Refused, read_table


def saved(folder: Path, text: str, encoding: str = "utf-8") -> Path:
    path = folder / "sites.csv"
    path.write_bytes(text.encode(encoding))
    return path


def test_longitude_and_latitude_are_told_by_name(tmp_path: Path) -> None:
    table = read_table(saved(tmp_path, "id,Longitude,Latitude,zinc\n1,10.5,52.25,3\n2,-0.125,51,4e2\n"), "zinc")
    assert table.columns == Columns("Longitude", "Latitude", "zinc")
    assert table.crs == CRS.from_epsg(4326)
    assert any("Longitude" in said and "recognised by name" in said for said in table.notes)
    assert any("EPSG:4326" in said for said in table.notes)
    assert table.refused == []
    np.testing.assert_array_equal(table.frame[["row", "x", "y", "value"]], [[2, 10.5, 52.25, 3], [3, -0.125, 51, 400]])
    assert table.frame.text.tolist() == ["1,10.5,52.25,3", "2,-0.125,51,4e2"]
    assert table.frame.site.tolist() == ["", ""]
    assert table.frame.error.isna().all()
    assert table.frame.of.isna().all()


@pytest.mark.parametrize(
    ("header", "crs", "found"),
    [
        ("lon,lat", None, ("lon", "lat")),
        ("LONG,LAT", None, ("LONG", "LAT")),
        ("lng,lat", None, ("lng", "lat")),
        ("x_lon,y_lat", None, ("x_lon", "y_lat")),
        ("decimalLongitude,decimalLatitude", None, ("decimalLongitude", "decimalLatitude")),
        ("Longitude (deg),Latitude (deg)", None, ("Longitude (deg)", "Latitude (deg)")),
        ("lon,lat,easting,northing", None, ("lon", "lat")),
        ("lon,lat,easting,northing", "EPSG:25832", ("easting", "northing")),
        ("lon,lat,long_term_mean", None, ("lon", "lat")),
        ("lon,lat,x,y", "EPSG:4258", ("lon", "lat")),
        ("x,y", "EPSG:4326", ("x", "y")),
        ("X,Y", 25832, ("X", "Y")),
        ("East,North", "EPSG:25832", ("East", "North")),
        ("x_m,y_m", CRS.from_epsg(25832), ("x_m", "y_m")),
    ],
)
def test_names_of_coordinates(tmp_path: Path, header: str, crs: str | int | CRS | None, found: tuple[str, str]) -> None:
    cells = [
        "500000.5" if name in found and crs not in (None, "EPSG:4326", "EPSG:4258") else "7.5"
        for name in header.split(",")
    ]
    table = read_table(saved(tmp_path, f"{header},v\n{','.join(cells)},1\n"), "v", crs=crs)
    assert (table.columns.x, table.columns.y) == found
    assert table.frame.x.tolist() == table.frame.y.tolist() == [500000.5 if "500000.5" in cells else 7.5]


@pytest.mark.parametrize(
    ("header", "options", "message"),
    [
        ("a,b,v", {}, r"which columns are the coordinates\? .* Columns: a, b, v"),
        ("lon,v", {}, "which columns are the coordinates"),
        ("lon,lat,longitude,latitude,v", {}, "may be lon, longitude, and lat, latitude: pass --x and --y"),
        ("x,y,v", {}, r"missing CRS.* Pass --crs EPSG:"),
        ("a,b,v", {"x": "a", "y": "b"}, "missing CRS"),
        ("a,b,v", {"x": "a"}, "--x and --y together"),
        ("lon,lat,v", {"crs": "EPSG:25832"}, "look like degrees.*leave out --crs"),
        ("lon,lat,v", {"crs": "EPSG:nonsense"}, "no coordinate system of that name"),
        ("lon,lat,Zinc", {}, r"there is no column v"),
        ("lon,lat,v,v", {}, "2 columns v"),
        ("lon,lat,v", {"error": "sd"}, "there is no column sd"),
    ],
)
def test_columns_that_cannot_be_told(tmp_path: Path, header: str, options: dict[str, str], message: str) -> None:
    row = ",".join("1" for _ in header.split(","))
    with pytest.raises(SurveyError, match=message):
        read_table(saved(tmp_path, f"{header}\n{row}\n"), "v", **options)


def test_the_nearest_name_is_suggested(tmp_path: Path) -> None:
    with pytest.raises(SurveyError, match=r"Did you mean Zinc_ppm\? Columns: lon, lat, Zinc_ppm, copper"):
        read_table(saved(tmp_path, "lon,lat,Zinc_ppm,copper\n1,2,3,4\n"), "zinc_pm")


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


def test_rows_that_cannot_be_used_are_kept_aside_with_the_reason(tmp_path: Path) -> None:
    bad = {
        "1,2,,0.1": "no v",
        "1,2,NA,0.1": "no v",
        "1,2,nan,0.1": "no v",
        "1,2,<0.5,0.1": "v is no number: <0.5",
        "1,2,1_000,0.1": "v is no number: 1_000",
        "1,2,inf,0.1": "v is not finite: inf",
        "1,2,1e999,0.1": "v is not finite: 1e999",
        '1,2,"1,5",0.1': "v is no number: 1,5",
        ",2,3,0.1": "no lon",
        "1,north,3,0.1": "lat is no number: north",
        "1,2,3,-0.1": "sd is negative",
        "1,2,3,about": "sd is no number: about",
        "1,2": "no v",
        "1,2,3,0.1,9": "5 fields where the header has 4",
        '1,"2,3,0.1': "a quote is out of place or not closed",
        '1,"2"2,3,0.1': "a quote is out of place or not closed",
    }
    good = ["1,2,3,0.1", "1,2,3,", "1,2,3", '"1","2",3,0', " 1 , 2 ,3e0, 0.5", "1,2,3,0.1,"]
    lines: list[str] = []
    for k, line in enumerate(bad):
        lines += [line, good[k % len(good)]]
    table = read_table(saved(tmp_path, "\n".join(["lon,lat,v,sd", *lines])), "v", error="sd")
    assert table.refused == [Refused(2 * k + 2, text, reason) for k, (text, reason) in enumerate(bad.items())]
    assert table.frame.row.tolist() == [2 * k + 3 for k in range(len(bad))]
    assert table.frame.text.tolist() == lines[1::2]
    assert table.frame[["x", "y", "value"]].drop_duplicates().to_numpy().tolist() == [[1.0, 2.0, 3.0]]
    np.testing.assert_array_equal(table.frame.error[:6], [0.1, np.nan, np.nan, 0.0, 0.5, 0.1])


def test_counts(tmp_path: Path) -> None:
    lines = ["1,2,3,10", "1,2,0,5", "1,2,6,5", "1,2,1.5,5", "1,2,-1,5", "1,2,0,0", "1,2,1,", "1,2,2,2.5"]
    table = read_table(saved(tmp_path, "\n".join(["lon,lat,k,n", *lines])), "k", of="n")
    assert table.frame[["value", "of"]].to_numpy().tolist() == [[3.0, 10.0], [0.0, 5.0]]
    reasons = ["k is more than n", "k is no count", "k is no count", "n is no positive whole number", "no n"]
    assert [one.reason for one in table.refused] == [*reasons, "n is no positive whole number"]


def test_lines_are_counted_as_a_spreadsheet_does(tmp_path: Path) -> None:
    text = 'lon,lat,v,note\r\n1,2,3,"two\r\nlines"\r\n\r\n1,2,x,\r\n1,2,5,"a ""b"""\r\n'
    table = read_table(saved(tmp_path, text), "v")
    assert table.frame.row.tolist() == [2, 5]
    assert table.frame.text.tolist() == ['1,2,3,"two\nlines"', '1,2,5,"a ""b"""']
    assert table.refused == [Refused(4, "1,2,x,", "v is no number: x")]


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


def test_commas_beside_points_are_not_guessed_at(tmp_path: Path) -> None:
    table = read_table(saved(tmp_path, "lon;lat;v\n1.5;2.5;1,234\n1.5;2.5;7\n"), "v")
    assert table.frame.value.tolist() == [7.0]
    assert table.refused[0].reason == "v is no number: 1,234"


def test_encodings(tmp_path: Path) -> None:
    text = "lon,lat,v,Höhe\n1,2,3,größer\n"
    for encoding, named in [("utf-8", ""), ("latin-1", "Latin-1"), ("utf-16", "UTF-16")]:
        table = read_table(saved(tmp_path, text, encoding), "v")
        assert table.frame.text.tolist() == ["1,2,3,größer"]
        assert any("not UTF-8" in said for said in table.notes) == bool(named)
        assert named in " ".join(table.notes)


def test_swapped_coordinates(tmp_path: Path) -> None:
    path = saved(tmp_path, "lon,lat,v\n-41.3,174.8,1\n-36.8,174.7,2\n-43.5,172.6,3\n")
    with pytest.raises(SurveyError, match=r"swapped.* Pass --x lat --y lon"):
        read_table(path, "v")
    assert len(read_table(path, "v", x="lat", y="lon").frame) == 3


def test_a_few_rows_of_another_kind_are_kept_aside(tmp_path: Path) -> None:
    rows = ["174.8,-41.3,1", "174.7,-36.8,1", "172.6,-43.5,1", "-41,174,1", "1749150,5428092,1"]
    table = read_table(saved(tmp_path, "\n".join(["lon,lat,v", *rows])), "v")
    assert len(table.frame) == 3
    assert [(one.row, one.reason) for one in table.refused] == [
        (5, "latitude is beyond ±90: longitude and latitude swapped?"),
        (6, "coordinates are not degrees: mixed coordinate systems?"),
    ]
    metres = ["x,y,v", "1749150,5428092,1", "1749151,5428093,1", "174.8,-41.3,1"]
    table = read_table(saved(tmp_path, "\n".join(metres)), "v", crs="EPSG:2193")
    assert len(table.frame) == 2
    assert table.refused[0].reason == "coordinates look like degrees: mixed coordinate systems?"


def test_coordinates_mostly_of_another_kind(tmp_path: Path) -> None:
    path = saved(tmp_path, "lon,lat,v\n1749150,5428092,1\n1749151,5428093,1\n174.8,-41.3,1\n")
    with pytest.raises(SurveyError, match=r"not degrees of longitude and latitude .* pass --crs"):
        read_table(path, "v")
    path = saved(tmp_path, "x,y,v\n174.8,-41.3,1\n174.9,-41.4,1\n")
    with pytest.raises(SurveyError, match=r"look like degrees, .* pass --crs EPSG:4326"):
        read_table(path, "v", crs="EPSG:2193")


def test_small_local_coordinates_are_not_taken_for_degrees(tmp_path: Path) -> None:
    local = CRS.from_proj4("+proj=laea +lat_0=52 +lon_0=10 +datum=WGS84 +units=m")
    table = read_table(saved(tmp_path, "x,y,v\n1,2,3\n50,60,3\n-2000,40,3\n"), "v", crs=local)
    assert len(table.frame) == 3


def test_planned_sites_have_their_id(tmp_path: Path) -> None:
    path = saved(tmp_path, "Site,lon,lat,v\nP3,1,2,3\n,1,2,4\nP1,1,2,\n")
    table = read_table(path, "v")
    assert table.columns.site == "Site"
    assert table.frame.site.tolist() == ["P3", ""]
    assert table.refused == [Refused(4, "P1,1,2,", "no v")]
    assert read_table(saved(tmp_path, "site,lon,lat\n4,1,2\n"), "site").columns.site is None


cell = st.one_of(st.floats().map(repr), st.integers(-200, 200).map(str), st.text('ab ,;"\n\r\t.-', max_size=4))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(st.tuples(cell, cell, cell, cell), min_size=1, max_size=8))
def test_each_row_is_used_as_it_was_written_or_kept_aside(tmp_path: Path, rows: list[tuple[str, ...]]) -> None:
    path = tmp_path / "any.csv"
    rows = [("1", "2", "3", "4"), *rows, ("5", "6", "7", "8"), ("5", "6", "7", "8")]
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("x", "y", "v", "note"), *rows])
    table = read_table(path, "v", crs="+proj=laea +lat_0=52 +lon_0=10 +datum=WGS84 +units=m")
    used = dict(zip(table.frame.row, table.frame[["x", "y", "value"]].to_numpy().tolist()))
    aside = {one.row for one in table.refused}
    assert len(used) + len(aside) == len(rows) - sum(not any(part.strip() for part in row) for row in rows)
    assert used[2] == [1.0, 2.0, 3.0]
    for row, numbers in used.items():
        assert numbers == [float(part) for part in rows[row - 2][:3]]


def test_many_rows_take_seconds(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    numbers = rng.random((20_000, 3))
    lines = [f'{a!r},{b!r},{c!r},"a, b"' for a, b, c in numbers.tolist()]
    path = saved(tmp_path, "\n".join(["lon,lat,v,note", *lines]))
    start = time.process_time()
    table = read_table(path, "v")
    assert time.process_time() - start < 4.0
    np.testing.assert_array_equal(table.frame[["x", "y", "value"]], numbers)


def test_many_quotes_that_are_not_closed_take_seconds(tmp_path: Path) -> None:
    lines = ['1,2,3,"5' if k % 2 else "1,2,3,5" for k in range(6_000)]
    start = time.process_time()
    table = read_table(saved(tmp_path, "\n".join(["lon,lat,v,note", *lines])), "v")
    assert time.process_time() - start < 3.0
    assert len(table.frame) == len(table.refused) == 3_000
