"""Sections of a report: paragraphs, tables and figures, which a page and a text show."""

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Facts:
    """Names and values, a few of each.

    Attributes:
        pairs: Name and value.
    """

    pairs: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Grid:
    """A table.

    Attributes:
        header: Names of its columns.
        rows: Cells, as they are shown.
        words: Number of the first columns that are words, not numbers.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: int = 1


@dataclass(frozen=True)
class Figure:
    """A drawing, which a text leaves out.

    Attributes:
        svg: The drawing.
        caption: What it shows.
    """

    svg: str
    caption: str


Block = str | Facts | Grid | Figure
"""A paragraph, or one of these."""


@dataclass(frozen=True)
class Section:
    """A part of a report.

    Attributes:
        title: Its heading.
        blocks: Its content, in order.
        name: Name by which it is found on a page.
    """

    title: str
    blocks: Sequence[Block]
    name: str = field(default="")


def text_of(title: str, sections: Sequence[Section]) -> str:
    """Return sections as text for a terminal."""
    lines = [title]
    for section in sections:
        lines += ["", section.title, "-" * len(section.title)]
        for block in section.blocks:
            lines += _lines(block)
    return "\n".join(lines)


def _lines(block: Block) -> list[str]:
    """Return the lines of a block."""
    if isinstance(block, str):
        return [block]
    if isinstance(block, Facts):
        wide = max((len(name) for name, _ in block.pairs), default=0)
        return [f"  {name:<{wide}}  {value}" for name, value in block.pairs]
    if isinstance(block, Figure):
        return []
    every = [block.header, *block.rows]
    widths = [max(len(row[k]) for row in every) for k in range(len(block.header))]
    return ["  " + "  ".join(_padded(row, widths, block.words)).rstrip() for row in every]


def _padded(row: Sequence[str], widths: Sequence[int], words: int) -> list[str]:
    cells = zip(row, widths, strict=True)
    return [f"{cell:<{wide}}" if k < words else f"{cell:>{wide}}" for k, (cell, wide) in enumerate(cells)]
