"""Square cells over a region."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from pyproj import CRS

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Raster:
    """Square cells over the bounds of a region; rows from north to south, as images have them.

    Attributes:
        left: Western edge, metres.
        top: Northern edge, metres.
        size: Width of a cell, metres.
        inside: rows × columns: whether a cell's centre lies in the region.
        crs: Metric.
    """

    left: float
    top: float
    size: float
    inside: npt.NDArray[np.bool_]
    crs: CRS

    @property
    def count(self) -> int:
        """Cells within the region."""
        return int(self.inside.sum())

    @property
    def centres(self) -> Array:
        """Centres of cells within the region, `count × 2`, row by row."""
        rows, columns = np.nonzero(self.inside)
        return np.stack([self.left + (columns + 0.5) * self.size, self.top - (rows + 0.5) * self.size], -1)

    def image(self, values: Array) -> Array:
        """Return values of the cells within in their places, NaN elsewhere: rows × columns."""
        filled = np.full(self.inside.shape, np.nan)
        filled[self.inside] = values
        return filled
