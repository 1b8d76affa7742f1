"""Delimited text: its lines as records; lines that cannot be one are refused."""

import csv
import re
from collections.abc import Iterator
from os import PathLike
from pathlib import Path

from bo_scale.errors import SurveyError
from bo_scale.survey.tables.records import Records, Refused, clean_name, unescaped

SEPARATORS = ";\t,"
DECLARED = re.compile(r"sep=(.)\s*$", re.IGNORECASE)
"""The first line of some files for Excel, which says what separates."""
ENCODINGS = {"utf-16": "UTF-16", "cp1252": "Windows-1252", "latin-1": "Latin-1"}
"""Names of encodings that are not UTF-8."""
MARKUP = re.compile(r"\s*<(!doctype|html|table|\?xml)", re.IGNORECASE)


def read_delimited(path: str | PathLike[str]) -> Records:
    """Read a file separated by commas, semicolons or tabs. Empty lines are passed over.

    Raises:
        SurveyError: no text, or no rows below a header.
    """
    text, encoding = _decoded(path)
    if MARKUP.match(text):
        raise SurveyError(f"{path}: this is a web page or XML, whatever its name; save the table as CSV or .xlsx.")
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    first, separator = _header(path, lines)
    header = [clean_name(unescaped(name.strip())) for name in _fields(lines[first], separator)]
    records = Records(header, [], [], [], [], separator, encoding)
    for row, (cells, raw, reason) in enumerate(_records(lines, first + 1, separator, len(header)), first + 2):
        if reason:
            records.refused.append(Refused(row, raw, reason))
        elif any(cells):
            records.rows.append(row)
            records.cells.append(cells)
            records.texts.append(raw)
    if not records.rows and not records.refused:
        raise SurveyError(f"{path}: the file has a header but no row below it; add rows.")
    if encoding in ENCODINGS:
        records.notes.append(f"The file is not UTF-8; it was read as {ENCODINGS[encoding]}.")
    return records


def _header(path: str | PathLike[str], lines: list[str]) -> tuple[int, str]:
    """Return the place of the first line that is not empty, and its separator.

    Raises:
        SurveyError: if there is none.
    """
    filled = (k for k, line in enumerate(lines) if line.strip())
    first = next(filled, None)
    declared = None if first is None else DECLARED.match(lines[first])
    if declared:
        first = next(filled, None)
    if first is None:
        raise SurveyError(f"{path}: the file is empty; it needs a header and rows below it.")
    return first, declared[1] if declared else max(SEPARATORS, key=lambda mark: len(_fields(lines[first], mark)))


def _decoded(path: str | PathLike[str]) -> tuple[str, str]:
    """Return the text of a file, and the name of its encoding."""
    content = Path(path).read_bytes()
    if content[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return content.decode("utf-16", errors="replace"), "utf-16"
    if b"\0" in content:
        raise SurveyError(f"{path}: this is not a text file; save the table as CSV or .xlsx.")
    for encoding in ("utf-8", "cp1252"):
        try:
            text = content.decode(encoding)
        except UnicodeDecodeError:
            continue
        return (text[1:], "utf-8-sig") if text.startswith("\ufeff") else (text, encoding)
    return content.decode("latin-1"), "latin-1"


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
    if len(cells) > width and any(cell.strip() for cell in cells[width:]):
        return [], raw, f"{len(cells)} fields, but the header has {width}"
    return [unescaped(cell.strip()) for cell in cells[:width]] + [""] * (width - len(cells)), raw, ""
