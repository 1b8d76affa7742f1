"""Observations as tables: to pandas, to CSV, and from the CSV of past results."""

import csv
import logging
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import zip_longest
from pathlib import Path
from typing import Any

from bo_scale.decimals import MARKS, Mark, decimal_mark, evidence, read_number
from bo_scale.errors import InvalidArgumentError, InvalidDataError, MissingDependencyError, SpaceError
from bo_scale.files import replacing
from bo_scale.loop.history.history import History
from bo_scale.loop.problem.outcomes import Outcomes
from bo_scale.loop.problem.parameters import Choice, Fixed, Parameter, When, bare
from bo_scale.loop.problem.space import Space
from bo_scale.spelling import suggestion

ID, TIME, VALUE, VARIANCE, COST, STATUS = "id", "time", "value", "variance", "cost", "status"
logger = logging.getLogger("bo_scale.loop")


def columns_of(history: History, every: bool = False) -> dict[str, list[Any]]:
    """Return the observations by columns: id, parameters, outcomes, variances and costs if known, time, notes.

    Columns of parameters without names are x0, x1, …; that of an outcome without a name is "value". O(n).

    Args:
        history: The history.
        every: Whether to add those set aside and forgotten, and a column that says which.
    """
    with history.lock:
        told, rows, statuses = history.everything() if every else (history.told, history.told_rows(), None)
        _, Y, D = told.first(told.count)
        values = history.outcomes.inner(Y)
        columns: dict[str, list[Any]] = {ID: list(told.ids)}
        for j, name in enumerate(labels(history.space)):
            columns[_free(name, columns)] = [row[j] for row in rows]
        outcomes = history.outcomes.names or (VALUE,)
        for j, name in enumerate(outcomes):
            columns[_free(name, columns)] = values[:, j].tolist()
        for j, name in enumerate(outcomes if D is not None else ()):
            columns[_free(f"{name}_{VARIANCE}", columns)] = D[:, j].tolist() if D is not None else []
        if not all(map(math.isnan, told.costs)):
            columns[_free(COST, columns)] = list(told.costs)
        if statuses is not None:
            columns[_free(STATUS, columns)] = statuses
        columns[_free(TIME, columns)] = [_moment(seconds) for seconds in told.times]
        for key in dict.fromkeys(key for notes in told.attributes.values() for key in notes):
            columns[_free(key if not key.endswith(f"_{VARIANCE}") else f"{key}_", columns)] = [
                told.attributes.get(name, {}).get(key) for name in told.ids
            ]
    return columns


def frame_of(history: History, every: bool = False) -> Any:
    """Return the observations as a pandas DataFrame; arguments and columns as of `columns_of`.

    Raises:
        MissingDependencyError: without pandas.
    """
    try:
        import pandas as pd
    except ImportError as error:
        raise MissingDependencyError(
            "observations_frame: it needs pandas. Install it (pip install pandas), or call to_csv(path)."
        ) from error
    return pd.DataFrame(columns_of(history, every))


def write_csv(history: History, path: str | os.PathLike[str]) -> None:
    """Write the observations to a CSV file, which `from_csv` reads; it is replaced completely or not at all."""
    require_no_id(history.space, history.outcomes)
    columns = columns_of(history)
    with replacing(path) as partial, partial.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(columns)
        table.writerows(zip(*(map(_cell, column) for column in columns.values()), strict=True))


@dataclass(frozen=True)
class Past:
    """The rows of a table of past results.

    Attributes:
        points: Values of the parameters.
        values: Outcomes, a row each.
        variances: Their noise variances, None where the cell is empty; or None.
        costs: What each cost, None where the cell is empty; or None.
        ids: An id for each row: of its column "id", else the name of the file and the line.
    """

    points: list[dict[str, Any]]
    values: list[list[float]]
    variances: list[list[float | None]] | None
    costs: list[float | None] | None
    ids: list[int | str]

    def listed(self, space: Space) -> list[Any]:
        """Return the points as `tell` takes them."""
        return [*self.points] if space.names is not None else [[*point.values()] for point in self.points]


def read_csv(
    path: str | os.PathLike[str], space: Space, outcomes: Outcomes, value: str | None, decimal: Mark | None = None
) -> Past:
    """Read a CSV of past results. Rows without a value are left out, and counted in the log.

    Args:
        path: The file, with a header. Columns may be separated by commas, semicolons or tabs.
        space: The parameters, each with a column of its name; fixed and conditional ones may be missing. Cells of
            conditional ones may be empty.
        outcomes: The outcomes, each with a column of its name.
        value: The column of the only outcome; None for that of its name, "value", or the only column left.
        decimal: The decimal mark of numbers such as 1,234, which may be read in two ways; None for what the other
            numbers of a column show.

    Raises:
        InvalidDataError: for columns that are missing or there twice, rows longer than the header, and cells that are
            no such values or may be read in two ways; the message names the line.
        InvalidArgumentError: if the column of the value is not clear, or there is no such decimal mark.
    """
    require_no_id(space, outcomes)
    if decimal not in (None, *MARKS):
        raise InvalidArgumentError(f"decimal={decimal!r}: choose 'comma' or 'point'.")
    path = Path(path)
    try:
        header, rows = _table(path, {*labels(space), *(outcomes.names or ())})
    except UnicodeDecodeError as error:
        raise InvalidDataError(f"{path}: it is not UTF-8 text ({error}). Save the table as CSV in UTF-8.") from error
    names, own = labels(space), _outcome_columns(path, header, space, outcomes, value)
    needed = [name for name, each in zip(names, space.parameters) if not isinstance(each, Fixed | When)]
    _require_columns(path, header, [*needed, *own])
    spread = [f"{name}_{VARIANCE}" for name in own]
    known = all(name in header for name in spread)
    priced = COST in header and COST not in (*names, *own)
    _require_once(path, header, [ID, COST, *names, *own, *spread])
    complete = [(line, row) for line, row in rows if all(row.get(name, "").strip() for name in own)]
    if len(complete) < len(rows):
        logger.warning("%s: %d of %d rows have no value and are left out.", path, len(rows) - len(complete), len(rows))
    cells = _Cells(path, complete, decimal)
    return Past(
        [
            {
                name: cells.value(line, name, row[name], each)
                for name, each in zip(names, space.parameters)
                if name in header
            }
            for line, row in complete
        ],
        [[cells.number(line, name, row[name]) for name in own] for line, row in complete],
        [[cells.some(line, name, row[name]) for name in spread] for line, row in complete] if known else None,
        [cells.some(line, COST, row[COST]) for line, row in complete] if priced else None,
        [_read_id(row[ID]) if row.get(ID) else f"{path.name}:{line}" for line, row in complete],
    )


def tell_past(
    optimizer: Any, source: str | os.PathLike[str], value: str | None, skip: bool, decimal: Mark | None = None
) -> None:
    """Tell an optimizer the results of a table.

    Args:
        optimizer: The optimizer.
        source: The file.
        value: The column of the only outcome, or None.
        skip: Whether to leave out rows outside the space, not to refuse them.
        decimal: The decimal mark of numbers that may be read in two ways, or None.
    """
    space, history = optimizer.space, optimizer.history
    past = read_csv(source, space, optimizer.outcomes, value, decimal)
    gone = {row for row, name in enumerate(past.ids) if name in history.forgotten}
    if gone:
        logger.warning("%s: %d rows were taken out of the run by forget() and are left out.", source, len(gone))
    points = past.listed(space)
    gone.update(require_inside(source, past, space, skip, history.share))
    inside = [row for row in range(len(points)) if row not in gone]
    if inside:
        _warn_of_copies(source, history, past, inside)
        variances = None if past.variances is None else [past.variances[row] for row in inside]
        told, values = [points[row] for row in inside], [past.values[row] for row in inside]
        costs = None if past.costs is None else [past.costs[row] for row in inside]
        optimizer.tell(told, values, variances, id=[past.ids[row] for row in inside], cost=costs)


def require_inside(source: str | os.PathLike[str], past: Past, space: Space, skip: bool, slack: float) -> list[int]:
    """Return the rows that lie outside the space by more than a slack, which are left out.

    Raises:
        SpaceError: if there are any and they are not to be left out; the message names the first.
    """
    points = past.listed(space)
    outside = (~space.holds(points, slack)).nonzero().squeeze(-1).tolist() if points else []
    names = [past.ids[row] for row in outside[:10]]
    if outside and not skip:
        try:
            space.encode([points[outside[0]]], slack=slack)
            said = ""
        except SpaceError as error:
            said = f" {error}"
        raise SpaceError(
            f"{source}: rows outside the space: {names}{'…' if len(outside) > 10 else ''}. The first:{said} Widen the "
            f"space, mend the rows, or leave them out by outside='skip'."
        )
    if outside:
        logger.warning("%s: %d rows outside the space are left out: %s.", source, len(outside), names)
    return outside


def _warn_of_copies(source: str | os.PathLike[str], history: History, past: Past, inside: list[int]) -> None:
    """Warn of rows that equal observations of other ids: the copy of a table tells all again."""
    with history.lock:
        _, Y, _ = history.told.first(history.told.count)
        known = zip(history.told_rows(), history.outcomes.inner(Y).tolist(), strict=True)
        there = {(*row, *values) for row, values in known}
    rows = history.space.settled([past.listed(history.space)[row] for row in inside]) if there else []
    found = [
        past.ids[row]
        for row, settled in zip(inside, rows)
        if history.told.place(past.ids[row]) is None and (*settled, *past.values[row]) in there
    ]
    if found:
        logger.warning(
            "%s: %d rows equal observations that have other ids: %s. If they are the same, forget() them; a column "
            "'id' keeps rows apart from their file and line.",
            source,
            len(found),
            found[:5],
        )


def require_no_id(space: Space, outcomes: Outcomes) -> None:
    """Refuse tables with a parameter or an outcome whose name is that of the column of ids."""
    named = ("space", "a parameter", labels(space)), ("objectives", "an outcome", outcomes.names or ())
    for argument, what, names in named:
        if ID in names:
            raise InvalidArgumentError(f"{argument}: {what} is named 'id', as the column of ids in tables. Rename it.")


def require_own_columns(space: Space, outcomes: Outcomes) -> None:
    """Refuse parameters and outcomes whose names are those of columns of variances.

    Raises:
        InvalidArgumentError: naming them.
    """
    spread = [f"{name}_{VARIANCE}" for name in outcomes.names or (VALUE,)]
    taken = [name for name in spread if name in (*labels(space), *(outcomes.names or ()))]
    if taken:
        raise InvalidArgumentError(
            f"space, objectives: {taken} name the noise variances of outcomes in tables. Rename the parameters or "
            f"outcomes that are called so."
        )


def labels(space: Space) -> list[str]:
    """Return the names of the parameters, x0, x1, … without."""
    return [*space.names] if space.names is not None else [f"x{j}" for j in range(len(space.parameters))]


Row = tuple[int, dict[str, str]]
"""The number of a line, and its cells by column."""


def _table(path: Path, known: set[str]) -> tuple[list[str], list[Row]]:
    """Return the header of a file, and its rows that are not empty.

    Args:
        path: The file.
        known: Names that may begin or end with blanks; those of other columns are read without.

    Raises:
        InvalidDataError: if there is no header, or a row has more cells.
    """
    with path.open(newline="", encoding="utf-8-sig") as file:
        first = next(filter(str.strip, file), "")
        file.seek(0)
        reader = csv.reader(file, delimiter=max(",;\t", key=first.count))
        lines = ((reader.line_num, cells) for cells in reader)
        filled = [(line, cells) for line, cells in lines if any(cell.strip() for cell in cells)]
    if not filled:
        raise InvalidDataError(f"{path}: it has no header. The first line names the columns.")
    header = [name if name in known else name.strip() for name in filled[0][1]]
    for line, cells in filled[1:]:
        if any(cell.strip() for cell in cells[len(header) :]):
            raise InvalidDataError(
                f"{path}: line {line} has {len(cells)} cells, but the header has {len(header)}. Quote cells that have "
                f'a comma in them, as in "5,25", or separate columns by semicolons or tabs.'
            )
    return header, [(line, dict(zip_longest(header, cells[: len(header)], fillvalue=""))) for line, cells in filled[1:]]


def _outcome_columns(
    path: Path, header: Sequence[str], space: Space, outcomes: Outcomes, value: str | None
) -> list[str]:
    if outcomes.names is not None:
        if value is not None:
            raise InvalidArgumentError("value: the outcomes have names, which are those of their columns.")
        return [*outcomes.names]
    own = {*labels(space), ID, TIME, COST}
    if value is not None:
        return [value]
    if VALUE in header and VALUE not in own:
        return [VALUE]
    left = [name for name in dict.fromkeys(header) if name not in own]
    if len(left) != 1:
        raise InvalidArgumentError(f"value: which column of {path} has the values? Pass value=…, one of {left}.")
    return left


def _require_columns(path: Path, header: Sequence[str], needed: Sequence[str]) -> None:
    missing = [name for name in needed if name not in header]
    if missing:
        raise InvalidDataError(
            f"{path}: columns {missing} are missing; there are {list(header)}.{suggestion(missing, header)}"
        )


def _require_once(path: Path, header: Sequence[str], read: Sequence[str]) -> None:
    twice = [name for name in dict.fromkeys(read) if header.count(name) > 1]
    if twice:
        raise InvalidDataError(f"{path}: columns {twice} are there more than once. Rename or delete all but one.")


_EMPTY = ("", "na", "n/a", "nan", "none", "null")
"""How tables write that there is no value."""


@dataclass(frozen=True)
class _Cells:
    """Reads the cells of a file, in each column with the decimal mark that its numbers show.

    Attributes:
        path: The file.
        rows: Its rows.
        decimal: The decimal mark of all columns, if it is known.
    """

    path: Path
    rows: list[Row]
    decimal: Mark | None
    _marks: dict[str, Mark] = field(default_factory=dict)

    def number(self, line: int, name: str, text: str) -> float:
        """Return a finite number, with a decimal point or comma."""
        read = read_number(text.strip(), self._mark(name))
        if read is None or not math.isfinite(read):
            raise InvalidDataError(f"{self.path}: line {line} has {text!r} in column {name!r}, which is no number.")
        return read

    def _mark(self, name: str) -> Mark:
        """Return the decimal mark of a column.

        Raises:
            InvalidDataError: if it has numbers such as 1,234, and no other shows what the comma is.
        """
        if name in self._marks:
            return self._marks[name]
        cells = [row[name].strip() for _, row in self.rows]
        own = evidence(cells)
        mark = self.decimal or decimal_mark(own, [], None, degrees=False)
        if mark is None:
            place = min(own.open["comma"] or own.open["point"])
            raise InvalidDataError(
                f"{self.path}: line {self.rows[place][0]} has {cells[place]!r} in column {name!r}, which may have a "
                f"decimal mark or one between thousands. Write 1234 or 1.234 throughout, or pass decimal='comma' "
                f"(1,234 is a little more than one) or decimal='point' (1,234 is more than a thousand)."
            )
        self._marks[name] = mark
        return mark

    def some(self, line: int, name: str, text: str) -> float | None:
        """Return a finite number, or None for an empty cell."""
        return self.number(line, name, text) if text.strip() else None

    def value(self, line: int, name: str, text: str, parameter: Parameter) -> Any:
        """Return the value of a parameter; None for an empty cell of a conditional one."""
        if isinstance(parameter, When) and _is_empty(text, parameter):
            return None
        parameter = bare(parameter)
        if not isinstance(parameter, Choice | Fixed):
            return self.number(line, name, text)
        values = parameter.values if isinstance(parameter, Choice) else (parameter.value,)
        found = [each for each in values if text == str(each)] or [each for each in values if text.strip() == str(each)]
        found = found or [each for each in values if self._is(name, text.strip(), each)]
        if not found:
            raise InvalidDataError(
                f"{self.path}: line {line} has {text!r} in column {name!r}, which takes {parameter}."
                f"{suggestion([text.strip()], values)}"
            )
        return found[0]

    def _is(self, name: str, text: str, value: Any) -> bool:
        """Return whether a cell is a number of a choice."""
        read = None if isinstance(value, str | bool) else read_number(text, self._mark(name))
        return read is not None and math.isclose(read, value, rel_tol=1e-9)


def _is_empty(text: str, parameter: When) -> bool:
    """Return whether a cell says that there is no value, and not the value "none" of a choice."""
    values = getattr(parameter.parameter, "values", ())
    return text.strip().lower() in _EMPTY and not any(text.strip() == str(each) for each in values)


def _read_id(text: str) -> int | str:
    return int(text) if re.fullmatch(r"0|-?[1-9]\d*", text) else text


def _free(name: str, columns: Mapping[str, Any]) -> str:
    """Return a name that no column has."""
    while name in columns:
        name += "_"
    return name


def _moment(seconds: float) -> datetime | None:
    return None if math.isnan(seconds) else datetime.fromtimestamp(seconds, UTC)


def _cell(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    return "" if value is None or (isinstance(value, float) and math.isnan(value)) else value
