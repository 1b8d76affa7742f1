"""Fits from several starts, the best one kept; hyperparameters carried over."""

import warnings
from collections.abc import Iterable, Mapping
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

from bo_scale.errors import FitWarning


def best_fit(starts: Iterable[Model], n: int, optimiser: dict[str, Any] | None = None) -> Model | None:
    """Models of n observations fitted from where they are; the best of them by evidence, None if all fits failed.

    Args:
        starts: The models, which are fitted in place.
        n: How many observations they have.
        optimiser: Arguments for BoTorch's.
    """
    fits = []
    for start in starts:
        try:
            fits.append(_fit(start, n, optimiser))
        except (ModelFittingError, NotPSDError) as error:
            warnings.warn(f"a fit at n = {n} failed and was given up: {error}", FitWarning, stacklevel=2)
    return min(fits, key=lambda fit: fit[1])[0] if fits else None


def _fit(model: Any, n: int, optimiser: dict[str, Any] | None = None) -> tuple[Model, float]:
    """A model of n observations with fitted hyperparameters, and its loss there."""
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
    """The model itself, with the parameters of another wherever names and shapes agree."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in values and values[name].shape == parameter.shape:
                parameter.copy_(values[name])
    return model
