from pathlib import Path

import geopandas as gpd
import pyogrio
import shapely
from pyproj import CRS
from states import small

from bo_scale.survey.store.geopackage import read_state, write_state


def test_changes_by_another_program_are_read(tmp_path: Path) -> None:
    path = tmp_path / "s.gpkg"
    write_state(path, small())
    moved = gpd.GeoDataFrame(geometry=[shapely.box(0, 0, 5, 5)], crs=25832)
    pyogrio.write_dataframe(moved, path, layer="area", promote_to_multi=True)
    area = read_state(path).area
    assert area.crs == CRS.from_epsg(25832)
    assert area.geometry[0].equals(moved.geometry[0])
