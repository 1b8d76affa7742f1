import json
from pathlib import Path

import geopandas as gpd
import pyogrio
import pytest
import shapely
from pyproj import CRS
from shapely import Point, Polygon

from bo_scale.errors import SurveyError, SurveyWarning
from bo_scale.survey.geography.coordinates import WGS84
from bo_scale.survey.geography.shapes import read_shape

METRES = CRS.from_epsg(25832)
HOLED = Polygon([(8, 50), (9, 50), (9, 51), (8, 51)], [[(8.4, 50.4), (8.6, 50.4), (8.6, 50.6), (8.4, 50.6)]])


@pytest.mark.parametrize("name", ["area.geojson", "area.gpkg", "area.shp"])
def test_areas_come_from_files(tmp_path: Path, name: str) -> None:
    crs = 4326 if name.endswith("json") else 25832
    other = shapely.box(9, 50, 9.5, 50.5)
    frame = gpd.GeoDataFrame({"id": [1, 2]}, geometry=[HOLED, other], crs=4326).to_crs(crs)
    pyogrio.write_dataframe(frame, tmp_path / name)
    shape, found = read_shape(tmp_path / name)
    assert found == CRS.from_epsg(crs)
    assert shape.area == pytest.approx(shapely.area(frame.geometry.to_numpy()).sum())
    assert len(list(shape.geoms[0].interiors)) == 1


def test_a_bare_geometry_is_an_area(tmp_path: Path) -> None:
    path = tmp_path / "area.geojson"
    path.write_text(json.dumps(shapely.geometry.mapping(HOLED)))
    shape, crs = read_shape(path)
    assert shape.equals(HOLED)
    assert crs == WGS84


def test_a_file_without_a_system_has_the_one_of_the_sites(tmp_path: Path) -> None:
    path = tmp_path / "area.shp"
    pyogrio.write_dataframe(gpd.GeoDataFrame(geometry=[shapely.box(0, 0, 1, 1)], crs=25832), path)
    path.with_suffix(".prj").unlink()
    with pytest.warns(SurveyWarning, match=r"no CRS, so it is read in ETRS89 / UTM zone 32N, that of --crs"):
        assert read_shape(path, METRES)[1] == METRES
    with pytest.raises(SurveyError, match=r"no CRS. Copy its .prj file beside it.* Save it with one, or name .*--crs"):
        read_shape(path)


def test_a_shapefile_needs_its_other_files(tmp_path: Path) -> None:
    path = tmp_path / "area.shp"
    pyogrio.write_dataframe(gpd.GeoDataFrame(geometry=[shapely.box(0, 0, 1, 1)], crs=25832), path)
    path.with_suffix(".dbf").unlink()
    assert read_shape(path)[0].area == 1.0
    for part in (".shx", ".prj"):
        with pytest.raises(SurveyError, match=r"this is a part of a shapefile; give area\.shp"):
            read_shape(path.with_suffix(part))
    path.with_suffix(".shx").unlink()
    with pytest.raises(SurveyError, match=r"area.shx is missing. A shapefile is several files"):
        read_shape(path)


def test_polygons_that_cross_themselves_are_repaired_and_their_area_is_said(tmp_path: Path) -> None:
    path = tmp_path / "area.gpkg"
    bow = Polygon([(500_000, 5_700_000), (502_000, 5_702_000), (502_000, 5_700_000), (500_000, 5_702_000)])
    pyogrio.write_dataframe(gpd.GeoDataFrame(geometry=[bow], crs=25832), path)
    told = r"1 of 1 polygons were repaired \(Self-intersection.*2 separate parts, with 2\.00\d km² in all"
    with pytest.warns(SurveyWarning, match=told):
        assert read_shape(path)[0].area == pytest.approx(2e6)


def test_a_damaged_geometry_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "area.geojson"
    path.write_text('{"type": "Polygon", "coordinates": [[[8, 50], [9, 50]]]}')
    with pytest.raises(SurveyError, match=r"area.geojson: the file has (a damaged geometry|no polygons)"):
        read_shape(path)


def test_features_that_are_no_polygons_are_left_out_and_said(tmp_path: Path) -> None:
    path = tmp_path / "area.geojson"
    pyogrio.write_dataframe(gpd.GeoDataFrame(geometry=[HOLED, Point(8, 50)], crs=4326), path)
    with pytest.warns(SurveyWarning, match=r"1 of 2 features are not polygons"):
        assert read_shape(path)[0].equals(HOLED)


def test_files_that_are_no_area(tmp_path: Path) -> None:
    path = tmp_path / "area.geojson"
    with pytest.raises(SurveyError, match="no such file"):
        read_shape(path)
    for text in ("", "lon,lat\n1,2\n", "{}", '{"type": "FeatureCollection"'):
        path.write_text(text)
        with pytest.raises(SurveyError, match="cannot be read as GeoJSON"):
            read_shape(path)
    for shapes in ([], [Point(0, 0)]):
        pyogrio.write_dataframe(gpd.GeoDataFrame(geometry=shapes, crs=4326), path, geometry_type="Point")
        with pytest.raises(SurveyError, match="no polygons"):
            read_shape(path)
    path.write_text(json.dumps(shapely.geometry.mapping(shapely.box(500_000, 5_700_000, 500_100, 5_700_100))))
    with pytest.raises(SurveyError, match="degrees"):
        read_shape(path)
    (tmp_path / "sites.csv").write_text("lon,lat\n1,2\n")
    with pytest.raises(SurveyError, match="no polygons"):
        read_shape(tmp_path / "sites.csv")


def test_one_layer_of_several_has_to_be_chosen(tmp_path: Path) -> None:
    path = tmp_path / "area.gpkg"
    frame = gpd.GeoDataFrame(geometry=[HOLED], crs=4326)
    pyogrio.write_dataframe(frame, path, layer="a")
    pyogrio.write_dataframe(gpd.GeoDataFrame(geometry=[Point(0, 0)], crs=4326), path, layer="sites")
    assert read_shape(path)[0].equals(HOLED)
    pyogrio.write_dataframe(frame, path, layer="b")
    with pytest.raises(SurveyError, match=r"several layers may be the area \(a, b\)"):
        read_shape(path)
