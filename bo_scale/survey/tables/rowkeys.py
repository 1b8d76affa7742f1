"""Rows known again by their content, however another program has written them."""

import csv
import json
import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

from bo_scale.decimals import written_number
from bo_scale.survey.tables.columns import RESERVED, SITE, Columns
from bo_scale.survey.tables.numbers import MISSING
from bo_scale.survey.tables.records import Records, unescaped

DATE = re.compile(r"(\d{1,4})([-./])(\d{1,2})\2(\d{2,4})(?:[ T]+(\d{1,2}:\d{2}(?::\d{2})?)(?:\.0+)?)?$")
SEPARATORS = ";\t,"
NUMBERS = ("x", "y", "value", "error", "of")
"""Columns of numbers, by their attributes."""


def day_comes_first(cells: Iterable[str]) -> bool | None:
    """Return whether a column's dates such as 05/06/2024 begin with the day; None if none of them tells, or both do."""
    found = set[bool]()
    for cell in cells:
        match = DATE.match(cell.strip())
        if match is not None and match[2] != "." and len(match[1]) <= 2:
            first, second = int(match[1]), int(match[3])
            found |= {first > 12} if (first > 12) != (second > 12) else set()
    return found.pop() if len(found) == 1 else None


def may_be_two(cell: str) -> bool:
    """Return whether a cell is a date that begins with the day or with the month."""
    return DATE.match(cell.strip()) is not None and {plain_cell(cell, True), plain_cell(cell, False)} != {
        plain_cell(cell)
    }


@lru_cache(maxsize=65536)
def plain_cell(cell: str, day_first: bool | None = None) -> str:
    """Return a cell in one form: numbers with nine digits, dates as in ISO 8601, texts without capitals.

    Args:
        cell: The cell.
        day_first: Whether dates such as 05/06/2024 begin with the day; None if that is not known, and they are texts.
    """
    cell = " ".join(cell.split())
    if cell.lower() in MISSING:
        return ""
    number = written_number(cell.replace(",", ".") if cell.count(",") == 1 and "." not in cell else cell)
    if number is not None:
        return f"{number:.9g}"
    return _date(cell, day_first) or cell.casefold()


def _date(cell: str, day_first: bool | None) -> str:
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
    elif day_first is not None:
        day, month, year = (first, second, third) if day_first else (second, first, third)
    else:
        return ""
    try:
        date = datetime(int(year) + (2000 if len(year) == 2 else 0), int(month), int(day))
    except ValueError:
        return ""
    time = "" if clock is None else (clock if clock.count(":") == 2 else f"{clock}:00").zfill(8)
    return f"{date:%Y-%m-%d}" + (f" {time}" if time.strip("0:") else "")


def orders_of(records: Records, columns: Columns, earlier: dict[str, bool]) -> dict[str, bool]:
    """Return by column whether its dates begin with the day, where that is known.

    Args:
        records: The records.
        columns: Names of the columns of numbers and ids.
        earlier: The same of an earlier table, for columns that do not tell.
    """
    names = _other_names(records.header, columns)
    own = {name: day_comes_first(cells[place] for cells in records.cells) for place, name in names}
    return {**earlier, **{name: order for name, order in own.items() if order is not None}}


def other_cells(records: Records, columns: Columns, orders: dict[str, bool] | None = None) -> list[str]:
    """Return the cells of each record beside its numbers, by column, as JSON: dates, ids, remarks and the like.

    Empty cells, and columns that only tables of plans have, are left out.

    Args:
        records: The records.
        columns: Names of the columns of numbers and ids.
        orders: By column whether its dates begin with the day, where that is known.
    """
    names = _other_names(records.header, columns)
    if not names:
        return ["{}"] * len(records.cells)
    return [_json(_named(cells, names, orders)) for cells in records.cells]


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


def _named(cells: Sequence[str], names: list[tuple[int, str]], orders: dict[str, bool] | None = None) -> dict[str, str]:
    known = orders or {}
    return {name: text for place, name in names if (text := plain_cell(cells[place], known.get(name)))}


def _json(content: dict[str, Any]) -> str:
    return json.dumps(content, ensure_ascii=False)


def cells_of(text: str) -> tuple[str, ...]:
    """Return the cells of a row as it stands in a file, sorted and in one form, whatever separates them."""
    return tuple(sorted(filter(None, map(plain_cell, raw_cells(text)))))


def raw_cells(text: str) -> list[str]:
    """Return the cells of a row as they stand in a file, whatever separates them."""
    split = [next(csv.reader([text.replace("\n", " ")], delimiter=mark), []) for mark in SEPARATORS]
    return [unescaped(cell.strip()) for cell in max(split, key=len)]
