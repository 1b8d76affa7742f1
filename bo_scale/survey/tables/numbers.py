"""Numbers of a table: measured values, errors, counts and coordinates, and why some cells are none."""

import math
import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from bo_scale.decimals import MARKS, Evidence, Mark, decimal_mark, evidence, read_number
from bo_scale.errors import SurveyError
from bo_scale.survey.tables.columns import Columns
from bo_scale.survey.tables.records import Records

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Reasons = npt.NDArray[np.object_]

MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "-", "#n/a"})
LIMIT = re.compile(r"\s*(?:<=?|≤)\s*([-+0-9.,eE \u00a0'’]+?)\s*$")
"""A value below the limit of detection."""
LARGEST = 1e30
"""Largest number of a table: squares of larger ones overflow in the model, and they themselves in a GeoTIFF."""
WORDS: dict[Mark, str] = {"comma": "commas", "point": "points"}
NAMED = 3
"""Cells that may be read in two ways and are named."""
SECOND = "this row has no numbers: it looks like a row of units or a second header"


@dataclass(frozen=True)
class Numbers:
    """Numbers of all records.

    Attributes:
        frame: `row`, `below`, `x`, `y`, `value`, `error` and `of`; NaN where there is none.
        reasons: Why rows cannot be used; empty for the others.
        notes: Sentences on how numbers are written.
        decimal: The decimal mark of the table.
    """

    frame: pd.DataFrame
    reasons: Reasons
    notes: list[str]
    decimal: Mark


def read_numbers(records: Records, columns: Columns, degrees: bool, given: Mark | None, before: Mark | None) -> Numbers:
    """Read the columns of numbers, each with the decimal mark that its cells show.

    Args:
        records: The records.
        columns: Names of the columns.
        degrees: Whether coordinates are degrees.
        given: The decimal mark that the user gave.
        before: The decimal mark of the survey's first table, if it is certain.

    Raises:
        SurveyError: if cells such as 1,234 may be read in two ways.
    """
    names = {"x": columns.x, "y": columns.y, "value": columns.value, "error": columns.error, "of": columns.of}
    used = {key: name for key, name in names.items() if name is not None}
    cells = {name: records.column(name) for name in used.values()}
    frame = pd.DataFrame({"row": np.asarray(records.rows, dtype=np.int64)})
    frame["below"] = _limits(cells, columns)
    found, texts = _evidence(records, cells), _untyped(records, cells)
    marks = dict[str, Mark]()
    for key, name in used.items():
        others = [each for other, each in found.items() if other != name]
        mark = given or decimal_mark(found[name], others, before, degrees and key in "xy")
        marks[name] = _require_mark(mark, name, found[name], texts[name], records.rows)
    reasons = np.full(len(records.rows), "", dtype=object)
    for key in names.keys() - used.keys():
        frame[key] = np.nan
    for key, name in used.items():
        typed = [records.is_typed(k, name) for k in range(len(records.rows))] if records.typed else None
        frame[key] = _numbers(cells[name], typed, name, key == "error", marks[name], reasons)
    _mark_second_header(frame, cells, reasons)
    commas = [
        name
        for name, each in found.items()
        if "comma" in each.decimal or (each.open["comma"] and marks[name] == "comma")
    ]
    decimal: Mark = "comma" if (columns.value in commas if _marked(found[columns.value]) else commas) else "point"
    return Numbers(frame, reasons, _written(found, texts, marks, commas), decimal)


def _require_mark(mark: Mark | None, name: str, own: Evidence, cells: list[str], rows: list[int]) -> Mark:
    """Return the decimal mark of a column if it is known.

    Args:
        mark: The mark, or None.
        name: Name of the column.
        own: Its evidence.
        cells: Its cells.
        rows: Their row numbers.

    Raises:
        SurveyError: else; names some of the cells that may be read in two ways, and the option that decides.
    """
    if mark is not None:
        return mark
    at = sorted(place for each in MARKS for place in own.open[each])
    some = ", ".join(f"{cells[place]} in row {rows[place]}" for place in at[:NAMED])
    more = f" and {len(at) - NAMED} more" if len(at) > NAMED else ""
    raise SurveyError(
        f"{name}: {some}{more} may have a decimal mark or one between thousands. Pass --decimal comma (1,234 is a "
        "little more than one) or --decimal point (1,234 is more than a thousand), or write them otherwise."
    )


def _untyped(records: Records, cells: dict[str, list[str]]) -> dict[str, list[str]]:
    """Return cells without numbers of a workbook, whose marks are known."""
    if not records.typed:
        return cells
    return {
        name: ["" if records.is_typed(k, name) else cell for k, cell in enumerate(column)]
        for name, column in cells.items()
    }


def _evidence(records: Records, cells: dict[str, list[str]]) -> dict[str, Evidence]:
    """Return what each column shows about its marks; nothing if it has points alone, one in each cell."""
    texts = _untyped(records, cells)
    commas = any("," in cell for column in texts.values() for cell in column)
    none = Evidence(frozenset(), frozenset(), {"comma": [], "point": []})
    return {
        name: evidence(column) if commas or any(cell.count(".") > 1 for cell in column) else none
        for name, column in texts.items()
    }


def _marked(own: Evidence) -> bool:
    return bool(own.decimal or any(own.open.values()))


def _written(
    found: dict[str, Evidence], texts: dict[str, list[str]], marks: dict[str, Mark], commas: list[str]
) -> list[str]:
    """Return notes on numbers that are not written as in programs."""
    notes = []
    if commas:
        points = any("point" in each.decimal for each in found.values())
        where = f" in {', '.join(commas)}" if points else ""
        notes.append(f"Decimals are written with a comma{where}.")
    for name, own in found.items():
        if len(own.decimal) == 2:
            notes.append(f"{name}: some rows have a decimal comma and others a decimal point. Both were read.")
        mark = marks[name]
        doubtful = [own.open[each][0] for each in MARKS if own.open[each] and each not in own.decimal]
        if doubtful and (mark == "comma" or own.open["comma"]):
            cell = texts[name][doubtful[0]]
            notes.append(
                f"{name}: {cell} was read as {read_number(cell, mark):.12g}. If that is wrong, pass --decimal "
                f"{'point' if mark == 'comma' else 'comma'}."
            )
        elif own.thousands:
            between = " and ".join(WORDS[each] for each in sorted(own.thousands))
            notes.append(f"{name}: {between} between thousands were left out.")
    return notes


def _limits(cells: dict[str, list[str]], columns: Columns) -> npt.NDArray[np.int64]:
    """Return which values are limits, as in <5, and leave the number alone in these cells. Counts have none."""
    values = cells[columns.value]
    found = [LIMIT.match(cell) if columns.of is None else None for cell in values]
    cells[columns.value] = [cell if limit is None else limit[1] for cell, limit in zip(values, found)]
    return np.array([limit is not None for limit in found], dtype=np.int64)


def _numbers(
    cells: list[str], typed: list[bool] | None, name: str, optional: bool, mark: Mark, reasons: Reasons
) -> Array:
    """Numbers of a column, NaN where there is none; the reason goes to rows that have no other."""
    numbers = np.full(len(cells), np.nan)
    for k, cell in enumerate(cells):
        number = read_number(cell, "point" if typed is not None and typed[k] else mark)
        if number is not None and abs(number) <= LARGEST:
            numbers[k] = number
        elif reasons[k] == "" and not (optional and cell.lower() in MISSING):
            reasons[k] = _complaint(cell, name, number)
    return numbers


def _complaint(cell: str, name: str, number: float | None) -> str:
    if cell.lower() in MISSING:
        return absent(name)
    large = number is not None and math.isfinite(number)
    what = "not a number" if number is None else f"beyond ±{LARGEST:g}, change its unit" if large else "not finite"
    return f"{name} is {what}: {cell}"


def absent(name: str) -> str:
    """Return the reason of rows without a value in a column."""
    return f"no value in column {name}"


def _mark_second_header(frame: pd.DataFrame, cells: dict[str, list[str]], reasons: Reasons) -> None:
    """Name the first row for what it is, if it has texts alone where the others have numbers."""
    first = [column[0] for column in cells.values()] if len(frame) > 1 else []
    texts = [cell for cell in first if cell.lower() not in MISSING]
    numbers = frame.loc[:0, ["x", "y", "value", "error", "of"]].notna().to_numpy().any() if first else True
    if len(texts) > 1 and not numbers:
        reasons[0] = SECOND


def refuse(reasons: Reasons, which: Mask, reason: str) -> None:
    """Give rows a reason why they cannot be used, unless they have another."""
    reasons[which & (reasons == "")] = reason


def check_numbers(frame: pd.DataFrame, columns: Columns, reasons: Reasons) -> None:
    """Refuse negative errors, and counts that are none."""
    value, of = frame.value.to_numpy(), frame.of.to_numpy()
    refuse(reasons, frame.error.to_numpy() < 0.0, f"{columns.error} is negative")
    if columns.of is None:
        return
    refuse(reasons, (value < 0.0) | (value != np.floor(value)), f"{columns.value} is not a count (0, 1, 2, …)")
    if columns.exposed:
        refuse(reasons, of <= 0.0, f"{columns.of} is not positive")
        return
    refuse(reasons, (of < 1.0) | (of != np.floor(of)), f"{columns.of} is not a positive whole number")
    refuse(reasons, value > of, f"{columns.value} is more than {columns.of}")
