"""Predictions at the places of a table, whose rows and columns are kept."""

import os
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import shapely

from bo_scale.errors import SurveyError
from bo_scale.survey.fitted import FittedSurvey
from bo_scale.survey.geography.coordinates import to_metric
from bo_scale.survey.plan.sheet import require_writable, write_table
from bo_scale.survey.tables.columns import PREDICTED, find_column, recognised
from bo_scale.survey.tables.reading import read_records
from bo_scale.survey.tables.records import Dialect, Records, clean_name
from bo_scale.survey.tables.rowkeys import day_comes_first, plain_cell
from bo_scale.survey.tables.table import Table
from bo_scale.survey.workspace import Workspace

Array = npt.NDArray[np.float64]
ENDS = ("predicted_lower", "predicted_upper")
NEW = ("new_lower", "new_upper")
ADDED = (*PREDICTED, *ENDS, *NEW, "exceedance")
"""Columns of predictions; those of the same name in a table are replaced."""
NAMED = 5
"""Rows that are named in a note."""


@dataclass(frozen=True)
class Places:
    """Places of a table.

    Attributes:
        records: The table as it is in its file.
        frame: Rows that have a place: `row`, `x`, `y`, and `error`, which is what is told of a new measurement.
        columns: Names of the columns of coordinates.
        reasons: Why the other rows have no place, by row.
        notes: Sentences on what was recognised or assumed.
        dialect: The way in which tables of the survey are written.
        time: Column of their dates; None without one.
    """

    records: Records
    frame: pd.DataFrame
    columns: tuple[str, str]
    reasons: dict[int, str]
    notes: list[str]
    dialect: Dialect
    time: str | None = None


@dataclass(frozen=True)
class PredictedTable:
    """A table with predictions.

    Attributes:
        table: The user's columns, then `predicted`, `predicted_sd`, the ends of a 95 % interval, and `exceedance` with
            a threshold; nothing where a row has no place.
        notes: Sentences that a reader should know.
        dialect: The way in which text is written: that of the survey's first table.
    """

    table: pd.DataFrame
    notes: list[str]
    dialect: Dialect = field(default_factory=Dialect)

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the table: a workbook if the file ends in .xlsx, else text.

        Raises:
            SurveyError: for an ending of other workbooks, or a file that is there and is no table of predictions.
        """
        require_predicted(path)
        write_table(self.table, path, self.dialect)


def require_predicted(path: str | os.PathLike[str]) -> None:
    """Refuse to write over a file that holds anything but predictions at places.

    Raises:
        SurveyError: naming the file.
    """
    require_writable(path)
    if Path(path).exists() and not {*PREDICTED, *ENDS} <= set(read_records(path).header):
        raise SurveyError(f"{path}: this file exists and is not a table of predictions. Give another name.")


def read_places(
    workspace: Workspace,
    table: str | os.PathLike[str],
    names: dict[str, str] | None = None,
    sheet: str | None = None,
    decimal: str | None = None,
) -> Places:
    """Read the places of a table: coordinates in the survey's system, or ids of its sites.

    Args:
        workspace: The survey.
        table: The file.
        names: Names of columns that are called otherwise in this table, by `Columns`' attributes.
        sheet: Sheet of a workbook; None for the first.
        decimal: "comma" or "point", for cells that may be read in two ways.

    Raises:
        SurveyError: saying what cannot be used.
    """
    given, own = dict(names or {}), asdict(workspace.columns)
    records = read_records(table, sheet)
    time = _time(workspace, records, given.pop("time", None))
    known = {**own, **given}
    if not {"x", "y"} & given.keys() and not {clean_name(known["x"]), clean_name(known["y"])} & {*records.header}:
        with suppress(SurveyError):  # perhaps it has ids
            given["x"], given["y"] = recognised(records.header, [], workspace.crs)
    x, y = given.get("x", own["x"]), given.get("y", own["y"])
    told = _told(records, given, own)
    found = workspace.read_columns(table, x, x, y, told, site=given.get("site"), sheet=sheet, decimal=decimal)
    if not len(found.frame):
        some = "; ".join(f"row {one.row}: {one.reason}" for one in found.refused[:NAMED])
        raise SurveyError(f"{table}: no row has a place ({some or 'there are no rows'}).")
    notes = [*found.notes, *_left_out(found), *_outside(workspace, found)]
    reasons = {one.row: one.reason for one in found.refused}
    return Places(records, found.frame, (found.columns.x, found.columns.y), reasons, notes, workspace.dialect, time)


def _time(workspace: Workspace, records: Records, named: str | None) -> str | None:
    """Return the column of dates: that which is named, else that of the survey if the table has it."""
    if named is not None and workspace.time_column is None:
        raise SurveyError(f"time={named!r}: the survey has no time; leave it out.")
    if named is not None:
        return find_column(records.header, named)
    return workspace.time_column if records.header.count(workspace.time_column or "") == 1 else None


def _told(records: Records, given: dict[str, str], own: dict[str, str | None]) -> str | None:
    """Return the column that tells of new measurements: of errors, numbers examined or exposures; None without one."""
    for name in ("error", "of"):
        if own[name] is None and name in given:
            raise SurveyError(f"{name}: the measurements of this survey have none; leave it out.")
        column = given.get(name, own[name])
        if column is not None and (name in given or clean_name(column) in records.header):
            return column
    return None


def _left_out(found: Table) -> list[str]:
    """Return a note on rows without a place."""
    if not found.refused:
        return []
    some = "; ".join(f"row {one.row}: {one.reason}" for one in found.refused[:NAMED])
    more = "; …" if len(found.refused) > NAMED else ""
    return [f"Rows without a prediction: {len(found.refused):,} ({some}{more})."]


def _outside(workspace: Workspace, found: Table) -> list[str]:
    """Return a note on places outside the area of the survey."""
    xy = to_metric(found.frame[["x", "y"]].to_numpy(dtype=np.float64), workspace.crs, workspace.metric)
    outside = int((~shapely.intersects_xy(workspace.region.shape, *xy.T)).sum())
    if not outside:
        return []
    return [f"Places outside the survey's area: {outside:,}. Predictions far from all measurements tell little."]


def predicted_table(survey: FittedSurvey, places: Places, intervals: bool, threshold: float | None) -> PredictedTable:
    """Return the table of places with predictions.

    Args:
        survey: The survey and its model.
        places: The places.
        intervals: Whether to add intervals of new measurements.
        threshold: Threshold in the user's units; None for no exceedance.
    """
    frame, records = places.frame, places.records
    xy, told = frame[["x", "y"]].to_numpy(dtype=np.float64), frame.error.to_numpy(dtype=np.float64)
    told = np.where(told > 0, told, np.nan)
    given, about_dates, dated = _given_covariates(survey.workspace, places), list[str](), np.ones(len(xy), dtype=bool)
    if (column := survey.workspace.time_column) is not None:
        given, about_dates, dated = _with_dates(survey, places, column, given)
    known = dated & survey.workspace.known_at(xy, given)
    if not known.any():
        raise SurveyError(" ".join(["no row can be predicted.", *about_dates, *_lacking(survey, frame.row[dated])]))
    notes = [*places.notes, *about_dates, *_lacking(survey, frame.row[dated & ~known])]
    frame, xy, told = frame[known], xy[known], told[known]
    given = {name: np.asarray(values)[known] for name, values in given.items()}
    found = survey.at(xy, intervals, told, given)
    found.columns = pd.Index([*PREDICTED, *ENDS, *NEW][: found.shape[1]])
    if threshold is not None:
        found["exceedance"] = survey.known_at(xy, given).exceedance(threshold)
    added = found.set_axis(pd.Index(frame.row), axis=0).reindex(records.rows)
    replaced = [name for name in records.header if name in ADDED]
    if replaced:
        notes.append(f"Columns of the table that predictions replace in what is written: {', '.join(replaced)}.")
    if intervals:
        notes.append(survey.workspace.about_measurements)
    return PredictedTable(_beside(places, added), notes, places.dialect)


def _beside(places: Places, added: pd.DataFrame) -> pd.DataFrame:
    """Return the user's columns, and predictions beside them.

    Args:
        places: The places.
        added: Predictions of all rows of the table.
    """
    records, columns = places.records, list[tuple[str, Any]]()
    where = dict(zip(places.columns, ("x", "y"), strict=True))
    at = {name: dict(zip(places.frame.row, places.frame[axis], strict=True)) for name, axis in where.items()}
    for place, name in enumerate(records.header):
        cells = [_cell(records, k, place) for k in range(len(records.rows))]
        if name in at:
            own = [at[name].get(row, cell) for row, cell in zip(records.rows, cells, strict=True)]
            columns.append((name, [_as_written(cell, now) for cell, now in zip(cells, own, strict=True)]))
        elif name not in ADDED:
            columns.append((name, cells))
    columns += [(name, [at[name].get(row) for row in records.rows]) for name in at if name not in records.header]
    columns += [(name, [_rounded(value) for value in added[name]]) for name in added if name in ADDED]
    whole = pd.DataFrame({place: cells for place, (_, cells) in enumerate(columns)})
    whole.columns = pd.Index([name for name, _ in columns])  # two of the user's may have one name
    return whole


def _lacking(survey: FittedSurvey, rows: pd.Series) -> list[str]:
    """Return a note on rows that lack a covariate."""
    return survey.workspace.note_on_unknown(rows)


def _with_dates(
    survey: FittedSurvey, places: Places, column: str, given: dict[str, npt.ArrayLike]
) -> tuple[dict[str, npt.ArrayLike], list[str], npt.NDArray[np.bool_]]:
    """Return covariates with the dates of the rows, notes on dates, and which rows have one that can be predicted.

    Rows have the dates of the table, if it has the survey's column and nobody named another date.
    """
    space, records, rows = survey.workspace, places.records, places.frame.row
    every = np.ones(len(rows), dtype=np.bool_)
    if places.time is None:
        return given, space.notes_on_date, every
    if space.when is not None:
        return given, [f"All rows are predicted for {space.shown_time}, whatever their {places.time}."], every
    cells = records.column(places.time)
    texts, day_first = dict(zip(records.rows, cells, strict=True)), day_comes_first(cells)
    times = np.array([space.read_time(texts[row], day_first) for row in rows])
    there, notes = np.isfinite(times), list[str]()
    first, last = survey.dates
    within = there & (times >= first) & (times <= last)
    time = space.time
    assert time is not None, "of a survey with a column of times"
    if not there.all():
        notes.append(f"Rows without a prediction, because {places.time} has no date: {_rows(rows[~there])}.")
    if (there & ~within).any():
        ends = (np.ceil(first), np.floor(last)) if time.dates else (first, last)
        notes.append(
            f"Rows without a prediction, because measurements tell nothing of their {places.time}: "
            f"{_rows(rows[there & ~within])}. Dates from {time.shown(float(ends[0]))} to {time.shown(float(ends[1]))} "
            "can be predicted."
        )
    return {**given, column: times}, notes, within


def _rows(rows: pd.Series) -> str:
    """Return how many rows there are, and the first of them."""
    some = "; ".join(f"row {row}" for row in rows[:NAMED])
    return f"{len(rows):,} ({some}{'; …' if len(rows) > NAMED else ''})"


def _given_covariates(workspace: Workspace, places: Places) -> dict[str, npt.ArrayLike]:
    """Return covariates that the table has columns of, for the rows that have a place."""
    names = [] if workspace.covariates is None else workspace.covariates.names
    records, row = places.records, {number: k for k, number in enumerate(places.records.rows)}
    at = [row[number] for number in places.frame.row]
    columns = {name: records.column(name) for name in names if records.header.count(name) == 1}
    return {name: [plain_cell(cells[k]) for k in at] for name, cells in columns.items()}


def _cell(records: Records, record: int, place: int) -> str | float:
    """Return a cell as it is; a number of a workbook as one."""
    text = records.cells[record][place]
    return float(text) if records.typed and place in records.typed[record] else text


def _as_written(cell: str | float, coordinate: str | float) -> int | str | float:
    """Return a coordinate as it was read, without decimals if it had none."""
    whole = isinstance(cell, str) and cell.strip().lstrip("-").isdigit()
    return int(coordinate) if whole and isinstance(coordinate, float) and coordinate.is_integer() else coordinate


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")
