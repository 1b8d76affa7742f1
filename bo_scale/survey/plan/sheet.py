"""The table of planned sites: the user fills it in and gives it back."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import geopandas as gpd
import numpy as np
import numpy.typing as npt
import pandas as pd
import shapely
from pyproj import CRS

from bo_scale.errors import SurveyError
from bo_scale.survey.tables.columns import PREDICTED, RESERVED, VISIT, Columns
from bo_scale.survey.tables.reading import read_records
from bo_scale.survey.tables.records import Dialect, escaped
from bo_scale.survey.tables.table import Table
from bo_scale.survey.tables.workbook import require_openpyxl, workbook_of
from bo_scale.survey.whole_files import write_whole

Array = npt.NDArray[np.float64]
WORKBOOK = ".xlsx"
UNWRITTEN = (".xls", ".xlsm", ".xlsb", ".ods")
"""Endings of workbooks that are not written."""


def write_table(table: pd.DataFrame, path: str | os.PathLike[str], dialect: Dialect | None = None) -> None:
    """Write a table as a workbook if the file ends in .xlsx, else as delimited text; whole or not at all.

    Args:
        table: The table.
        path: The file to make or replace.
        dialect: The way in which text is written; None for commas, decimal points and UTF-8.

    Raises:
        SurveyError: for an ending of other workbooks, or if it cannot be written; what was there before is unchanged.
    """
    require_writable(path)
    workbook = Path(path).suffix.lower() == WORKBOOK
    write_whole(path, [workbook_of(table, path) if workbook else _text(table, dialect or Dialect())])


def require_writable(path: str | os.PathLike[str]) -> None:
    """Refuse files that tables are not written to.

    Raises:
        SurveyError: for an ending of other workbooks than .xlsx.
        MissingDependencyError: for .xlsx without openpyxl.
    """
    suffix = Path(path).suffix.lower()
    if suffix in UNWRITTEN:
        raise SurveyError(f"{path}: tables are written as .csv or .xlsx; give a file that ends in one of these.")
    if suffix == WORKBOOK:
        require_openpyxl(path)


def _text(table: pd.DataFrame, dialect: Dialect) -> bytes:
    """Return delimited text; texts that a spreadsheet would run as formulas begin with an apostrophe."""
    safe = table.rename(columns=lambda name: escaped(str(name)))
    safe = safe.map(lambda cell: escaped(cell) if isinstance(cell, str) else cell)
    text = safe.to_csv(index=False, sep=dialect.separator, decimal=dialect.decimal)
    try:
        return text.encode(dialect.encoding)
    except UnicodeEncodeError:  # a name of a candidate site that the encoding of the first table has no letters for
        return text.encode("utf-8-sig")


def require_unreserved(columns: Columns) -> None:
    """Refuse columns that tables of plans have too: predictions would be read as measurements.

    Raises:
        SurveyError: naming the first that is.
    """
    for name in (columns.x, columns.y, columns.value, columns.error, columns.of):
        if name in RESERVED:
            raise SurveyError(f"{name}: the tables of plans have a column of that name; rename yours in the file.")


def to_fill_in(planned: gpd.GeoDataFrame, columns: dict[str, Any], mean: Array, sd: Array) -> pd.DataFrame:
    """Return the table of planned sites: columns as in the first table, values left blank, and predictions.

    Args:
        planned: The sites.
        columns: Names of the user's columns.
        mean: Predicted means in the user's units.
        sd: Predicted standard deviations.
    """
    places = shapely.get_coordinates(planned.geometry.to_numpy())
    asked = [columns[name] for name in ("value", "error", "of") if columns[name] is not None]
    digits = 7 if CRS(planned.crs).is_geographic else 2
    names = {"name": list(planned.name)} if (planned.name != "").any() else {}
    visits = {
        name: list(planned[name])
        for name in VISIT
        if len(planned) and name in planned and planned[name].max() > (name == "day")
    }
    return pd.DataFrame(
        {
            "site": list(planned.site),
            **visits,
            **names,
            columns["x"]: places[:, 0].round(digits),
            columns["y"]: places[:, 1].round(digits),
            **dict.fromkeys(asked, ""),
            PREDICTED[0]: [float(f"{value:.5g}") for value in mean],
            PREDICTED[1]: [float(f"{value:.3g}") for value in sd],
        }
    )


def require_replaceable(
    table: str | os.PathLike[str],
    read: Callable[[str | os.PathLike[str]], Table],
    unread: Callable[[Table], int],
    survey: str | os.PathLike[str],
) -> None:
    """Refuse to write over a file that holds anything but planned sites and values that the survey has.

    Args:
        table: The file.
        read: Function that reads a table with the survey's columns.
        unread: Function that counts the rows of a table that the survey does not have.
        survey: The survey's file, for the message.

    Raises:
        SurveyError: if it is another file, or holds measurements that the survey does not.
    """
    require_writable(table)
    if not Path(table).exists():
        return
    if not set(PREDICTED) <= set(read_records(table).header):
        raise SurveyError(f"{table}: this file exists and is not a table of planned sites. Give another name.")
    if count := unread(read(table)):
        raise SurveyError(
            f"{table}: this file has values that are not in the survey yet ({count}). Add them with `bo-scale "
            f"survey update {survey} {table}`, or give another name."
        )
