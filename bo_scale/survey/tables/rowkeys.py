"""Rows known again by their content, however another program has written them."""

import csv
import json
import re
from datetime import datetime
from functools import lru_cache

from bo_scale.survey.tables.columns import RESERVED, SITE, Columns
from bo_scale.survey.tables.decimals import written_number
from bo_scale.survey.tables.numbers import MISSING
from bo_scale.survey.tables.records import Records, unescaped

DATE = re.compile(r"(\d{1,4})([-./])(\d{1,2})\2(\d{2,4})(?:[ T]+(\d{1,2}:\d{2}(?::\d{2})?)(?:\.0+)?)?$")
SEPARATORS = ";\t,"


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
    used = {name for name in columns.used if name != columns.site}
    names = [
        (place, SITE if name == columns.site else name)
        for place, name in enumerate(records.header)
        if name and name not in used and (name == columns.site or name.lower() not in RESERVED)
    ]
    if not names:
        return ["{}"] * len(records.cells)
    return [
        json.dumps({name: text for place, name in names if (text := plain_cell(cells[place]))}, ensure_ascii=False)
        for cells in records.cells
    ]


def cells_of(text: str) -> tuple[str, ...]:
    """Return the cells of a row as it stands in a file, sorted and in one form, whatever separates them."""
    split = [next(csv.reader([text.replace("\n", " ")], delimiter=mark), []) for mark in SEPARATORS]
    return tuple(sorted(filter(None, (plain_cell(unescaped(cell.strip())) for cell in max(split, key=len)))))
