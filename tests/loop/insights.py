"""A space, outcomes and models of which insights are tested."""

from typing import Any

import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models import ModelListGP, SingleTaskGP
from botorch.models.model import Model
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from bo_scale.loop import Space
from bo_scale.loop.problem.outcomes import Outcomes
from bo_scale.models.catalogue import preset, unit_cube

SPACE = Space.of({"x": (-1.0, 3.0), "y": (10.0, 20.0)})
MINIMISED = Outcomes.of("minimize", None, (), None)
MAXIMISED = Outcomes.of("maximize", None, (), None)
TWO = Outcomes.of(None, {"loss": "minimize", "gain": "maximize"}, (), None)


def data(n: int = 40, noise: float = 0.1, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Points of the unit cube, and values of which larger is better."""
    g = torch.Generator().manual_seed(seed)
    X = torch.rand(n, 2, generator=g).double()
    Y = (5 * X[:, :1]).sin() + X[:, 1:] + noise * torch.randn(n, 1, generator=g).double()
    return X, Y


def fitted(kind: Any, X: Tensor, Y: Tensor, Yvar: Tensor | None = None) -> Model:
    """A model as a search makes it, fitted."""
    model = kind(X, Y, Yvar, **({} if kind is SingleTaskGP else preset(kind, X, Yvar is not None, unit_cube(X), {})))
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    return model.eval()


def two(kind: Any, X: Tensor, Y: Tensor) -> Model:
    """Models of two outcomes."""
    return ModelListGP(*(kind(X, y) for y in Y.split(1, -1))).eval()
