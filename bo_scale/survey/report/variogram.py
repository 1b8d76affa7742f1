"""The empirical variogram of measurements: half the mean square of differences, by distance.

G. Matheron. Principles of geostatistics. Economic Geology 58, 1963. Variances of errors that are known are subtracted,
and pairs count the less the larger these are.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.spatial import cKDTree
from scipy.spatial.distance import pdist

from bo_scale.survey.mapping.fit import Fit
from bo_scale.survey.mapping.sites import Sites

Array = npt.NDArray[np.float64]
SAMPLED, NEAR = 1500, 12
"""Measurements all of whose pairs are taken, drawn at random, and nearest ones of each that are taken too."""
BINS, POWER = 16, 1.5
"""Bins of distance, which grow with a power of their number."""
REACH = 0.5
"""The longest distance, in diagonals of the sites' box."""
FEWEST = 15
"""Pairs of a bin that is shown, at least."""


@dataclass(frozen=True)
class Variogram:
    """Semivariances by distance.

    Attributes:
        distance: Mean distance of each bin, metres.
        semivariance: Semivariance of each, in squared units of the model's scale, without known errors.
        pairs: Number of pairs of each.
        bearing: Direction of the pairs, within 22.5 degrees; None for all.
    """

    distance: Array
    semivariance: Array
    pairs: npt.NDArray[np.int64]
    bearing: float | None = None


def variogram_of(sites: Sites, fit: Fit, sill: float, bearing: float | None = None) -> Variogram:
    """Return the empirical variogram of measurements, or of those that stand for counts.

    Args:
        sites: The measurements.
        fit: The fit, which knows the globe.
        sill: Variance of the quantity, by which pairs with large errors are told.
        bearing: Direction of the pairs, degrees clockwise from north; None for all.
    """
    rows = np.sort(np.random.default_rng(0).permutation(len(sites.z))[:SAMPLED])
    first, second = (rows[side] for side in np.triu_indices(len(rows), 1))
    inputs = sites.xy if fit.stretch is not None else fit.in_space(sites.xy)
    apart = pdist(inputs[rows])
    if len(sites.z) > SAMPLED:
        near, around = cKDTree(inputs).query(inputs[rows], NEAR + 1)
        apart = np.concatenate([apart, near[:, 1:].ravel()])
        first = np.concatenate([first, np.repeat(rows, NEAR)])
        second = np.concatenate([second, around[:, 1:].ravel()])
    longest = REACH * float(np.linalg.norm(np.ptp(inputs, axis=0)))
    kept = (apart > 0) & (apart <= longest)
    if bearing is not None:
        east, north = (sites.xy[first] - sites.xy[second]).T
        turn = np.abs((np.degrees(np.arctan2(east, north)) - bearing + 90) % 180 - 90)
        kept &= turn <= 22.5
    first, second, apart = first[kept], second[kept], apart[kept]
    errors = np.zeros(len(sites.z)) if sites.variance is None else sites.variance
    own = (errors[first] + errors[second]) / 2
    weight = 1 / np.square(1 + own / max(sill, 1e-300))
    half = np.square(sites.z[first] - sites.z[second]) / 2 - own
    edges = longest * (np.arange(1, BINS + 1) / BINS) ** POWER
    place = np.minimum(np.searchsorted(edges, apart), BINS - 1)
    counts, total = np.bincount(place, minlength=BINS), np.bincount(place, weight, minlength=BINS)
    shown = counts >= FEWEST
    with np.errstate(invalid="ignore", divide="ignore"):
        distance = np.bincount(place, weight * apart, minlength=BINS) / total
        found = np.bincount(place, weight * half, minlength=BINS) / total
    return Variogram(distance[shown], found[shown], counts[shown].astype(np.int64), bearing)
