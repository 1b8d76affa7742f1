"""What is predicted at the centres of cells."""

from dataclasses import dataclass, field

from bo_scale.survey.geography.raster import Array, Raster
from bo_scale.survey.mapping.exceedance import Exceeding


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
        notes: What a reader should know, a sentence each.
        exceeding: How much of the area is above the threshold; None where nobody asked.
    """

    raster: Raster
    mean: Array
    sd: Array
    exceedance: Array | None = None
    threshold: float | None = None
    quantity: str = "value"
    notes: list[str] = field(default_factory=list)
    exceeding: Exceeding | None = None
