"""Covariances that are made when they are wanted."""

from typing import Any

import pytest
import torch
from cases import data

from bo_scale import CaGP, DecoupledGP, GRIEFBayes
from bo_scale.function_space import FunctionLocated
from bo_scale.mixture import MixtureLocated
from bo_scale.models.distributions import MANY

SMALL: dict[Any, dict[str, Any]] = {
    GRIEFBayes: {"num_eigenfunctions": 20, "grid_points": 5, "num_samples": 4},
    CaGP: {"num_actions": 16},
    DecoupledGP: {"num_covar_inducing": 10, "num_steps": 0},
}


@pytest.mark.parametrize("kind", SMALL, ids=lambda kind: kind.__name__)
def test_variances_of_many_points_need_no_covariance(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    X, Y = data(30, 2)
    model = kind(X, Y, **SMALL[kind]).eval()
    Z = torch.rand(MANY + 1, 2, dtype=torch.float64)
    few, noisy = model.posterior(Z[:9]), model.posterior(Z[:9], observation_noise=True)
    covariance = model.posterior(Z).distribution.covariance_matrix
    torch.testing.assert_close(covariance[..., :9, :9], few.distribution.covariance_matrix)
    for located in (FunctionLocated, MixtureLocated):
        monkeypatch.setattr(located, "covariance", None)
    torch.testing.assert_close(model.posterior(Z).variance[..., :9, :], few.variance)
    torch.testing.assert_close(model.posterior(Z, observation_noise=True).variance[..., :9, :], noisy.variance)


@pytest.mark.parametrize("kind", SMALL, ids=lambda kind: kind.__name__)
def test_many_points_are_drawn_jointly(kind: Any) -> None:
    X, Y = data(30, 2)
    model = kind(X, Y, **SMALL[kind]).eval()
    Z = torch.rand(MANY + 1, 2, dtype=torch.float64)
    Z[-1] = Z[0]
    drawn = model.posterior(Z).rsample(torch.Size([3]))
    assert drawn.shape[-2] == MANY + 1
    assert (drawn[..., -1, :] - drawn[..., 0, :]).abs().max() < 0.05
