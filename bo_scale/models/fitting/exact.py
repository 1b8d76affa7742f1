"""An exact GP with copies of a model's modules, fitted from several starts."""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from botorch import settings
from botorch.models import SingleTaskGP
from gpytorch.means import ZeroMean
from gpytorch.mlls import ExactMarginalLogLikelihood
from jaxtyping import Float
from linear_operator.utils.errors import NotPSDError
from torch import Tensor

from bo_scale.errors import FitWarning
from bo_scale.gp.function_space.exact_evidence import exact_log_evidence, leave_one_out
from bo_scale.gp.linalg.dense import cholesky
from bo_scale.models.errors import FitError
from bo_scale.models.fitting.closed_form import ClosedForm
from bo_scale.models.fitting.evidence import fit_or_restore, minimise
from bo_scale.models.fitting.missed import missed_changes, shorten
from bo_scale.models.fitting.starts import (
    FEWEST,
    MORE,
    explain_by_noise,
    relates_no_rows,
    state_of,
    with_long_lengthscales,
    with_short_lengthscales,
)
from bo_scale.models.shell.cloning import clone_module
from bo_scale.models.shell.data import ModelWithData
from bo_scale.models.shell.kernels import OutputKernel
from bo_scale.threads import Together
from bo_scale.training.time_limit import is_over

COARSE = 256
"""Number of rows on which starting points are compared."""
MISSED_INPUTS = 2
"""Maximum number of inputs whose lengthscales are shortened."""
LARGE, NOISE_SHARE = 0.1, 0.5
"""Errors of left-out rows are looked at if their mean square is this part of the variance of the targets, or this part
of it is noise."""
GAIN = 1e-3
"""A fit ends when an iteration gains less log evidence than this."""
STEPS = 100
"""Maximum number of iterations of a fit."""
ANY_SCALING = Together(partial(settings.validate_input_scaling, False))
"""The context in which BoTorch does not warn of the scale of inputs and targets."""


@dataclass(frozen=True)
class ExactGP:
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
    def like(cls, model: ModelWithData, X: Tensor, Y: Tensor, D: Tensor) -> "ExactGP":
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

    @classmethod
    def of(cls, model: ModelWithData) -> "ExactGP":
        """Return the exact GP of all rows of a model."""
        X, Y, D = model._transformed_rows()
        with ANY_SCALING:
            return cls.like(model, X, Y, D)

    def fit_from_best_start(self, given: dict[str, Any], fitted: bool = False) -> None:
        """Fit in place: few rows from several starts, then all rows from the best end. A start that fails is given up.

        A fit whose errors go together along an input is repeated with a short lengthscale of it.

        Args:
            given: As for `fit_gpytorch_mll`.
            fitted: Whether the present hyperparameters are the only start, since they come from a fit to such rows.

        Raises:
            FitError: if every fit fails.
        """
        if fitted:
            self.fit(slice(None), given)
            self._fit_missed_inputs(slice(None), given)
            return
        first = self.state()
        ends, errors = self._fits_to_few(given)
        if len(self.X) > COARSE:
            self.modules.load_state_dict(max([first, *ends], key=self.value_at))
            try:
                self.fit(slice(None), given)
                self._fit_missed_inputs(slice(None), given)
                return
            except FitError as error:
                errors.append(error)
        if not ends:
            raise errors[-1]
        self.modules.load_state_dict(max(ends, key=self.value_at))
        if errors:
            warnings.warn(f"a start of the exact GP failed and was given up: {errors[-1]}", FitWarning, stacklevel=2)

    def _fits_to_few(self, given: dict[str, Any]) -> tuple[list[dict[str, Tensor]], list[FitError]]:
        """Fit few rows from several starts, and return where fits ended, and the errors of those that failed."""
        few, first, X = slice(COARSE), self.state(), self.X[:COARSE]
        part, long = self._part(few), with_long_lengthscales(self.modules, X)
        short = with_short_lengthscales(self.modules, X)
        ends, doubtful, errors = list[dict[str, Tensor]](), list[dict[str, Tensor]](), list[FitError]()

        def fit_from(start: dict[str, Tensor]) -> None:
            self.modules.load_state_dict(start)
            try:
                self.fit(few, given)
                (doubtful if start is short or relates_no_rows(self.modules, X) else ends).append(self.state())
            except FitError as error:
                errors.append(error)

        for start in (first, long, short):
            if start is not None and not (ends and is_over()):
                fit_from(start)
        if doubtful and not ends and not self.known:
            self.modules.load_state_dict(first)
            explain_by_noise(self.modules, part.Y)
            fit_from(self.state())
        ends += [found for found in doubtful if part._shows_more(found, ends)]
        if ends:
            self.modules.load_state_dict(max(ends, key=part.value_at))
            if self._fit_missed_inputs(few, given):
                ends.append(self.state())
        return ends, errors

    def _shows_more(self, found: dict[str, Tensor], ends: list[dict[str, Tensor]]) -> bool:
        """Return whether short lengthscales show more than others do, by log evidence without priors."""
        return not ends or self._evidence_at(found) > MORE + max(map(self._evidence_at, ends))

    @torch.no_grad()
    def _evidence_at(self, state: Mapping[str, Any]) -> float:
        """Return the log evidence of all rows, summed over outputs; −∞ where it cannot be computed."""
        self.modules.load_state_dict(state)
        try:
            m = self.Y.shape[-1]
            return sum(exact_log_evidence(*self._observations(j, slice(None))).item() for j in range(m))
        except NotPSDError:
            return float("-inf")

    def state(self) -> dict[str, Tensor]:
        """Return a copy of all hyperparameters."""
        return state_of(self.modules)

    def value_at(self, state: Mapping[str, Any]) -> float:
        """Return log evidence plus log priors of all rows at some hyperparameters; −∞ where it cannot be computed."""
        self.modules.load_state_dict(state)
        return self._once("value", self._value)

    def _value(self) -> float:
        mll = ExactMarginalLogLikelihood(self.modules.likelihood, self.modules).train()
        closed = self._closed_form
        with torch.no_grad(), np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            try:
                loss = self.loss(mll, slice(None)).item() if closed is None else closed(closed.present)[0]
            except NotPSDError:
                return float("-inf")
        return -loss if loss == loss else float("-inf")

    def fit(self, rows: slice, given: dict[str, Any]) -> None:
        """Fit some rows in place, from the present hyperparameters."""
        mll = ExactMarginalLogLikelihood(self.modules.likelihood, self.modules).train()
        learned = {name: p for name, p in mll.named_parameters() if p.requires_grad}
        if not learned:
            return
        options = {"maxiter": STEPS, "ftol": GAIN / max(1, len(self.X[rows])), **given.get("options", {})}
        closed = self.closed_form(rows) if given.keys() <= {"options"} else None
        if closed is not None:
            fit_or_restore(learned, lambda: closed.minimise(options))
            return
        minimise(mll, learned, lambda: self.loss(mll, rows), {**given, "options": options})

    def left_out(self) -> tuple[Float[Tensor, "n m"], Float[Tensor, "n m"]]:
        """Return errors and variances of each observation as predicted from the others. O(n³)."""
        return self._once("left out", self._left_out)

    def left_out_function(self) -> tuple[Float[Tensor, "n m"], Float[Tensor, "n m"]]:
        """Return the same errors, and variances of f: those of the observations less their noise. O(n³)."""
        errors, variances = self.left_out()
        return errors, (variances - self.noise_scale() * self.D).clamp_min(0.0)  # rounding of large noise

    def _left_out(self) -> tuple[Float[Tensor, "n m"], Float[Tensor, "n m"]]:
        with torch.no_grad():
            found = [leave_one_out(*self._observations(j, slice(None))) for j in range(self.Y.shape[-1])]
        return torch.stack([errors for errors, _ in found], -1), torch.stack([variances for _, variances in found], -1)

    def _once(self, name: str, compute: Callable[[], Any]) -> Any:
        """Return what was computed before at the present hyperparameters, or compute it. On a GPU it is computed."""
        if self.X.is_cuda:
            return compute()
        key = (name, *(p.detach().numpy().tobytes() for p in self.modules.parameters()))
        if key not in self._computed:
            self._computed[key] = compute()
        return self._computed[key]

    @cached_property
    def _computed(self) -> dict[tuple[Any, ...], Any]:
        """Values computed so far, by their name and the hyperparameters."""
        return {}

    def noise_scale(self) -> Float[Tensor, " m"]:
        """Return σ² of each output: the learned noise variance, 1 if noise is known."""
        m = self.Y.shape[-1]
        if self.known:
            return torch.ones(m).to(self.Y)
        scale: Tensor = self.modules.likelihood.noise.detach().reshape(-1).expand(m)
        return scale

    def squared_residuals(self) -> Float[Tensor, "n m"]:
        """Return E[(y_i − f(x_i))²]/σ² given all rows.

        With A = K + V: y − E[f] = V A⁻¹y, and the variances of f are those of V − V A⁻¹V.
        """
        errors, variances = self.left_out()  # [A⁻¹y]_i/[A⁻¹]_ii and 1/[A⁻¹]_ii
        scale = self.noise_scale()
        V = self.D * scale
        left = V / variances
        return ((left * errors).square() + V * (1 - left).clamp_min(0.0)) / scale

    def predicted(
        self, X: Float[Tensor, "k d"], Y: Float[Tensor, "k m"]
    ) -> tuple[Float[Tensor, "k m"], Float[Tensor, "k m"]]:
        """Return errors and variances of f at other rows."""
        errors, variances = torch.empty_like(Y), torch.empty_like(Y)
        with torch.no_grad():
            for j in range(Y.shape[-1]):
                kernel, seen, y, noise = self._observations(j, slice(None))
                A = kernel(seen, seen)
                A.diagonal().add_(noise)
                C, k = cholesky(A, "K + V of an exact GP"), kernel(seen, X)
                mean = k.mT @ torch.cholesky_solve(y.unsqueeze(-1), C).squeeze(-1) + (self.Y[0, j] - y[0])
                errors[:, j] = Y[:, j] - mean
                explained = torch.linalg.solve_triangular(C, k, upper=False).square().sum(0)
                variances[:, j] = (kernel.variance(X) - explained).clamp_min(0.0)
        return errors, variances

    def closed_form(self, rows: slice) -> ClosedForm | None:
        """Return the loss of some rows with its gradient in closed form; None if it has none."""
        return self._part(rows)._closed_form

    @cached_property
    def _closed_form(self) -> ClosedForm | None:
        """The closed form of all rows, whatever the hyperparameters are."""
        return ClosedForm.of(self.modules, self.X, self.Y, self.D, self.known)

    def loss(self, mll: Any, rows: slice) -> Float[Tensor, ""]:
        """Return −(log evidence + log priors)/n of some rows, summed over outputs."""
        m = self.Y.shape[-1]
        evidence = torch.stack([exact_log_evidence(*self._observations(j, rows)) for j in range(m)])
        total: Tensor = mll._add_other_terms(evidence.sum() if m == 1 else evidence, [])
        return -total.sum() / max(1, len(self.X[rows]))

    def _observations(self, j: int, rows: slice) -> tuple[OutputKernel, Tensor, Tensor, Tensor]:
        """Return kernel, inputs, residuals and noise variances of one output."""
        modules, X, y, D = self.modules, self.X[rows], self.Y[rows, j], self.D[rows, j]
        m = self.Y.shape[-1]
        if not isinstance(modules.mean_module, ZeroMean):
            y = y - modules.mean_module.constant.reshape(-1).expand(m)[j]
        noise = D if self.known else modules.likelihood.noise.reshape(-1).expand(m)[j] * D
        return OutputKernel.of(modules.covar_module, j, m), X, y, noise

    def _part(self, rows: slice) -> "ExactGP":
        """Return the exact GP of some rows, with the same modules; of all rows this one."""
        X = self.X[rows]
        return self if len(X) == len(self.X) else replace(self, X=X, Y=self.Y[rows], D=self.D[rows])

    def _fit_missed_inputs(self, rows: slice, given: dict[str, Any]) -> bool:
        """Fit some rows again with a short lengthscale of the input along which errors go together. In place.

        What goes up and down many times along one of many inputs is noise at longer lengthscales, and the evidence has
        another maximum there. Hyperparameters that are no better, or cannot be fitted, are given up.

        Args:
            rows: The rows, to which the present hyperparameters were fitted.
            given: As for `fit_gpytorch_mll`.

        Returns:
            Whether there are better hyperparameters.
        """
        part, best, better = self._part(rows), self.state(), False
        value = part.value_at(best)
        for _ in range(MISSED_INPUTS):
            try:
                if is_over() or not part._shorten_missed_input():
                    break
                self.fit(rows, given)
            except (FitError, NotPSDError):
                break
            found = self.state()
            if (value_found := part.value_at(found)) <= value:
                break
            best, value, better = found, value_found, True
        self.modules.load_state_dict(best)
        return better

    def _shorten_missed_input(self) -> bool:
        """Shorten the lengthscale of the input along which errors of left-out rows go together. Return whether one is.

        Only errors that are large, or noise to this GP, are looked at.
        """
        if len(self.X) < FEWEST:
            return False
        errors = self.left_out()[0]
        square, noise = errors.square().mean(0), (self.noise_scale() * self.D).mean(0)
        matter = (square > LARGE * self.Y.var(0)) | (noise > NOISE_SHARE * square)
        return bool(matter.any()) and shorten(self.modules.covar_module, missed_changes(self.X, errors))
