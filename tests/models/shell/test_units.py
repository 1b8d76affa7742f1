"""Inputs in raw units, in the unit cube and standardised give the same model, beside an exact GP."""

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
