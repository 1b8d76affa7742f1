"""Records of a table, whatever kind of file it came from, and the dialect in which tables are written."""

import re
import unicodedata
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Refused:
    """A row that cannot be used.

    Attributes:
        row: Its number as a spreadsheet counts: the header is row 1.
        text: The row as it stands in the file.
        reason: The reason.
        fields: Its cells, in the order of the columns; none if they could not be told apart.
        content: Its cells by their columns, as JSON, by which it is known again; empty if they are not known.
        site: Its id, if that is not known and the row needs it for its place; empty else.
        key: What it is known by if its numbers can be used, as JSON; empty else.
    """

    row: int
    text: str
    reason: str
    fields: tuple[str, ...] = field(default=(), compare=False)
    content: str = field(default="", compare=False)
    site: str = field(default="", compare=False)
    key: str = field(default="", compare=False)


@dataclass(frozen=True)
class Dialect:
    """The way in which delimited text is written.

    Attributes:
        separator: Comma, semicolon or tab.
        decimal: Point or comma.
        encoding: Encoding, by Python's name; "utf-8-sig" has a byte-order mark.
    """

    separator: str = ","
    decimal: str = "."
    encoding: str = "utf-8"

    @property
    def settings(self) -> dict[str, Any]:
        """The dialect as JSON can hold it."""
        return {"separator": self.separator, "decimal": self.decimal, "encoding": self.encoding}


@dataclass(frozen=True)
class Records:
    """Records of a table.

    Attributes:
        header: Names of its columns.
        rows: Number of each record, as a spreadsheet counts.
        cells: Fields of each record; missing ones at its end are empty.
        texts: The record as it stands in the file; of a workbook, its cells with tabs between them.
        refused: Records that cannot be read, such as one with too many fields.
        separator: Between fields; empty for a workbook.
        encoding: Encoding of the file, by Python's name.
        typed: For each record of a workbook, the places of cells that are numbers, not text that looks like some.
            Empty for delimited text.
        notes: Sentences on how the file was read.
    """

    header: list[str]
    rows: list[int]
    cells: list[list[str]]
    texts: list[str]
    refused: list[Refused]
    separator: str = ","
    encoding: str = "utf-8"
    typed: list[frozenset[int]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def column(self, name: str) -> list[str]:
        """Return the cells of a column, by its name."""
        place = self.header.index(name)
        return [cells[place] for cells in self.cells]

    def is_typed(self, record: int, name: str) -> bool:
        """Return whether a cell is a number of a workbook."""
        return bool(self.typed) and self.header.index(name) in self.typed[record]

    def dialect(self, decimal: str) -> Dialect:
        """Return the way in which the file was written; that of programs for a workbook.

        Args:
            decimal: Its decimal mark, a comma or a point.
        """
        return Dialect(self.separator, decimal, self.encoding) if self.separator else Dialect()


def clean_name(name: str) -> str:
    """Return the name of a column without blanks that nobody sees, and with one form of accented letters."""
    return " ".join(unicodedata.normalize("NFC", name).split())


FORMULA = re.compile(r"'[=+\-@\t\r]")
"""The beginning of a text that was kept from being run as a formula."""


def unescaped(cell: str) -> str:
    """Return a cell without the apostrophe that keeps a spreadsheet from running it as a formula."""
    return cell[1:] if FORMULA.match(cell) else cell


def escaped(cell: str) -> str:
    """Return a text such that no spreadsheet runs it as a formula; numbers stay as they are."""
    if not cell.startswith(("=", "+", "-", "@", "\t", "\r")):
        return cell
    try:
        float(cell.replace(",", "."))
    except ValueError:
        return f"'{cell}"
    return cell
