"""Rows known again by their content, however another program has written them."""

import csv
import json
import re
from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

from bo_scale.survey.tables.columns import RESERVED, SITE, Columns
from bo_scale.survey.tables.decimals import written_number
from bo_scale.survey.tables.numbers import MISSING
from bo_scale.survey.tables.records import Records, unescaped

DATE = re.compile(r"(\d{1,4})([-./])(\d{1,2})\2(\d{2,4})(?:[ T]+(\d{1,2}:\d{2}(?::\d{2})?)(?:\.0+)?)?$")
SEPARATORS = ";\t,"
NUMBERS = ("x", "y", "value", "error", "of")
"""Columns of numbers, by their attributes."""


@lru_cache(maxsize=65536)
def plain_cell(cell: str) -> str:
    """Return a cell in one form: numbers with nine digits, dates as in ISO 8601, texts without capitals."""
    cell = " ".join(cell.split())
    if cell.lower() in MISSING:
        return ""
    number = written_number(cell.replace(",", ".") if cell.count(",") == 1 and "." not in cell else cell)
    if number is not None:
        return f"{number:.9g}"
    return _date(cell) or cell.casefold()


def _date(cell: str) -> str:
    """Return a date, and a time unless it is midnight, as in ISO 8601; empty if it is none or may be two."""
    match = DATE.match(cell)
    if match is None:
        return ""
    first, mark, second, third, clock = match.groups()
    if len(first) == 4:
        year, month, day = first, second, third
    elif mark == "." or int(first) > 12:
        day, month, year = first, second, third
    elif int(second) > 12 or first == second:
        month, day, year = first, second, third
    else:
        return ""
    try:
        date = datetime(int(year) + (2000 if len(year) == 2 else 0), int(month), int(day))
    except ValueError:
        return ""
    time = "" if clock is None else (clock if clock.count(":") == 2 else f"{clock}:00").zfill(8)
    return f"{date:%Y-%m-%d}" + (f" {time}" if time.strip("0:") else "")


def other_cells(records: Records, columns: Columns) -> list[str]:
    """Return the cells of each record beside its numbers, by column, as JSON: dates, ids, remarks and the like.

    Empty cells, and columns that only tables of plans have, are left out.
    """
    names = _other_names(records.header, columns)
    if not names:
        return ["{}"] * len(records.cells)
    return [_json(_named(cells, names)) for cells in records.cells]


def content_of(
    header: Sequence[str], cells: Sequence[str], columns: Columns, place: tuple[float, float] | None = None
) -> str:
    """Return the cells of a row that cannot be used, by column, as JSON; `numbers` by what they are, and `other`.

    Args:
        header: Names of the columns.
        cells: The cells; fewer than names if the last columns have been added.
        columns: Names of the columns of numbers and ids.
        place: Its coordinates, if these can be used; they are kept with its id.
    """
    places = {name: place for place, name in enumerate(header[: len(cells)])}
    numbers = {
        kind: plain_cell(cells[places[name]])
        for kind in NUMBERS
        if (name := getattr(columns, kind)) is not None and name in places
    }
    site = {"site": cells[places[columns.site]], "place": place} if columns.site in places and place else {}
    return _json({"numbers": numbers, "other": _named(cells, _other_names(header[: len(cells)], columns)), **site})


def _other_names(header: Sequence[str], columns: Columns) -> list[tuple[int, str]]:
    """Return places and names of columns beside those of numbers and those that only tables of plans have."""
    used = {name for name in columns.used if name != columns.site}
    return [
        (place, SITE if name == columns.site else name)
        for place, name in enumerate(header)
        if name and name not in used and (name == columns.site or name.lower() not in RESERVED)
    ]


def _named(cells: Sequence[str], names: list[tuple[int, str]]) -> dict[str, str]:
    return {name: text for place, name in names if (text := plain_cell(cells[place]))}


def _json(content: dict[str, Any]) -> str:
    return json.dumps(content, ensure_ascii=False)


def cells_of(text: str) -> tuple[str, ...]:
    """Return the cells of a row as it stands in a file, sorted and in one form, whatever separates them."""
    return tuple(sorted(filter(None, map(plain_cell, raw_cells(text)))))


def raw_cells(text: str) -> list[str]:
    """Return the cells of a row as they stand in a file, whatever separates them."""
    split = [next(csv.reader([text.replace("\n", " ")], delimiter=mark), []) for mark in SEPARATORS]
    return [unescaped(cell.strip()) for cell in max(split, key=len)]
