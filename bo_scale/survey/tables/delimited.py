"""Delimited text: its lines as records; lines that cannot be one are refused."""

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from bo_scale.errors import SurveyError


@dataclass(frozen=True)
class Refused:
    """A row that cannot be used.

    Attributes:
        row: Its number as a spreadsheet counts: the header is row 1.
        text: The row as it stands in the file.
        reason: The reason.
    """

    row: int
    text: str
    reason: str


@dataclass(frozen=True)
class Records:
    """A file of delimited text.

    Attributes:
        header: Names of its columns.
        separator: Between them.
        rows: Number of each record, as a spreadsheet counts.
        cells: Fields of each record; missing ones at its end are empty.
        texts: The record as it stands in the file.
        refused: Records that have too many fields, or a quote that is not closed.
        encoding: Encoding of the file.
    """

    header: list[str]
    separator: str
    rows: list[int]
    cells: list[list[str]]
    texts: list[str]
    refused: list[Refused]
    encoding: str


def read_records(path: str | PathLike[str]) -> Records:
    """Read a file separated by commas, semicolons or tabs. Empty lines are passed over.

    Raises:
        SurveyError: no such file, no text, or no rows below a header.
    """
    text, encoding = _decoded(path)
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    first = next((k for k, line in enumerate(lines) if line.strip()), None)
    if first is None:
        raise SurveyError(f"{path}: the file is empty; it needs a header and rows below it.")
    separator = max(";\t,", key=lambda mark: len(_fields(lines[first], mark)))
    header = [name.strip() for name in _fields(lines[first], separator)]
    records = Records(header, separator, [], [], [], [], encoding)
    for row, (cells, raw, reason) in enumerate(_records(lines, first + 1, separator, len(header)), first + 2):
        if reason:
            records.refused.append(Refused(row, raw, reason))
        elif any(cells):
            records.rows.append(row)
            records.cells.append(cells)
            records.texts.append(raw)
    if not records.rows and not records.refused:
        raise SurveyError(f"{path}: the file has a header but no row below it; add rows.")
    return records


def _decoded(path: str | PathLike[str]) -> tuple[str, str]:
    file = Path(path)
    if not file.is_file():
        raise SurveyError(f"{path}: there is no such file.")
    content = file.read_bytes()
    if content[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return content.decode("utf-16", errors="replace"), "UTF-16"
    if content[:2] == b"PK" or b"\0" in content:
        raise SurveyError(f"{path}: this is not a text file; save the table as CSV.")
    try:
        return content.decode("utf-8-sig"), "UTF-8"
    except UnicodeDecodeError:
        return content.decode("latin-1"), "Latin-1"


def _fields(line: str, separator: str) -> list[str]:
    return next(csv.reader([line], delimiter=separator), [])


def _records(lines: list[str], start: int, separator: str, width: int) -> Iterator[tuple[list[str], str, str]]:
    """Fields, raw text and what is wrong, of each record; a quote that is not closed costs its own line alone."""
    end = len(lines) - (lines[-1] == "")
    while start < end:
        reader = csv.reader((lines[k] + "\n" for k in range(start, end)), delimiter=separator, strict=True)
        used = 0
        while start + used < end:
            try:
                cells = next(reader)
            except csv.Error:
                cells = [""] * (width + 1)
                broken = True
            else:
                broken = reader.line_num > used + 1 and len(cells) != width
            if broken:
                yield [], lines[start + used], "a quote is out of place or not closed"
                used += 1
                break
            raw = (
                lines[start + used]
                if reader.line_num == used + 1
                else "\n".join(lines[start + used : start + reader.line_num])
            )
            used = reader.line_num
            yield _fitted(cells, width, raw)
        start += used


def _fitted(cells: list[str], width: int, raw: str) -> tuple[list[str], str, str]:
    if len(cells) > width and any(cells[width:]):
        return [], raw, f"{len(cells)} fields, but the header has {width}"
    return [cell.strip() for cell in cells[:width]] + [""] * (width - len(cells)), raw, ""
