"""The integrated variance and its updates against dense covariances of the points of integration."""

from typing import Any

import pytest
import torch
from cases import CosineFeatures, conditioned, data, exact_gp, rand, randn
from torch import Tensor

from bo_scale.gp.conditioning import condition
from bo_scale.gp.integrals import IntegratedVariance, PointwiseIntegral, WeightSpaceIntegral
from bo_scale.gp.processes import PosteriorProcess
from bo_scale.gp.weight_space.gram import DenseGram
from bo_scale.gp.weight_space.posterior import WeightSpacePosterior

POINTS = rand(9, 2, seed=5)
WEIGHTS = rand(9, seed=6) / rand(9, seed=6).sum()
OFFSET = torch.tensor(0.7, dtype=torch.float64)


def weights_posterior() -> WeightSpacePosterior:
    X, Y = data(4, 2)
    prior = WeightSpacePosterior.prior(CosineFeatures(torch.tensor([0.05]).double()), torch.tensor(0.3).double())
    return prior.update(prior.locate(X), Y[:, 0], torch.full((4,), 0.1).double())


def by_weights() -> IntegratedVariance:
    process = weights_posterior()
    Phi: Any = process.features(POINTS)
    return WeightSpaceIntegral.over(process, DenseGram(Phi.mT @ (WEIGHTS.unsqueeze(-1) * Phi)), OFFSET)


def pointwise() -> IntegratedVariance:
    return PointwiseIntegral.over(weights_posterior(), POINTS, WEIGHTS, OFFSET)


def of_functions() -> IntegratedVariance:
    X, Y = data(4, 2)
    return PointwiseIntegral.over(exact_gp(X, Y[:, 0], 0.05), POINTS, WEIGHTS, OFFSET)


INTEGRALS = pytest.mark.parametrize("build", [by_weights, pointwise, of_functions])


def dense(process: PosteriorProcess, X: Tensor, noise: Tensor) -> Tensor:
    """Σ ω_z Var[f(z) | X], and the offset."""
    after = conditioned(process, X, torch.zeros(len(X)).double(), noise.expand(len(X)), POINTS)[1]
    return WEIGHTS @ after.diagonal() + OFFSET


@pytest.mark.parametrize("noise", [0.05, 1e-6])
@pytest.mark.parametrize("q", [0, 1, 3])
@INTEGRALS
def test_what_is_left_after_measuring_is_the_dense_integral(build: Any, q: int, noise: float) -> None:
    integral, X, sigma = build(), rand(2, q, 2, seed=1), torch.tensor(noise).double()
    found = integral(X, sigma)
    torch.testing.assert_close(integral.total(), dense(integral.process, X[0, :0], sigma))
    for x, value in zip(X, found, strict=True):
        torch.testing.assert_close(value, dense(integral.process, x, sigma), rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("q", [0, 1, 3])
@INTEGRALS
def test_after_a_measurement_it_is_the_integral_of_the_conditioned_process(build: Any, q: int) -> None:
    """Also after another, and whatever the values."""
    integral, X, noise = build(), rand(q, 2, seed=1), torch.tensor(0.05).double()
    later, V = integral.after(X, noise), rand(2, 2, seed=2)
    torch.testing.assert_close(later.total(), dense(integral.process, X, noise))
    torch.testing.assert_close(later(V, noise), dense(integral.process, torch.cat([X, V]), noise))
    again = later.after(V, noise)
    torch.testing.assert_close(again.total(), dense(integral.process, torch.cat([X, V]), noise))
    Z = rand(1, 2, seed=3)
    torch.testing.assert_close(again(Z, noise), dense(integral.process, torch.cat([X, V, Z]), noise))
    torch.testing.assert_close(integral.total(), build().total())


@INTEGRALS
def test_gradients_in_the_candidates_are_finite_differences(build: Any) -> None:
    integral, noise = build(), torch.tensor(0.05).double()
    later = integral.after(rand(1, 2, seed=2), noise)
    for each in (integral, later):
        assert torch.autograd.gradcheck(lambda x, each=each: each(x, noise), (rand(2, 2, seed=1).requires_grad_(),))


def test_each_fantasy_has_an_integral_of_its_own() -> None:
    base, X = weights_posterior(), rand(3, 1, 2, seed=1)
    fantasies = condition(base, X, randn(3, 1), torch.tensor([0.05]).double())
    noise, V = torch.tensor(0.05).double(), rand(2, 2, seed=2)
    found = PointwiseIntegral.over(fantasies, POINTS, WEIGHTS, OFFSET)
    assert found.total().shape == found(V, noise).shape == (3,)
    for i in range(3):
        torch.testing.assert_close(found.total()[i], dense(base, X[i], noise))
        torch.testing.assert_close(found(V, noise)[i], dense(base, torch.cat([X[i], V]), noise))
