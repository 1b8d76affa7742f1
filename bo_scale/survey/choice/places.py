"""Candidate places, and the sites chosen among them."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from pyproj import CRS
from scipy.spatial import cKDTree
from torch import Tensor

from bo_scale.survey.geography.globe import in_space, on_ground, straight

Array = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]
SAME = 0.05
"""Metres within which places are the same: tables are rounded."""


@dataclass(frozen=True)
class Places:
    """The candidates in metres, the rules which of them may be chosen, and their coordinates in the model.

    Attributes:
        candidates: Candidates, `M × 2`.
        taken: Measured and pending sites, `t × 2`, each set with the least distance from it, metres.
        spacing: Least distance between sites of the batch, metres; 0 for none.
        repeats: Times that a candidate may be chosen.
        inside: Test whether refined places may be used; None if only candidates may.
        reach: Distance between neighbouring candidates, metres; the first refinement looks as far.
        to_model: Map from metres to the model's coordinates.
        there: Sites, `u × 2`, that each use up one choice of the candidate at the same place.
        crs: Metric coordinate system of all places; None for a plane.
    """

    candidates: Array
    taken: list[tuple[Array, float]]
    spacing: float
    repeats: int
    inside: Callable[[Array], npt.NDArray[np.bool_]] | None
    reach: float
    to_model: Callable[[Array], Tensor]
    there: Array = field(default_factory=lambda: np.empty((0, 2)))
    crs: CRS | None = None

    def in_space(self, xy: Array) -> Array:
        """Return places in coordinates whose straight lines are distances; see `globe.in_space`."""
        return xy if self.crs is None else in_space(xy, self.crs)

    def used(self) -> Counts:
        """Return how often each candidate counts as chosen before the batch."""
        if not len(self.there):
            return np.zeros(len(self.candidates), dtype=np.int64)
        found = cKDTree(self.in_space(self.there)).query_ball_point(
            self.in_space(self.candidates), SAME, return_length=True
        )
        return np.asarray(found, dtype=np.int64)

    def apart(self, xy: Array, others: Array) -> float:
        """Return the distance of a place, `1 × 2`, to the nearest of others, metres; infinite without any."""
        line = float(_distances(self.in_space(xy), self.in_space(others)).min())
        return line if self.crs is None else on_ground(line, self.crs)

    def open(self, used: Counts, chosen: Array) -> npt.NDArray[np.bool_]:
        """Return which candidates may be chosen: not used up, and far enough from all sites."""
        return (used < self.repeats) & self.far(self.candidates, chosen)

    def far(self, xy: Array, chosen: Array) -> npt.NDArray[np.bool_]:
        """Return which places keep the distance from all sites, measured and chosen."""
        kept, at = np.ones(len(xy), dtype=bool), None
        for others, least in (*self.taken, (chosen, self.spacing)):
            if least > 0:
                at = self.in_space(xy) if at is None else at
                line = least if self.crs is None else straight(least, self.crs)
                kept &= _distances(at, self.in_space(others)) >= line
        return kept


def _distances(xy: Array, others: Array) -> Array:
    """Return distances to the nearest of the others; infinite without any."""
    return cKDTree(others).query(xy)[0] if len(others) else np.full(len(xy), np.inf)


@dataclass(frozen=True)
class Choice:
    """A site chosen.

    Attributes:
        xy: Coordinates, metres.
        candidate: Its number among the candidates; −1 for a refined site.
        score: Score by the objective when it was chosen.
    """

    xy: Array
    candidate: int
    score: float
