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
from bo_scale.survey.tables.columns import Columns
from bo_scale.survey.tables.delimited import read_records
from bo_scale.survey.tables.table import Table
from bo_scale.survey.whole_files import write_whole

Array = npt.NDArray[np.float64]
PREDICTED = ("predicted", "predicted_sd")
"""Columns that only tables of plans have."""
VISIT = ("day", "team", "stop")
"""Columns of planned sites that say when, by whom and in which order they are visited."""
RESERVED = ("site", "name", *VISIT, *PREDICTED)
"""Columns of a plan's table that are not the user's."""


def write_table(table: pd.DataFrame, path: str | os.PathLike[str]) -> None:
    """Write a table as CSV, whole or not at all.

    Raises:
        SurveyError: if it cannot be written; what was there before is unchanged.
    """
    write_whole(path, [table.to_csv(index=False).encode()])


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
    visits = {name: list(planned[name]) for name in VISIT if name in planned and planned[name].max() > (name == "day")}
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
    known: set[str],
    survey: str | os.PathLike[str],
) -> None:
    """Refuse to write over a file that holds anything but planned sites and values that the survey has.

    Args:
        table: The file.
        read: Function that reads a table with the survey's columns.
        known: Rows that the survey has, word by word.
        survey: The survey's file, for the message.

    Raises:
        SurveyError: if it is another file, or holds measurements that the survey does not.
    """
    if not Path(table).exists():
        return
    if not set(PREDICTED) <= set(read_records(table).header):
        raise SurveyError(f"{table}: this file exists and is not a table of planned sites. Give another name.")
    found = read(table)
    filled = [*found.frame.text, *(one.text for one in found.refused if one.reason != found.blank)]
    if unread := set(filled) - known:
        raise SurveyError(
            f"{table}: this file has values that are not in the survey yet ({len(unread)}). Add them with `bo-scale "
            f"survey update {survey} {table}`, or give another name."
        )
