from pathlib import Path

import numpy as np
import pytest
from pyproj import CRS
from samples import saved

from bo_scale.errors import SurveyError
from bo_scale.survey.tables.columns import missing_columns, require_columns
from bo_scale.survey.tables.table import Columns, read_table


def test_longitude_and_latitude_are_told_by_name(tmp_path: Path) -> None:
    table = read_table(saved(tmp_path, "id,Longitude,Latitude,zinc\n1,10.5,52.25,3\n2,-0.125,51,4e2\n"), "zinc")
    assert table.columns == Columns("Longitude", "Latitude", "zinc")
    assert table.crs == CRS.from_epsg(4326)
    assert any("recognised by name as longitude" in said for said in table.notes)
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
    metres = crs not in (None, "EPSG:4326", "EPSG:4258")
    place = dict(zip(found, ("500000.5", "5500000.5") if metres else ("7.5", "47.5"), strict=True))
    cells = [place.get(name, "7.5") for name in header.split(",")]
    table = read_table(saved(tmp_path, f"{header},v\n{','.join(cells)},1\n"), "v", crs=crs)
    assert (table.columns.x, table.columns.y) == found
    assert table.frame[["x", "y"]].to_numpy().tolist() == [[float(place[name]) for name in found]]


@pytest.mark.parametrize(
    ("header", "options", "message"),
    [
        ("a,b,v", {}, r"which columns are the coordinates\? .* Columns: a, b, v"),
        ("lon,v", {}, "which columns are the coordinates"),
        (
            "lon,lat,longitude,latitude,v",
            {},
            r"may be the coordinates \(lon, longitude; lat, latitude\): pass --x and --y",
        ),
        ("x,y,v", {}, r"missing CRS.* Pass --crs EPSG:"),
        ("a,b,v", {"x": "a", "y": "b"}, "missing CRS"),
        ("a,b,v", {"x": "a"}, "--x and --y together"),
        ("lon,lat,v", {"crs": "EPSG:25832"}, "look like degrees.*leave out --crs"),
        ("lon,lat,v", {"crs": "EPSG:nonsense"}, "no coordinate system of that name"),
        ("lon,lat,Zinc", {}, r"there is no column v"),
        ("lon,lat,v,v", {}, "2 columns named v"),
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


def test_names_abroad_count_only_where_there_are_no_english_ones(tmp_path: Path) -> None:
    table = read_table(saved(tmp_path, "lon,lat,Länge,Breite,v\n1,2,30,40,4\n"), "v")
    assert (table.columns.x, table.columns.y) == ("lon", "lat")  # of fish, perhaps
    table = read_table(saved(tmp_path, "Hochwert;Rechtswert;v\n5650000;360000;1\n"), "v", crs="EPSG:25832")
    assert (table.columns.x, table.columns.y) == ("Rechtswert", "Hochwert")


def test_all_columns_that_are_not_there_are_named_with_the_nearest() -> None:
    asked = [("Positifs", "--value"), ("lon", "--x"), ("Examinés", "--of")]
    assert missing_columns(["lon", "Positifs", "Examinés"], asked) == ""
    assert missing_columns(["lon", "Positif", "Nombre examinés", "sd"], asked) == (
        "there are no columns Positifs and Examinés. Did you mean Positif for Positifs, Nombre examinés for Examinés? "
        "If they are called otherwise in this table, pass --value Positif --of 'Nombre examinés'."
    )
    with pytest.raises(
        SurveyError, match=r"^there is no column Positifs\. Did you mean Positif\?.* Columns: lon, Posi"
    ):
        require_columns(["lon", "Positif", "Examinés"], asked)
