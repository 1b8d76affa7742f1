"""WISKI: structured kernel interpolation whose update cost does not depend on the number of observations."""

import math
from dataclasses import replace
from typing import Any

import torch
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.utils.types import DEFAULT, _DefaultType
from gpytorch.kernels import AdditiveKernel, Kernel
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, Likelihood
from gpytorch.means import Mean
from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from bo_scale.errors import InterpolationWarning, InvalidArgumentError
from bo_scale.gp.weight_space.features.base import FeatureMap
from bo_scale.gp.weight_space.features.grid.inherited_gram import inherited
from bo_scale.gp.weight_space.features.grid.interpolation import Basis, Grid
from bo_scale.gp.weight_space.features.projection import LinearProjection, ProjectedFeatures, in_double
from bo_scale.gp.weight_space.forgetting import Forgetting
from bo_scale.gp.weight_space.predictive_variance import InterpolationVariance
from bo_scale.models.errors import UnsupportedError
from bo_scale.models.fitting.checks import LOOKED_AT, residuals_of
from bo_scale.models.fitting.missed import Missed, missed_changes, shorten
from bo_scale.models.fitting.report import Recorder
from bo_scale.models.fitting.starts import explain_by_noise, relates_no_rows
from bo_scale.models.fitting.strategies import EvidenceFit, Fitting, FollowGrid, ShortenMissed
from bo_scale.models.fitting.subset import start_from_subset
from bo_scale.models.shell.cloning import clone_module, on_host
from bo_scale.models.shell.kernels import (
    KernelProduct,
    as_product_kernel,
    as_sum_of_products,
    default_kernel,
    is_exponential,
    require_inputs_of,
    summands_of,
)
from bo_scale.models.shell.lending import child_of
from bo_scale.models.shell.weight_space import Missing, WeightSpaceModel, correction_of, drop_rows
from bo_scale.models.wiski.grid_choice import (
    BASES,
    GridChoice,
    corners_of,
    grid_width,
    grids_of,
    mean_error,
    mean_errors,
    mean_missing_variance,
    on_another_box,
    rank_losses,
    ranks,
    removable_share,
    smallest_sizes,
    worth_changing,
)
from bo_scale.models.wiski.grid_sizes import TOLERATED_SHARE, Sizes, is_nested, require_memory, sizes_of

MAX_RANK = 2048
"""Default limit on the rank of the prior; an evaluation of the evidence then takes about a second."""
NEGLIGIBLE_SHARE = 1e-8
"""Share of the noise variance below which an eigenpair of the prior is dropped; dropped pairs add up to about 1e-6."""
CHOSEN_NEGLIGIBLE_SHARE = 1e-6
"""The same share when the grid is chosen, by a rule of 1 %: about 1e-4 in total. Evaluations take half as long."""
GAIN, GAIN_ON_FINER = 1e-3, 0.1
"""A fit ends when an iteration gains less log evidence than the first; than the second on a finer grid, where it starts
near its end, evaluations cost most, and the truncation of eigenpairs makes the evidence rough."""
RESOLVED = 0.5
"""A fit is repeated with shorter lengthscales if interpolation error is below this share of the errors before."""
SUBSET = 1000
"""Number of rows of the exact GP from which a fit is repeated."""


class WISKI(WeightSpaceModel):
    """An online GP on a grid. One more observation costs O(p s) for p grid points and rank s ≤ p, whatever n is.

    k(x, x') ≈ φ(x)ᵀ S φ(x') with local cubic interpolation φ and S = k_UU over a Cartesian grid. The data enter only
    through additive statistics. `fit_gpytorch_mll` fits the hyperparameters; the cost of the evidence and its gradient
    does not depend on n. The grid serves one to four dimensions.

    Matérn kernels are *products* of one-dimensional factors here, and `covar_module` holds that product. GPyTorch's
    Matérn kernel is radial; the two differ by 30-50 % in posterior variance at d = 3. For RBF kernels they agree.

    A coarse grid takes what changes fast for noise. If residuals of neighbouring rows go together after a fit, an exact
    GP of at most 1000 rows starts from shorter lengthscales, and the fit goes on on a grid that resolves them.

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
        likelihood: GaussianLikelihood, `StudentTNoise` or "student_t" for data with outliers, or
            FixedNoiseGaussianLikelihood for known variances.
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

    Examples:
        >>> X = torch.rand(200, 2, dtype=torch.float64)
        >>> model = WISKI(X, (6 * X).sin().sum(-1, keepdim=True), grid_size=16)
        >>> model = model.condition_on_observations(X[:1], torch.zeros(1, 1, dtype=torch.float64))
        >>> model.posterior(X[:3]).mean.shape
        torch.Size([3, 1])
    """

    shares_features = True
    _frozen = ("input_transform", "outcome_transform", "projection")
    _fixed = ("projection.",)

    def __init__(
        self,
        train_X: Tensor,
        train_Y: Tensor,
        train_Yvar: Tensor | None = None,
        bounds: Tensor | None = None,
        grid_size: Sizes = None,
        covar_module: Kernel | None = None,
        mean_module: Mean | None = None,
        likelihood: Likelihood | str | None = None,
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
        _require_options(basis, rank, decay, conservative, missing_variance)
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
        if isinstance(projection, LinearProjection):
            projection = projection.for_data(*self._transformed_rows()[:2])
        elif projection is not None:
            projection = clone_module(projection).eval()
        self.projection = projection
        transform = child_of(self, "input_transform")
        d = grid_width(train_X, transform, projection)
        self._rank = MAX_RANK if rank is None else rank
        self._conservative, self.forgetting = conservative, Forgetting(decay)
        self._extra = InterpolationVariance() if conservative else correction_of(missing_variance)
        if covar_module is None:
            inputs = self._transformed_rows()[0] if projection is None else None
            covar_module = default_kernel(d, self._aug_batch_shape, inputs)
        covar_module = require_inputs_of(covar_module, d)
        apart = isinstance(covar_module, AdditiveKernel) and (d > 1 or is_nested(grid_size))
        self.covar_module = as_sum_of_products(covar_module, d) if apart else as_product_kernel(covar_module, d)
        summands = summands_of(self.covar_module) if apart else [self.covar_module]
        self._exponential = tuple(projection is None and is_exponential(kernel, d) for kernel in summands)
        self._fitting: Fitting = _fitting_of(grid_size)
        self._max_memory = max_memory
        sizes = sizes_of(grid_size, len(summands), d, len(train_X))
        require_memory(sizes, self._rank, max_memory)
        box = corners_of(bounds, d, self._num_inputs, transform, projection is not None)
        self._choice = GridChoice(tuple(Grid(*box, size) for size in sizes), basis)
        self.to(train_X)
        _ = self.statistics  # refuses points outside the grid here, not at the first use
        if not keep_data:
            if self.projection is not None:
                self.projection.requires_grad_(False)
            drop_rows(self)

    @property
    def grid(self) -> Grid:
        """The grid, in units of the transformed inputs; the first if there are several."""
        return self._choice.grids[0]

    @property
    def grids(self) -> tuple[Grid, ...]:
        """The grids, one per summand of the kernel."""
        return self._choice.grids

    @property
    def chooses_grid(self) -> bool:
        """True if fits choose the grid's size."""
        return isinstance(self._fitting, ShortenMissed) and isinstance(self._fitting.inner, FollowGrid)

    @override
    def _saved_options(self) -> dict[str, Any]:
        return {
            **super()._saved_options(),
            "decay": self.forgetting.factor,
            "conservative": self._conservative,
            "rank": self._rank,
            "grid_size": None if self.chooses_grid else "any size",
        }

    @override
    def get_extra_state(self) -> Tensor:
        """Return grids and basis for the state_dict."""
        return self._choice.state()

    @override
    def set_extra_state(self, state: Tensor) -> None:
        """Take the grids of another model's state_dict; statistics are computed anew."""
        choice = GridChoice.of_state(state)
        if self._rows is not None:
            choice = replace(choice, ancestors=())  # a pass over the rows needs none
        if choice != self._choice:
            self._choice = choice
            self._forget_inference()

    @override
    def _feature_map(self, output: int, frozen: bool = False) -> FeatureMap:
        kernel = clone_module(self.covar_module).requires_grad_(False) if frozen else self.covar_module
        host, noise = kernel, self._noise_scale().detach()
        if self._device.type == "cuda":
            host, (noise,) = on_host(kernel, noise)
        parts = zip(*[[each] if len(self.grids) == 1 else summands_of(each) for each in (kernel, host)])
        which, negligible = output if self._num_outputs > 1 else None, 0.0
        if not isinstance(self.likelihood, FixedNoiseGaussianLikelihood):
            share = CHOSEN_NEGLIGIBLE_SHARE if self.chooses_grid else NEGLIGIBLE_SHARE
            negligible = share * noise[output].item()  # whatever the data: conditioning equals refitting
        factors = [KernelProduct(part, which, there) for part, there in parts]
        whole = self._choice.features(factors, self._exponential, self._device, negligible, self._rank)
        return whole if self.projection is None else ProjectedFeatures(whole, in_double(self.projection, frozen))

    @override
    def _feature_parameters(self) -> list[torch.nn.Parameter]:
        return [] if self.projection is None else list(self.projection.parameters())

    # ------------------------------------------------------------------ interpolation error

    @property
    def interpolation_error(self) -> Float[Tensor, " m"]:
        """The mean interpolation error over the box, for every output: mse(x) = k₀ − 2 φ(x)ᵀ T k_U(x) + φ(x)ᵀ S φ(x).

        It is the prior variance that the grid cannot represent, in squared units of the transformed targets. Compare
        it with the noise variance.
        """
        with torch.no_grad():
            return mean_errors([self._feature_map(j) for j in range(self._num_outputs)])

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
            return ranks(self._feature_map(0))

    @property
    def rank_loss(self) -> Float[Tensor, " m"]:
        """The share of the interpolated prior's variance that truncation to `rank` drops, averaged over the box."""
        with torch.no_grad():
            return rank_losses([self._feature_map(j) for j in range(self._num_outputs)])

    @torch.no_grad()
    def mean_added_variance(self, output: int) -> Float[Tensor, ""]:
        """Return the variance that predictions add to that of the weights, averaged over the box."""
        if self._conservative:
            return mean_error(self._feature_map(output))
        if self.adds_variance:
            return mean_missing_variance(self._feature_map(output))
        return torch.zeros((), dtype=torch.float64, device=self._device)

    @override
    def _inflation(self) -> Float[Tensor, " m"] | None:
        return mean_errors([self._feature_map(j) for j in range(self._num_outputs)]) if self._conservative else None

    @override
    def _check_fit(self, record: Recorder) -> None:
        share = self.interpolation_share
        if share > TOLERATED_SHARE:
            sizes = self.grid.size if len(self.grids) == 1 else [grid.size for grid in self.grids]
            record.warn(
                f"WISKI: the interpolation error is {100 * share:.1f} % of the noise variance with grid_size="
                f"{sizes}, so predicted variances may be too small. Raise grid_size or rank (the rank drops "
                f"{100 * self.rank_loss.max().item():.2g} % of the prior variance), or pass conservative=True.",
                InterpolationWarning,
            )

    # ------------------------------------------------------------------ grids that follow the problem

    @property
    @override
    def _may_miss_changes(self) -> bool:
        """False with forgetting, where old rows' residuals are no sign, and with a projection."""
        return self.projection is None and self.forgetting.factor == 1

    def relates_no_rows(self) -> bool:
        """Return whether the kernel is so short that it is noise; see `relates_no_rows` of starts of fits."""
        if self.knows_noise or self.projection is not None or self._rows is None:
            return False
        return relates_no_rows(self, self._transformed_rows()[0][:LOOKED_AT])

    def start_from_noise(self) -> None:
        """Make all variance of the targets noise, in place."""
        assert self._rows is not None, "relates_no_rows needs them"
        explain_by_noise(self, self._rows.Y)

    def missed_changes(self) -> list[Missed | None]:
        """Return what each output takes for noise although errors of neighbouring rows go together.

        Nothing is looked for without rows, in few of them, or if the grid does not resolve the present lengthscales.
        """
        fit = self._may_miss_changes and self.interpolation_share <= TOLERATED_SHARE
        found = residuals_of(self) if fit else None
        return [] if found is None else missed_changes(*found[:2])

    def shorten_lengthscales(self, changes: list[Missed | None]) -> bool:
        """Go on with lengthscales that show missed changes, in place. Return whether a fit is worth while.

        An exact GP of some rows fits all hyperparameters from there, and a grid whose size is chosen follows. A fit is
        not worth while if no grid that is allowed resolves most of what is not explained so far.
        """
        unexplained = torch.tensor([math.inf if each is None else each.mean_square for each in changes])
        if not shorten(self.covar_module, changes):
            return False
        start_from_subset(self, SUBSET, seed=0, near=True)
        if self.chooses_grid:
            self.follow_grid()
        return bool((self.interpolation_error.cpu() < RESOLVED * unexplained).all())

    @torch.no_grad()
    def follow_grid(self) -> bool:
        """Take the smallest grids that meet the 1 % rule; return whether the old ones were too coarse.

        Grids that are fine enough stay, unless half as many points would do. Without rows a single grid can still be
        refined, for later observations; several grids cannot change.
        """
        every = [grids_of(self._feature_map(j)) for j in range(self._num_outputs)]
        noise, grids = self.mean_noise.tolist(), self.grids
        share = removable_share(every, noise)
        if not self._may_sum_anew and (len(grids) > 1 or share <= TOLERATED_SHARE):
            return False
        sizes = smallest_sizes(every, noise, self.num_observations, self._rank, self._max_memory)
        if not self._may_sum_anew:
            sizes = [tuple(map(max, size, grid.size)) for size, grid in zip(sizes, grids, strict=True)]
        if not worth_changing(grids, sizes, share):
            return False
        self.take_grids(tuple(replace(grid, size=size) for grid, size in zip(grids, sizes, strict=True)))
        return share > TOLERATED_SHARE

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
            raise UnsupportedError("regridded: the model holds fantasies. Use the model that they were made from.")
        d, box = len(self.grid.size), (self.grid.lower, self.grid.upper)
        if bounds is not None:
            projected = self.projection is not None
            box = corners_of(bounds, d, self._num_inputs, child_of(self, "input_transform"), projected)
        sizes = None if grid_size is None else sizes_of(grid_size, len(self.grids), d, self.num_observations)
        grids = on_another_box(self.grids, box, sizes, self._rows is not None)
        require_memory([grid.size for grid in grids], self._rank, self._max_memory)
        child = clone_module(self)
        if grid_size is not None:
            child._fitting = _fitting_of(grid_size)
        child.take_grids(grids)
        _ = child.statistics
        return child

    def take_grids(self, grids: tuple[Grid, ...]) -> None:
        """Replace the grids in place; statistics come from the rows, or are inherited if there are none."""
        choice = self._choice.with_grids(grids, self._may_sum_anew)
        if self._may_sum_anew:
            self._choice = replace(choice, ancestors=()) if self._rows is None else choice
            self._forget_inference()
        elif choice != self._choice:
            before, self._choice = self._seen(), choice
            statistics = tuple(inherited(stats, self._feature_map(0)) for stats in before.statistics)
            known = self._hyperparameters_now(self._hyperparameters())
            self._inference = before.derived_from(hyperparameters=known, summed=statistics, pending=())


def _fitting_of(grid_size: Sizes) -> Fitting:
    """Return how a model is fitted: on grids that follow its lengthscales if no size is given."""
    fit, finer = EvidenceFit(GAIN), EvidenceFit(GAIN_ON_FINER)
    follows = grid_size is None
    return ShortenMissed(FollowGrid(fit, finer), FollowGrid(finer, finer)) if follows else ShortenMissed(fit, finer)


def _require_options(
    basis: Basis, rank: int | None, decay: float, conservative: bool, missing_variance: Missing
) -> None:
    """Refuse options out of range, and those that exclude each other."""
    if basis not in BASES:
        raise InvalidArgumentError(f"basis={basis!r}: choose 'spline' or 'keys'.")
    if rank is not None and rank < 1:
        raise InvalidArgumentError(f"rank={rank}: must be at least 1, or None.")
    if not 0 < decay <= 1:
        raise InvalidArgumentError(f"decay={decay}: must be above 0 and at most 1; 1 forgets nothing.")
    if conservative and missing_variance:
        raise InvalidArgumentError("conservative, missing_variance: both add variance for the same error; choose one.")
