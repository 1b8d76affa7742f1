"""The loss of an exact GP of one output with its gradient, in closed form."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from botorch.models import SingleTaskGP
from botorch.optim.core import OptimizationResult, OptimizationStatus
from botorch.optim.utils import get_parameters_and_bounds
from botorch.optim.utils.numpy_utils import get_bounds_as_ndarray
from gpytorch.constraints import GreaterThan
from gpytorch.kernels import ScaleKernel
from gpytorch.likelihoods.noise_models import HomoskedasticNoise
from gpytorch.means import ConstantMean, ZeroMean
from gpytorch.mlls import ExactMarginalLogLikelihood
from gpytorch.priors import LogNormalPrior
from jaxtyping import Float
from linear_operator.utils.errors import NotPSDError
from scipy.optimize import minimize
from torch import Tensor

from bo_scale.gp.function_space.process import Profile
from bo_scale.gp.function_space.repeated_evidence import RepeatedEvidence
from bo_scale.gp.linalg.in_place import Array
from bo_scale.models.fitting.evidence import searched_limits
from bo_scale.models.shell.kernels import OutputKernel, units_of_prior
from bo_scale.threads import scipy_on_one_thread, threads_for
from bo_scale.training.time_limit import is_over

Vector = Array
"""A vector as SciPy's optimisers take it."""
_NONE: Vector = np.empty(0)
_ONE: Vector = np.ones(1)
_STATUS = {0: OptimizationStatus.SUCCESS, 1: OptimizationStatus.STOPPED, 2: OptimizationStatus.FAILURE}


@dataclass(frozen=True)
class LogNormal:
    """A log-normal prior of some values in given units.

    Attributes:
        mean: Means of the logarithms.
        deviation: Standard deviations of the logarithms.
        units: Units of the values.
    """

    mean: Vector
    deviation: Vector
    units: Vector

    def log_density(self, value: Vector) -> tuple[float, Vector]:
        """Return the log density of values in these units, and its derivative in the values."""
        logarithm = np.log(value / self.units)
        z = (logarithm - self.mean) / self.deviation
        density = (-logarithm - 0.5 * z * z - self._log_normaliser).sum()
        return float(density), -(1 + z / self.deviation) / value

    @cached_property
    def _log_normaliser(self) -> Vector:
        normaliser: Vector = np.log(self.deviation * math.sqrt(2 * math.pi))
        return normaliser


@dataclass(frozen=True)
class Hyperparameter:
    """A hyperparameter, and the scale on which the optimiser searches for it.

    Attributes:
        parameter: The parameter of a module.
        link: "log" if its logarithm is searched, "softplus" if its module transforms it, "identity" for neither.
        lower: What the module adds after its softplus.
        priors: Its priors.
    """

    parameter: torch.nn.Parameter
    link: str
    lower: float
    priors: tuple[LogNormal, ...]

    @property
    def present(self) -> Vector:
        """The present value on the scale of the search."""
        raw = _vector(self.parameter)
        return np.log(raw) if self.link == "log" else raw

    def set(self, x: Vector) -> None:
        """Set the parameter to a value that was searched."""
        raw = torch.from_numpy(np.exp(x) if self.link == "log" else x.copy())
        with torch.no_grad():
            self.parameter.copy_(raw.reshape(self.parameter.shape))

    def value_and_slope(self, x: Vector) -> tuple[Vector, Vector]:
        """Return the value of the hyperparameter, and its derivative in what is searched."""
        if self.link == "log":
            return (value := np.exp(x)), value
        if self.link == "softplus":
            return np.logaddexp(0.0, x) + self.lower, 1 / (1 + np.exp(-x))
        return x, np.ones_like(x)


@dataclass(frozen=True)
class ClosedForm:
    """−(log evidence + log priors)/n of an exact GP of one output, with its gradient in closed form.

    What is searched is the same as for `evidence.lbfgs`, in the same order. Among few rows automatic differentiation
    through modules and priors takes several times as long as the factorisation.

    Attributes:
        X: Inputs `n × d`, around 0.
        Y: Observations `n`.
        D: Noise variances `n` relative to the learned one; absolute if there is none.
        profile: The kernel as a function of squared distance.
        hyperparameters: By their roles, of which the scale, the noise and the constant may be absent.
        learned: Roles of those that are learned, in order.
        bounds: Bounds of what is searched; None if there are none.
    """

    X: Array
    Y: Vector
    D: Vector
    profile: Profile
    hyperparameters: Mapping[str, Hyperparameter]
    learned: tuple[str, ...]
    bounds: Vector | None

    @classmethod
    def of(
        cls,
        modules: SingleTaskGP,
        X: Float[Tensor, "n d"],
        Y: Float[Tensor, "n m"],
        D: Float[Tensor, "n m"],
        known: bool,
    ) -> "ClosedForm | None":
        """Return the loss of an exact GP with some modules; None if it has no closed form.

        It has one on a CPU, for one output, a scaled RBF or Matérn kernel of all inputs, a constant mean or none, and
        log-normal priors.

        Args:
            modules: The modules.
            X: Transformed inputs.
            Y: Transformed targets.
            D: Noise variances relative to the learned one; absolute if noise is known.
            known: Whether noise is known.
        """
        if Y.shape[-1] != 1 or len(X) == 0 or X.is_cuda:
            return None
        owners, radial = _owners(modules, known), OutputKernel.of(modules.covar_module, 0, 1).radial()
        mll = ExactMarginalLogLikelihood(modules.likelihood, modules)
        priors = None if owners is None else _priors(mll, owners)
        if owners is None or radial is None or priors is None:
            return None
        found, own_limits = get_parameters_and_bounds(mll)
        limits, logarithmic = searched_limits(mll, own_limits)
        names = {id(parameter): name for name, parameter in found.items()}
        made, roles = dict[str, Hyperparameter](), dict[str, str]()
        for role, (owner, own) in owners.items():
            parameter, constraint = getattr(owner, own), owner.constraint_for_parameter_name(own)
            name, link = names[id(parameter)], _link(constraint)
            if link is None:
                return None
            lower = float(constraint.lower_bound) if link == "softplus" else 0.0
            link, roles[name] = "log" if name in logarithmic else link, role
            made[role] = Hyperparameter(parameter, link, lower, tuple(priors.get(role, ())))
        searched = {name: parameter for name, parameter in found.items() if parameter.requires_grad}
        if not searched.keys() <= roles.keys():
            return None
        learned = tuple(roles[name] for name in searched)
        bounds = get_bounds_as_ndarray(searched, limits)
        rows = ((X - X.mean(0)).numpy(), _vector(Y[:, 0]), _vector(D[:, 0]))
        return cls(*rows, radial.profile, made, learned, bounds)

    @property
    def present(self) -> Vector:
        """The present hyperparameters that are learned, on the scale of the search, in a row."""
        return np.concatenate([_NONE, *(self.hyperparameters[role].present for role in self.learned)])

    def set(self, x: Vector) -> None:
        """Set the hyperparameters to values that were searched."""
        for role, part in self._parts(x):
            self.hyperparameters[role].set(part)

    def __call__(self, x: Vector) -> tuple[float, Vector]:
        """Return the loss and its gradient in what is searched. O(n³ + n²d)."""
        return self.at(x, self.D)[:2]

    def at(self, x: Vector, D: Vector) -> tuple[float, Vector, Vector]:
        """Return the loss with any D, and its gradients in what is searched and in D. O(n³ + n²d)."""
        at = dict(self._parts(x))
        at |= {role: each.present for role, each in self.hyperparameters.items() if role not in at}
        found = {role: self.hyperparameters[role].value_and_slope(part) for role, part in at.items()}
        values = {role: value for role, (value, _) in found.items()}
        lengthscale, scale, noise = values["lengthscale"], values.get("scale", _ONE), values.get("noise", _ONE)
        Z, y = self.X / lengthscale, self.Y - values.get("constant", 0.0)
        total, (g_Z, g_scale, g_y, g_variance) = self._evidence(Z, float(scale[0]), y, noise * D, self.profile)
        along = -(g_Z * Z).sum(0 if len(lengthscale) > 1 else None) / lengthscale
        slopes = {"lengthscale": along, "scale": g_scale, "noise": g_variance @ D, "constant": -g_y.sum()}
        gradients, n = {role: np.atleast_1d(slopes[role]) for role in at}, len(self.X)
        for role, each in self.hyperparameters.items():
            for prior in each.priors:
                density, slope = prior.log_density(found[role][0])
                total += density
                gradients[role] = gradients[role] + slope
        gradient = np.concatenate([_NONE, *(-gradients[role] * found[role][1] for role in self.learned)])
        return -total / n, gradient / n, -noise * g_variance / n

    def minimise(self, options: Mapping[str, Any]) -> OptimizationResult:
        """Minimise the loss over what is learned by L-BFGS-B, with SciPy's options. The hyperparameters are changed."""
        x, found = minimum(self, self.present, self.bounds, options, len(self.X))
        self.set(x)
        return found

    @cached_property
    def _evidence(self) -> RepeatedEvidence:
        return RepeatedEvidence(len(self.X))

    def _parts(self, x: Vector) -> Iterator[tuple[str, Vector]]:
        end = 0
        for role in self.learned:
            start, end = end, end + self.hyperparameters[role].parameter.numel()
            yield role, x[start:end]


def minimum(
    loss: Callable[[Vector], tuple[float, Vector]],
    x: Vector,
    bounds: Vector | None,
    options: Mapping[str, Any],
    rows: int,
) -> tuple[Vector, OptimizationResult]:
    """Minimise a loss by L-BFGS-B; return where it is least, and how the search ended.

    Args:
        loss: The loss and its gradient.
        x: Where the search starts.
        bounds: Bounds `p × 2`; None if there are none.
        options: SciPy's.
        rows: Number of rows, which says how many threads are of use.
    """
    with scipy_on_one_thread(), threads_for(rows), np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        given: dict[str, Any] = {"bounds": bounds, "callback": _stop_in_time, "options": dict(options)}
        found = minimize(_Backtracking(loss), x, jac=True, method="L-BFGS-B", **given)
    status = _STATUS.get(found.status, OptimizationStatus.STOPPED)
    return found.x, OptimizationResult(found.nit, float(found.fun), status, message=str(found.message))


def _stop_in_time(_: Vector) -> None:
    """End a search after an iteration if the time of the fit is over."""
    if is_over():
        raise StopIteration


@dataclass
class _Backtracking:
    """A loss whose value is high, and flat, where it cannot be computed: a line search then takes a shorter step.

    Attributes:
        loss: The loss and its gradient. It raises NotPSDError, or is not finite, where it cannot be computed.
        highest: The highest value so far; None before there is any. What cannot be computed is higher by 1.
    """

    loss: Callable[[Vector], tuple[float, Vector]]
    highest: float | None = None

    def __call__(self, x: Vector) -> tuple[float, Vector]:
        try:
            value, gradient = self.loss(x)
        except NotPSDError:
            if self.highest is None:
                raise
            value = math.nan
        if math.isfinite(value):
            self.highest = value if self.highest is None else max(self.highest, value)
        elif self.highest is not None:
            return self.highest + 1.0, np.zeros_like(x)
        return value, gradient


def _owners(modules: SingleTaskGP, known: bool) -> dict[str, tuple[Any, str]] | None:
    """Return the modules and names of parameters by their roles; None for other kernels, means or noise."""
    kernel, mean, likelihood = modules.covar_module, modules.mean_module, modules.likelihood
    base = kernel.base_kernel if type(kernel) is ScaleKernel else kernel
    covariance = getattr(likelihood, "noise_covar", None)
    plain = known or type(covariance) is HomoskedasticNoise
    if type(base) is ScaleKernel or type(mean) not in (ConstantMean, ZeroMean) or not plain:
        return None
    owners: dict[str, tuple[Any, str]] = {"lengthscale": (base, "raw_lengthscale")}
    if base is not kernel:
        owners["scale"] = (kernel, "raw_outputscale")
    if not known:
        owners["noise"] = (covariance, "raw_noise")
    if type(mean) is ConstantMean:
        owners["constant"] = (mean, "raw_constant")
    return owners


def _link(constraint: Any) -> str | None:
    """Return how a constraint transforms a parameter: "softplus", "identity", or None for another way."""
    if constraint is None or not constraint.enforced:
        return "identity"
    transform = constraint._transform
    plain = isinstance(constraint, GreaterThan) and isinstance(transform, torch.nn.Softplus) and transform.beta == 1
    return "softplus" if plain and constraint.lower_bound.numel() == 1 else None


def _priors(
    mll: ExactMarginalLogLikelihood, owners: Mapping[str, tuple[Any, str]]
) -> dict[str, list[LogNormal]] | None:
    """Return the priors of hyperparameters by their roles; None if any is not log-normal or is of something else."""
    found: dict[str, list[LogNormal]] = {}
    for _, module, prior, value, _ in mll.model.named_priors():
        role = next((role for role, (owner, _) in owners.items() if owner is module), None)
        units = None if role is None else _units(role, module, value)
        if role is None or units is None or type(prior) is not LogNormalPrior or prior._transform is not None:
            return None
        parts = prior.base_dist.loc, prior.base_dist.scale, units
        if max(part.numel() for part in parts) > getattr(*owners[role]).numel():
            return None
        found.setdefault(role, []).append(LogNormal(*(_vector(part) for part in parts)))
    return found


def _units(role: str, module: Any, value: Any) -> Tensor | None:
    if role == "lengthscale":
        return units_of_prior(module, value)
    own = {"scale": ScaleKernel._outputscale_param, "noise": HomoskedasticNoise._noise_param}.get(role)
    return torch.ones(()) if own is not None and getattr(value, "__func__", None) is own else None


def _vector(values: Tensor) -> Vector:
    found: Vector = values.detach().double().reshape(-1).numpy().copy()
    return found
