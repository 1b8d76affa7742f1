"""Strategies by which `fit_gpytorch_mll` fits a model of this package."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch
from botorch.exceptions.errors import ModelFittingError
from botorch.fit import _fit_fallback
from gpytorch.mlls import MarginalLogLikelihood
from linear_operator.utils.errors import NotPSDError
from torch import Tensor

from bo_scale.errors import FitWarning
from bo_scale.models.errors import FitError, UnsupportedError
from bo_scale.models.fitting.evidence import lbfgs, loss_of, restored_on_failure
from bo_scale.models.fitting.report import Recorder
from bo_scale.models.fitting.starts import MORE
from bo_scale.training.time_limit import is_over


@dataclass(frozen=True)
class FitOptions:
    """Arguments of `fit_gpytorch_mll` other than the model.

    Attributes:
        closure: The argument `closure`.
        closure_kwargs: The argument `closure_kwargs`.
        optimizer_kwargs: The argument `optimizer_kwargs`, for L-BFGS.
        others: All other keyword arguments.
    """

    closure: Any = None
    closure_kwargs: dict[str, Any] | None = None
    optimizer_kwargs: dict[str, Any] | None = None
    others: dict[str, Any] = field(default_factory=dict)


@runtime_checkable
class Fitting(Protocol):
    """A strategy to fit a model in place."""

    def fit(self, model: Any, mll: MarginalLogLikelihood, options: FitOptions, record: Recorder) -> Any:
        """Fit the model of an mll, and return the mll in eval mode.

        Raises:
            FitError: if no fit succeeds; hyperparameters then keep their values.
        """


@dataclass(frozen=True)
class EvidenceFit:
    """BoTorch's own fit of the evidence by L-BFGS, with its retries from samples of the priors.

    Attributes:
        gain: A fit ends when an iteration gains less log evidence than this, if it is given no options; None for
            BoTorch's rule.
    """

    gain: float | None = None

    def fit(self, model: Any, mll: MarginalLogLikelihood, options: FitOptions, record: Recorder) -> Any:
        """Fit all hyperparameters at once."""
        given = options.optimizer_kwargs
        if self.gain is not None and given is None and not options.others:
            given = {"options": {"ftol": self.gain / model._evidence_size()}}
        with record.stage("hyperparameters by L-BFGS on the evidence"):
            return _fit_fallback(
                mll,
                closure=options.closure,
                closure_kwargs=options.closure_kwargs,
                **{"optimizer": lbfgs, **options.others},
                optimizer_kwargs=given,
            )


@dataclass(frozen=True)
class FollowGrid:
    """A strategy that repeats another on finer grids while the grid is too coarse for the fitted hyperparameters.

    Attributes:
        inner: The strategy of the first fit.
        finer: The strategy on finer grids, where fits start near their ends.
        attempts: Maximum number of fits.
    """

    inner: Fitting = field(default_factory=EvidenceFit)
    finer: Fitting = field(default_factory=EvidenceFit)
    attempts: int = 3

    def fit(self, model: Any, mll: MarginalLogLikelihood, options: FitOptions, record: Recorder) -> Any:
        """Fit, refine the grid, and fit again."""
        for attempt in range(self.attempts):
            try:
                mll = (self.finer if attempt else self.inner).fit(model, mll, options, record)
            except ModelFittingError as error:
                if attempt == 0:
                    raise
                message = f"WISKI: the fit on the finer grid failed, so hyperparameters stay as fitted before: {error}"
                record.warn(message, FitWarning)
                return mll.eval()
            if is_over() or not model.follow_grid():
                break
            record.note(f"the grid was refined to {[grid.size for grid in model.grids]}")
        return mll


@dataclass(frozen=True)
class ShortenMissed:
    """A strategy that repeats another with shorter lengthscales if errors of neighbouring rows go together.

    What goes up and down many times is noise at long lengthscales, and the evidence has another maximum there. The
    model's `shorten_lengthscales` goes there; hyperparameters that are no better are given up. Before that, a fit whose
    kernel relates no rows is repeated from large noise. A fit with options for L-BFGS, such as limits, is not repeated.

    Attributes:
        inner: The strategy of the first fit.
        again: The strategy of repetitions, which start near their ends.
        attempts: Maximum number of repetitions.
    """

    inner: Fitting
    again: Fitting
    attempts: int = 2

    def fit(self, model: Any, mll: MarginalLogLikelihood, options: FitOptions, record: Recorder) -> Any:
        """Fit, shorten lengthscales, and fit again."""
        first, limited = _State.of(model), options.optimizer_kwargs is not None
        mll = self.inner.fit(model, mll, options, record)
        if not limited and not is_over() and model.relates_no_rows():
            self._fit_as_noise(model, mll, first, options, record)
        for _ in range(0 if limited else self.attempts):
            if is_over() or not any(changes := model.missed_changes()):
                break
            before, value, better = _State.of(model), _loss_of(model, mll), False
            with suppress(ModelFittingError, NotPSDError):
                if model.shorten_lengthscales(changes):
                    self.again.fit(model, mll, options, record)
                    better = _loss_of(model, mll) < value
            if not better:
                before.restore(model)
                break
            record.note("the fit was repeated with shorter lengthscales, since errors of neighbouring rows go together")
        return mll.eval()

    def _fit_as_noise(
        self, model: Any, mll: MarginalLogLikelihood, first: "_State", options: FitOptions, record: Recorder
    ) -> None:
        """Fit again from large noise, and keep that unless short lengthscales are better by evidence. In place."""
        short, evidence = _State.of(model), _evidence_of(model)
        first.restore(model)
        worse = True
        with suppress(ModelFittingError, NotPSDError):
            model.start_from_noise()
            self.inner.fit(model, mll, options, record)
            worse = evidence > MORE + _evidence_of(model)
        if worse:
            short.restore(model)
        else:
            record.note("the fit was repeated from large noise, since its kernel related no rows")


@dataclass(frozen=True)
class _State:
    """Hyperparameters and grids of a model."""

    values: list[Tensor]
    grids: tuple[Any, ...]

    @classmethod
    def of(cls, model: Any) -> "_State":
        return cls([p.detach().clone() for p in model.parameters()], model.grids)

    @torch.no_grad()
    def restore(self, model: Any) -> None:
        for p, values in zip(model.parameters(), self.values, strict=True):
            p.copy_(values)
        model.take_grids(self.grids)


@torch.no_grad()
def _evidence_of(model: Any) -> float:
    """Return the log evidence, without priors, summed over outputs."""
    total: float = model._log_evidence().sum().item()
    return total


def _loss_of(model: Any, mll: MarginalLogLikelihood) -> float:
    """Return −(log evidence + log priors)/n."""
    with torch.no_grad():
        return loss_of(model, mll, model._log_evidence()).item()


@dataclass(frozen=True)
class StagedFit:
    """A strategy that runs the model's own stages. If one fails, hyperparameters keep their values."""

    def fit(self, model: Any, mll: MarginalLogLikelihood, options: FitOptions, record: Recorder) -> Any:
        """Run the stages.

        Raises:
            UnsupportedError: for a closure, since stages have their own losses.
            FitError: if a stage ends without a result.
        """
        name = type(model).__name__
        if options.closure is not None or options.closure_kwargs:
            raise UnsupportedError(
                f"closure: {name} is fitted in stages, each with its own loss. Pass optimizer_kwargs instead."
            )
        if options.others:
            record.warn(f"{name} is fitted in stages of its own, which ignore {sorted(options.others)}.", FitWarning)
        mll.train()
        with restored_on_failure(mll.parameters()), _undone_on_failure(model):
            try:
                model.fit_stages(mll, options.optimizer_kwargs, record)
            except NotPSDError as error:
                raise FitError(f"{name} could not be fitted: {error}") from error
        return mll.eval()


@contextmanager
def _undone_on_failure(model: Any) -> Iterator[None]:
    """Restore the model's own parameters and buffers if anything is raised within the context, and pass it on."""
    parameters = dict(model._parameters)
    buffers = {name: None if b is None else b.clone() for name, b in model._buffers.items()}
    joined = model.__dict__.get("_joined")
    try:
        yield
    except BaseException:
        model._parameters, model._buffers = parameters, buffers
        if joined is not None:
            model._joined = joined
        if model.rows is not None:
            model._inference = None
        raise
