"""Numbers as offices write them: the decimal mark of each column, and marks between thousands."""

import math
import re
from dataclasses import dataclass
from typing import Literal

Mark = Literal["comma", "point"]
MARKS: tuple[Mark, Mark] = ("comma", "point")
SIGNS: dict[Mark, str] = {"comma": ",", "point": "."}
BLANKS = re.compile(r"(?<=\d)[ \u00a0\u2009\u202f'’](?=\d{3}(?!\d))")
"""Blanks and apostrophes between thousands."""
NUMBER = re.compile(r"[-+]?(\d[\d.,]*|[.,]\d+)([eE][-+]?\d+)?$")


@dataclass(frozen=True)
class Evidence:
    """Ways in which numbers of a column are written.

    Attributes:
        decimal: Marks that are decimal for certain, such as the comma in 0,5.
        thousands: Marks that separate thousands for certain, such as the point in 1.234,5.
        open: Cells that may be read in two ways, such as 1,234 and 1.234, by their mark.
    """

    decimal: frozenset[Mark]
    thousands: frozenset[Mark]
    open: dict[Mark, list[int]]


def written_number(cell: str) -> float | None:
    """Return the number of a cell written as in programs, None if it is none."""
    try:
        number = float(cell)
    except ValueError:
        return None
    return None if "_" in cell else number


def evidence(cells: list[str]) -> Evidence:
    """Return what the cells of a column show about its marks."""
    decimal, thousands = set[Mark](), set[Mark]()
    open_: dict[Mark, list[int]] = {"comma": [], "point": []}
    for place, cell in enumerate(cells):
        if "," not in cell and "." not in cell:
            continue
        found, mark = _kind(cell)
        if found == "decimal" and mark is not None:
            decimal.add(mark)
        elif found == "thousands" and mark is not None:
            thousands.add(mark)
        elif found == "both" and mark is not None:
            decimal.add(mark)
            thousands.add(_other(mark))
        elif found == "open" and mark is not None:
            open_[mark].append(place)
    return Evidence(frozenset(decimal), frozenset(thousands), open_)


def _other(mark: Mark) -> Mark:
    return "point" if mark == "comma" else "comma"


def _kind(cell: str) -> tuple[str, Mark | None]:
    """Return what is certain about a number: a mark that is decimal or separates thousands; both; or neither."""
    if not NUMBER.match(cell := BLANKS.sub("", cell)):
        return "", None
    digits, _, exponent = cell.lstrip("+-").lower().partition("e")
    commas, points = digits.count(","), digits.count(".")
    if commas and points:
        last: Mark = "comma" if digits.rfind(",") > digits.rfind(".") else "point"
        return ("both", last) if _grouped(digits, last) else ("", None)
    mark: Mark = "comma" if commas else "point"
    if commas + points > 1:
        return ("thousands", mark) if _grouped(digits + SIGNS[_other(mark)], _other(mark)) else ("", None)
    if commas + points == 1:
        before, after = digits.split(SIGNS[mark])
        two_ways = len(after) == 3 and 1 <= len(before) <= 3 and not before.startswith("0") and not exponent
        return ("open" if two_ways else "decimal"), mark
    return "", None


def _grouped(digits: str, decimal: Mark) -> bool:
    """Return whether the digits before a decimal mark are in groups of three, with the other mark between them."""
    whole, _, rest = digits.partition(SIGNS[decimal])
    between = SIGNS[_other(decimal)]
    return bool(re.fullmatch(rf"[1-9]\d{{0,2}}(\{between}\d{{3}})+", whole)) and re.fullmatch(r"\d*", rest) is not None


def decimal_mark(own: Evidence, others: list[Evidence], before: Mark | None, degrees: bool) -> Mark | None:
    """Return the decimal mark by which cells such as 1,234 of a column are read, None if nothing tells.

    Args:
        own: Evidence of the column.
        others: Evidence of the table's other columns.
        before: The mark of an earlier table, if it is certain.
        degrees: Whether the column is of degrees, which have no thousands.
    """
    marks: list[Mark] = [mark for mark in MARKS if own.open[mark]]
    if not marks:
        return "comma" if own.decimal == {"comma"} else "point"
    if degrees and len(marks) == 1:
        return marks[0]
    sources = [[own], others, [] if before is None else [Evidence(frozenset({before}), frozenset(), {})]]
    found = {_by_evidence(mark, sources) for mark in marks}
    return found.pop() if len(found) == 1 else None


def _by_evidence(mark: Mark, sources: list[list[Evidence]]) -> Mark | None:
    """Return the decimal mark if cells such as 1,234 have some mark, by the first source that shows any."""
    for each in sources:
        decimal = frozenset[Mark]().union(*(one.decimal for one in each))
        thousands = frozenset[Mark]().union(*(one.thousands for one in each))
        if mark in thousands or _other(mark) in thousands:
            both = {mark, _other(mark)} <= thousands
            return None if both else _other(mark) if mark in thousands else mark
        if decimal == {mark}:
            return mark
        if decimal:
            return None
    return "point" if mark == "point" else None


def read_number(cell: str, decimal: Mark) -> float | None:
    """Return the number of a cell, None if it is none.

    Cells that can be read in one way alone are read so, whatever the mark of their column.

    Args:
        cell: The cell.
        decimal: The decimal mark by which cells such as 1,234 are read.
    """
    cell = cell.replace("\u2212", "-")
    number = written_number(cell)
    if number is not None and ("." not in cell or decimal == "point" or not math.isfinite(number)):
        return number
    kind, mark = _kind(cell)
    if mark is None or not kind:
        return number if number is not None else written_number(BLANKS.sub("", cell))
    point = {"open": decimal, "thousands": _other(mark)}.get(kind, mark)
    plain = BLANKS.sub("", cell).replace(SIGNS[_other(point)], "")
    return written_number(plain.replace(SIGNS[point], "."))
