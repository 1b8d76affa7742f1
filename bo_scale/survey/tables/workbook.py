"""Workbooks (.xlsx): a sheet as records, and a table as a sheet."""

import datetime
from collections.abc import Iterable
from contextlib import closing
from io import BytesIO
from os import PathLike
from types import ModuleType
from typing import Any
from zipfile import BadZipFile

import pandas as pd

from bo_scale.errors import MissingDependencyError, SurveyError
from bo_scale.survey.tables.records import Records, Refused, clean_name

MANY = 15
"""Digits of whole numbers that are exact."""
Cell = str | int | float | bool | datetime.datetime | datetime.date | datetime.time | datetime.timedelta | None


def read_workbook(path: str | PathLike[str], sheet: str | None = None) -> Records:
    """Read a sheet of a workbook: numbers and dates as they are kept, formulas as they were last computed.

    Args:
        path: The file.
        sheet: Name of the sheet; None for the first one that is not hidden.

    Raises:
        SurveyError: no workbook, no such sheet, or no rows below a header.
        MissingDependencyError: if openpyxl is not installed.
    """
    grid, notes = _grid(path, sheet, computed=True)
    filled = [(row, cells) for row, cells in enumerate(grid, start=1) if any(_text(cell) for cell in cells)]
    if not filled:
        raise SurveyError(" ".join([f"{path}: the sheet is empty; it needs a header and rows below it.", *notes]))
    header = [clean_name(_text(cell)) for cell in filled[0][1]]
    while not header[-1]:
        header.pop()
    records = Records(header, [], [], [], [], separator="", notes=notes)
    formulas = _formulas(path, sheet, len(header)) if any(None in cells for _, cells in filled[1:]) else {}
    for row, cells in filled[1:]:
        texts = [_text(cell) for cell in cells]
        raw = "\t".join(texts).rstrip("\t")
        if any(texts[len(header) :]):
            width = max(place for place, text in enumerate(texts, start=1) if text)
            records.refused.append(Refused(row, raw, f"{width} fields, but the header has {len(header)}"))
            continue
        lost = [header[place] for place in sorted(formulas.get(row, ())) if place >= len(cells) or cells[place] is None]
        if lost:
            what = f"the formula in {lost[0]} has no stored value; open the file in a spreadsheet and save it there"
            records.refused.append(Refused(row, raw, what))
            continue
        records.rows.append(row)
        records.cells.append((texts + [""] * len(header))[: len(header)])
        records.texts.append(raw)
        records.typed.append(frozenset(place for place, cell in enumerate(cells) if _is_number(cell)))
    if not records.rows and not records.refused:
        raise SurveyError(" ".join([f"{path}: the sheet has a header but no row below it; add rows.", *notes]))
    return records


def workbook_of(table: pd.DataFrame, path: str | PathLike[str]) -> bytes:
    """Return a table as a workbook of one sheet: numbers as numbers, and texts never as formulas.

    Args:
        table: The table.
        path: The file that it is for, for messages.

    Raises:
        MissingDependencyError: if openpyxl is not installed.
    """
    book = require_openpyxl(path).Workbook()
    page = book.active
    page.title = "plan"
    page.freeze_panes = "A2"
    for row, cells in enumerate([list(table.columns), *table.itertuples(index=False)], start=1):
        for column, value in enumerate(cells, start=1):
            if isinstance(value, str):
                _set_text(page.cell(row, column), value)
            elif value is not None and value == value:
                page.cell(row, column, value.item() if hasattr(value, "item") else value)
    for column, name in enumerate(table.columns, start=1):
        page.column_dimensions[page.cell(1, column).column_letter].width = max(12, len(str(name)) + 2)
    content = BytesIO()
    book.save(content)
    return content.getvalue()


def _set_text(cell: Any, text: str) -> None:
    """Set a text that is marked as text, so that no spreadsheet takes it for a formula; empty ones are left out."""
    if text:
        cell.value = text
        cell.data_type = "s"
        cell.quotePrefix = text.startswith(("=", "+", "-", "@"))


def require_openpyxl(path: str | PathLike[str]) -> ModuleType:
    """Return the package that reads and writes workbooks.

    Args:
        path: The workbook, for the message.

    Raises:
        MissingDependencyError: if the package is not installed.
    """
    try:
        import openpyxl
    except ImportError as error:
        raise MissingDependencyError(
            f"{path}: openpyxl is not installed, and workbooks (.xlsx) need it: pip install 'bo_scale[survey]'. "
            "Or use CSV."
        ) from error
    return openpyxl


def _grid(path: str | PathLike[str], sheet: str | None, computed: bool) -> tuple[list[tuple[Cell, ...]], list[str]]:
    """Return the cells of a sheet, and notes about which one it is.

    Args:
        path: The file.
        sheet: Name of the sheet, or None.
        computed: Whether formulas are the values that were stored with them, else their texts.
    """
    openpyxl = require_openpyxl(path)
    try:
        with closing(openpyxl.load_workbook(path, read_only=True, data_only=computed)) as book:
            page, notes = _sheet(path, book.worksheets, sheet)
            page.reset_dimensions()  # some programs write wrong ones
            return [tuple(cells) for cells in page.iter_rows(values_only=True)], notes
    except (BadZipFile, KeyError, ValueError, OSError, openpyxl.utils.exceptions.InvalidFileException) as error:
        if isinstance(error, SurveyError):
            raise
        raise SurveyError(
            f"{path}: this is not a workbook that can be read ({error}); save the table as CSV or .xlsx."
        ) from error


def _sheet(path: str | PathLike[str], pages: Iterable[Any], name: str | None) -> tuple[Any, list[str]]:
    """Return the sheet of a name, or the first one that is not hidden, and notes."""
    every = list(pages)
    names = [page.title for page in every]
    if name is not None:
        found = [page for page in every if page.title.strip() == name.strip()]
        if not found:
            raise SurveyError(f"{path}: there is no sheet {name}; pass one of these (--sheet): {', '.join(names)}.")
        return found[0], []
    shown = [page for page in every if page.sheet_state == "visible"] or every
    if not shown:
        raise SurveyError(f"{path}: the workbook has no sheet of cells; save the table as CSV or .xlsx.")
    if len(shown) == 1:
        return shown[0], []
    others = ", ".join(page.title for page in shown[1:])
    return shown[0], [f"The first sheet, {shown[0].title}, was read. There are others: {others} (--sheet)."]


def _formulas(path: str | PathLike[str], sheet: str | None, width: int) -> dict[int, set[int]]:
    """Return the places of formulas in each row that has some."""
    found = {}
    for row, cells in enumerate(_grid(path, sheet, computed=False)[0], start=1):
        places = {k for k, cell in enumerate(cells[:width]) if isinstance(cell, str) and cell.startswith("=")}
        if places:
            found[row] = places
    return found


def _is_number(cell: Cell) -> bool:
    return isinstance(cell, int | float) and not isinstance(cell, bool)


def _text(cell: Cell) -> str:
    """Return a cell as text: whole numbers without a point, dates as in ISO 8601."""
    if cell is None:
        return ""
    if isinstance(cell, float):
        return str(int(cell)) if cell.is_integer() and abs(cell) < 10**MANY else repr(cell)
    if isinstance(cell, datetime.datetime):
        return str(cell.date() if cell.time() == datetime.time() else cell)
    if isinstance(cell, datetime.date | datetime.time):
        return cell.isoformat()
    return str(cell).strip()
