from typing import Any

import torch
from botorch.models import SingleTaskGP
from botorch.models.model import Model
from cases import data
from gpytorch.likelihoods import GaussianLikelihood
from loops import CHEAP
from torch import Tensor

from bo_scale import WISKI
from bo_scale.decisions.setting import BASELINE, Setting

OPTIONS = {**CHEAP["acquisition_options"], "num_fantasies": 2, "mc_points": 32}


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


def test_the_best_told_points_are_those_of_highest_posterior_mean() -> None:
    s = setting(model())
    order = s.means.argsort(descending=True)
    assert torch.equal(s.best(3), s.observed[order[:3]])
    assert len(s.best(BASELINE)) == 12
