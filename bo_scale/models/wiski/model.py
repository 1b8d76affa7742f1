"""WISKI: structured kernel interpolation whose update cost does not depend on the number of observations."""

import math
from dataclasses import replace

import torch
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.models.utils.gpytorch_modules import get_covar_module_with_dim_scaled_prior
from botorch.utils.types import DEFAULT, _DefaultType
from gpytorch.kernels import AdditiveKernel, Kernel
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, Likelihood
from gpytorch.means import Mean
from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from bo_scale.errors import GridError, InterpolationWarning, InvalidArgumentError, InvalidDataError
from bo_scale.gp.weight_space.features.base import FeatureMap
from bo_scale.gp.weight_space.features.grid.features import GridFeatures
from bo_scale.gp.weight_space.features.grid.interpolation import Basis, Grid
from bo_scale.gp.weight_space.features.projection import (
    LinearProjection,
    ProjectedFeatures,
    in_double,
    width,
)
from bo_scale.gp.weight_space.features.sums import SumFeatures
from bo_scale.gp.weight_space.forgetting import Forgetting
from bo_scale.gp.weight_space.inherited_statistics import inherited
from bo_scale.gp.weight_space.predictive_variance import InterpolationVariance
from bo_scale.models.errors import UnsupportedError
from bo_scale.models.fitting.strategies import EvidenceFit, Fitting, FollowGrid
from bo_scale.models.shell.cloning import clone_module
from bo_scale.models.shell.kernels import (
    KernelProduct,
    as_product_kernel,
    as_sum_of_products,
    is_exponential,
    summands_of,
)
from bo_scale.models.shell.weight_space import Missing, WeightSpaceModel, correction_of
from bo_scale.models.wiski.grid_sizes import (
    AUTOMATIC_POINTS,
    TOLERATED_SHARE,
    Resolution,
    Sizes,
    aligned,
    around,
    corners,
    is_nested,
    least_size,
    memory_needed,
    require_memory,
    sizes_of,
)

MAX_DIMENSIONS = 4
MAX_RANK = 2048
"""Default limit on the rank of the prior; an evaluation of the evidence then takes about a second."""
_BASES: tuple[Basis, ...] = ("spline", "keys")
NEGLIGIBLE_SHARE = 1e-8
"""Share of the noise variance below which an eigenpair of the prior is dropped; dropped pairs add up to about 1e-6."""
CHOSEN_NEGLIGIBLE_SHARE = 1e-6
"""The same share when the grid is chosen, by a rule of 1 %: about 1e-4 in total. Evaluations take half as long."""


class WISKI(WeightSpaceModel):
    """An online GP on a grid. One more observation costs O(p s) for p grid points and rank s ≤ p, whatever n is.

    k(x, x') ≈ φ(x)ᵀ S φ(x') with local cubic interpolation φ and S = k_UU over a Cartesian grid. The data enter only
    through additive statistics. `fit_gpytorch_mll` fits the hyperparameters; the cost of the evidence and its gradient
    does not depend on n. The grid serves one to four dimensions.

    Matérn kernels are *products* of one-dimensional factors here, and `covar_module` holds that product. GPyTorch's
    Matérn kernel is radial; the two differ by 30-50 % in posterior variance at d = 3. For RBF kernels they agree.

    After a fit, `interpolation_error` measures how well the grid resolves the kernel. The fit warns if it is not small
    compared with the noise.

    Args:
        train_X: Inputs `n × d`, in raw units.
        train_Y: Observations `n × m`. Each output has its own hyperparameters.
        train_Yvar: Known noise variances `n × m`. None to learn the noise.
        bounds: `2 × d` corners of the domain in raw units, mapped through `input_transform`. None means the unit cube
            after the transform. Points may lie up to one grid cell outside.
        grid_size: Grid points per dimension: one number for all dimensions or one each. One cell of margin on each
            side is included. For a sum of kernels, give one of these per summand. None chooses the size: first from d
            and n, then in every fit the smallest grid whose interpolation error is below 1 % of the noise variance,
            up to 65,536 points and `max_memory`.
        covar_module: RBF, Matérn 1/2, 3/2, 5/2, periodic, and products and scalings of these, with their priors and
            constraints; in d = 1 also spectral mixtures. In a sum of these each summand has its own grid, fine for
            rough summands and coarse for smooth ones (in d = 1 only if `grid_size` gives several sizes). None means
            BoTorch's default, an RBF with a prior scaled by d.
        mean_module: ConstantMean (default) or ZeroMean.
        likelihood: GaussianLikelihood, or FixedNoiseGaussianLikelihood for known variances.
        input_transform: As for SingleTaskGP. Its parameters must be fixed, not learned.
        outcome_transform: As for SingleTaskGP: Standardize by default, None for none. It is learned once, from
            `train_Y`.
        rank: Maximum number of eigenpairs of the grid prior to keep. None keeps all that are not negligible, at most
            2048. With s of them the evidence costs O(s³), whatever the number of grid points. The truncation error is
            part of `interpolation_error`; `rank_loss` reports it alone. Matérn-1/2 kernels in one and two dimensions
            need no truncation: their sparse precision matrix is factorised directly.
        basis: "spline" (cubic B-splines, C²) or "keys" (the paper's cubic convolution). At equal cost the spline's
            posterior mean is closer to the exact GP's: 4-5 times for RBF kernels at two cells per lengthscale, 10 times
            at four; 1.2 and 2 times for Matérn-5/2. For Matérn-1/2 they agree within 7 %, and "keys" is worth a try.
        conservative: Account for the interpolation error: add its mean to the noise, and its value at each point to
            predicted variances.
        missing_variance: Diagonal correction as in FITC: add k(x, x) − φ(x)ᵀ S φ(x), where positive, to predicted
            variances. "few" adds it only while there are no more observations than the prior has rank: the number of
            grid points, or `rank` if smaller. It adds less than `conservative`, which also covers interpolation errors
            in covariances. Choose at most one of the two.
        keep_data: False keeps only the statistics. Memory is then constant and `train_inputs` empty.
        max_memory: Memory limit in gigabytes; a grid that needs more is refused.
        decay: Forgetting factor, in (0, 1], for functions that change over time: each new observation multiplies the
            weight of every earlier one by it. The likelihood is Π_i N(y_i | f(x_i), σ²D_i)^ω_i with
            ω_i = decay^(n−1−i) in order of arrival; rows of one call count as consecutive. About 1/(1 − decay)
            observations count at any time. The model follows the data near these; elsewhere it reverts to the prior.
            With forgetting, one more observation costs O(s³). Fantasies and batched conditioning, including look-ahead
            acquisition functions, age nothing: they ask what values observed *now* would teach.
        projection: A map h to fewer dimensions, for inputs with more dimensions than a grid serves. The function is
            then f(h(x)), and `bounds` are those of h: `2 × k`, with None meaning [−1, 1]^k. A `LinearProjection(d, k)`
            is copied, normalised over the training inputs, initialised from inputs and targets, and learned with all
            other hyperparameters by the evidence. Any other module is copied and learned as it is, with its
            normalisation layers in eval mode. Parameters without `requires_grad` stay fixed, and so do all parameters
            if `keep_data` is False. Many parameters overfit a few hundred rows: with few rows, fix them by
            `projection.requires_grad_(False)` and let `OnlineLearner` adapt them.

    Raises:
        GridError: if the grid would need more memory than `max_memory`, or data lie outside it.
        UnsupportedKernelError: if the kernel has no factor for each dimension.

    References:
        S. Stanton, W. Maddox, I. Delbridge, A. G. Wilson. Kernel interpolation for scalable online Gaussian processes.
        AISTATS 2021. arXiv:2103.01454.

    Example:
        >>> X = torch.rand(200, 2, dtype=torch.float64)
        >>> model = WISKI(X, (6 * X).sin().sum(-1, keepdim=True), grid_size=16)
        >>> model = model.condition_on_observations(X[:1], torch.zeros(1, 1, dtype=torch.float64))
        >>> model.posterior(X[:3]).mean.shape
        torch.Size([3, 1])
    """

    def __init__(
        self,
        train_X: Tensor,
        train_Y: Tensor,
        train_Yvar: Tensor | None = None,
        bounds: Tensor | None = None,
        grid_size: Sizes = None,
        covar_module: Kernel | None = None,
        mean_module: Mean | None = None,
        likelihood: Likelihood | None = None,
        input_transform: InputTransform | None = None,
        outcome_transform: OutcomeTransform | _DefaultType | None = DEFAULT,
        basis: Basis = "spline",
        conservative: bool = False,
        missing_variance: Missing = False,
        keep_data: bool = True,
        max_memory: float = 4.0,
        rank: int | None = None,
        decay: float = 1.0,
        projection: torch.nn.Module | None = None,
    ) -> None:
        if basis not in _BASES:
            raise InvalidArgumentError(f"basis={basis!r}: choose 'spline' or 'keys'.")
        if rank is not None and rank < 1:
            raise InvalidArgumentError(f"rank={rank}: at least 1, or None.")
        if not 0 < decay <= 1:
            raise InvalidArgumentError(f"decay={decay}: above 0 and at most 1, which forgets nothing.")
        if conservative and missing_variance:
            raise InvalidArgumentError(
                "conservative, missing_variance: choose one; both add variance for the same error."
            )
        super().__init__(
            train_X,
            train_Y,
            train_Yvar,
            mean_module,
            likelihood,
            input_transform,
            outcome_transform,
            check_scaling=covar_module is None and bounds is None and projection is None,
        )
        self.projection = self._adopted(projection)
        d = self._grid_width(train_X)
        self._basis: Basis = basis
        self._rank = MAX_RANK if rank is None else rank
        self._conservative, self._forgetting = conservative, Forgetting(decay)
        self._extra = InterpolationVariance() if conservative else correction_of(missing_variance)
        if covar_module is None:
            covar_module = get_covar_module_with_dim_scaled_prior(ard_num_dims=d, batch_shape=self._aug_batch_shape)
        apart = isinstance(covar_module, AdditiveKernel) and (d > 1 or is_nested(grid_size))
        self.covar_module = as_sum_of_products(covar_module, d) if apart else as_product_kernel(covar_module, d)
        summands = summands_of(self.covar_module) if apart else [self.covar_module]
        self._exponential = tuple(projection is None and is_exponential(kernel, d) for kernel in summands)
        self._fitting: Fitting = FollowGrid() if grid_size is None else EvidenceFit()
        self._max_memory = max_memory
        sizes = sizes_of(grid_size, len(summands), d, len(train_X))
        require_memory(sizes, self._rank, max_memory)
        lower, upper = self._corners(bounds, d)
        self._grids = tuple(Grid(lower, upper, size) for size in sizes)
        self._ancestors: tuple[Grid, ...] = ()
        self.to(train_X)
        _ = self.statistics  # refuses points outside the grid here, not at the first use
        if not keep_data:
            if self.projection is not None:
                self.projection.requires_grad_(False)
            self._drop_rows()

    def _adopted(self, projection: torch.nn.Module | None) -> torch.nn.Module | None:
        """Return the model's own copy of a projection."""
        if isinstance(projection, LinearProjection):
            X, Y, _ = self._transformed_rows()
            return projection.for_data(X, Y)
        return None if projection is None else clone_module(projection).eval()

    @torch.no_grad()
    def _grid_width(self, X: Tensor) -> int:
        """Return the number of dimensions of the grid.

        Raises:
            UnsupportedError: if a grid cannot serve so many.
        """
        transform = self._child("input_transform")
        x = X.new_zeros(1, X.shape[-1]) if len(X) == 0 else X[:1]
        d = width(self.projection, x if transform is None else transform.preprocess_transform(x))
        if not 1 <= d <= MAX_DIMENSIONS:
            raise UnsupportedError(
                f"WISKI: {d} input dimensions; a grid serves 1 to {MAX_DIMENSIONS}. Use SingleTaskGP, or learn a "
                f"projection to fewer: projection=LinearProjection({d}, 2)."
            )
        return d

    def _corners(self, bounds: Tensor | None, d: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return the corners of the box in units of the transformed inputs, or of the projection."""
        if self.projection is not None:
            if bounds is not None and bounds.shape != (2, d):
                raise GridError(f"bounds: shape {tuple(bounds.shape)}, expected (2, {d}), those of the projection.")
            return ((-1.0,) * d, (1.0,) * d) if bounds is None else corners(bounds)
        if bounds is None:
            return (0.0,) * d, (1.0,) * d
        if bounds.shape != (2, self._num_inputs):
            raise GridError(f"bounds: shape {tuple(bounds.shape)}, expected (2, {self._num_inputs}).")
        transform = self._child("input_transform")
        return corners(bounds if transform is None else transform.preprocess_transform(bounds))

    @property
    def grid(self) -> Grid:
        """The grid, in units of the transformed inputs; the first if there are several."""
        return self._grids[0]

    @property
    def grids(self) -> tuple[Grid, ...]:
        """The grids, one per summand of the kernel."""
        return self._grids

    @override
    def get_extra_state(self) -> Tensor:
        """Return grids and basis for the state_dict: rows lower, upper, size, basis, and 1 for an earlier grid."""
        basis = _BASES.index(self._basis)
        rows = [
            [grid.lower, grid.upper, grid.size, [basis] * len(grid.size), [earlier] * len(grid.size)]
            for grids, earlier in ((self._grids, 0), (self._ancestors, 1))
            for grid in grids
        ]
        return torch.tensor(rows, dtype=torch.float64)

    @override
    def set_extra_state(self, state: Tensor) -> None:
        """Take the grids of another model's state_dict; statistics are computed anew."""
        if state.ndim != 3 or state.shape[1] != 5:
            raise InvalidDataError("state_dict: its grid is of another version of this package; fit the model anew.")
        found: tuple[list[Grid], list[Grid]] = ([], [])
        for lower, upper, size, _, earlier in state.tolist():
            found[int(earlier[0])].append(Grid(tuple(lower), tuple(upper), tuple(int(m) for m in size)))
        grids, basis = tuple(found[0]), _BASES[int(state[0, 3, 0])]
        ancestors = tuple(found[1]) if self._rows is None else ()  # a pass over the rows needs none
        if (grids, ancestors, basis) != (self._grids, self._ancestors, self._basis):
            self._grids, self._ancestors, self._basis = grids, ancestors, basis
            self._forget_inference()

    @override
    def _feature_map(self, output: int, frozen: bool = False) -> FeatureMap:
        grids = self._grid_features(output, frozen)
        whole = grids[0] if len(grids) == 1 else SumFeatures(grids)
        return whole if self.projection is None else ProjectedFeatures(whole, in_double(self.projection, frozen))

    @override
    def _feature_parameters(self) -> list[torch.nn.Parameter]:
        return [] if self.projection is None else list(self.projection.parameters())

    @override
    def _fixed_state(self) -> set[str]:
        return super()._fixed_state() | {name for name in self.state_dict() if name.startswith("projection.")}

    @override
    def _freeze_transforms(self) -> None:
        super()._freeze_transforms()
        projection = getattr(self, "projection", None)
        if projection is not None:
            projection.eval()

    def _grid_features(self, output: int, frozen: bool = False) -> tuple[GridFeatures, ...]:
        """Return the grid features, one per summand of the kernel."""
        kernel = clone_module(self.covar_module).requires_grad_(False) if frozen else self.covar_module
        kernels = [kernel] if len(self._grids) == 1 else summands_of(kernel)
        negligible, which = self._negligible_variance(output), output if self._num_outputs > 1 else None
        parts = tuple(
            GridFeatures(
                grid,
                KernelProduct(part, which),
                self._basis,
                self._device,
                negligible,
                self._rank,
                exponential,
                self._ancestors,
            )
            for grid, part, exponential in zip(self._grids, kernels, self._exponential, strict=True)
        )
        sparse = max((phi for phi in parts if phi.prior.sparse), key=lambda phi: phi.num_features, default=None)
        return tuple(phi if phi is sparse else replace(phi, exponential=False) for phi in parts)  # a rank limits others

    def _negligible_variance(self, output: int) -> float:
        """Return the variance below which an eigenpair is dropped: a share of a learned noise, 0 if noise is known.

        It does not depend on the data, so that conditioning equals refitting.
        """
        if isinstance(self.likelihood, FixedNoiseGaussianLikelihood):
            return 0.0
        share = CHOSEN_NEGLIGIBLE_SHARE if self._automatic else NEGLIGIBLE_SHARE
        return share * self._noise_scale()[output].item()

    # ------------------------------------------------------------------ interpolation error

    @property
    def interpolation_error(self) -> Float[Tensor, " m"]:
        """The mean interpolation error over the box, for every output: mse(x) = k₀ − 2 φ(x)ᵀ T k_U(x) + φ(x)ᵀ S φ(x).

        It is the prior variance that the grid cannot represent, in squared units of the transformed targets. Compare
        it with the noise variance.
        """
        with torch.no_grad():
            return self._mean_interpolation_variance()

    @property
    def interpolation_share(self) -> float:
        """The largest `interpolation_error` of an output as a share of its noise variance; 0 if `conservative`."""
        if self._conservative:
            return 0.0
        return (self.interpolation_error / self.mean_noise.to(torch.float64)).max().item()

    @property
    def ranks(self) -> list[int | None]:
        """The number of eigenpairs kept on each summand's grid, for the first output; None for a sparse precision."""
        with torch.no_grad():
            return [None if phi.prior.sparse else len(phi.prior.spectrum.pairs) for phi in self._grid_features(0)]

    @property
    def rank_loss(self) -> Float[Tensor, " m"]:
        """The share of the interpolated prior's variance that truncation to `rank` drops, averaged over the box."""
        with torch.no_grad():
            return torch.stack([_rank_loss(self._grid_features(j)) for j in range(self._num_outputs)])

    @torch.no_grad()
    def mean_added_variance(self, output: int) -> Float[Tensor, ""]:
        """Return the variance that predictions add to that of the weights, averaged over the box."""
        grids = self._grid_features(output)
        if self._conservative:
            return torch.stack([phi.error.mean() for phi in grids]).sum()
        if self.adds_variance:
            return torch.stack([phi.error.mean_missing_variance() for phi in grids]).sum()
        return torch.zeros((), dtype=torch.float64, device=self._device)

    def _mean_interpolation_variance(self) -> Float[Tensor, " m"]:
        """Return the mean interpolation error, summed over grids; the largest of all if earlier grids saw data."""
        every = []
        for j in range(self._num_outputs):
            grids = self._grid_features(j)
            errors = [torch.stack([phi.error.mean() for phi in grids]).sum()]
            for earlier in self._ancestors:
                errors.append(replace(grids[0], grid=earlier, ancestors=()).error.mean())
            every.append(torch.stack(errors).amax())
        return torch.stack(every)

    @override
    def _inflation(self) -> Float[Tensor, " m"] | None:
        return self._mean_interpolation_variance() if self._conservative else None

    @override
    def _check_fit(self) -> None:
        share = self.interpolation_share
        if share > TOLERATED_SHARE:
            sizes = self.grid.size if len(self._grids) == 1 else [grid.size for grid in self._grids]
            self._warn_of_fit(
                f"WISKI: interpolation error is {100 * share:.1f} % of the noise variance with grid_size="
                f"{sizes}; predicted variances may be too small. Raise grid_size (or rank: it loses "
                f"{100 * self.rank_loss.max().item():.2g} % of the prior variance), or pass conservative=True.",
                InterpolationWarning,
            )

    # ------------------------------------------------------------------ grids that follow the problem

    @property
    def _automatic(self) -> bool:
        """Whether the grid is chosen, and follows what is fitted."""
        return isinstance(self._fitting, FollowGrid)

    @torch.no_grad()
    def follow_grid(self) -> bool:
        """Take the smallest grids that meet the 1 % rule; return whether the old ones were too coarse.

        Grids that are fine enough stay, unless half as many points would do. Without rows a single grid can still be
        refined, for later observations; several grids cannot change.
        """
        share = self._grid_share()
        if self._rows is None and (len(self._grids) > 1 or share <= TOLERATED_SHARE):
            return False
        sizes = self._smallest_sizes()
        if self._rows is None:
            sizes = [tuple(map(max, size, grid.size)) for size, grid in zip(sizes, self._grids, strict=True)]
        smaller = 2 * sum(map(math.prod, sizes)) < sum(grid.num_points for grid in self._grids)
        if sizes == [grid.size for grid in self._grids] or not (share > TOLERATED_SHARE or smaller):
            return False
        self._take_grids(tuple(replace(grid, size=size) for grid, size in zip(self._grids, sizes, strict=True)))
        return share > TOLERATED_SHARE

    def _grid_share(self) -> float:
        """Return the interpolation error that finer grids would remove, as a share of the noise, at any rank."""
        shares = []
        for j, noise in enumerate(self.mean_noise.tolist()):
            origin = torch.zeros(1, len(self.grid.size), dtype=torch.float64, device=self._device)
            for phi in self._grid_features(j):
                variance = phi.kernel_variance(origin).item()
                shares.append(variance * sum(phi.error.of_axis(axis) for axis in range(len(phi.grid.size))) / noise)
        return max(shares) * len(self._grids)

    def _smallest_sizes(self) -> list[tuple[int, ...]]:
        """Return the smallest size of each summand's grid for the most demanding output, within `max_memory`."""
        d, count, points = len(self.grid.size), len(self._grids), AUTOMATIC_POINTS
        least = least_size(d, self.num_observations)
        every = [
            [Resolution.of(phi, TOLERATED_SHARE * noise / count) for phi in self._grid_features(j)]
            for j, noise in enumerate(self.mean_noise.tolist())
        ]
        while True:
            found = [[resolution.smallest_size(points) for resolution in of_output] for of_output in every]
            sizes = [tuple(max(least, *axis) for axis in zip(*grid, strict=True)) for grid in zip(*found, strict=True)]
            if points < 2 * 6**d or memory_needed(sizes, self._rank) <= self._max_memory:
                return sizes
            points //= 2

    def regridded(self, bounds: Tensor | None = None, grid_size: Sizes = None) -> "WISKI":
        """Return a model with the same data and hyperparameters on another grid.

        Use it when bounds grow or lengthscales shrink. If rows are kept, one pass over them recomputes the statistics.
        Otherwise the new model inherits them: earlier observations keep the accuracy of the present grid, later ones
        use the new grid, and the new `interpolation_error` is the largest over all grids so far. New bounds must then
        contain the old ones and only add cells, so that old nodes stay nodes. A finer grid then has a few more cells
        than `grid_size` asks for, so that it interpolates at all nodes of the old one.

        Args:
            bounds: `2 × d` corners in raw units; None keeps the present ones.
            grid_size: As in the constructor; None keeps the spacing.

        Raises:
            UnsupportedError: if the model holds fantasies, or has several grids and keeps no rows.
            GridError: if rows would lie outside, or the grid needs more memory than `max_memory`.
        """
        if self._fantasies is not None:
            raise UnsupportedError("regridded: a model with fantasies; take the model it was made from.")
        d = len(self.grid.size)
        lower, upper = (self.grid.lower, self.grid.upper) if bounds is None else self._corners(bounds, d)
        if self._rows is None and not _contains(lower, upper, self.grid):
            raise GridError("bounds: without rows a grid can grow, but not lose nodes; use keep_data=True.")
        grids = tuple(aligned(grid, lower, upper) for grid in self._grids)
        if grid_size is not None:
            sizes = sizes_of(grid_size, len(grids), d, self.num_observations)
            corner = (lower, upper) if self._rows is not None else (grids[0].lower, grids[0].upper)
            grids = tuple(Grid(*corner, size) for size in sizes)
        elif self._rows is not None:
            grids = tuple(_same_spacing(grid, lower, upper) for grid in self._grids)
        require_memory([grid.size for grid in grids], self._rank, self._max_memory)
        child = clone_module(self)
        if grid_size is not None:
            child._fitting = EvidenceFit()
        child._take_grids(grids)
        _ = child.statistics
        return child

    def _take_grids(self, grids: tuple[Grid, ...]) -> None:
        """Replace the grids in place; statistics come from the rows, or are inherited if there are none."""
        if self._rows is not None:
            self._grids = grids
            self._forget_inference()
            return
        if len(grids) > 1:
            raise UnsupportedError("a model of several grids that keeps no data cannot change them: keep_data=True.")
        if grids == self._grids:
            return
        grids = (around(grids[0], self.grid),)
        before, self._ancestors, self._grids = self._seen(), (self.grid, *self._ancestors), grids
        statistics = tuple(inherited(stats, self._feature_map(0)) for stats in before.statistics)
        known = self._hyperparameters_now(self._hyperparameters())
        self._inference = before.derived_from(hyperparameters=known, summed=statistics, pending=())


def _rank_loss(grids: tuple[GridFeatures, ...]) -> Float[Tensor, ""]:
    """Return the share of variance lost to truncation; in a sum, parts are weighted by their variance."""
    origin = torch.zeros(1, len(grids[0].grid.size), dtype=torch.float64, device=grids[0].device)
    variances = torch.cat([phi.kernel_variance(origin) for phi in grids])
    return (torch.stack([phi.error.rank_loss() for phi in grids]) * variances).sum() / variances.sum()


def _contains(lower: tuple[float, ...], upper: tuple[float, ...], grid: Grid) -> bool:
    """Whether a box contains a grid's box."""
    sides = zip(lower, upper, grid.lower, grid.upper, grid.spacing, strict=True)
    return all(lo <= inner + 1e-9 * h and outer - 1e-9 * h <= hi for lo, hi, inner, outer, h in sides)


def _same_spacing(grid: Grid, lower: tuple[float, ...], upper: tuple[float, ...]) -> Grid:
    """Return a grid over another box whose cells are no larger."""
    cells = [math.ceil((hi - lo) / h - 1e-9) for lo, hi, h in zip(lower, upper, grid.spacing)]
    return Grid(lower, upper, tuple(max(4, c + 3) for c in cells))
