"""Densities of measurements given all others: they tell which of two forecasts to take.

The nearest sites resolve what a grid does not. Where noise is large, they are too few: hundreds of sites must be
averaged, as the model on a grid does. Which of the two counts more is seen by predicting measurements from the others.
"""

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
ROWS = 10_000
"""Measurements that are left out, one at a time."""
LEAST = 1e-12
"""Least variance of the quantity, and least precision of its prediction from the others, in those of the noise.

A variance of 0 comes where a measurement is known exactly, and 1/v below 1/s from rounding where others tell nothing.
"""


def rows_of(count: int) -> npt.NDArray[np.intp]:
    """Return the measurements that are left out, in order."""
    return np.sort(np.random.default_rng(4).permutation(count)[:ROWS])


def log_densities(forecast: tuple[Array, Array], z: Array, noise: Array) -> Array:
    """Return log densities of measurements given all others, from the posterior of the quantity given all.

    Without a measurement y of noise variance s, a posterior N(m, v) is N(c, t), with 1/t = 1/v − 1/s and
    c = t (m/v − y/s) (C. E. Rasmussen, C. K. I. Williams, Gaussian Processes for Machine Learning, 2006, 5.4.2).

    Args:
        forecast: Means and standard deviations of the quantity at the measurements.
        z: Measurements.
        noise: Variances of their noise.
    """
    mean, variance = forecast[0], np.square(forecast[1])
    t = 1 / np.maximum(1 / np.maximum(variance, LEAST * noise) - 1 / noise, LEAST / noise)
    c = t * (mean / np.maximum(variance, LEAST * noise) - z / noise)
    return np.asarray(-0.5 * np.log(2 * np.pi * (t + noise)) - 0.5 * np.square(z - c) / (t + noise))


def grid_is_better(nearest: Array, grid: Array, sd_nearest: Array, sd_grid: Array) -> bool:
    """Return whether the grid's forecast is to be taken: it is surer, and what it says of those left out is better.

    Args:
        nearest: Log densities by the nearest sites.
        grid: The same by the grid.
        sd_nearest: Standard deviations of the quantity by the nearest sites.
        sd_grid: The same by the grid.
    """
    return bool(np.mean(sd_grid) < np.mean(sd_nearest) and nearest.mean() < grid.mean())
