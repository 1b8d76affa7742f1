"""Rules for the size of a grid."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any, TypeGuard

import torch
from jaxtyping import Float
from torch import Tensor

from bo_scale.errors import GridError
from bo_scale.gp.weight_space.features.grid.features import DENSE_ROOT, GridFeatures
from bo_scale.gp.weight_space.features.grid.interpolation import Grid

Sizes = int | Sequence[int] | Sequence[int | Sequence[int] | None] | None
"""Points per dimension: one number, one per dimension, or either for each summand of a kernel; None to choose."""

MAX_DIMENSIONS = 4
"""Maximum number of dimensions of a grid."""
AUTOMATIC_POINTS = 1 << 16
"""Maximum number of points of an automatically chosen grid."""
TOLERATED_SHARE = 0.01
"""Share of the noise variance above which interpolation error causes a warning; chosen grids stay below it."""
MANY = 1000
"""Number of observations from which lengthscales count as known."""
HEADROOM = 2
"""Factor by which lengthscales may shrink before a chosen grid breaks the rule, if affordable. A fit mistakes structure
that the grid does not resolve for noise, and would never refine the grid."""
LONGEST = 400
"""Maximum number of points in one of several dimensions whose errors are computed; more would take seconds."""
CHOSEN_WORK = 1e9
"""Largest p b² (b nodes in three planes) of a grid chosen for a Matérn-1/2 kernel, for which no grid meets the rule."""
_LADDER = [6, 7, 8, 9, 10, 12, 14, 16, 18, 20, 22, 25, 28, 32, 36, 40, 45, 50, 56, 64, 72, 80, 90, 100, 112, 128, 144]
_LADDER += [160, 180, 200, 225, 256, 288, 320, 360, 400, 450, 512, 576, 640, 720, 800, 900, 1024]


def default_grid_size(d: int, n: int) -> int:
    """Return points per dimension while lengthscales are unknown; more data resolve shorter ones."""
    few, many = {1: (64, 256), 2: (30, 40), 3: (14, 16), 4: (8, 10)}[d]
    return few if n < MANY else many


def least_size(d: int, n: int) -> int:
    """Return the smallest number of points per dimension; few data may show long lengthscales by chance."""
    return default_grid_size(d, n=0) if n < MANY else default_grid_size(d, n=0) // 2


def is_nested(grid_size: Sizes) -> TypeGuard[Sequence[int | Sequence[int] | None]]:
    """Whether sizes are given per summand."""
    return isinstance(grid_size, Sequence) and not all(isinstance(m, Integral) for m in grid_size)


def sizes_of(grid_size: Sizes, count: int, d: int, n: int) -> list[tuple[int, ...]]:
    """Return the points per dimension of every summand's grid."""
    given: list[Any] = list(grid_size) if is_nested(grid_size) else [grid_size] * count
    if len(given) != count:
        raise GridError(f"grid_size: {len(given)} sizes for a kernel of {count} summands. Give one for each.")
    sizes = []
    for size in given:
        every: Any = size if isinstance(size, Sequence) else (default_grid_size(d, n) if size is None else size,) * d
        if not all(isinstance(m, Integral) for m in every):
            raise GridError(f"grid_size={size!r}: expected one int, or a tuple with an int for each dimension.")
        sizes.append(tuple(int(m) for m in every))
        if len(sizes[-1]) != d:
            raise GridError(
                f"grid_size: {len(sizes[-1])} numbers for {d} dimensions. Give one for each; for a sum of kernels, "
                f"give a tuple for each summand."
            )
    return sizes


def memory_needed(sizes: Sequence[Sequence[int]], rank: int) -> float:
    """Return roughly the gigabytes needed for the statistics with room to grow, Λ, and intermediate results."""
    points = [math.prod(size) for size in sizes]
    couplings = (sum(points) ** 2 - sum(p**2 for p in points)) / 2
    return 8e-9 * 4 * couplings + sum(_memory_of_one(size, rank) for size in sizes)


def _memory_of_one(size: Sequence[int], rank: int) -> float:
    d, p = len(size), math.prod(size)
    s = min(p, rank)
    pairs = 0.5 * min(max(size), 2 * s ** (1 / d)) ** 2
    contracted = p**2 if d == 1 else 3 * pairs * math.prod(4 * m for m in sorted(size)[1:])
    return 8e-9 * (4 * 4**d * p + 8 * s**2 + contracted + 2 * min(p * s, DENSE_ROOT))


def require_memory(sizes: Sequence[Sequence[int]], rank: int, max_memory: float) -> None:
    """Refuse grids that are too large.

    Raises:
        GridError: if the grids need more memory than allowed; the message says how much.
    """
    needed = memory_needed(sizes, rank)
    if needed > max_memory:
        shown = sizes[0] if len(sizes) == 1 else list(sizes)
        raise GridError(
            f"grid_size={shown}: {sum(math.prod(size) for size in sizes)} points may need {needed:.1f} GB, above "
            f"max_memory={max_memory}; choose a smaller grid_size, or raise max_memory."
        )


@dataclass(frozen=True)
class Resolution:
    """Interpolation errors of grids of any size over one box, for one kernel.

    Attributes:
        ladders: For every dimension, sizes with their mean interpolation error as a share of the prior variance.
        share: The target error of one dimension, as a share of the prior variance.
        exponential: Whether the kernel is a Matérn-1/2, for which no grid meets the rule.
    """

    ladders: list[list[tuple[int, float]]]
    share: float
    exponential: bool

    @classmethod
    @torch.no_grad()
    def of(cls, features: GridFeatures, error: float) -> "Resolution":
        """Compute the errors of a kernel until a target error is met, shared equally by all dimensions.

        The error of each dimension falls with the same power of the spacing, so equal shares give the smallest grid.
        O(Σ m³) over the sizes tried.

        Args:
            features: Interpolation on any grid over the box, with the kernel.
            error: The target error, in squared units of f.
        """
        d = len(features.grid.size)
        variance = features.kernel_variance(torch.zeros(1, d, dtype=torch.float64, device=features.device)).item()
        share = error / variance / d
        longest = _LADDER[-1] if d == 1 and not features.exponential else LONGEST
        ladder = [m for m in _LADDER if m <= longest]
        return cls([_errors(features, axis, ladder, share) for axis in range(d)], share, features.exponential)

    def smallest_size(self, max_points: int = AUTOMATIC_POINTS) -> tuple[int, ...]:
        """Return points per dimension of the smallest grid that meets the error, even for lengthscales half as long.

        If that takes more than `max_points`, first this reserve is given up, then accuracy. For Matérn-1/2 kernels the
        cost of a banded Cholesky is a further limit.
        """
        share, headroom = self.share, float(HEADROOM)
        while True:
            size = tuple(next((m for m, e in found if e <= share), found[-1][0]) for found in self.ladders)
            size = tuple(math.ceil(headroom * (m - 3)) + 3 for m in size)
            smallest = all(m <= found[0][0] for m, found in zip(size, self.ladders, strict=True))
            if smallest or _affordable(size, max_points, self.exponential):
                return size
            headroom, share = max(1.0, headroom / 1.1), share if headroom > 1 else share * 1.25


def _affordable(size: tuple[int, ...], max_points: int, exponential: bool) -> bool:
    points = math.prod(size)
    work = points * (3 * points // max(size)) ** 2
    return points <= max_points and (not exponential or len(size) > 3 or work <= CHOSEN_WORK)


def _errors(features: GridFeatures, axis: int, ladder: Sequence[int], enough: float) -> list[tuple[int, float]]:
    """Return sizes of one dimension with their mean error as a share of the prior variance, until it is low enough."""
    found = []
    for m in ladder:
        size = tuple(m if i == axis else 4 for i in range(len(features.grid.size)))
        grid = replace(features.grid, size=size)
        found.append((m, replace(features, grid=grid, ancestors=()).error.of_axis(axis)))
        if found[-1][1] <= enough:
            break
    return found


def aligned(grid: Grid, lower: Sequence[float], upper: Sequence[float]) -> Grid:
    """Extend a grid by whole cells until it covers a larger box, so that old nodes stay nodes."""
    before = [max(0, math.ceil((lo - new) / h - 1e-9)) for lo, new, h in zip(grid.lower, lower, grid.spacing)]
    after = [max(0, math.ceil((new - hi) / h - 1e-9)) for hi, new, h in zip(grid.upper, upper, grid.spacing)]
    return Grid(
        tuple(lo - k * h for lo, k, h in zip(grid.lower, before, grid.spacing)),
        tuple(hi + k * h for hi, k, h in zip(grid.upper, after, grid.spacing)),
        tuple(m + a + b for m, a, b in zip(grid.size, before, after)),
    )


def around(grid: Grid, other: Grid) -> Grid:
    """Extend a grid by whole cells until it interpolates at all nodes of another."""
    inner = zip(grid.spacing, other.lower, other.upper, other.spacing, strict=True)
    lower, upper = zip(*[(lo - step + h, hi + step - h) for h, lo, hi, step in inner], strict=True)
    return aligned(grid, lower, upper)


def corners(bounds: Float[Tensor, "2 d"]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the lower and upper corner of a box."""
    lower, upper = bounds.detach().to(torch.float64).sort(0).values.tolist()
    return tuple(lower), tuple(upper)
