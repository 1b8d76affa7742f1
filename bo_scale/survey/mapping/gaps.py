"""Gaps between sites, where the nearest ones lie on one side of a place."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy.spatial import cKDTree

from bo_scale.survey.mapping.fit import Fit
from bo_scale.survey.mapping.knots import Knots
from bo_scale.survey.mapping.local import spacing_of
from bo_scale.survey.mapping.nearest import Nearest
from bo_scale.survey.mapping.sites import Sites

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Gaps:
    """Gaps between sites, and what is inferred there; found once, for any number of predictions.

    Attributes:
        fit: The fit to the sites.
        sites: The sites.
    """

    fit: Fit
    sites: Sites

    @cached_property
    def least(self) -> float:
        """Distance l from the nearest site beyond which a place is in a gap; 0 where none is, as on the globe.

        It is twice the distance of a typical site from its nearest one; with time at least half a cell of the grid.
        """
        fit = self.fit
        if fit.lies_in_space:
            return 0.0
        least = 2 * spacing_of(fit.in_space(self.sites.xy))
        if fit.time is not None:
            west, south, east, north = fit.within
            least = max(least, (east - west) / fit.grids[0][0] / 2, (north - south) / fit.grids[0][1] / 2)
        return least

    @cached_property
    def tree(self) -> cKDTree:
        """Sites, in the inputs of the model."""
        return cKDTree(self.fit.in_space(self.sites.xy))

    @cached_property
    def knots(self) -> Knots | None:
        """What the nearest sites tell of the field in gaps; None without gaps, and for fields with time."""
        fit, sites = self.fit, self.sites
        if fit.nearest is None or fit.time is not None:
            return None
        columns = None if fit.trend is None else fit.columns(sites.xy, sites.covariates)
        return Nearest(**fit.nearest).knots(fit.in_space(sites.xy), sites.z, sites.variance, columns)

    def weights(self, xy: Array) -> Array:
        """Return how far places are in gaps: 0 nearer to a site than l, 1 from 2 l on, smoothly in between."""
        if self.least == 0:
            return np.zeros(len(xy))
        share = np.clip(self.tree.query(self.fit.in_space(xy))[0] / self.least - 1, 0.0, 1.0)
        return np.asarray(np.square(share) * (3 - 2 * share))
