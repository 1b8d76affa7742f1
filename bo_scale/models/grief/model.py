"""GP-GRIEF: a GP on the p leading Nyström eigenfunctions of a grid too large to be formed."""

import math
from typing import Any, Literal

import torch
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.utils.types import DEFAULT, _DefaultType
from gpytorch.kernels import Kernel, ScaleKernel
from gpytorch.likelihoods import Likelihood
from gpytorch.means import Mean
from gpytorch.mlls import MarginalLogLikelihood
from gpytorch.priors import LogNormalPrior
from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from bo_scale.errors import GridError, InterpolationWarning, InvalidArgumentError, InvalidDataError
from bo_scale.gp.moving import moved
from bo_scale.gp.weight_space.features.eigenfunctions import Eigenbasis, EigenfunctionFeatures
from bo_scale.gp.weight_space.predictive_variance import DistanceVariance
from bo_scale.gp.weight_space.sampled_inference import LOG_WEIGHT_VARIANCE
from bo_scale.models.errors import UnsupportedError
from bo_scale.models.fitting.evidence import fit_evidence
from bo_scale.models.fitting.report import Recorder
from bo_scale.models.fitting.strategies import StagedFit
from bo_scale.models.fitting.subset import start_from_subset
from bo_scale.models.shell.cloning import clone_module, output_view
from bo_scale.models.shell.kernels import (
    AxisKernels,
    as_product_kernel,
    default_scaled_kernel,
    metric_of,
    require_inputs_of,
)
from bo_scale.models.shell.lending import child_of
from bo_scale.models.shell.model import ScalableModel
from bo_scale.models.shell.weight_space import Missing, WeightSpaceModel, correction_of, drop_rows

Weights = Literal["nystrom", "type2"]

CHECKED_ROWS = 500
"""Maximum number of rows at which a fit is checked."""
SMALLEST_SHARE, NEARLY_ALL, LARGEST_NOISE = 0.8, 0.95, 2.0
"""Share of the kernel's variance below which a fit warns; below the second, it does so if the noise is larger than that
of the subset by the third."""
LEAST_POINTS, MOST_POINTS, GROWTH, SPACING, DECOMPOSED = 10, 1000, 2**0.5, 0.5, 2e9
"""Smallest and largest number of nodes that are chosen in each dimension, the factor by which it grows, as it seldom
does during a fit, the largest distance in lengthscales, and the largest d g³ for d matrices of g nodes."""
OUTLIERS, GAPS = 0.005, 5
"""Share of the inputs beyond either end of a dimension's nodes. Of few inputs none is, and the nodes go on for so many
mean gaps: the least of n uniform values is nearer than that to its end with a probability of 1 − e⁻⁵."""


class GRIEF(WeightSpaceModel):
    """A GP on eigenfunctions of a grid of any size. One observation costs O(p²), whatever n and the dimension.

    k(x, x') ≈ Σ_i w_i φ_i(x) φ_i(x') with the p leading Nyström eigenfunctions of a product kernel on a grid of
    `grid_points`^d nodes. The grid is never formed: it takes O(d p) memory, and the features O(n p log d) time. The
    data enter through additive statistics. A change of lengthscales changes φ and costs a pass over the data; changes
    of outputscale, noise, mean and weights do not.

    `fit_gpytorch_mll` fits in stages:

    (a) all hyperparameters, by an exact GP on at most `subset_size` random rows;
    (b) noise, outputscale and mean, by the evidence of all data;
    (c) with `learn_kernel`, the lengthscales as well;
    (d) with `weights="type2"`, the weights along with the parameters of (b).

    A model without rows has (b) and (d) only.

    Far from the grid the prediction reverts to the mean with *zero* variance. The same happens between nodes if p is
    too small for the lengthscale. `missing_variance=True` adds what is missing from k(x, x) to predicted variances.

    Matérn kernels are *products* of one-dimensional factors here, and `covar_module` holds that product. GPyTorch's
    Matérn kernel is radial. For RBF kernels they agree.

    Args:
        train_X: Inputs `n × d`, in raw units.
        train_Y: Observations `n × m`. Each output has its own hyperparameters and eigenfunctions.
        train_Yvar: Known noise variances `n × m`. None to learn the noise.
        num_eigenfunctions: Number of eigenfunctions p; fewer if the grid has fewer.
        grid_points: Grid nodes per dimension. None follows the lengthscales: ten or more, half a lengthscale apart or
            less, up to 1000 in one or two dimensions and fewer in many. The number hardly changes the cost.
        weights: "nystrom" for w = 1, or "type2" to learn them under a log-normal prior with mode 1 and variance 100.
        bounds: `2 × d` corners of the grid in raw units, mapped through `input_transform`. None means the 0.5 % and
            99.5 % quantiles of each transformed training input, so that outliers do not thin out the grid where the
            data are; with 200 rows or fewer, a little more than their range. An input that is constant apart from
            outliers costs no eigenfunctions.
        covar_module: RBF, Matérn 1/2, 3/2, 5/2, periodic, and products and scalings of these, with their priors and
            constraints. None means BoTorch's default, an RBF with a prior scaled by d, times an outputscale with prior
            median 1. The outputscale lets (b) change the size of f while φ stays fixed.
        mean_module: ConstantMean (default) or ZeroMean.
        likelihood: GaussianLikelihood, `StudentTNoise` or "student_t" for data with outliers, or
            FixedNoiseGaussianLikelihood for known variances.
        input_transform: As for SingleTaskGP. Its parameters must be fixed, not learned.
        outcome_transform: As for SingleTaskGP: Standardize by default, None for none. It is learned once, from
            `train_Y`.
        subset_size: Maximum number of rows for the exact GP of (a), which costs O(subset_size³).
        learn_kernel: Whether to learn the lengthscales from all data, at two passes over the rows per evaluation.
        missing_variance: Diagonal correction as in FITC: add k(x, x) − φ(x)ᵀ S φ(x), where positive, to predicted
            variances. "few" adds it only while there are no more observations than eigenfunctions.
        seed: Seed for the choice of rows.
        keep_data: False keeps only the statistics. Memory is then constant, `train_inputs` is empty and the
            lengthscales stay fixed (no `requires_grad`), so pass a `covar_module` with good ones.

    Raises:
        GridError: if `bounds` have another shape or are not finite.
        UnsupportedKernelError: if the kernel has no factor for each dimension.

    References:
        T. W. Evans, P. B. Nair. Scalable Gaussian processes with grid-structured eigenfunctions (GP-GRIEF). ICML 2018.
        arXiv:1807.02125.

    Examples:
        >>> X = torch.rand(200, 8, dtype=torch.float64)
        >>> model = GRIEF(X, X.square().sum(-1, keepdim=True), num_eigenfunctions=50)
        >>> model = model.condition_on_observations(X[:1], torch.zeros(1, 1, dtype=torch.float64))
        >>> model.posterior(X[:3]).mean.shape
        torch.Size([3, 1])
    """

    _fitting = StagedFit()
    _fixed = ("nodes",)
    _size_option = "num_eigenfunctions"
    _subset_noise: Float[Tensor, " m"] | None = None
    log_weights: torch.nn.Parameter | None
    nodes: Float[Tensor, "d g"]
    """Grid nodes in every dimension, in units of the transformed inputs: a buffer, part of the state_dict. If their
    number is chosen, these are ten between its ends; see `nodes_of`."""

    def __init__(
        self,
        train_X: Tensor,
        train_Y: Tensor,
        train_Yvar: Tensor | None = None,
        num_eigenfunctions: int = 1000,
        grid_points: int | None = None,
        weights: Weights = "nystrom",
        bounds: Tensor | None = None,
        covar_module: Kernel | None = None,
        mean_module: Mean | None = None,
        likelihood: Likelihood | str | None = None,
        input_transform: InputTransform | None = None,
        outcome_transform: OutcomeTransform | _DefaultType | None = DEFAULT,
        subset_size: int = 1000,
        learn_kernel: bool = False,
        missing_variance: Missing = False,
        seed: int = 0,
        keep_data: bool = True,
    ) -> None:
        if weights not in ("nystrom", "type2"):
            raise InvalidArgumentError(f"weights={weights!r}: choose 'nystrom' or 'type2'.")
        points = LEAST_POINTS if grid_points is None else grid_points
        if min(num_eigenfunctions, points, subset_size) < 1:
            raise InvalidArgumentError("num_eigenfunctions, grid_points and subset_size must be at least 1.")
        if learn_kernel and not keep_data:
            raise UnsupportedError("learn_kernel: every evaluation needs the rows. Pass keep_data=True.")
        super().__init__(
            train_X,
            train_Y,
            train_Yvar,
            mean_module,
            likelihood,
            input_transform,
            outcome_transform,
            check_scaling=covar_module is None,
        )
        self._num_eigenfunctions = num_eigenfunctions
        self._subset_size, self._seed = subset_size, seed
        self._learn_kernel = learn_kernel
        self._extra = correction_of(missing_variance, DistanceVariance())
        self._bases: dict[int, tuple[Tensor, Eigenbasis]] = {}
        self._chooses_nodes = grid_points is None
        self.register_buffer("nodes", self._make_nodes(bounds, points))
        d = len(self.nodes)
        self.covar_module = as_product_kernel(
            default_scaled_kernel(d, self._aug_batch_shape, self._transformed_rows()[0])
            if covar_module is None
            else require_inputs_of(covar_module, d),
            d,
        )
        _ = AxisKernels(self.covar_module)  # refuses kernels without factors in closed form
        self.register_parameter("log_weights", None)
        if weights == "type2":
            self.log_weights = torch.nn.Parameter(torch.zeros(*self._aug_batch_shape, num_eigenfunctions))
            prior = LogNormalPrior(LOG_WEIGHT_VARIANCE, math.sqrt(LOG_WEIGHT_VARIANCE))
            self.register_prior("weights_prior", prior, _weights_of, _set_weights)
        self.to(train_X)
        if not keep_data:
            self.covar_module = clone_module(self.covar_module)  # the kernel given may be learned elsewhere
            for p in self._feature_parameters():
                p.requires_grad_(False)
            drop_rows(self)

    # ------------------------------------------------------------------ grid

    def _make_nodes(self, bounds: Tensor | None, grid_points: int) -> Float[Tensor, "d g"]:
        """Return equally spaced nodes in every dimension."""
        assert self._rows is not None, "called before the rows are dropped"
        if bounds is None:
            if self._rows.count == 0:
                raise InvalidDataError("train_X: it has no rows over which to lay a grid. Pass bounds.")
            lower, upper = _bulk(self._transformed(self._rows.X))
        else:
            if bounds.shape != (2, self._num_inputs) or not bounds.isfinite().all():
                raise GridError(f"bounds: expected finite values of shape (2, {self._num_inputs}), got {bounds}.")
            lower, upper = self._transformed(bounds.to(self._rows.X.device)).sort(0).values
            _require_extent(lower, upper, self._transformed(self._rows.X))
        return _between(lower, upper, grid_points)

    def nodes_of(self, output: int = 0) -> Float[Tensor, "d g"]:
        """Return the grid nodes in every dimension for one output, in units of the transformed inputs.

        Their number is `grid_points` if given, else as many as the shortest lengthscale in any dimension asks for. Each
        evaluation decomposes d matrices of that size, which limits it.
        """
        nodes = self.nodes.double()
        lengthscales = None
        if self._chooses_nodes:
            lengthscales = metric_of(output_view(self.covar_module, output, self._num_outputs), len(nodes))
        if lengthscales is None:
            return nodes
        lower, upper = nodes[:, 0], nodes[:, -1]
        steps = ((upper - lower).cpu() / (SPACING * lengthscales)).max().item()
        most = min(MOST_POINTS, int((DECOMPOSED / len(nodes)) ** (1 / 3)))
        finer = max(0, math.ceil(math.log(max(steps, 1.0) / (LEAST_POINTS - 1), GROWTH)))
        count = min(most, math.ceil((LEAST_POINTS - 1) * GROWTH**finer) + 1)
        return nodes if count == LEAST_POINTS else _between(lower, upper, count)

    def _transformed(self, X: Tensor) -> Float[Tensor, "n d"]:
        transform = child_of(self, "input_transform")
        with torch.no_grad():
            return (X if transform is None else transform.preprocess_transform(X)).to(torch.float64)

    # ------------------------------------------------------------------ features

    @override
    def _feature_parameters(self) -> list[torch.nn.Parameter]:
        """Return the kernel's parameters except outputscales: its factors have unit variance."""
        kernels = [kernel for kernel in self.covar_module.modules() if not isinstance(kernel, ScaleKernel)]
        return [p for kernel in kernels for p in kernel.parameters(recurse=False)]

    @override
    def _feature_values(self) -> Float[Tensor, " h"]:
        """Return the values of these parameters and the grid nodes, in a row."""
        values = [*self._feature_parameters(), self.nodes]
        return torch.cat([value.detach().reshape(-1).to(torch.float64) for value in values])

    @override
    def _hyperparameters(self) -> Float[Tensor, " h"]:
        return torch.cat([super()._hyperparameters(), self.nodes.reshape(-1).to(torch.float64)])

    @override
    def _feature_map(self, output: int, frozen: bool = False) -> EigenfunctionFeatures:
        scale, weights = self._axis_kernels(output).outputscale, self.weights
        if weights is not None:
            weights = weights[output] if weights.ndim > 1 else weights
        if frozen:
            scale, weights = scale.detach().clone(), None if weights is None else weights.detach().clone()
        return EigenfunctionFeatures(self._basis(output, frozen), scale, weights)

    def _axis_kernels(self, output: int) -> AxisKernels:
        return AxisKernels(self.covar_module, output if self._num_outputs > 1 else None)

    def _basis(self, output: int, frozen: bool) -> Eigenbasis:
        """Return the eigenbasis, reused if parameters are unchanged and no gradient is wanted."""
        parameters = self._feature_parameters()
        if not frozen and torch.is_grad_enabled() and any(p.requires_grad for p in parameters):
            return Eigenbasis(self.nodes_of(output), self._axis_kernels(output), self._num_eigenfunctions)
        values = self._feature_values()
        kept = self._bases.get(output)
        if kept is None or not torch.equal(kept[0], values):
            kernel = clone_module(self.covar_module).requires_grad_(False)
            axes = AxisKernels(kernel, output if self._num_outputs > 1 else None)
            kept = self._bases[output] = (
                values,
                Eigenbasis(self.nodes_of(output).clone(), axes, self._num_eigenfunctions),
            )
        return kept[1]

    @override
    def _saved_options(self) -> dict[str, Any]:
        return {
            **super()._saved_options(),
            "num_eigenfunctions": self._num_eigenfunctions,
            "grid_points": self.nodes.shape[-1],
            "grid": "chosen" if self._chooses_nodes else "given",
            "weights": "nystrom" if self.log_weights is None else "type2",
        }

    @property
    def weights(self) -> Float[Tensor, "*m p"] | None:
        """Weights w in order of falling eigenvalues, one row per output if there are several; None if they are 1."""
        return None if self.log_weights is None else self.log_weights.to(torch.float64).exp()

    # ------------------------------------------------------------------ fitting

    def fit_stages(self, mll: MarginalLogLikelihood, optimizer_kwargs: dict[str, Any] | None, record: Recorder) -> None:
        """Fit in place, stage by stage; called by `StagedFit`."""
        if self._rows is not None and self._rows.count > 0:
            with record.stage(f"exact GP on {min(self._rows.count, self._subset_size)} rows"):
                start_from_subset(self, self._subset_size, self._seed, optimizer_kwargs)
            with torch.no_grad():
                counts = [self.nodes_of(j).shape[-1] for j in range(self._num_outputs)]
            record.note(f"the grid has {max(counts)} nodes in each dimension")
            self._subset_noise = None if self.knows_noise else self._noise_scale().detach().clone()
            if self.log_weights is not None:  # those there were belong to other eigenfunctions
                with torch.no_grad():
                    self.log_weights.zero_()
        of_features = {id(p) for p in self._feature_parameters()}
        every = {name: p for name, p in mll.named_parameters() if p.requires_grad and p is not self.log_weights}
        with record.stage("scale and noise by the evidence of all rows"):
            fit_evidence(mll, {k: p for k, p in every.items() if id(p) not in of_features}, optimizer_kwargs)
        if self._learn_kernel:
            with record.stage("kernel by the evidence of all rows"):
                fit_evidence(mll, every, optimizer_kwargs)
        if self.log_weights is not None:
            fixed_features = {k: p for k, p in mll.named_parameters() if p.requires_grad and id(p) not in of_features}
            with record.stage("weights by the evidence of all rows"):
                fit_evidence(mll, fixed_features, optimizer_kwargs)

    @property
    def kernel_share(self) -> Float[Tensor, " m"]:
        """The share of the kernel's variance that the eigenfunctions hold at the rows, for every output.

        It is the mean of φ(x)ᵀSφ(x) / k(x, x) over at most 500 rows, 1 for a model without rows. O(p²) a row.
        """
        if self._rows is None or self._rows.count == 0:
            return torch.ones(self._num_outputs, dtype=torch.float64, device=self._device)
        X = self._transformed_rows()[0]
        X = X[:: -(-len(X) // CHECKED_ROWS)]
        with torch.no_grad():
            maps = [self._feature_map(j, frozen=True) for j in range(self._num_outputs)]
            return torch.stack([(phi.prior_variance(X) / phi.kernel_variance(X)).mean() for phi in maps])

    @override
    def _check_fit(self, record: Recorder) -> None:
        share = self.kernel_share.min().item()
        noisier = 1.0
        if self._subset_noise is not None:
            noisier = (self._noise_scale().detach() / self._subset_noise).max().item()
        if share < SMALLEST_SHARE or (share < NEARLY_ALL and noisier > LARGEST_NOISE):
            record.warn(
                f"GRIEF: {self._num_eigenfunctions} eigenfunctions hold {100 * share:.0f} % of the kernel's variance "
                f"at the rows, and the noise is {noisier:.2g} times that of the exact GP on some rows, so predictions "
                f"may be poor. Raise num_eigenfunctions, pass input_transform=PrincipalAxes(train_X) if inputs are "
                f"correlated, or take bo_scale.choose.",
                InterpolationWarning,
            )

    # ------------------------------------------------------------------ devices, outputs

    @override
    def _apply(self, fn: Any, recurse: bool = True) -> "ScalableModel":
        super()._apply(fn, recurse)
        self._bases = moved(self._bases, self._device)
        return self

    @override
    def _subset_own(self, outputs: list[int]) -> None:
        super()._subset_own(outputs)
        self._bases = {}
        if self.log_weights is not None and self.log_weights.ndim > 1:
            kept = self.log_weights.detach()[outputs if len(outputs) > 1 else outputs[0]]
            self.log_weights = torch.nn.Parameter(kept.clone(), self.log_weights.requires_grad)


def _weights_of(model: GRIEF) -> Tensor:
    assert model.log_weights is not None, "a prior on weights is registered where they are learned"
    return model.log_weights.exp()


def _set_weights(model: GRIEF, weights: Tensor) -> None:
    model.initialize(log_weights=weights.log())


def _between(lower: Float[Tensor, " d"], upper: Float[Tensor, " d"], count: int) -> Float[Tensor, "d g"]:
    """Return equally spaced nodes in every dimension."""
    steps = torch.linspace(0.0, 1.0, count, dtype=lower.dtype, device=lower.device)
    return lower.unsqueeze(-1) + (upper - lower).unsqueeze(-1) * steps


def _require_extent(lower: Tensor, upper: Tensor, X: Tensor) -> None:
    """Refuse bounds that leave no room for an input that varies."""
    if len(X) == 0:
        return
    varies = X.amax(0) > X.amin(0)
    if bool(((lower == upper) & varies).any()):
        columns = ((lower == upper) & varies).nonzero().flatten().tolist()
        raise GridError(f"bounds: lower and upper are equal for inputs {columns}, which vary. Give a range.")


def _bulk(X: Float[Tensor, "n d"]) -> tuple[Float[Tensor, " d"], Float[Tensor, " d"]]:
    """Return the 0.5 % and 99.5 % quantiles of every column; of 200 points or fewer the range in which others lie."""
    values, n = X.sort(0).values, len(X)
    outside = math.floor(OUTLIERS * (n - 1))
    lower, upper = values[outside], values[n - 1 - outside]
    if outside > 0 or n == 1:
        return lower, upper
    beyond = GAPS * (upper - lower) / (n - 1)
    return lower - beyond, upper + beyond
