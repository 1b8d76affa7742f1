"""The empirical variogram of measurements: half the mean square of differences, by distance or by time between them.

G. Matheron. Principles of geostatistics. Economic Geology 58, 1963. Variances of errors that are known are subtracted,
and pairs count the less the larger these are.
"""

from dataclasses import dataclass, replace
from math import inf

import numpy as np
import numpy.typing as npt
from scipy.spatial import cKDTree
from scipy.spatial.distance import pdist

from bo_scale.survey.mapping.fit import Fit
from bo_scale.survey.mapping.sites import Sites

Array = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]
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
        distance: Mean distance of each bin, metres, or mean time between measurements.
        semivariance: Semivariance of each, in squared units of the model's scale, without known errors.
        pairs: Number of pairs of each.
        bearing: Direction of the pairs, within 22.5 degrees; None for all.
        beside: Mean time between the measurements of pairs; of a variogram in time their mean distance, metres.
    """

    distance: Array
    semivariance: Array
    pairs: npt.NDArray[np.int64]
    bearing: float | None = None
    beside: float = 0.0


def variogram_of(sites: Sites, fit: Fit, sill: float, bearing: float | None = None, within: float = inf) -> Variogram:
    """Return the empirical variogram of measurements, or of those that stand for counts.

    Args:
        sites: The measurements.
        fit: The fit, which knows the globe.
        sill: Variance of the quantity, by which pairs with large errors are told.
        bearing: Direction of the pairs, degrees clockwise from north; None for all.
        within: The longest time between the measurements of a pair, if there are times.
    """
    inputs = sites.xy if fit.stretch is not None else fit.in_space(sites.xy)
    first, second, apart = _pairs(inputs)
    longest = REACH * float(np.linalg.norm(np.ptp(inputs, axis=0)))
    kept = (apart > 0) & (apart <= longest)
    lags = np.zeros(len(first)) if fit.time is None else _lags(sites, first, second)
    kept &= lags <= within
    if bearing is not None:
        east, north = (sites.xy[first] - sites.xy[second]).T
        turn = np.abs((np.degrees(np.arctan2(east, north)) - bearing + 90) % 180 - 90)
        kept &= turn <= 22.5
    found = _binned(sites, sill, first[kept], second[kept], apart[kept], longest)
    return replace(found, bearing=bearing, beside=float(lags[kept].mean()) if kept.any() else 0.0)


def variogram_in_time(sites: Sites, fit: Fit, sill: float, within: float) -> Variogram:
    """Return the same by the time between measurements, which its `distance` is then.

    Args:
        sites: The measurements, with their times.
        fit: The fit.
        sill: Variance of the quantity.
        within: The longest distance between the measurements of a pair, metres.
    """
    first, second, apart = _pairs(fit.in_space(sites.xy))
    lags = _lags(sites, first, second)
    longest = REACH * float(lags.max(initial=0.0))
    kept = (apart <= within) & (lags > 0) & (lags <= longest)
    found = _binned(sites, sill, first[kept], second[kept], lags[kept], longest)
    return replace(found, beside=float(apart[kept].mean()) if kept.any() else 0.0)


def _pairs(inputs: Array) -> tuple[Rows, Rows, Array]:
    """Return pairs of places, by their rows, and how far they are apart: of all, or of a sample with the nearest."""
    rows = np.sort(np.random.default_rng(0).permutation(len(inputs))[:SAMPLED])
    first, second = (rows[side] for side in np.triu_indices(len(rows), 1))
    apart = pdist(inputs[rows])
    if len(inputs) > SAMPLED:
        near, around = cKDTree(inputs).query(inputs[rows], NEAR + 1)
        apart = np.concatenate([apart, near[:, 1:].ravel()])
        first = np.concatenate([first, np.repeat(rows, NEAR)])
        second = np.concatenate([second, around[:, 1:].ravel()])
    return first, second, apart


def _lags(sites: Sites, first: Rows, second: Rows) -> Array:
    """Return the times between the measurements of pairs; the first covariate is the time."""
    assert sites.covariates is not None, "of a field with time"
    times = sites.covariates[:, 0]
    return np.abs(times[first] - times[second])


def _binned(sites: Sites, sill: float, first: Rows, second: Rows, apart: Array, longest: float) -> Variogram:
    """Return semivariances of pairs by how far they are apart, in bins up to the longest."""
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
    return Variogram(distance[shown], found[shown], counts[shown].astype(np.int64))
