"""Layers of a GeoPackage, read in one transaction: GDAL would open the file anew for each."""

import os
import sqlite3
from typing import Any

import geopandas as gpd
import numpy as np
import pandas as pd
import shapely
from pyproj import CRS
from pyproj.exceptions import CRSError

from bo_scale.errors import SurveyError


def read_layer(
    file: sqlite3.Connection, name: str, expected: dict[str, type], given: str | None, path: str | os.PathLike[str]
) -> pd.DataFrame:
    """Read a table or layer, in the order in which it was written.

    Args:
        file: The GeoPackage.
        name: Name of the table.
        expected: Types of columns that are known beforehand.
        given: The coordinate system as it was written.
        path: The GeoPackage, for messages.

    Raises:
        SurveyError: if another program has renamed or deleted a column, or left cells in it that cannot be read.
    """
    fields = [(column, kind) for _, column, kind, *_, key in file.execute(f'PRAGMA table_info("{name}")') if not key]
    _require_columns([column for column, _ in fields], expected, name, path)
    quoted = ", ".join('"' + column.replace('"', '""') + '"' for column, _ in fields)
    rows = file.execute(f'SELECT {quoted} FROM "{name}" ORDER BY rowid').fetchall() if fields else []
    cells = dict(zip([column for column, _ in fields], zip(*rows) if rows else [()] * len(fields)))
    spatial = file.execute(
        "SELECT column_name, srs_id FROM gpkg_geometry_columns WHERE table_name = ?", (name,)
    ).fetchone()
    geometry = None if spatial is None else cells.pop(spatial[0])
    columns = {}
    for column, kind in fields:
        if column in cells:
            try:
                columns[column] = _column(cells[column], kind, expected.get(column))
            except (TypeError, ValueError, OverflowError) as error:
                raise SurveyError(_unreadable(path, name, column, cells[column])) from error
    frame = pd.DataFrame(columns, index=range(len(rows)))
    if geometry is None:
        return frame
    try:
        shapes = _shapes(geometry)
    except (shapely.errors.ShapelyError, IndexError, TypeError) as error:
        raise SurveyError(f"{path}: the table {name!r} has a damaged geometry ({error}); restore a copy.") from error
    return gpd.GeoDataFrame(frame, geometry=shapes, crs=_crs(file, spatial[1], given, f"{path}: the table {name!r}"))


def _require_columns(found: list[str], expected: dict[str, type], name: str, path: str | os.PathLike[str]) -> None:
    missing = [column for column in expected if column not in found]
    if not found:
        raise SurveyError(f"{path}: the table {name!r} is not there any more; restore a copy of the survey.")
    if missing:
        others = ", ".join(column for column in found if column not in expected)
        raise SurveyError(
            f"{path}: the table {name!r} has no column {missing[0]} any more (it has also: {others}). Another program "
            f"has renamed or deleted it. Give it its name {missing[0]} again there, or restore a copy of the survey."
        )


def _unreadable(path: str | os.PathLike[str], name: str, column: str, cells: tuple[Any, ...]) -> str:
    bad = [row for row, cell in enumerate(cells, start=1) if not isinstance(cell, int | float)]
    what = "none" if bad and cells[bad[0] - 1] is None else repr(cells[bad[0] - 1]) if bad else "too large a number"
    return (
        f"{path}: the column {column} of the table {name!r} needs a number in each row, but {len(bad) or 'some'} rows "
        f"have {what}. Rows that another program has added must be deleted there; add them as a table with `bo-scale "
        "survey update`."
    )


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


def _crs(file: sqlite3.Connection, srs: int, given: str | None, what: str) -> CRS:
    """Return the coordinate system of a layer: as it was given, unless another program has changed it since."""
    names = {name for (name,) in file.execute("SELECT name FROM pragma_table_info('gpkg_spatial_ref_sys')")}
    newer = "definition_12_063" if "definition_12_063" in names else "'undefined'"
    found = file.execute(
        f"SELECT organization, organization_coordsys_id, {newer}, definition FROM gpkg_spatial_ref_sys WHERE srs_id=?",
        (srs,),
    ).fetchone()
    organisation, code, *definitions = ("none", None) if found is None else found
    known = [text for text in definitions if text and text != "undefined"]
    try:
        named = organisation.upper() == "EPSG"
        stored = CRS.from_epsg(str(code)) if named else CRS.from_wkt(known[0]) if known else None
        exact = None if given is None else CRS.from_user_input(given)
    except (CRSError, ValueError) as error:
        raise SurveyError(f"{what} has a damaged coordinate system ({error}); restore a copy.") from error
    if stored is None:
        raise SurveyError(f"{what} has no coordinate system any more; set it in the program that removed it.")
    return exact if exact is not None and exact == stored else stored
