"""Kernels of maps, their priors, and the unit of lengthscales."""

from collections.abc import Sequence

import numpy as np
import torch
from botorch.models.transforms import Normalize
from gpytorch.constraints import GreaterThan
from gpytorch.kernels import AdditiveKernel, Kernel, MaternKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.priors import LogNormalPrior
from torch import Tensor

Box = tuple[float, float, float, float]
"""West, south, east, north, metres."""
SMOOTHNESS = {"matern12": 0.5, "matern32": 1.5, "matern52": 2.5}
"""ν of the kernels by name."""
TWO_SCALES = "two-scale"
KERNELS = ("auto", *SMOOTHNESS, TWO_SCALES)
FLOOR = 1e-6
"""Least variance, in units of the values' variance: equal values would have none."""


def square_box(box: Box, others: int = 0, further: int = 0) -> Normalize:
    """Return the map to a square with the box in it, which leaves so many other inputs as they are.

    All axes keep one unit, so lengthscales can be compared; so do further coordinates of places, in metres about zero.
    """
    west, south, east, north = box
    side = max(east - west, north - south)
    low, high = [west, south] + [0.0] * further, [west + side, south + side] + [side] * further
    return _first(torch.tensor([low, high], dtype=torch.float64), others)


def cube(radius: float, others: int = 0) -> Normalize:
    """Return the map to a unit cube with the globe in it: lengthscales are in diameters of the earth."""
    return _first(torch.tensor([[-radius] * 3, [radius] * 3], dtype=torch.float64), others)


def _first(bounds: Tensor, others: int) -> Normalize:
    width = bounds.shape[-1]
    return Normalize(width + others, bounds=bounds, indices=list(range(width)) if others else None)


def noise_likelihood() -> GaussianLikelihood:
    """Return the likelihood of measurements whose errors are not known."""
    floor = GreaterThan(FLOOR, transform=None, initial_value=0.1)
    return GaussianLikelihood(noise_prior=about(0.2), noise_constraint=floor)


def map_kernel(name: str, grids: list[list[int]], isotropic: bool, places: Sequence[int] | None = None) -> Kernel:
    """Return the kernel of a name. Lengthscales are at least a cell of their grid, in units of the longer side.

    Args:
        name: One of `KERNELS` but "auto".
        grids: Points a dimension of the grid of every summand; none for an exact model.
        isotropic: Whether there is one lengthscale for all directions.
        places: Inputs that it is of; None for all.
    """
    cells = [1 / max(size) for size in grids] or [0.0, 0.0]
    if name != TWO_SCALES:
        return _part(SMOOTHNESS[name], 0.2, 1.0, cells[0], isotropic, places)
    parts = (0.5, 0.05, 0.3, cells[0]), (0.5, 0.2, 0.7, cells[1])
    return AdditiveKernel(*(_part(*part, isotropic, places) for part in parts))


def _part(
    nu: float, lengthscale: float, variance: float, shortest: float, isotropic: bool, places: Sequence[int] | None
) -> ScaleKernel:
    """Return a Matérn kernel with priors about where it starts."""
    longer = GreaterThan(shortest, transform=None, initial_value=max(lengthscale, 1.01 * shortest))
    base = MaternKernel(
        nu,
        ard_num_dims=1 if isotropic else 2,
        active_dims=None if places is None else tuple(places),
        lengthscale_prior=about(lengthscale),
        lengthscale_constraint=longer if shortest else None,
    )
    kernel = ScaleKernel(base, outputscale_prior=about(variance), outputscale_constraint=GreaterThan(FLOOR))
    kernel.base_kernel.lengthscale, kernel.outputscale = max(lengthscale, 1.01 * shortest), variance
    return kernel


def about(value: float) -> LogNormalPrior:
    """Return a log-normal prior whose mode is at a value; a standard deviation is a factor of e. Fits go for modes.

    The mode lies below the median, by a factor of e^(s²): with the median there, fits would go for shorter lengthscales
    and less noise, and few sites would be overfitted.
    """
    return LogNormalPrior(float(np.log(value)) + 1.0, 1.0)
