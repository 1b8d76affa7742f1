"""Policy for refits: when to fit again, from which starts, and how hyperparameters carry over."""

import math
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import torch
from botorch.exceptions.errors import ModelFittingError
from botorch.fit import fit_gpytorch_mll
from botorch.models.approximate_gp import ApproximateGPyTorchModel
from botorch.models.model import Model
from botorch.optim.closures import get_loss_closure
from gpytorch.mlls import ExactMarginalLogLikelihood, MarginalLogLikelihood, VariationalELBO
from linear_operator.utils.errors import NotPSDError
from torch import Tensor

from bo_scale.errors import ApproximationWarning, FitWarning, InterpolationWarning, InvalidArgumentError
from bo_scale.models.shell.student_t import StudentTNoise

GROWTH = 1.25
"""Default factor by which the number of observations grows between two fits."""
FEW = 64
"""Up to so many observations a search with no options fits at each ask that has new ones."""


@dataclass(frozen=True)
class Refit:
    """The policy for refitting a model as its data grow.

    Attributes:
        growth: Fit again when the number of observations has grown by this factor; at least 1, which fits every time.
        few: Observations that do not count towards the growth: up to so many, each new one calls for a fit.

    Raises:
        InvalidArgumentError: for a smaller growth.
    """

    growth: float = GROWTH
    few: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.growth < math.inf:
            raise InvalidArgumentError(
                f"refit_growth={self.growth}: must be a number from 1, which fits every time, on."
            )

    def due(self, n: float | int, fitted: int) -> bool:
        """Return whether n observations call for a fit when the last fit saw `fitted` of them."""
        if self.few == 0:
            return n >= self.growth * fitted
        return n >= fitted + max(1.0, (self.growth - 1) * (fitted - self.few))

    def first(self, model: Model, n: int) -> Model:
        """Fit a model of n observations in place and return it."""
        with _without_warnings_of_approximations():
            return fit(model, n)[0]

    def better(self, starts: Iterable[Model], n: int) -> Model | None:
        """Fit each start in place and return the better by evidence; see `best_fit`."""
        with _without_warnings_of_approximations():
            return best_fit(starts, n)


@contextmanager
def _without_warnings_of_approximations() -> Iterator[None]:
    """Silence warnings about approximations: they may concern a discarded fit, and callers report on the one kept."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InterpolationWarning)
        warnings.simplefilter("ignore", ApproximationWarning)
        yield


def best_fit(
    starts: Iterable[Model],
    n: int,
    optimiser: dict[str, Any] | None = None,
    log_odds: Iterable[float] = repeat(0.0),
) -> Model | None:
    """Fit models of n observations from their present hyperparameters; return the best by evidence.

    Returns None if all fits fail.

    Args:
        starts: The models, which are fitted in place.
        n: Number of observations.
        optimiser: Arguments for BoTorch's optimiser.
        log_odds: Prior log odds of each start, nats.
    """
    fits = []
    for start, odds in zip(starts, log_odds, strict=False):
        try:
            model, loss = fit(start, n, optimiser)
            fits.append((model, loss - odds / max(1, n)))
        except (ModelFittingError, NotPSDError) as error:
            warnings.warn(f"a fit at n = {n} failed and was given up: {error}", FitWarning, stacklevel=2)
    return min(fits, key=lambda fit: fit[1])[0] if fits else None


def fit(model: Any, n: int, optimiser: dict[str, Any] | None = None) -> tuple[Model, float]:
    """Fit a model of n observations in place; return it and its loss.

    Args:
        model: The model; the fit starts from its present hyperparameters.
        n: Number of observations.
        optimiser: Arguments for BoTorch's optimiser.
    """
    if isinstance(model, ApproximateGPyTorchModel):
        mll: MarginalLogLikelihood = VariationalELBO(model.likelihood, model.model, num_data=n)
    else:
        mll = ExactMarginalLogLikelihood(model.likelihood, model)
    if optimiser is None:
        fit_gpytorch_mll(mll)
    else:
        fit_gpytorch_mll(mll, optimizer_kwargs=optimiser)
    with torch.no_grad():
        mll.train()
        loss = get_loss_closure(mll)().sum().item()
        mll.eval()
        if isinstance(model.likelihood, StudentTNoise) and model.rows is not None:
            loss -= model.likelihood.bound_gain(model.rows).sum().item() / max(1, n)
    return model, loss


def with_hyperparameters(model: Model, values: Mapping[str, Tensor]) -> Model:
    """Copy the parameters of another model wherever names and shapes agree, and return the model itself."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in values and values[name].shape == parameter.shape:
                parameter.copy_(values[name])
    return model
