import csv
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyproj import CRS
from samples import saved

from bo_scale.errors import SurveyError
from bo_scale.survey.tables.table import Refused, read_table

cell = st.one_of(st.floats().map(repr), st.integers(-200, 200).map(str), st.text('ab ,;"\n\r\t.-', max_size=4))


def test_rows_that_cannot_be_used_are_kept_aside_with_the_reason(tmp_path: Path) -> None:
    bad = {
        "1,2,,0.1": "no value in column v",
        "1,2,NA,0.1": "no value in column v",
        "1,2,nan,0.1": "no value in column v",
        "1,2,<low,0.1": "v is not a number: <low",
        "1,2,1_000,0.1": "v is not a number: 1_000",
        "1,2,inf,0.1": "v is not finite: inf",
        "1,2,1e999,0.1": "v is not finite: 1e999",
        '1,2,"1,5,5",0.1': "v is not a number: 1,5,5",
        ",2,3,0.1": "no value in column lon",
        "1,north,3,0.1": "lat is not a number: north",
        "1,2,3,-0.1": "sd is negative",
        "1,2,3,about": "sd is not a number: about",
        "1,2": "no value in column v",
        "1,2,3,0.1,9": "5 fields, but the header has 4",
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
    reasons = [
        "k is more than n",
        "k is not a count (0, 1, 2, …)",
        "k is not a count (0, 1, 2, …)",
        "n is not a positive whole number",
        "no value in column n",
    ]
    assert [one.reason for one in table.refused] == [*reasons, "n is not a positive whole number"]


def test_commas_beside_points_are_not_guessed_at(tmp_path: Path) -> None:
    path = saved(tmp_path, "lon;lat;v\n1.5;2.5;1,234\n1.5;2.5;7\n")
    with pytest.raises(SurveyError, match=r"v: 1,234 in row 2 may have .* Pass --decimal comma"):
        read_table(path, "v")
    assert read_table(path, "v", decimal="comma").frame.value.tolist() == [1.234, 7.0]
    assert read_table(path, "v", decimal="point").frame.value.tolist() == [1234.0, 7.0]
    with pytest.raises(SurveyError, match="decimal='dot': choose one of comma, point"):
        read_table(path, "v", decimal="dot")


def test_swapped_coordinates(tmp_path: Path) -> None:
    path = saved(tmp_path, "lon,lat,v\n-41.3,174.8,1\n-36.8,174.7,2\n-43.5,172.6,3\n")
    with pytest.raises(SurveyError, match=r"swapped.* Pass --x lat --y lon"):
        read_table(path, "v")
    assert len(read_table(path, "v", x="lat", y="lon").frame) == 3


def test_swapped_coordinates_of_the_whole_globe(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for first in (-180, 0):
        lon, lat = rng.uniform(first, first + 360, 101).round(2), rng.uniform(-80, 80, 101).round(2)
        lines = [f"{b},{a},1" for a, b in zip(lon, lat, strict=True)]
        path = saved(tmp_path, "\n".join(["lon,lat,v", *lines]))
        with pytest.raises(SurveyError, match=r"swapped.* Pass --x lat --y lon"):
            read_table(path, "v")
        assert len(read_table(path, "v", x="lat", y="lon").frame) == 101


def test_longitudes_from_0_to_360_become_those_within_180(tmp_path: Path) -> None:
    path = saved(
        tmp_path, "lon,lat,v\n0,1,1\n179.9,2,1\n180,3,1\n180.1,-4,1\n359.98,90,1\n360,5,1\n361,5,1\n200,95,1\n"
    )
    table = read_table(path, "v")
    assert table.frame.x.tolist() == [0.0, 179.9, 180.0, -179.9, -0.02, 0.0]
    assert "lon goes beyond 180 in 3 rows" in table.notes[-1]
    assert [one.row for one in table.refused] == [8, 9]
    assert "beyond" not in " ".join(read_table(saved(tmp_path, "lon,lat,v\n-180,1,1\n180,2,1\n"), "v").notes)
    local = CRS.from_proj4("+proj=laea +lat_0=52 +lon_0=10 +datum=WGS84 +units=m")
    assert read_table(saved(tmp_path, "x,y,v\n200,2,3\n"), "v", crs=local).frame.x.tolist() == [200.0]


def test_a_few_rows_of_another_kind_are_kept_aside(tmp_path: Path) -> None:
    rows = ["174.8,-41.3,1", "174.7,-36.8,1", "172.6,-43.5,1", "-41,174,1", "1749150,5428092,1"]
    table = read_table(saved(tmp_path, "\n".join(["lon,lat,v", *rows])), "v")
    assert len(table.frame) == 3
    assert [(one.row, one.reason) for one in table.refused] == [
        (5, "latitude is beyond ±90; longitude and latitude may be swapped"),
        (6, "coordinates are not degrees, unlike those of most rows"),
    ]
    metres = ["x,y,v", "1749150,5428092,1", "1749151,5428093,1", "174.8,-41.3,1"]
    table = read_table(saved(tmp_path, "\n".join(metres)), "v", crs="EPSG:2193")
    assert len(table.frame) == 2
    assert table.refused[0].reason == "coordinates look like degrees, unlike those of most rows"


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
    assert table.refused == [Refused(4, "P1,1,2,", "no value in column v")]
    assert read_table(saved(tmp_path, "site,lon,lat\n4,1,2\n"), "site").columns.site is None


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
