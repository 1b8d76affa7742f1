"""The grids of a WISKI: their box, features and state, how well they resolve a kernel, and which others would do."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from botorch.models.transforms.input import InputTransform
from jaxtyping import Float
from torch import Tensor

from bo_scale.errors import GridError, InvalidDataError
from bo_scale.gp.weight_space.features.base import FeatureMap
from bo_scale.gp.weight_space.features.grid.features import GridFeatures, SpectralFeatures, grid_parts
from bo_scale.gp.weight_space.features.grid.interpolation import Basis, Grid
from bo_scale.gp.weight_space.features.grid.prior import KernelFactors
from bo_scale.gp.weight_space.features.projection import ProjectedFeatures, width
from bo_scale.gp.weight_space.features.sums import SumFeatures
from bo_scale.models.errors import UnsupportedError
from bo_scale.models.wiski.grid_sizes import (
    AUTOMATIC_POINTS,
    MAX_DIMENSIONS,
    TOLERATED_SHARE,
    Resolution,
    aligned,
    around,
    corners,
    least_size,
    memory_needed,
)

BASES: tuple[Basis, ...] = ("spline", "keys")

Corners = tuple[tuple[float, ...], tuple[float, ...]]
"""Lower and upper corner of a box."""
Grids = tuple[GridFeatures, ...]
"""Features of the grids of one output, one per summand of the kernel."""


@dataclass(frozen=True)
class GridChoice:
    """The grids of a model.

    Attributes:
        grids: The grids, one per summand of the kernel.
        basis: Basis of the interpolation.
        ancestors: Earlier grids with data that the single present grid lacks, latest first.
    """

    grids: tuple[Grid, ...]
    basis: Basis
    ancestors: tuple[Grid, ...] = ()

    @classmethod
    def of_state(cls, state: Tensor) -> "GridChoice":
        """Read a choice from its `state`.

        Raises:
            InvalidDataError: if it is of another layout.
        """
        if state.ndim != 3 or state.shape[1] != 5:
            raise InvalidDataError(
                "state_dict: another version of this package wrote its grid, in another layout. Fit the model anew."
            )
        found: tuple[list[Grid], list[Grid]] = ([], [])
        for lower, upper, size, _, earlier in state.tolist():
            found[int(earlier[0])].append(Grid(tuple(lower), tuple(upper), tuple(int(m) for m in size)))
        return cls(tuple(found[0]), BASES[int(state[0, 3, 0])], tuple(found[1]))

    def state(self) -> Float[Tensor, "g 5 d"]:
        """Return the choice as a tensor: for each grid rows lower, upper, size, basis, and 1 for an earlier grid."""
        basis = BASES.index(self.basis)
        rows = [
            [grid.lower, grid.upper, grid.size, [basis] * len(grid.size), [earlier] * len(grid.size)]
            for grids, earlier in ((self.grids, 0), (self.ancestors, 1))
            for grid in grids
        ]
        return torch.tensor(rows, dtype=torch.float64)

    def features(
        self,
        kernels: Sequence[KernelFactors],
        exponential: Sequence[bool],
        device: torch.device | None,
        negligible: float,
        rank: int | None,
    ) -> FeatureMap:
        """Return interpolation from all grids. Of Matérn-1/2 summands the largest may be by its sparse precision.

        Args:
            kernels: One-dimensional factors of each summand.
            exponential: Whether each is a Matérn-1/2.
            device: As for GridFeatures, and so are the others.
            negligible: The variance below which eigenpairs are left out.
            rank: The largest number of eigenpairs of each grid.
        """
        parts = [
            GridFeatures(grid, kernel, self.basis, device, negligible, rank, rough, self.ancestors)
            for grid, kernel, rough in zip(self.grids, kernels, exponential, strict=True)
        ]
        sparse = max((phi for phi in parts if phi.prior.sparse), key=lambda phi: phi.num_features, default=None)
        every = [  # a rank limits the others
            replace(phi, exponential=False) if phi.exponential and phi is not sparse else phi for phi in parts
        ]
        return every[0] if len(every) == 1 else SumFeatures(tuple(every))

    def with_grids(self, grids: tuple[Grid, ...], keeps_rows: bool) -> "GridChoice":
        """Return the choice after a change of grids. Without rows the present grid becomes an ancestor.

        A grid that inherits data has a few more cells than asked for, so that it interpolates at all old nodes.

        Raises:
            UnsupportedError: if several grids would inherit.
        """
        if keeps_rows:
            return replace(self, grids=grids)
        if len(grids) > 1:
            raise UnsupportedError("several grids cannot change in a model that keeps no data. Use keep_data=True.")
        if grids == self.grids:
            return self
        return replace(self, grids=(around(grids[0], self.grids[0]),), ancestors=(*self.grids, *self.ancestors))


# ------------------------------------------------------------------ the box


@torch.no_grad()
def grid_width(X: Tensor, transform: InputTransform | None, projection: torch.nn.Module | None) -> int:
    """Return the number of dimensions of the grid for raw inputs `n × d`.

    Raises:
        UnsupportedError: if a grid cannot serve so many.
    """
    x = X.new_zeros(1, X.shape[-1]) if len(X) == 0 else X[:1]
    d = width(projection, x if transform is None else transform.preprocess_transform(x))
    if not 1 <= d <= MAX_DIMENSIONS:
        raise UnsupportedError(
            f"train_X: {d} input dimensions; a grid serves 1 to {MAX_DIMENSIONS}. Use GRIEF, SoftKI or CaGP, or "
            f"learn a projection to fewer: projection=LinearProjection({d}, 2)."
        )
    return d


def corners_of(
    bounds: Tensor | None, d: int, num_inputs: int, transform: InputTransform | None, projected: bool
) -> Corners:
    """Return the corners of the box of d-dimensional grids, in units of the transformed inputs, or of the projection.

    Args:
        bounds: Corners `2 × num_inputs` in raw units, or `2 × d` of a projection. None means the unit cube of the
            transformed inputs, or [−1, 1]^d.
        d: Number of dimensions of the grid.
        num_inputs: Number of raw inputs.
        transform: Transform of the inputs.
        projected: Whether the grid is over a projection.

    Raises:
        GridError: if bounds have another shape.
    """
    if bounds is None:
        return ((-1.0,) * d, (1.0,) * d) if projected else ((0.0,) * d, (1.0,) * d)
    width, whose = (d, ", those of the projection") if projected else (num_inputs, "")
    if bounds.shape != (2, width):
        raise GridError(f"bounds: shape {tuple(bounds.shape)}, expected (2, {width}){whose}.")
    return corners(bounds if projected or transform is None else transform.preprocess_transform(bounds))


# ------------------------------------------------------------------ how well grids resolve a kernel


def grids_of(features: FeatureMap) -> Grids:
    """Return the features of the grids in a feature map, one per summand of the kernel."""
    whole = features.base if isinstance(features, ProjectedFeatures) else features
    return tuple(phi.base if isinstance(phi, SpectralFeatures) else phi for phi in grid_parts(whole))


def mean_errors(every: Sequence[FeatureMap]) -> Float[Tensor, " m"]:
    """Return the mean interpolation error of every output; the largest of all if earlier grids saw data."""
    found = []
    for features in every:
        first = grids_of(features)[0]
        earlier = [replace(first, grid=grid, ancestors=()).error.mean() for grid in first.ancestors]
        found.append(torch.stack([mean_error(features), *earlier]).amax())
    return torch.stack(found)


def mean_error(features: FeatureMap) -> Float[Tensor, ""]:
    """Return the mean over the box of the interpolation error, summed over grids."""
    return torch.stack([phi.error.mean() for phi in grids_of(features)]).sum()


def mean_missing_variance(features: FeatureMap) -> Float[Tensor, ""]:
    """Return the mean over the box of the prior variance that weights cannot represent, summed over grids."""
    return torch.stack([phi.error.mean_missing_variance() for phi in grids_of(features)]).sum()


def rank_losses(every: Sequence[FeatureMap]) -> Float[Tensor, " m"]:
    """Return the share of each output's variance lost to truncation; in a sum, parts weigh as much as they vary."""
    found = []
    for grids in map(grids_of, every):
        variances = torch.stack([_variance(phi) for phi in grids])
        found.append((torch.stack([phi.error.rank_loss() for phi in grids]) * variances).sum() / variances.sum())
    return torch.stack(found)


def ranks(features: FeatureMap) -> list[int | None]:
    """Return the number of eigenpairs kept on each grid; None for a sparse precision."""
    return [None if phi.prior.sparse else len(phi.prior.spectrum.pairs) for phi in grids_of(features)]


def removable_share(every: Sequence[Grids], noise: Sequence[float]) -> float:
    """Return the interpolation error that finer grids would remove, as a share of the noise, at any rank.

    Args:
        every: Grids of every output.
        noise: Noise variance of every output.
    """
    shares = [
        _variance(phi).item() * sum(phi.error.of_axis(axis) for axis in range(len(phi.grid.size))) / variance
        for grids, variance in zip(every, noise, strict=True)
        for phi in grids
    ]
    return max(shares) * len(every[0])


def _variance(phi: GridFeatures) -> Float[Tensor, ""]:
    """Return the variance of the kernel."""
    origin = torch.zeros(1, len(phi.grid.size), dtype=torch.float64, device=phi.device)
    return phi.kernel_variance(origin).squeeze(0)


# ------------------------------------------------------------------ other grids


def smallest_sizes(
    every: Sequence[Grids], noise: Sequence[float], n: int, rank: int, max_memory: float
) -> list[tuple[int, ...]]:
    """Return the smallest size of each summand's grid for the most demanding output, within a limit of memory.

    Args:
        every: Grids of every output.
        noise: Noise variance of every output.
        n: Number of observations.
        rank: Largest number of eigenpairs of a grid.
        max_memory: Limit in gigabytes.
    """
    d, points = len(every[0][0].grid.size), AUTOMATIC_POINTS
    least = least_size(d, n)
    resolutions = [
        [Resolution.of(phi, TOLERATED_SHARE * variance / len(grids)) for phi in grids]
        for grids, variance in zip(every, noise, strict=True)
    ]
    while True:
        found = [[resolution.smallest_size(points) for resolution in of_output] for of_output in resolutions]
        sizes = [tuple(max(least, *axis) for axis in zip(*grid, strict=True)) for grid in zip(*found, strict=True)]
        if points < 2 * 6**d or memory_needed(sizes, rank) <= max_memory:
            return sizes
        points //= 2


def worth_changing(grids: Sequence[Grid], sizes: Sequence[tuple[int, ...]], share: float) -> bool:
    """Whether other sizes are worth a change: grids are too coarse, or half as many points would do.

    Args:
        grids: Present grids.
        sizes: Smallest sizes that meet the 1 % rule.
        share: Error of the present grids that finer ones would remove, as a share of the noise.
    """
    smaller = 2 * sum(map(math.prod, sizes)) < sum(grid.num_points for grid in grids)
    return list(sizes) != [grid.size for grid in grids] and (share > TOLERATED_SHARE or smaller)


def on_another_box(
    grids: Sequence[Grid], box: Corners, sizes: Sequence[tuple[int, ...]] | None, keeps_rows: bool
) -> tuple[Grid, ...]:
    """Return grids over another box. Without rows they only grow, by whole cells.

    Args:
        grids: Present grids.
        box: Corners of the box.
        sizes: Sizes of the new grids; None keeps the spacing.
        keeps_rows: Whether statistics can be summed anew.

    Raises:
        GridError: if nodes would be lost without rows.
    """
    if keeps_rows:
        every = [_same_spacing(grid, *box) for grid in grids]
    elif _contains(*box, grids[0]):
        every = [aligned(grid, *box) for grid in grids]
        box = every[0].lower, every[0].upper
    else:
        raise GridError("bounds: without rows a grid can only grow. Widen the bounds, or use keep_data=True.")
    return tuple(every) if sizes is None else tuple(Grid(*box, size) for size in sizes)


def _contains(lower: tuple[float, ...], upper: tuple[float, ...], grid: Grid) -> bool:
    """Whether a box contains a grid's box."""
    sides = zip(lower, upper, grid.lower, grid.upper, grid.spacing, strict=True)
    return all(lo <= inner + 1e-9 * h and outer - 1e-9 * h <= hi for lo, hi, inner, outer, h in sides)


def _same_spacing(grid: Grid, lower: tuple[float, ...], upper: tuple[float, ...]) -> Grid:
    """Return a grid over another box whose cells are no larger."""
    cells = [math.ceil((hi - lo) / h - 1e-9) for lo, hi, h in zip(lower, upper, grid.spacing)]
    return Grid(lower, upper, tuple(max(4, c + 3) for c in cells))
