"""Measurements from a table: rows that can be used, and refused rows with the reason."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from os import PathLike

import numpy as np
import numpy.typing as npt
import pandas as pd
from pyproj import CRS

from bo_scale.decimals import MARKS, SIGNS, Mark
from bo_scale.errors import SurveyError
from bo_scale.survey.tables.columns import (
    NAME,
    Columns,
    coordinate_system,
    find_column,
    find_columns,
    missing_columns,
    require_columns,
    site_column,
)
from bo_scale.survey.tables.ids import KnownIds, located
from bo_scale.survey.tables.numbers import absent, check_numbers, read_numbers
from bo_scale.survey.tables.positions import check_area_of_use, check_coordinates, wrapped
from bo_scale.survey.tables.reading import read_records
from bo_scale.survey.tables.records import Dialect, Records, Refused, clean_name
from bo_scale.survey.tables.rowkeys import content_of, orders_of, other_cells

__all__ = ["Columns", "Refused", "Table", "coordinate_system", "find_column", "read_table"]

TITLES = 10
"""Rows below the first in which a header is looked for."""


@dataclass(frozen=True)
class Table:
    """A table of measurements.

    Attributes:
        columns: Names of the columns.
        crs: Coordinate system of the coordinates.
        notes: Sentences on what was recognised or assumed.
        frame: Rows that can be used: `row`, `x`, `y`, `value`, `error` and `of` (NaN where there is none), `below` (1
            where the true value is below the one that is there, else 0), `site` (empty where there is none), `other`
            (cells of other columns, as JSON), `text`.
        refused: The others, in the order of the file.
        dialect: The way in which the file was written; that of programs for a workbook.
        with_ids: Function that reads the table with further ids of sites; None if all of its ids are known.
        dates: By column whether its dates such as 05/06/2024 begin with the day, where that is known.
    """

    columns: Columns
    crs: CRS
    notes: list[str]
    frame: pd.DataFrame
    refused: list[Refused]
    dialect: Dialect = field(default_factory=Dialect)
    with_ids: "Callable[[KnownIds], Table] | None" = None
    dates: dict[str, bool] = field(default_factory=dict)

    @property
    def blank(self) -> str:
        """The reason of rows that have no value yet."""
        return absent(self.columns.value)


def read_table(
    path: str | PathLike[str],
    value: str,
    x: str | None = None,
    y: str | None = None,
    crs: str | int | CRS | None = None,
    error: str | None = None,
    of: str | None = None,
    exposed: bool = False,
    *,
    site: str | None = None,
    sheet: str | None = None,
    decimal: str | None = None,
    again: "Earlier | None" = None,
) -> Table:
    """Read measurements from delimited text or a workbook.

    Args:
        path: The file.
        value: Column of measurements; with `of`, of the numbers of positives.
        x: Column of longitudes or eastings; recognised by name if left out, as is y.
        y: Column of latitudes or northings.
        crs: Coordinate system; longitude and latitude need none.
        error: Column of standard deviations of measurements; a row without one has NaN.
        of: Column of the numbers examined, or of exposures.
        exposed: Whether these are exposures: values are then numbers of cases, of which there may be any number.
        site: Column of ids of sites; None for the one called site, if there is one.
        sheet: Sheet of a workbook; None for the first.
        decimal: "comma" or "point", for cells such as 1,234 that may be read in two ways.
        again: What a survey knows from its earlier tables; None for its first.

    Raises:
        SurveyError: if the file, its columns or its coordinates as a whole cannot be used; the message says what to do.
    """
    given = _mark(decimal)
    records = read_records(path, sheet)
    if again is not None and again.renamed is not None:
        records = _renamed(records, *again.renamed)
    _require_header(path, records, [name for name in (value, x, y, error, of) if name is not None])
    asked = [
        (name, None if again is None else option)
        for name, option in ((value, "--value"), (x, "--x"), (y, "--y"), (error, "--error"), (of, "--of"))
        if name is not None
    ]
    try:
        if again is not None and x is not None and y is not None:
            records, site = _placed(records, again, x, y, site, asked)
        else:
            require_columns(records.header, asked)
        columns, system, notes = find_columns(records.header, value, x, y, crs, error, of, site, again is not None)
    except SurveyError as found:  # perhaps on another sheet
        raise SurveyError(" ".join([str(found), *(said for said in records.notes if "--sheet" in said)])) from found
    columns = replace(columns, exposed=exposed)
    numbers = read_numbers(records, columns, system.is_geographic, given, None if again is None else again.decimal)
    frame, reasons = numbers.frame, numbers.reasons
    texts = records.column(columns.site) if columns.site is not None else ""
    frame["site"] = pd.Series(texts, index=frame.index, dtype=str)
    earlier = dict[str, bool]() if again is None else again.dates
    dates = None if earlier is None else orders_of(records, columns, earlier)
    frame["other"] = pd.Series(other_cells(records, columns, dates), index=frame.index, dtype=str)
    frame["text"] = pd.Series(records.texts, index=frame.index, dtype=str)
    check_numbers(frame, columns, reasons)
    before = reasons.copy()
    more = wrapped(frame, columns, system)
    check_coordinates(frame, columns, system, reasons)
    more += check_area_of_use(frame, columns, system, reasons)
    bad = reasons != ""
    refused = [
        Refused(int(row), text, reason, tuple(records.cells[place]))
        for place, row, text, reason in zip(
            np.flatnonzero(bad), frame.row[bad], frame.text[bad], reasons[bad], strict=True
        )
    ]
    places = _usable_places(frame, system, before == reasons)
    refused = [
        replace(one, content=content_of(records.header, one.fields, columns, places.get(one.row)))
        if one.fields
        else one
        for one in sorted(refused + records.refused, key=lambda one: one.row)
    ]
    notes = [*notes, *records.notes, *numbers.notes, *more]
    dialect = records.dialect(SIGNS[numbers.decimal])
    frame = frame[~bad].reset_index(drop=True)
    if again is None or not any(one.site for one in refused):
        return Table(columns, system, notes, frame, refused, dialect, dates=dates or {})

    def with_ids(others: KnownIds) -> Table:
        earlier = replace(again, ids=again.ids.beside(others))
        return read_table(
            path, value, x, y, crs, error, of, exposed, site=site, sheet=sheet, decimal=decimal, again=earlier
        )

    return Table(columns, system, notes, frame, refused, dialect, with_ids, dates or {})


def _usable_places(frame: pd.DataFrame, crs: CRS, accepted: npt.NDArray[np.bool_]) -> dict[int, tuple[float, float]]:
    """Return the places of rows with coordinates that can be used, by row number, whatever else is wrong with them."""
    x, y = frame.x.to_numpy(), frame.y.to_numpy()
    sound = accepted & np.isfinite(x) & np.isfinite(y)
    if crs.is_geographic:
        sound &= (np.abs(x) <= 180.0) & (np.abs(y) <= 90.0)
    return {int(frame.row[k]): (float(x[k]), float(y[k])) for k in np.flatnonzero(sound)}


@dataclass(frozen=True)
class Earlier:
    """What a survey knows from its earlier tables.

    Attributes:
        ids: Ids of its sites, for tables without coordinates.
        decimal: Decimal mark of its first table; None if that is not certain.
        site: Name of its own column of ids.
        dates: By column whether its dates begin with the day; None in surveys from before that was told.
        renamed: A column of this table, and what the survey calls it; None for none.
    """

    ids: KnownIds
    decimal: Mark | None = None
    site: str | None = None
    dates: dict[str, bool] | None = None
    renamed: tuple[str, str] | None = None


def _renamed(records: Records, name: str, own: str) -> Records:
    """Return records whose column has another name; one that has it already has none then.

    Raises:
        SurveyError: if there is no such column.
    """
    place = records.header.index(find_column(records.header, name, "--time"))
    header = ["" if each == own else each for each in records.header]
    header[place] = own
    return replace(records, header=header)


def _mark(decimal: str | None) -> Mark | None:
    """Return the decimal mark that was given.

    Raises:
        SurveyError: if it is none.
    """
    if decimal is None:
        return None
    found = next((mark for mark in MARKS if decimal in (mark, SIGNS[mark])), None)
    if found is None:
        raise SurveyError(f"decimal={decimal!r}: choose one of {', '.join(MARKS)}.")
    return found


def _require_header(path: str | PathLike[str], records: Records, names: list[str]) -> None:
    """Refuse a table whose header is not in its first row; say where it is."""
    names = [clean_name(name) for name in names]
    if any(name in records.header for name in names):
        return
    below = [*zip(records.rows, records.texts), *((one.row, one.text) for one in records.refused)]
    for row, text in sorted(below)[:TITLES]:
        fields = (text.replace('"', "").split(mark) for mark in ";\t,")
        if any(clean_name(cell) in names for cells in fields for cell in cells):
            raise SurveyError(f"{path}: row {row} looks like the header. Delete the rows above it, such as a title.")


def _placed(
    records: Records, again: Earlier, x: str, y: str, site: str | None, asked: list[tuple[str, str | None]]
) -> tuple[Records, str | None]:
    """Return records with coordinates, by ids if the table has none; and the column of ids."""
    names = {clean_name(name) for name, _ in asked}
    others = [(name, option) for name, option in asked if name not in (x, y)]
    if site is None:
        own = again.site if again.site in records.header else None
        site = site_column(records.header, names) or own
    else:
        site = find_column(records.header, site, "--site")
    if {clean_name(x), clean_name(y)} & set(records.header):
        require_columns(records.header, asked)
        return records, site
    if site is None:
        site = next((name for name in records.header if name.lower() == NAME and name not in names), None)
    if site is None:
        more = missing_columns(records.header, others)
        raise SurveyError(
            f"there are no columns {x} and {y}, and none of ids. Pass --x and --y if the coordinates are called "
            f"otherwise, or --site for a column of ids of sites. {f'And {more} ' * bool(more)}"
            f"Columns: {', '.join(records.header)}."
        )
    require_columns(records.header, others)
    return located(records, site, again.ids, clean_name(x), clean_name(y)), site
