"""Predictions at the cells of a raster."""

from dataclasses import dataclass, field

from bo_scale.survey.geography.raster import Array, Raster
from bo_scale.survey.mapping.exceedance import Exceeding


@dataclass(frozen=True, eq=False)
class Intervals:
    """95 % intervals at the cells of a raster, in the user's units.

    Attributes:
        quantity: Lower and upper ends of the intervals of the quantity.
        measured: Lower and upper ends of the intervals of a new measurement.
    """

    quantity: tuple[Array, Array]
    measured: tuple[Array, Array]


@dataclass(frozen=True, eq=False)
class Values:
    """What is predicted at places, in the user's units.

    Attributes:
        mean: Means.
        sd: Standard deviations.
        exceedance: Probabilities that the value is above a threshold; None without one.
        intervals: Intervals of the quantity and of new measurements, if they were asked for.
    """

    mean: Array
    sd: Array
    exceedance: Array | None = None
    intervals: Intervals | None = None

    @property
    def bands(self) -> list[Array]:
        """All of them, in the order of the bands of a raster."""
        ends = [] if self.intervals is None else [*self.intervals.quantity, *self.intervals.measured]
        return [self.mean, self.sd, *([] if self.exceedance is None else [self.exceedance]), *ends]


@dataclass(frozen=True, eq=False)
class Prediction:
    """Predictions at the cells of a raster, in the user's units.

    Attributes:
        raster: The cells.
        mean: Mean of every cell within, in the order of `raster.centres`.
        sd: Standard deviation of every cell.
        exceedance: Probability that the value is above the threshold; None without one.
        threshold: The threshold; None without one.
        quantity: Name of what was measured: the column.
        notes: Sentences that a reader should know.
        exceeding: Parts of the area above the threshold; None without one.
        intervals: Intervals of the quantity and of new measurements, if they were asked for.
        anisotropy: How much farther correlation reaches along an axis, and its bearing in degrees; None without one.
        date: Date that is predicted, as a text; empty for a survey without time.
        limits: Values of the first and the last colour of mean and sd, where other maps have the same colours.
    """

    raster: Raster
    mean: Array
    sd: Array
    exceedance: Array | None = None
    threshold: float | None = None
    quantity: str = "value"
    notes: list[str] = field(default_factory=list)
    exceeding: Exceeding | None = None
    intervals: Intervals | None = None
    anisotropy: tuple[float, float] | None = None
    date: str = ""
    limits: dict[str, tuple[float, float]] = field(default_factory=dict)
