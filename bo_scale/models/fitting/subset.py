"""Initial kernel, mean and noise from an exact GP on some of the rows."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from botorch import settings
from botorch.models import SingleTaskGP
from gpytorch.constraints import Interval
from gpytorch.kernels import Kernel
from gpytorch.means import ZeroMean
from gpytorch.mlls import ExactMarginalLogLikelihood
from jaxtyping import Float
from linear_operator.utils.errors import NotPSDError
from torch import Tensor

from bo_scale.gp.function_space.exact_evidence import exact_log_evidence
from bo_scale.models.errors import UnsupportedError
from bo_scale.models.fitting.evidence import minimise
from bo_scale.models.shell.cloning import clone_module
from bo_scale.models.shell.data import ModelWithData
from bo_scale.models.shell.kernels import OutputKernel

COARSE = 256
"""Number of rows on which starting points are compared."""
GAIN = 1e-3
"""A fit ends when an iteration gains less log evidence than this."""
STEPS = 100
"""Maximum number of iterations of a fit."""


def start_from_subset(
    model: ModelWithData, size: int, seed: int, optimizer_kwargs: dict[str, Any] | None = None
) -> None:
    """Set a model's hyperparameters, in place, to those of an exact GP fitted on at most `size` random rows.

    The exact GP has copies of the model's kernel, mean and likelihood, including priors and constraints, and uses the
    model's transforms. It keeps hyperparameters without `requires_grad`. Computation is in float64, whatever the
    model's dtype, and costs O(size³) per evaluation.

    At most `COARSE` rows are fitted first, from two starts: the present hyperparameters, and lengthscales so long that
    the kernel relates rows at typical distances. With shorter ones all rows look independent, and the evidence is flat.
    The fit to all rows goes on from the best of these by evidence.

    Args:
        model: A model that keeps its rows.
        size: Maximum number of rows; all rows if there are no more.
        seed: Seed for the choice of rows, and for new starting points if BoTorch's fit needs any. The global random
            state is restored.
        optimizer_kwargs: As for `fit_gpytorch_mll`. By default L-BFGS takes at most 100 iterations, and ends when one
            gains less than 0.001 nats.

    Raises:
        UnsupportedError: if the model keeps no rows.
        FitError: if the exact GP cannot be fitted; see `botorch.fit`.
    """
    rows = model._rows
    if rows is None:
        raise UnsupportedError("start_from_subset: the model keeps no rows. Construct it with keep_data=True.")
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randperm(rows.count, generator=generator)[:size].to(model._device)
    X, Y, D = rows.X[chosen], rows.Y[chosen].double(), rows.D[chosen].double()
    if hasattr(model, "input_transform"):
        X = model.input_transform.preprocess_transform(X)
    with settings.validate_input_scaling(False), _seeded(seed, model._device):
        exact = _ExactGP.like(model, X.double(), Y, D)
        exact.fit_from_best_start(optimizer_kwargs or {})
    model.covar_module.load_state_dict(exact.modules.covar_module.state_dict())
    model.mean_module.load_state_dict(exact.modules.mean_module.state_dict())
    if not model.knows_noise:
        model.likelihood.load_state_dict(exact.modules.likelihood.state_dict())


@dataclass(frozen=True)
class _ExactGP:
    """An exact GP with copies of a model's modules.

    Attributes:
        modules: BoTorch's model, which holds the copies.
        X: Transformed inputs.
        Y: Transformed targets.
        D: Noise variances relative to the learned one; absolute if noise is known.
        known: Whether noise is known.
    """

    modules: SingleTaskGP
    X: Float[Tensor, "n d"]
    Y: Float[Tensor, "n m"]
    D: Float[Tensor, "n m"]
    known: bool

    @classmethod
    def like(cls, model: ModelWithData, X: Tensor, Y: Tensor, D: Tensor) -> "_ExactGP":
        """Return the exact GP with a model's present hyperparameters."""
        modules = SingleTaskGP(
            X,
            Y,
            train_Yvar=D if model.knows_noise else None,
            covar_module=clone_module(model.covar_module).double(),
            mean_module=clone_module(model.mean_module).double(),
            likelihood=None if model.knows_noise else clone_module(model.likelihood).double(),
            outcome_transform=None,
        )
        return cls(modules, X, Y, D, model.knows_noise)

    def fit_from_best_start(self, given: dict[str, Any]) -> None:
        """Fit in place, from the best of several starts, which few rows are fitted from first."""
        coarse = slice(COARSE)
        states = [self._state()]
        long = self._with_long_lengthscales(self.X[coarse])
        starts = [states[0]] if long is None else [states[0], long]
        if len(starts) > 1 or len(self.X) > COARSE:
            for start in starts:
                self.modules.load_state_dict(start)
                self._fit(coarse, given)
                states.append(self._state())
            states = states if len(self.X) > COARSE else states[1:]
        self.modules.load_state_dict(max(states, key=self._value_at) if len(states) > 1 else states[0])
        if len(states) == 1 or len(self.X) > COARSE:
            self._fit(slice(None), given)

    def _state(self) -> dict[str, Tensor]:
        return {name: value.clone() for name, value in self.modules.state_dict().items()}

    def _value_at(self, state: Mapping[str, Any]) -> float:
        """Return log evidence plus log priors of all rows at some hyperparameters; −∞ where it cannot be computed."""
        self.modules.load_state_dict(state)
        mll = ExactMarginalLogLikelihood(self.modules.likelihood, self.modules).train()
        with torch.no_grad():
            try:
                value = -self._loss(mll, slice(None)).item()
            except NotPSDError:
                return float("-inf")
        return value if value == value else float("-inf")

    def _fit(self, rows: slice, given: dict[str, Any]) -> None:
        mll = ExactMarginalLogLikelihood(self.modules.likelihood, self.modules).train()
        learned = {name: p for name, p in mll.named_parameters() if p.requires_grad}
        if not learned:
            return
        options = {"maxiter": STEPS, "ftol": GAIN / max(1, len(self.X[rows])), **given.get("options", {})}
        minimise(mll, learned, lambda: self._loss(mll, rows), {**given, "options": options})

    def _loss(self, mll: Any, rows: slice) -> Float[Tensor, ""]:
        """Return −(log evidence + log priors)/n of some rows, summed over outputs."""
        modules, X, Y, D = self.modules, self.X[rows], self.Y[rows], self.D[rows]
        n, m = Y.shape
        means = Y.new_zeros(m)
        if not isinstance(modules.mean_module, ZeroMean):
            means = modules.mean_module.constant.reshape(-1).expand(m)
        noise = Y.new_ones(m) if self.known else modules.likelihood.noise.reshape(-1).expand(m)
        evidence = torch.stack(
            [
                exact_log_evidence(
                    OutputKernel.of(modules.covar_module, j, m), X, Y[:, j] - means[j], noise[j] * D[:, j]
                )
                for j in range(m)
            ]
        )
        total: Tensor = mll._add_other_terms(evidence.sum() if m == 1 else evidence, [])
        return -total.sum() / max(1, n)

    def _with_long_lengthscales(self, X: Float[Tensor, "c d"]) -> dict[str, Tensor] | None:
        """Return hyperparameters whose kernels relate rows at typical distances; None if the present ones do."""
        before, changed = self._state(), False
        for kernel in self.modules.covar_module.modules():
            if not isinstance(kernel, Kernel) or not kernel.has_lengthscale or not kernel.raw_lengthscale.requires_grad:
                continue
            columns = X if kernel.active_dims is None else X[:, kernel.active_dims]
            scales = kernel.lengthscale.detach()
            if scales.shape[-1] not in (1, columns.shape[-1]):
                continue
            variances = columns.var(0, unbiased=False) if len(columns) > 1 else torch.zeros_like(columns[0])
            squares = 2 * (variances / scales.square()).sum(-1, keepdim=True)
            if bool((squares > 1.0).any()):
                kernel.lengthscale = _within(kernel.raw_lengthscale_constraint, scales * squares.clamp_min(1.0).sqrt())
                changed = True
        long = self._state()
        self.modules.load_state_dict(before)
        return long if changed else None


def _within(constraint: Interval, values: Tensor) -> Tensor:
    """Return values inside the bounds of a constraint."""
    lower, upper = (bound.to(values) for bound in (constraint.lower_bound, constraint.upper_bound))
    inner = torch.where(upper.isfinite(), upper - 1e-6 * upper.abs(), upper)
    return values.maximum(lower + 1e-6 * lower.abs()).minimum(inner)


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's global random state within the context, and restore it afterwards."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.default_generator.manual_seed(seed)
        if device.type == "cuda":
            torch.cuda.default_generators[device.index or 0].manual_seed(seed)
        yield
