"""When to fit again and from where: growth, several starts of which the best is kept, hyperparameters carried over."""

import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
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

from bo_scale.errors import FitWarning, InterpolationWarning, InvalidArgumentError

GROWTH = 1.25
"""The factor by which observations grow between two fits unless a user gives one."""


@dataclass(frozen=True)
class Refit:
    """The policy by which a model that follows its data is fitted again.

    Attributes:
        growth: Fit again when the observations have become this many times as many; at least 1, which fits every time.

    Raises:
        InvalidArgumentError: for a smaller growth.
    """

    growth: float = GROWTH

    def __post_init__(self) -> None:
        if not self.growth >= 1:
            raise InvalidArgumentError(f"refit_growth={self.growth}: must be at least 1 (fit every time).")

    def due(self, n: float | int, fitted: int) -> bool:
        """Return whether n observations make for a fit when hyperparameters have seen `fitted` of them."""
        return n >= self.growth * fitted

    def first(self, model: Model, n: int) -> Model:
        """Fit a model of n observations in place and return it."""
        with _without_warnings_of_grids():
            return fit(model, n)[0]

    def better(self, starts: Iterable[Model], n: int) -> Model | None:
        """Fit each start in place and return the better by evidence; see `best_fit`."""
        with _without_warnings_of_grids():
            return best_fit(starts, n)


@contextmanager
def _without_warnings_of_grids() -> Iterator[None]:
    """Silence warnings of coarse grids, which may be of a fit that is not kept: callers report on the one that is."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InterpolationWarning)
        yield


def best_fit(starts: Iterable[Model], n: int, optimiser: dict[str, Any] | None = None) -> Model | None:
    """Fit models of n observations from where they are; return the best by evidence, None if all fits failed.

    Args:
        starts: The models, which are fitted in place.
        n: How many observations they have.
        optimiser: Arguments for BoTorch's.
    """
    fits = []
    for start in starts:
        try:
            fits.append(fit(start, n, optimiser))
        except (ModelFittingError, NotPSDError) as error:
            warnings.warn(f"a fit at n = {n} failed and was given up: {error}", FitWarning, stacklevel=2)
    return min(fits, key=lambda fit: fit[1])[0] if fits else None


def fit(model: Any, n: int, optimiser: dict[str, Any] | None = None) -> tuple[Model, float]:
    """Fit a model of n observations in place; return it and its loss.

    Args:
        model: Starts from the hyperparameters that it has.
        n: How many observations it has.
        optimiser: Arguments for BoTorch's.
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
    return model, loss


def with_hyperparameters(model: Model, values: Mapping[str, Tensor]) -> Model:
    """Copy the parameters of another model wherever names and shapes agree, and return the model itself."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in values and values[name].shape == parameter.shape:
                parameter.copy_(values[name])
    return model
