"""Hard inputs: raw units, columns that are constant, equal, or constant among the rows alone."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from botorch.fit import fit_gpytorch_mll
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from bo_scale import GRIEF, CaGP, DecoupledGP, SoftKI

SCALE, OFFSET = torch.tensor([1e-3, 1.0, 1e4]).double(), torch.tensor([5.0, -2.0, 1e5]).double()
MODELS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "GRIEF": lambda X, Y: GRIEF(X, Y, num_eigenfunctions=200),
    "CaGP, learned": lambda X, Y: CaGP(X, Y, num_actions=40, epochs=5, progress=False),
    "CaGP, cg": lambda X, Y: CaGP(X, Y, num_actions=60, policy="cg", epochs=0, progress=False),
    "DecoupledGP": lambda X, Y: DecoupledGP(X, Y, num_mean_inducing=80, num_covar_inducing=30, num_steps=0),
    "SoftKI": lambda X, Y: SoftKI(X, Y, num_interpolation_points=60, progress=False),
}


@pytest.mark.parametrize("name", MODELS)
def test_units_do_not_matter(name: str) -> None:
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(220, 3, generator=generator, dtype=torch.float64)
    X[0], X[1] = 0.0, 1.0
    Y = torch.sin(5 * X[:, :1]) + X[:, 1:2] + 0.1 * torch.randn(220, 1, generator=generator, dtype=torch.float64)
    found = []
    for Z in (X, (X - X.mean(0)) / X.std(0), SCALE * X + OFFSET):
        model = MODELS[name](Z[:150], Y[:150])
        fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        found.append(model.posterior(Z[150:]))
    assert (found[0].mean - Y[150:]).square().mean().sqrt() < 0.3 * Y.std()
    for other in found[1:]:
        torch.testing.assert_close(other.mean, found[0].mean, rtol=0.05, atol=0.05)
        assert other.variance.sqrt().mean().item() == pytest.approx(found[0].variance.sqrt().mean().item(), rel=0.1)


@pytest.mark.parametrize("name", MODELS)
def test_a_constant_input_that_moves_raises_the_variance(name: str) -> None:
    generator = torch.Generator().manual_seed(0)
    X = 10 * torch.rand(220, 3, generator=generator, dtype=torch.float64)
    X[:, 1] = 4.0
    Y = torch.sin(X[:, :1] / 2) + X[:, 2:] / 10 + 0.1 * torch.randn(220, 1, generator=generator, dtype=torch.float64)
    model = MODELS[name](X[:150], Y[:150])
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    here, near, far = X[150:], X[150:].clone(), X[150:].clone()
    near[:, 1], far[:, 1] = 5.0, 40.0
    spread = [model.posterior(points).variance.sqrt().mean() for points in (here, near, far)]
    assert spread[0] < 0.3 * Y.std()
    assert spread[0] < spread[1] <= 1.01 * spread[2]
    assert spread[2] > 0.8 * Y.std()
    assert (model.posterior(here).mean - Y[150:]).square().mean().sqrt() < 0.35 * Y.std()


@pytest.mark.parametrize("name", MODELS)
def test_equal_columns_do_no_harm(name: str) -> None:
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(220, 3, generator=generator, dtype=torch.float64)
    X[:, 2] = X[:, 0]
    Y = torch.sin(5 * X[:, :1]) + X[:, 1:2] + 0.1 * torch.randn(220, 1, generator=generator, dtype=torch.float64)
    model = MODELS[name](X[:150], Y[:150])
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    posterior = model.posterior(X[150:], observation_noise=True)
    assert (posterior.mean - Y[150:]).square().mean().sqrt() < 0.3 * Y.std()
    covered = ((posterior.mean - Y[150:]).abs() < 1.96 * posterior.variance.sqrt()).double().mean()
    assert covered > 0.8
