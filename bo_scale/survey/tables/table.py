"""Measurements from a file of delimited text: rows that can be used, and refused rows with the reason."""

import math
import re
from dataclasses import dataclass, replace
from os import PathLike

import numpy as np
import numpy.typing as npt
import pandas as pd
from pyproj import CRS

from bo_scale.errors import SurveyError
from bo_scale.survey.tables.columns import Columns, coordinate_system, find_column, find_columns
from bo_scale.survey.tables.delimited import Records, Refused, read_records

__all__ = ["Columns", "Refused", "Table", "coordinate_system", "find_column", "read_table"]

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "-", "#n/a"})
LIMIT = re.compile(r"\s*(?:<=?|≤)\s*([-+0-9.,eE]+)\s*$")
"""A value below the limit of detection."""
LARGEST = 1e30
"""Largest number of a table: squares of larger ones overflow in the model, and they themselves in a GeoTIFF."""
FAR = 10_000.0
"""Coordinates in metres, mostly beyond this, are not among those that look like degrees."""


@dataclass(frozen=True)
class Table:
    """A table of measurements.

    Attributes:
        columns: Names of the columns.
        crs: Coordinate system of the coordinates.
        notes: Sentences on what was recognised or assumed.
        frame: Rows that can be used: `row`, `x`, `y`, `value`, `error` and `of` (NaN where there is none), `below` (1
            where the true value is below the one that is there, else 0), `site` (empty where there is none), `text`.
        refused: The others, in the order of the file.
    """

    columns: Columns
    crs: CRS
    notes: list[str]
    frame: pd.DataFrame
    refused: list[Refused]

    @property
    def blank(self) -> str:
        """The reason of rows that have no value yet."""
        return _absent(self.columns.value)


def read_table(
    path: str | PathLike[str],
    value: str,
    x: str | None = None,
    y: str | None = None,
    crs: str | int | CRS | None = None,
    error: str | None = None,
    of: str | None = None,
    exposed: bool = False,
) -> Table:
    """Read measurements, separated by commas, semicolons or tabs.

    Args:
        path: The file.
        value: Column of measurements; with `of`, of the numbers of positives.
        x: Column of longitudes or eastings; recognised by name if left out, as is y.
        y: Column of latitudes or northings.
        crs: Coordinate system; longitude and latitude need none.
        error: Column of standard deviations of measurements; a row without one has NaN.
        of: Column of the numbers examined, or of exposures.
        exposed: Whether these are exposures: values are then numbers of cases, of which there may be any number.

    Raises:
        SurveyError: if the file, its columns or its coordinates as a whole cannot be used; the message says what to do.
    """
    records = read_records(path)
    columns, system, notes = find_columns(records.header, value, x, y, crs, error, of)
    columns = replace(columns, exposed=exposed)
    frame, reasons, more = _parsed(records, columns)
    _check_numbers(frame, columns, reasons)
    more += _wrapped(frame, columns, system)
    _check_coordinates(frame, columns, system, reasons)
    bad = reasons != ""
    refused = [
        Refused(int(row), text, reason)
        for row, text, reason in zip(frame.row[bad], frame.text[bad], reasons[bad], strict=True)
    ]
    if records.encoding != "UTF-8":
        notes.append(f"The file is not UTF-8; it was read as {records.encoding}.")
    refused = sorted(refused + records.refused, key=lambda one: one.row)
    return Table(columns, system, notes + more, frame[~bad].reset_index(drop=True), refused)


def _parsed(records: Records, columns: Columns) -> tuple[pd.DataFrame, npt.NDArray[np.object_], list[str]]:
    """Return numbers of all records, reasons why some are none, and notes on how they are written."""
    cells = {name: [one[records.header.index(name)] for one in records.cells] for name in columns.used}
    names = {"x": columns.x, "y": columns.y, "value": columns.value, "error": columns.error, "of": columns.of}
    commas = _decimal_commas([cells[name] for name in names.values() if name is not None], records.separator)
    reasons = np.full(len(records.rows), "", dtype=object)
    frame = pd.DataFrame({"row": np.asarray(records.rows, dtype=np.int64)})
    frame["below"] = _limits(cells, columns)
    for key, name in names.items():
        frame[key] = np.nan if name is None else _numbers(cells[name], name, key == "error", commas, reasons)
    frame["site"] = pd.Series(cells[columns.site] if columns.site is not None else "", index=frame.index, dtype=str)
    frame["text"] = pd.Series(records.texts, index=frame.index, dtype=str)
    return frame, reasons, ["Decimals are written with a comma."] if commas else []


def _limits(cells: dict[str, list[str]], columns: Columns) -> npt.NDArray[np.int64]:
    """Return which values are limits, as in <5, and leave the number alone in these cells. Counts have none."""
    values = cells[columns.value]
    found = [LIMIT.match(cell) if columns.of is None else None for cell in values]
    cells[columns.value] = [cell if limit is None else limit[1] for cell, limit in zip(values, found)]
    return np.array([limit is not None for limit in found], dtype=np.int64)


def _decimal_commas(cells: list[list[str]], separator: str) -> bool:
    """Return whether 1,5 is one and a half: if commas do not separate, and no number has a point."""
    if separator == ",":
        return False
    return any("," in cell for column in cells for cell in column) and not any(
        "." in cell and _number(cell) is not None for column in cells for cell in column
    )


def _number(cell: str) -> float | None:
    try:
        number = float(cell)
    except ValueError:
        return None
    return None if "_" in cell else number


def _numbers(cells: list[str], name: str, optional: bool, commas: bool, reasons: npt.NDArray[np.object_]) -> Array:
    """Numbers of a column, NaN where there is none; the reason goes to rows that have no other."""
    numbers = np.full(len(cells), np.nan)
    for k, cell in enumerate(cells):
        number = _number(cell.replace(",", ".") if commas else cell)
        if number is not None and abs(number) <= LARGEST:
            numbers[k] = number
        elif reasons[k] == "" and not (optional and cell.lower() in MISSING):
            reasons[k] = _complaint(cell, name, number)
    return numbers


def _complaint(cell: str, name: str, number: float | None) -> str:
    if cell.lower() in MISSING:
        return _absent(name)
    large = number is not None and math.isfinite(number)
    what = "not a number" if number is None else f"beyond ±{LARGEST:g}, change its unit" if large else "not finite"
    return f"{name} is {what}: {cell}"


def _absent(name: str) -> str:
    return f"no value in column {name}"


def _refuse(reasons: npt.NDArray[np.object_], which: Mask, reason: str) -> None:
    reasons[which & (reasons == "")] = reason


def _check_numbers(frame: pd.DataFrame, columns: Columns, reasons: npt.NDArray[np.object_]) -> None:
    value, of = frame.value.to_numpy(), frame.of.to_numpy()
    _refuse(reasons, frame.error.to_numpy() < 0.0, f"{columns.error} is negative")
    if columns.of is None:
        return
    _refuse(reasons, (value < 0.0) | (value != np.floor(value)), f"{columns.value} is not a count (0, 1, 2, …)")
    if columns.exposed:
        _refuse(reasons, of <= 0.0, f"{columns.of} is not positive")
        return
    _refuse(reasons, (of < 1.0) | (of != np.floor(of)), f"{columns.of} is not a positive whole number")
    _refuse(reasons, value > of, f"{columns.value} is more than {columns.of}")


def _wrapped(frame: pd.DataFrame, columns: Columns, crs: CRS) -> list[str]:
    """Replace longitudes from 180 to 360 by those from -180 to 0, in place; return a note where there are some."""
    x, y = frame.x.to_numpy(), frame.y.to_numpy()
    beyond: Mask = (x > 180.0) & (x <= 360.0) & (np.abs(y) <= 90.0)
    if not crs.is_geographic or not beyond.any():
        return []
    frame["x"] = np.where(beyond, np.round(x - 360.0, 9), x)
    return [f"{columns.x} goes beyond 180 in {int(beyond.sum()):,} rows, where 360 is subtracted: 190 is -170."]


def _check_coordinates(frame: pd.DataFrame, columns: Columns, crs: CRS, reasons: npt.NDArray[np.object_]) -> None:
    """Refuse rows whose coordinates are of another kind than most.

    Raises:
        SurveyError: if most are not of the kind of the coordinate system.
    """
    x, y = frame.x.to_numpy(), frame.y.to_numpy()
    known = np.isfinite(x) & np.isfinite(y)
    degrees: Mask = known & (np.abs(x) <= 180.0) & (np.abs(y) <= 90.0)
    if not crs.is_geographic:
        if crs.area_of_use is None:  # a system of somebody's own may well have its origin among the sites
            return
        if 2 * int(degrees.sum()) > int(known.sum()):
            raise SurveyError(
                f"{columns.x} and {columns.y} look like degrees, but {crs.name} is not: pass --crs EPSG:4326."
            )
        if bool(known.any()) and float(np.median(np.abs(y[known]))) > FAR:
            _refuse(reasons, degrees, "coordinates look like degrees, unlike those of most rows")
        return
    latitudes: Mask = known & (np.abs(x) <= 90.0)
    swapped: Mask = latitudes & (np.abs(y) > 90.0) & (y >= -180.0) & (y <= 360.0)
    # longitudes of the whole globe are beyond 90 in half of all rows
    if (2 if (known & ~latitudes).any() else 3) * int(swapped.sum()) > int(known.sum()):
        raise SurveyError(
            f"longitude and latitude look swapped: {columns.y} goes beyond ±90. Pass --x {columns.y} --y {columns.x}."
        )
    if 2 * int((known & ~degrees).sum()) > int(known.sum()):
        raise SurveyError(
            f"{columns.x} and {columns.y} are not degrees of longitude and latitude (±180, ±90): "
            "pass --crs, such as EPSG:25832."
        )
    _refuse(reasons, swapped, "latitude is beyond ±90; longitude and latitude may be swapped")
    _refuse(reasons, known & ~degrees, "coordinates are not degrees, unlike those of most rows")
