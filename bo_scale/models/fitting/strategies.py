"""Strategies of fitting: how `fit_gpytorch_mll` fits a model of this package."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from botorch.exceptions.errors import ModelFittingError
from botorch.fit import _fit_fallback
from gpytorch.mlls import MarginalLogLikelihood
from linear_operator.utils.errors import NotPSDError

from bo_scale.errors import FitWarning
from bo_scale.models.errors import FitError, UnsupportedError
from bo_scale.models.fitting.evidence import restored_on_failure
from bo_scale.models.fitting.report import Recorder


@dataclass(frozen=True)
class FitOptions:
    """What `fit_gpytorch_mll` was given beside the model.

    Attributes:
        closure: Its argument of that name.
        closure_kwargs: Likewise.
        optimizer_kwargs: Likewise: those of L-BFGS.
        others: All other keywords.
    """

    closure: Any = None
    closure_kwargs: dict[str, Any] | None = None
    optimizer_kwargs: dict[str, Any] | None = None
    others: dict[str, Any] = field(default_factory=dict)


@runtime_checkable
class Fitting(Protocol):
    """A way to fit a model in place."""

    def fit(self, model: Any, mll: MarginalLogLikelihood, options: FitOptions, record: Recorder) -> Any:
        """Fit the model of an mll, and return the mll in eval mode.

        Raises:
            FitError: if there was no fit; hyperparameters are then as they were.
        """


@dataclass(frozen=True)
class EvidenceFit:
    """BoTorch's own fit of the evidence by L-BFGS, with its retries from sampled priors."""

    def fit(self, model: Any, mll: MarginalLogLikelihood, options: FitOptions, record: Recorder) -> Any:
        """All hyperparameters at once."""
        with record.stage("hyperparameters by L-BFGS on the evidence"):
            return _fit_fallback(
                mll,
                closure=options.closure,
                closure_kwargs=options.closure_kwargs,
                optimizer_kwargs=options.optimizer_kwargs,
                **options.others,
            )


@dataclass(frozen=True)
class FollowGrid:
    """Another strategy, and again on a finer grid while the grid proves too coarse for what was learned.

    Attributes:
        inner: The strategy.
        attempts: How often to fit at most.
    """

    inner: Fitting = field(default_factory=EvidenceFit)
    attempts: int = 3

    def fit(self, model: Any, mll: MarginalLogLikelihood, options: FitOptions, record: Recorder) -> Any:
        """Fit, refine, and fit again."""
        for attempt in range(self.attempts):
            try:
                mll = self.inner.fit(model, mll, options, record)
            except ModelFittingError as error:
                if attempt == 0:
                    raise
                message = f"WISKI: no fit on the finer grid, hyperparameters stay as fitted before: {error}"
                record.warn(message, FitWarning)
                return mll.eval()
            if not model.follow_grid():
                break
            record.note(f"the grid is refined to {[grid.size for grid in model.grids]}")
        return mll


@dataclass(frozen=True)
class StagedFit:
    """The stages of a model's own. If one fails, hyperparameters are as they were."""

    def fit(self, model: Any, mll: MarginalLogLikelihood, options: FitOptions, record: Recorder) -> Any:
        """Run the stages.

        Raises:
            UnsupportedError: for a closure: stages have losses of their own.
            FitError: if a stage ends without a result.
        """
        name = type(model).__name__
        if options.closure is not None or options.closure_kwargs:
            raise UnsupportedError(f"closure: {name} is fitted in stages; give optimizer_kwargs to L-BFGS instead.")
        if options.others:
            record.warn(f"{name} is fitted in stages of its own; {sorted(options.others)} ignored.", FitWarning)
        mll.train()
        with restored_on_failure(mll.parameters()), _undone_on_failure(model):
            try:
                model.fit_stages(mll, options.optimizer_kwargs)
            except NotPSDError as error:
                raise FitError(f"{name} could not be fitted: {error}") from error
        return mll.eval()


@contextmanager
def _undone_on_failure(model: Any) -> Iterator[None]:
    """Whatever is raised within passes on, and the model has the parameters and buffers of its own from before."""
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
