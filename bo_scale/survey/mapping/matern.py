"""Matérn's correlation, for arrays and for tensors whose gradient is asked for."""

from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq
from torch import Tensor

Array = npt.NDArray[np.float64]
LEFT = 0.05
"""Correlation that is left at the practical range."""


def matern(nu: float, r: Array) -> Array:
    """Return the correlation at distances in lengthscales, for ν of 0.5, 1.5 or 2.5.

    C. E. Rasmussen, C. K. I. Williams, Gaussian Processes for Machine Learning, 2006, (4.17).
    """
    if nu == 0.5:
        return np.asarray(np.exp(-r))
    a = (2 * nu) ** 0.5 * r
    return np.asarray((1 + a if nu == 1.5 else 1 + a + np.square(a) / 3) * np.exp(-a))


def matern_of(nu: float, r: Tensor) -> Tensor:
    """Return the same of a tensor. For autograd, which `functionals.profiles` work around in place."""
    if nu == 0.5:
        return (-r).exp()
    a = (2 * nu) ** 0.5 * r
    return (1 + a if nu == 1.5 else 1 + a + a.square() / 3) * (-a).exp()


def matern_and_slope(nu: float, r: Array) -> tuple[Array, Array]:
    """Return the correlation, and its derivative by the logarithm of the lengthscale."""
    if nu == 0.5:
        found = np.exp(-r)
        return found, r * found
    a = (2 * nu) ** 0.5 * r
    fall = np.exp(-a)
    slope = np.square(a) * fall
    return ((1 + a) * fall, slope) if nu == 1.5 else ((1 + a) * fall + slope / 3, (1 + a) * slope / 3)


@lru_cache
def practical(nu: float) -> float:
    """Return the distance, in lengthscales, at which 5 % of the correlation is left."""
    return float(brentq(lambda r: float(matern(nu, np.array(r))) - LEFT, 0.1, 20.0))
