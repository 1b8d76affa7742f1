"""Layers of a GeoPackage, read in one transaction: GDAL would open the file anew for each."""

import sqlite3
from typing import Any

import geopandas as gpd
import numpy as np
import pandas as pd
import shapely
from pyproj import CRS


def read_layer(file: sqlite3.Connection, name: str, expected: dict[str, type], given: str | None) -> pd.DataFrame:
    """Read a table or layer, in the order in which it was written.

    Args:
        file: The GeoPackage.
        name: Name of the table.
        expected: Types of columns that are known beforehand.
        given: The coordinate system as it was written.
    """
    fields = [(column, kind) for _, column, kind, *_, key in file.execute(f'PRAGMA table_info("{name}")') if not key]
    quoted = ", ".join('"' + column.replace('"', '""') + '"' for column, _ in fields)
    rows = file.execute(f'SELECT {quoted} FROM "{name}" ORDER BY rowid').fetchall() if fields else []
    cells = dict(zip([column for column, _ in fields], zip(*rows) if rows else [()] * len(fields)))
    spatial = file.execute(
        "SELECT column_name, srs_id FROM gpkg_geometry_columns WHERE table_name = ?", (name,)
    ).fetchone()
    geometry = None if spatial is None else cells.pop(spatial[0])
    frame = pd.DataFrame(
        {column: _column(cells[column], kind, expected.get(column)) for column, kind in fields if column in cells},
        index=range(len(rows)),
    )
    if geometry is None:
        return frame
    return gpd.GeoDataFrame(frame, geometry=_shapes(geometry), crs=_crs(file, spatial[1], given))


def _column(cells: tuple[Any, ...], kind: str, expected: type | None) -> Any:
    if expected is str:
        return pd.array(["" if cell is None else str(cell) for cell in cells], dtype="str")
    if expected is int:
        return np.asarray(cells, dtype=np.int64)
    if expected is float or kind in ("REAL", "DOUBLE", "FLOAT"):
        return np.asarray([np.nan if cell is None else cell for cell in cells], dtype=np.float64)
    return pd.array(list(cells)) if cells else np.zeros(0, dtype=object)


def _shapes(blobs: tuple[bytes | None, ...]) -> Any:
    """Return geometries of GeoPackage's blobs: a header of 8 bytes, an envelope of a size that its flags say, WKB."""
    sizes = (8, 40, 56, 56, 72)
    return shapely.from_wkb([None if blob is None else blob[sizes[blob[3] >> 1 & 7] :] for blob in blobs])


def _crs(file: sqlite3.Connection, srs: int, given: str | None) -> CRS:
    """Return the coordinate system of a layer: as it was given, unless another program has changed it since."""
    names = {name for (name,) in file.execute("SELECT name FROM pragma_table_info('gpkg_spatial_ref_sys')")}
    newer = "definition_12_063" if "definition_12_063" in names else "'undefined'"
    organisation, code, *definitions = file.execute(
        f"SELECT organization, organization_coordsys_id, {newer}, definition FROM gpkg_spatial_ref_sys WHERE srs_id=?",
        (srs,),
    ).fetchone()
    if organisation.upper() == "EPSG":
        stored = CRS.from_epsg(code)
    else:
        stored = CRS.from_wkt(next(text for text in definitions if text and text != "undefined"))
    exact = None if given is None else CRS.from_user_input(given)
    return exact if exact is not None and exact == stored else stored
