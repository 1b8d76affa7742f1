"""WISKI: structured kernel interpolation whose updates cost the same at any number of observations."""

import math
import warnings
from collections.abc import Sequence

import torch
from botorch.exceptions.errors import UnsupportedError
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.models.utils.gpytorch_modules import get_covar_module_with_dim_scaled_prior
from botorch.utils.types import DEFAULT, _DefaultType
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, Likelihood
from gpytorch.means import Mean
from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from bo_scale.errors import GridError, InterpolationWarning
from bo_scale.features.grid import Basis, Grid, GridFeatures
from bo_scale.models.kernels import KernelProduct, as_product_kernel
from bo_scale.models.modules import clone_module
from bo_scale.models.weight_space import Missing, WeightSpaceModel

MAX_DIMENSIONS = 3
_BASES: tuple[Basis, ...] = ("spline", "keys")
NEGLIGIBLE_SHARE = 1e-8
"""Eigenpairs of the prior that add less than this share of the noise variance are left out: 1e-6 of it together."""
TOLERATED_SHARE = 0.01
"""Interpolation error above this share of the noise variance is warned of."""


class WISKI(WeightSpaceModel):
    """An online GP on a grid: one more observation costs O(p s) for p grid points and a rank s ≤ p, whatever n is.

    k(x, x') ≈ φ(x)ᵀ S φ(x') with local cubic interpolation φ and S = k_UU over a Cartesian grid; the data enter only
    through additive statistics. Hyperparameters are fitted by `fit_gpytorch_mll`; an evaluation of the evidence and its
    gradient is free of n. For one to three input dimensions.

    A Matérn kernel here is the *product* of its one-dimensional factors, and `covar_module` is that product: GPyTorch's
    own is radial, and the two differ by 30-50 % in posterior variance at d = 3. For RBF kernels they are the same.

    After a fit `interpolation_error` says how well the grid resolves the kernel, and a warning is given when it is not
    small beside the noise.

    Args:
        train_X: Inputs `n × d`, in raw units.
        train_Y: Observations `n × m`. Several outputs have their own hyperparameters.
        train_Yvar: Known noise variances `n × m`; None to learn one.
        bounds: `2 × d` corners of the domain in raw units, mapped through `input_transform`; None means the unit cube
            after the transform. Points may lie outside by up to one cell of the grid.
        grid_size: Points a dimension, one for all or one each, a cell of margin on each side included; None chooses
            from d and n.
        covar_module: RBF, Matérn 1/2, 3/2, 5/2, periodic, products and scalings of them, with their priors and
            constraints; also spectral mixtures in d = 1. None means BoTorch's default, an RBF with a prior scaled by d.
        mean_module: ConstantMean (default) or ZeroMean.
        likelihood: GaussianLikelihood, or FixedNoiseGaussianLikelihood for known variances.
        input_transform: As for SingleTaskGP; its parameters must not be learned.
        outcome_transform: As for SingleTaskGP: Standardize unless given, None for none. Learned once, here.
        basis: "spline" (cubic B-splines, C²) or "keys" (the paper's cubic convolution). At equal cost the spline's
            posterior mean is 4-10 times nearer to the exact GP's for RBF kernels at two cells a lengthscale, 1.3-1.7
            times for Matérn-5/2, and equal within a few per cent for Matérn-1/2.
        conservative: Count the interpolation error in: its mean is added to the noise, itself to predicted variances.
        missing_variance: Add k(x, x) − φ(x)ᵀ S φ(x), where positive, to predicted variances; "few" while there are not
            more observations than grid points. Less than `conservative` adds, which also counts what the interpolation
            gets wrong in its covariances; choose one of the two.
        keep_data: False keeps the statistics only: constant memory, but `train_inputs` is then empty.
        max_memory: Gigabytes a grid may need before it is refused.

    Raises:
        GridError: if the grid would need more memory, or data lie outside it.
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
        grid_size: int | Sequence[int] | None = None,
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
    ) -> None:
        if basis not in _BASES:
            raise ValueError(f"basis={basis!r}: choose 'spline' or 'keys'.")
        if conservative and missing_variance:
            raise ValueError("conservative, missing_variance: choose one; both add variance for the same error.")
        super().__init__(
            train_X,
            train_Y,
            train_Yvar,
            mean_module,
            likelihood,
            input_transform,
            outcome_transform,
            check_scaling=covar_module is None and bounds is None,
        )
        d = self.train_inputs[0].shape[-1] if input_transform is None else self._transformed_width(train_X)
        if not 1 <= d <= MAX_DIMENSIONS:
            raise UnsupportedError(
                f"WISKI: {d} input dimensions; a grid serves 1 to {MAX_DIMENSIONS}. Use SingleTaskGP, or project the "
                f"inputs to {MAX_DIMENSIONS} dimensions first."
            )
        self._basis: Basis = basis
        self._conservative, self._missing_variance = conservative, missing_variance
        self._grid = self._make_grid(bounds, grid_size, d, len(train_X), max_memory)
        if covar_module is None:
            covar_module = get_covar_module_with_dim_scaled_prior(ard_num_dims=d, batch_shape=self._aug_batch_shape)
        self.covar_module = as_product_kernel(covar_module, d)
        self.to(train_X)
        _ = self.statistics  # refuses points outside the grid here, not at the first use
        if not keep_data:
            self._drop_rows()

    def _transformed_width(self, X: Tensor) -> int:
        return int(self.input_transform.preprocess_transform(X[:1]).shape[-1])

    def _make_grid(
        self, bounds: Tensor | None, grid_size: int | Sequence[int] | None, d: int, n: int, max_memory: float
    ) -> Grid:
        if bounds is None:
            corners = torch.stack([torch.zeros(d), torch.ones(d)]).to(torch.float64)
        else:
            if bounds.shape != (2, self._num_inputs):
                raise GridError(f"bounds: shape {tuple(bounds.shape)}, expected (2, {self._num_inputs}).")
            transform = getattr(self, "input_transform", None)
            corners = bounds if transform is None else transform.preprocess_transform(bounds)
            corners = corners.detach().to(torch.float64).sort(0).values
        if grid_size is None:
            size: tuple[int, ...] = (default_grid_size(d, n),) * d
        else:
            size = (grid_size,) * d if isinstance(grid_size, int) else tuple(grid_size)
        if len(size) != d:
            raise GridError(f"grid_size: {len(size)} numbers for {d} dimensions.")
        needed = 8e-9 * (6 * math.prod(size) ** 2 + 7**d * math.prod(size))
        if needed > max_memory:
            raise GridError(
                f"grid_size={size}: {math.prod(size)} points may need {needed:.1f} GB, above max_memory={max_memory}; "
                f"choose a smaller grid_size, or raise max_memory."
            )
        return Grid(tuple(corners[0].tolist()), tuple(corners[1].tolist()), size)

    @property
    def grid(self) -> Grid:
        """The grid, in units of the transformed inputs."""
        return self._grid

    @override
    def get_extra_state(self) -> Tensor:
        """The grid and its basis, as part of the state_dict: rows lower, upper, size, basis."""
        basis = [_BASES.index(self._basis)] * len(self._grid.size)
        return torch.tensor([self._grid.lower, self._grid.upper, self._grid.size, basis], dtype=torch.float64)

    @override
    def set_extra_state(self, state: Tensor) -> None:
        """Take the grid of another model's state_dict; the statistics follow."""
        lower, upper, size, basis = state.tolist()
        found = Grid(tuple(lower), tuple(upper), tuple(int(m) for m in size)), _BASES[int(basis[0])]
        if found != (self._grid, self._basis):
            self._grid, self._basis = found
            self._forget_data()

    @override
    def _feature_map(self, output: int, frozen: bool = False) -> GridFeatures:
        kernel = clone_module(self.covar_module).requires_grad_(False) if frozen else self.covar_module
        factors = KernelProduct(kernel, output if self._num_outputs > 1 else None)
        return GridFeatures(self._grid, factors, self._basis, self._device, self._negligible_variance(output))

    def _negligible_variance(self, output: int) -> float:
        """What an eigenpair of the prior must add to count: a share of a learned noise, 0 where it is known.

        Free of the data, so that conditioning equals refitting.
        """
        if isinstance(self.likelihood, FixedNoiseGaussianLikelihood):
            return 0.0
        return NEGLIGIBLE_SHARE * self._noise_scale()[output].item()

    # ------------------------------------------------------------------ interpolation error

    @property
    def interpolation_error(self) -> Float[Tensor, " m"]:
        """The mean over the box of mse(x) = k₀ − 2 φ(x)ᵀ T k_U(x) + φ(x)ᵀ S φ(x), for every output.

        The prior variance of what the grid cannot represent, in squared units of the transformed targets. Compare it
        with the noise variance.
        """
        with torch.no_grad():
            return self._mean_interpolation_variance()

    @property
    def interpolation_share(self) -> float:
        """The largest `interpolation_error` of an output as a share of its noise variance; 0 if counted in."""
        if self._conservative:
            return 0.0
        return (self.interpolation_error / self.mean_noise.to(torch.float64)).max().item()

    def _mean_interpolation_variance(self) -> Float[Tensor, " m"]:
        return torch.stack([self._feature_map(j).mean_interpolation_variance() for j in range(self._num_outputs)])

    @override
    def _inference_noise(self) -> Float[Tensor, " m"]:
        """σ², with the mean interpolation error counted in if `conservative`.

        Known variances can only be scaled without losing sufficiency: they grow by the share that the error is of their
        harmonic mean, which is exact where they are equal.
        """
        noise = self._noise_scale()
        if not self._conservative:
            return noise
        precision = torch.stack(
            [self._statistics_of(j).weight_sum / max(1, self.num_observations) for j in range(self._num_outputs)]
        )
        return noise + self._mean_interpolation_variance() * precision

    @override
    def _extra_variance(self, X: Float[Tensor, "*b q d"], output: int) -> Float[Tensor, "*b q"] | None:
        if not self._conservative:
            return super()._extra_variance(X, output)
        features = self._features_of(output)
        assert isinstance(features, GridFeatures)
        return features.interpolation_variance(X)

    @override
    def _after_fit(self) -> None:
        share = self.interpolation_share
        if share > TOLERATED_SHARE:
            warnings.warn(
                f"WISKI: interpolation error is {100 * share:.1f} % of the noise variance with grid_size="
                f"{self._grid.size}; predicted variances may be too small. Raise grid_size, or pass conservative=True.",
                InterpolationWarning,
                stacklevel=2,
            )


def default_grid_size(d: int, n: int) -> int:
    """Points a dimension when none are asked for: more data resolve shorter lengthscales."""
    few, many = {1: (64, 256), 2: (30, 40), 3: (14, 16)}[d]
    return few if n < 1000 else many
