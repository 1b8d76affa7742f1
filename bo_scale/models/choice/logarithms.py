"""Whether targets, or their logarithms, are more like values of a Gaussian process."""

import math

from torch import Tensor

from bo_scale.models.choice.kernels import MORE, Data, Fit, KernelFits
from bo_scale.models.choice.plan import Plan

LIKELIER = 0.2
"""Log density of each row left out, in nats, by which logarithms of targets are taken."""
SKEWED = 1.0
"""Skewness above which logarithms are compared unasked, to tell of them."""


def may_be_logarithms(Y: Tensor) -> bool:
    """Return whether targets `n × 1` are positive and skewed."""
    spread = Y.std(unbiased=False)
    return bool((Y > 0).all() and spread > 0 and ((Y - Y.mean()) / spread).pow(3).mean() > SKEWED)


def are_likelier(gain: float, rows: int) -> bool:
    """Return whether logarithms gain enough: `LIKELIER` nats for each row, and five in all."""
    return gain > max(LIKELIER, MORE / rows)


def gain_of_logarithms(data: Data, fit: Fit, plan: Plan) -> float:
    """Return by how many nats, for each row left out, Gaussian noise of logarithms of the targets is likelier.

    Amounts, counts and sizes are often skewed: their large values are no outliers, and their logarithms have none. For
    counts with zeros half the least amount is added. The density of y is that of log y, divided by y. O(n³)

    Args:
        data: The rows, with targets of any sign.
        fit: A fit to the targets themselves.
        plan: The plan that is fitted to their logarithms.

    Returns:
        -inf if targets have both signs, are all zero, or if the fit failed.
    """
    X, Y, _ = data
    if fit.score.failure or Y.min() < 0 < Y.max() or not Y.any():
        return -math.inf
    logs = logarithms(Y)
    found = KernelFits((X, logs, None))(plan)
    if found.score.failure:
        return -math.inf
    units = Y.std().log() - logs.std().log() - logs.mean()  # densities are of standardised values
    return found.density + units.item() - fit.density


def logarithms(Y: Tensor) -> Tensor:
    """Return logarithms of the sizes of targets. If some are zero, half the least other is added to all."""
    sizes = Y.abs()
    return (sizes + (0 if sizes.all() else sizes[sizes > 0].min() / 2)).log()
