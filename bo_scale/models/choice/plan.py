"""Plans: a family of models with its kernel and inputs, which builds a model of any data."""

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from botorch.models.transforms.input import AffineInputTransform, ChainedInputTransform, InputTransform
from botorch.models.utils.gpytorch_modules import get_gaussian_likelihood_with_lognormal_prior
from gpytorch.constraints import GreaterThan
from gpytorch.likelihoods import GaussianLikelihood
from torch import Tensor
from typing_extensions import override

from bo_scale.models.cagp import CaGP
from bo_scale.models.grief.model import GRIEF
from bo_scale.models.inputs import LogScales, PrincipalAxes
from bo_scale.models.outcomes import of_logarithms, require_positive
from bo_scale.models.shell.data import standardize
from bo_scale.models.shell.kernels import default_scaled_kernel
from bo_scale.models.shell.model import ScalableModel
from bo_scale.models.softki import SoftKI
from bo_scale.models.wiski.model import WISKI

EXACT_ROWS = 5000
"""Number of rows up to which the exact GP is affordable: a Cholesky factorisation of a second or two."""
LEAST_NOISE = 1e-6
"""Smallest noise variance that an exact GP learns, in units of the variance of the targets. With BoTorch's, 1e-4, the
log density of the noise-free sets bike and parkinsons, 1000 rows, was lower by .4 and 1.6 nats, at hardly a difference
for 21 others."""
KERNELS = {"rbf": math.inf, "matern52": 2.5, "matern32": 1.5, "matern12": 0.5}
"""Smoothness of kernels by name, from smooth to rough."""


@dataclass(frozen=True)
class Plan:
    """A family of models with its kernel and inputs.

    Attributes:
        family: "exact", "wiski", "softki" or "grief".
        kernel: One of `KERNELS`.
        principal_axes: Whether inputs are rotated to their principal axes.
        shared_lengthscale: Whether all inputs, in units of their ranges, share a lengthscale.
        student_t: Whether the noise has heavy tails; see `StudentTNoise`.
        size: Number of interpolation points or eigenfunctions; None for the default.
        rows: Maximum number of rows, chosen at random; the others are dropped. None to use all.
        log_scales: Whether skewed inputs are on logarithmic scales; see `LogScales`.
        log_targets: Whether logarithms of the targets are modelled; see `LogTargets`.
    """

    family: str
    kernel: str = "rbf"
    principal_axes: bool = False
    shared_lengthscale: bool = False
    student_t: bool = False
    size: int | None = None
    rows: int | None = None
    log_scales: bool = False
    log_targets: bool = False

    @override
    def __str__(self) -> str:
        names = {"exact": "exact GP", "wiski": "WISKI", "softki": "SoftKI", "grief": "GRIEF"}
        size = "" if self.size is None else f" with {self.size} {'points' if self.family == 'softki' else 'features'}"
        axes, rows = ", principal axes" if self.principal_axes else "", f", on {self.rows} rows" if self.rows else ""
        tails = ", Student-t noise" if self.student_t else ""
        shared = " with one lengthscale" if self.shared_lengthscale else ""
        scales = ", log scales" if self.log_scales else ""
        logs = " of log targets" if self.log_targets else ""
        return f"{names[self.family]}{logs}, {self.kernel} kernel{shared}{size}{scales}{axes}{tails}{rows}"

    def describe(self) -> dict[str, Any]:
        """Return the plan in plain values; `Plan(**values)` makes it again."""
        return asdict(self)

    @property
    def model(self) -> type[ScalableModel]:
        """The class of the model."""
        return FAMILIES[self.family]

    def build(self, X: Tensor, Y: Tensor, Yvar: Tensor | None = None, **options: Any) -> ScalableModel:
        """Return an unfitted model.

        Args:
            X: Inputs `n × d`, in raw units.
            Y: Observations `n × 1`.
            Yvar: Known noise variances `n × 1`; None to learn the noise.
            **options: Further arguments of the model's constructor, which replace the plan's.
        """
        if self.rows is not None and len(X) > self.rows:
            kept = torch.randperm(len(X), generator=torch.Generator().manual_seed(0))[: self.rows].to(X.device)
            X, Y, Yvar = X[kept], Y[kept], None if Yvar is None else Yvar[kept]
        given = {**self.options(X, Y.shape[-1]), **options}
        if self.log_targets:
            require_positive(Y)
            given.setdefault("outcome_transform", of_logarithms(standardize(Y.log())))
        if self.family == "exact" and Yvar is None:
            given.setdefault("likelihood", _with_little_noise(X, Y.shape[-1]))
        make: Any = self.model
        model: ScalableModel = make(X, Y, Yvar, **given)
        return model

    def options(self, X: Tensor, outputs: int = 1) -> dict[str, Any]:
        """Return the arguments of the model's constructor other than the data.

        Args:
            X: Inputs `n × d`, for the principal axes, and for the units of the kernel.
            outputs: Number of outputs m.
        """
        transform = self._transform(X)
        inputs = X if transform is None else transform(X)
        batch_shape = torch.Size([] if outputs == 1 else [outputs])
        smoothness, shared = KERNELS[self.kernel], self.shared_lengthscale
        kernel = default_scaled_kernel(X.shape[-1], batch_shape, inputs, smoothness, shared).to(X)
        given = {"covar_module": kernel, **self._own_options()}
        if self.student_t:
            given["likelihood"] = "student_t"
        return given if transform is None else {**given, "input_transform": transform}

    def _transform(self, X: Tensor) -> InputTransform | None:
        steps: dict[str, InputTransform] = {}
        if self.log_scales:
            steps["scales"] = LogScales(X)
            X = steps["scales"](X)
        if self.principal_axes:
            steps["axes"] = PrincipalAxes(X)
        elif self.shared_lengthscale:
            lower, upper = X.amin(0), X.amax(0)
            ranges = torch.where(upper > lower, upper - lower, 1.0)
            steps["units"] = AffineInputTransform(X.shape[-1], coefficient=ranges, offset=lower)
        return ChainedInputTransform(**steps) if len(steps) > 1 else next(iter(steps.values()), None)

    def _own_options(self) -> dict[str, Any]:
        if self.family == "exact":
            return _EXACT
        if self.family == "softki":
            return {"num_interpolation_points": self.size or 512, "progress": False}
        return {"num_eigenfunctions": self.size or 1000} if self.family == "grief" else {}


def on_scales(plans: list[Plan], log_scales: bool) -> list[Plan]:
    """Return plans with skewed inputs on logarithmic scales, or with plain inputs."""
    return [replace(plan, log_scales=log_scales) for plan in plans]


def _with_little_noise(X: Tensor, outputs: int) -> GaussianLikelihood:
    """Return BoTorch's noise, but with a smaller least variance."""
    likelihood = get_gaussian_likelihood_with_lognormal_prior(torch.Size([] if outputs == 1 else [outputs]))
    start = likelihood.noise_covar.raw_noise_constraint.initial_value
    floor = GreaterThan(LEAST_NOISE, transform=None, initial_value=start)
    likelihood.noise_covar.register_constraint("raw_noise", floor)
    return likelihood.to(X)


FAMILIES: dict[str, type[ScalableModel]] = {"exact": CaGP, "wiski": WISKI, "softki": SoftKI, "grief": GRIEF}
"""Classes of models by name of the family."""
_EXACT: dict[str, Any] = {
    "num_actions": 2 * EXACT_ROWS,
    "max_unit_actions": 2 * EXACT_ROWS,
    "policy": "cg",
    "epochs": 0,
    "progress": False,
}
