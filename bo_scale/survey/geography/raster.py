"""Square cells over a region, and what is predicted at their centres."""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from pyproj import CRS

from bo_scale.survey.mapping.exceedance import Exceeding

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Raster:
    """Square cells over the bounds of a region; rows from north to south, as images have them.

    Attributes:
        left: Western edge, metres.
        top: Northern edge, metres.
        size: Of a cell, metres.
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
        """Of cells within the region, `count × 2`, row by row."""
        rows, columns = np.nonzero(self.inside)
        return np.stack([self.left + (columns + 0.5) * self.size, self.top - (rows + 0.5) * self.size], -1)

    def image(self, values: Array) -> Array:
        """Values of the cells within, in their places; NaN elsewhere: rows × columns."""
        filled = np.full(self.inside.shape, np.nan)
        filled[self.inside] = values
        return filled


@dataclass(frozen=True)
class Prediction:
    """What is predicted at the cells of a raster, in the user's units.

    Attributes:
        raster: Where.
        mean: Of every cell within, in the order of `raster.centres`.
        sd: Its standard deviation.
        exceedance: Probability that the value is above the threshold; None without one.
        threshold: In the user's units.
        quantity: Name of what was measured: the column.
        said: What a reader should know, a sentence each.
        exceeding: How much of the area is above the threshold; None where nobody asked.
    """

    raster: Raster
    mean: Array
    sd: Array
    exceedance: Array | None = None
    threshold: float | None = None
    quantity: str = "value"
    said: list[str] = field(default_factory=list)
    exceeding: Exceeding | None = None
