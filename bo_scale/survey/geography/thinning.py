"""Some places that stand for many."""

import numpy as np
import numpy.typing as npt
import torch

Array = npt.NDArray[np.float64]


def thinned(xy: Array, weights: Array, most: int, generator: torch.Generator) -> tuple[Array, Array]:
    """Return places with weights, or of many some that stand for them, drawn systematically along a curve through all.

    Each is drawn as often as its share of `most`, or once more or less, and neighbours instead of one another.
    """
    if len(xy) <= most:
        return xy, weights
    order = np.argsort(_along(xy), kind="stable")
    ends = weights[order].cumsum()
    at = (np.arange(most) + float(torch.rand((), generator=generator))) / most * ends[-1]
    drawn = order[np.minimum(np.searchsorted(ends, at, side="right"), len(xy) - 1)]
    kept, count = np.unique(drawn, return_counts=True)
    return xy[kept], count * (ends[-1] / most)


def gathered(xy: Array, count: int) -> tuple[Array, Array]:
    """Return the means of the places in each of some square cells, and how many they are.

    Where they fill their box there are about `count` cells. Unlike a few places drawn at random they stand for an area
    evenly.

    Args:
        xy: Places, `n × 2`, metres.
        count: Number of cells, about.
    """
    span = np.ptp(xy, axis=0)
    side = max(float(np.sqrt(np.prod(span) / count)), float(span.max()) / count, 1e-9)
    _, cell, number = np.unique((xy - xy.min(0)) // side, axis=0, return_inverse=True, return_counts=True)
    cell = cell.reshape(-1)
    means = np.stack([np.bincount(cell, column) / number for column in xy.T], -1)
    return means, number.astype(np.float64)


def _along(xy: Array) -> npt.NDArray[np.int64]:
    """Return the position of places, in two or three dimensions, along a Z-order curve of 2¹⁶ cells a side."""
    low, side = xy.min(0), max(float(np.ptp(xy, axis=0).max()), 1e-9)
    cell = ((xy - low) / side * 65535).astype(np.int64)
    d = xy.shape[1]
    bits = [(cell >> k & 1) << d * k for k in range(16)]
    return np.asarray(sum(bit[:, j] << j for bit in bits for j in range(d)), dtype=np.int64)
