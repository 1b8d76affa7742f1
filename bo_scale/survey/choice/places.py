"""Candidate places, and the sites chosen among them."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from scipy.spatial import cKDTree
from torch import Tensor

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
    """

    candidates: Array
    taken: list[tuple[Array, float]]
    spacing: float
    repeats: int
    inside: Callable[[Array], npt.NDArray[np.bool_]] | None
    reach: float
    to_model: Callable[[Array], Tensor]
    there: Array = field(default_factory=lambda: np.empty((0, 2)))

    def used(self) -> Counts:
        """Return how often each candidate counts as chosen before the batch."""
        if not len(self.there):
            return np.zeros(len(self.candidates), dtype=np.int64)
        found = cKDTree(self.there).query_ball_point(self.candidates, SAME, return_length=True)
        return np.asarray(found, dtype=np.int64)

    def open(self, used: Counts, chosen: Array) -> npt.NDArray[np.bool_]:
        """Return which candidates may be chosen: not used up, and far enough from all sites."""
        return (used < self.repeats) & self.far(self.candidates, chosen)

    def far(self, xy: Array, chosen: Array) -> npt.NDArray[np.bool_]:
        """Return which places keep the distance from all sites, measured and chosen."""
        kept = np.ones(len(xy), dtype=bool)
        for others, least in (*self.taken, (chosen, self.spacing)):
            if least > 0:
                kept &= _distances(xy, others) >= least
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
