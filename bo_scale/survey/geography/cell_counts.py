"""Numbers of cells that a map can have, and the memory they take."""

import math

from bo_scale.errors import SurveyError

MANY_CELLS = 25_000_000
"""Cells in and around a region, at most. If its parts lie far apart, it has fewer of its own than asked for."""
MOST_TILED = 10_000_000_000
"""The same of a raster that is made by tiles."""
TILED = "make them by tiles in a GeoTIFF (predict --workers 2)"
CELL_BYTES = 500
"""Bytes that a prediction at a cell takes until it is written, about; measured with 10⁶ cells."""


def require_cell_count(count: int | None) -> None:
    """Refuse a number of cells that no map has; None is the default number.

    Raises:
        SurveyError: if it is below 1 or above `MANY_CELLS`; the message says how much memory that would take.
    """
    if count is not None and count < 1:
        raise SurveyError(f"cells={count}: give a number from 1 to {MANY_CELLS:,} (--cells).")
    if count is not None and count > MANY_CELLS:
        raise SurveyError(
            f"cells={count:,} (--cells): {_too_many(float(count))} Give at most {MANY_CELLS:,}, {_most()}, or {TILED}."
        )


def require_cell_size(size: float, area: float) -> None:
    """Refuse a width of cells that is no width, or of which too many would cover an area.

    Args:
        size: Width, metres.
        area: Square metres.

    Raises:
        SurveyError: saying how wide cells must be at least, and how much memory the number of cells would take.
    """
    if not (math.isfinite(size) and size > 0.0):
        raise SurveyError(f"size={size:g}: give a positive width of a cell in metres (--size).")
    if (count := area / size**2 if size > 1e-150 else math.inf) > MANY_CELLS:
        least = float(f"{math.sqrt(area / MANY_CELLS) * 1.005:.2g}")
        raise SurveyError(
            f"size={size:g} (--size): {_too_many(count)} Give at least {least:g} metres, for {MANY_CELLS:,} cells, "
            f"{_most()}, or {TILED}."
        )


def require_tiled(
    count: int | None, size: float | None, area: float, bounds: tuple[float, float, float, float]
) -> float:
    """Return the width of cells of a raster that is made by tiles, metres.

    Args:
        count: Number of cells, about.
        size: Or their width, metres.
        area: Square metres.
        bounds: Left, bottom, right and top of the area, metres.

    Raises:
        SurveyError: unless one of both is given, for numbers that are none, or for more than `MOST_TILED` cells.
    """
    if (count is None) == (size is None):
        raise SurveyError("cells, size: give either a number of cells (--cells) or their width in metres (--size).")
    if count is not None and count < 1:
        raise SurveyError(f"cells={count}: give a number from 1 (--cells).")
    if size is not None and not (math.isfinite(size) and size > 0.0):
        raise SurveyError(f"size={size:g}: give a positive width of a cell in metres (--size).")
    width = size if size is not None else math.sqrt(area / (count or 1))
    left, bottom, right, top = bounds
    if (around := (right - left) * (top - bottom)) > MOST_TILED * width**2:
        least = float(f"{math.sqrt(around / MOST_TILED) * 1.005:.2g}")
        raise SurveyError(
            f"cells of {width:g} m: a raster of {around / width**2:.3g} cells in and around the area is too large. "
            f"Give at least {least:g} metres (--size), for {MOST_TILED:,} cells, or split the area."
        )
    return width


def _too_many(count: float) -> str:
    memory = count * CELL_BYTES
    return f"{count:.3g} cells would take about {memory / 1e9:,.0f} GB of memory, which is too much."


def _most() -> str:
    return f"which take about {MANY_CELLS * CELL_BYTES / 1e9:.0f} GB"
