"""Small decoupled GPs for tests, and what is looked at of them."""

from typing import Any

import pytest
import torch
from botorch.fit import fit_gpytorch_mll
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from bo_scale.gp.function_space.variational import bound
from bo_scale.models.decoupled import DecoupledGP

KINDS = ["direct", "hybrid"]
kinds = pytest.mark.parametrize("kind", KINDS)


def small(X: Tensor, Y: Tensor, *args: Any, **options: Any) -> DecoupledGP:
    """Fewer points than rows, and a short training from where there is something to learn."""
    few = {"num_mean_inducing": 12, "num_covar_inducing": 6, "num_steps": 8, "batch_size": 16}
    return DecoupledGP(X, Y, *args, **{**few, "initialization": "median", **options})


def mll_of(model: Any) -> ExactMarginalLogLikelihood:
    return ExactMarginalLogLikelihood(model.likelihood, model)


def fitted(model: DecoupledGP) -> DecoupledGP:
    fit_gpytorch_mll(mll_of(model), optimizer_kwargs={"options": {"maxiter": 20}})
    return model


def state(model: torch.nn.Module) -> Tensor:
    return torch.cat([p.detach().reshape(-1).clone() for p in model.parameters()])


def bounds(model: DecoupledGP) -> Tensor:
    """Of all rows, at the parameters as they are."""
    (X, Y, D), noise = model._transformed_rows(), model._noise_scale()
    with torch.no_grad():
        return torch.stack([bound(model._process(j), X, Y[:, j], noise[j] * D[:, j]) for j in range(Y.shape[-1])])
