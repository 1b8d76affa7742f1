"""A model of few observations, and what acquisitions know beside it."""

from typing import Any

import pytest
from botorch.models import SingleTaskGP
from botorch.models.model import Model
from cases import data
from gpytorch.likelihoods import GaussianLikelihood
from loops import CHEAP
from torch import Tensor

from bo_scale import WISKI
from bo_scale.decisions.by_name import ACQUISITIONS
from bo_scale.decisions.setting import Setting

OPTIONS = {**CHEAP["acquisition_options"], "num_fantasies": 2, "mc_points": 32}


NAMES = pytest.mark.parametrize("name", [name for name, kind in ACQUISITIONS.items() if kind.serves(1, 0)])


def model(kind: str = "WISKI", n: int = 12, scale: float = 1.0) -> Model:
    """A model of a smooth function, with hyperparameters at their starting values but for the noise."""
    X, Y = data(n, 2)
    likelihood = GaussianLikelihood()
    likelihood.noise = 0.01
    if kind == "WISKI":
        return WISKI(X, scale * Y, grid_size=10, likelihood=likelihood).eval()
    return SingleTaskGP(X, scale * Y, likelihood=likelihood).eval()


def setting(model: Model, q: int = 2, pending: Tensor | None = None, **options: Any) -> Setting:
    return Setting(model, data(12, 2)[0], pending, q, 7, {**OPTIONS, **options})
