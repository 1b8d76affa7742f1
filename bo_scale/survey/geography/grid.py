"""Square cells over the bounds of a region, and their parts: a million cells of billions fit into memory."""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from pyproj import CRS

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Grid:
    """Square cells in rows from north to south.

    Attributes:
        left: Western edge, metres.
        top: Northern edge, metres.
        size: Width of a cell, metres.
        rows: Number of rows.
        columns: Number of columns.
        crs: Metric.
    """

    left: float
    top: float
    size: float
    rows: int
    columns: int
    crs: CRS

    @classmethod
    def over(cls, bounds: tuple[float, float, float, float], size: float, crs: CRS) -> "Grid":
        """Return the cells of a width that cover bounds (left, bottom, right, top), in the middle of these."""
        left, bottom, right, top = bounds
        rows, columns = (max(1, math.ceil(extent / size)) for extent in (top - bottom, right - left))
        return cls((left + right - columns * size) / 2, (bottom + top + rows * size) / 2, size, rows, columns, crs)

    def x(self, part: slice = slice(None)) -> Array:
        """Return the middles of columns, metres."""
        columns = np.arange(*part.indices(self.columns), dtype=np.float64)
        return np.asarray(self.left + (columns + 0.5) * self.size)

    def y(self, part: slice = slice(None)) -> Array:
        """Return the middles of rows, metres."""
        rows = np.arange(*part.indices(self.rows), dtype=np.float64)
        return np.asarray(self.top - (rows + 0.5) * self.size)

    def parts(self, side: int) -> list[tuple[slice, slice]]:
        """Return rows and columns of parts of so many cells along a side, or fewer at the southern and eastern edge."""
        rows, columns = (
            [slice(start, min(start + side, count)) for start in range(0, count, side)]
            for count in (self.rows, self.columns)
        )
        return [(row, column) for row in rows for column in columns]
