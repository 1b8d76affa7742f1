"""The knowledge gradient at a target fidelity against its definition, by fantasies and quadrature."""

import math
from typing import Any

import pytest
import torch
from botorch.models import SingleTaskGP
from botorch.models.model import Model
from botorch.models.transforms import Standardize
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood
from torch import Tensor

from bo_scale import CaGP, SoftKI
from bo_scale.decisions.knowledge_gradient import NOTHING, LogKnowledgeGradient, log_gain

NODES = torch.linspace(-9, 9, 40_001, dtype=torch.float64)
WEIGHTS = (-0.5 * NODES.square()).exp() / math.sqrt(2 * math.pi) * (NODES[1] - NODES[0])


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def lines(*shape: int) -> tuple[Tensor, Tensor]:
    return drawn(*shape, seed=1) - 0.5, 3 * drawn(*shape, seed=2) - 1.5


def gain_by_quadrature(mean: Tensor, slope: Tensor) -> Tensor:
    highest = (mean.unsqueeze(-1) + slope.unsqueeze(-1) * NODES).amax(-2)
    return highest @ WEIGHTS - mean.amax(-1)


@pytest.mark.parametrize("count", [2, 3, 40])
def test_the_gain_is_the_expectation_of_the_highest_line(count: int) -> None:
    mean, slope = lines(6, count)
    torch.testing.assert_close(log_gain(mean, slope).exp(), gain_by_quadrature(mean, slope), rtol=1e-6, atol=1e-8)


def test_its_gradients_are_those_of_finite_differences() -> None:
    mean, slope = (each.requires_grad_() for each in lines(4, 5))
    assert torch.autograd.gradcheck(log_gain, (mean, slope))


def test_parallel_and_equal_lines_are_one() -> None:
    mean, slope = lines(2, 4)
    doubled = torch.cat([mean, mean, mean - 1], -1), torch.cat([slope, slope, slope], -1)
    torch.testing.assert_close(log_gain(*doubled), log_gain(mean, slope))


def test_a_tiny_gain_has_a_logarithm_and_a_gradient() -> None:
    """Of two lines that cross a hundred deviations away: log φ(100) − 2 log 100."""
    mean = torch.tensor([0.0, -100.0], dtype=torch.float64, requires_grad=True)
    slope = torch.tensor([0.0, 1.0], dtype=torch.float64, requires_grad=True)
    found = log_gain(mean, slope)
    assert found.item() == pytest.approx(-5000 - 0.5 * math.log(2 * math.pi) - 2 * math.log(100), abs=1e-3)
    found.backward()
    assert mean.grad is not None
    assert float(mean.grad[1]) == pytest.approx(100, rel=1e-3)


@pytest.mark.parametrize("count", [1, 3])
def test_where_nothing_is_learned_the_gain_is_zero_and_its_gradient_finite(count: int) -> None:
    mean, slope = drawn(count).requires_grad_(), torch.ones(count, dtype=torch.float64, requires_grad=True)
    found = log_gain(mean, slope)
    assert found.item() == pytest.approx(NOTHING, abs=2)
    found.backward()
    assert slope.grad is not None
    assert bool(slope.grad.isfinite().all())


def at_one(points: Tensor) -> Tensor:
    return torch.cat([points[..., :1], torch.ones_like(points[..., 1:])], -1)


X, Y = drawn(14, 2), torch.sin(5 * drawn(14, 2)).sum(-1, keepdim=True)


def exact() -> Model:
    return SingleTaskGP(X, Y, outcome_transform=Standardize(1)).eval()


def known_noise() -> Model:
    return SingleTaskGP(X, Y, torch.full_like(Y, 0.04), outcome_transform=None).eval()


def actions() -> Model:
    return CaGP(X, Y, num_actions=10).eval()


def points() -> Model:
    return SoftKI(X, Y, num_interpolation_points=6).eval()


def observing(model: Any, points: Tensor, values: Tensor) -> Any:
    known = isinstance(model.likelihood, FixedNoiseGaussianLikelihood)
    return model.condition_on_observations(points, values, noise=torch.full_like(values, 0.04) if known else None)


@pytest.mark.parametrize("make", [exact, known_noise, actions, points])
@pytest.mark.parametrize("pending", [0, 2])
def test_values_are_those_of_the_definition(make: Any, pending: int) -> None:
    """The expectation of the highest mean at the target after one more observation, over what may be observed.

    Pending observations are taken to have their means as values: only covariances depend on them.
    """
    model, waiting = make(), drawn(pending, 2, seed=5)
    compared = at_one(drawn(6, 2, seed=3))
    made = LogKnowledgeGradient(model, compared, at_one, waiting if pending else None)
    for x in drawn(3, 1, 2, seed=4):
        with torch.no_grad():
            believed = observing(model, waiting, model.posterior(waiting).mean) if pending else model
            seen = believed.posterior(x, observation_noise=True)
            draws = seen.mean + seen.variance.sqrt() * torch.tensor([-1.0, 0.0, 1.0]).double().reshape(3, 1, 1)
            among = torch.cat([at_one(x), compared])
            after = observing(believed, x.expand(3, 1, 2), draws).posterior(among).mean.squeeze(-1)
            wanted = gain_by_quadrature(after[1], 0.5 * (after[2] - after[0]))
            found = made(x.unsqueeze(0)).exp()
        torch.testing.assert_close(found, wanted.reshape(1), rtol=2e-3, atol=1e-7)


def test_a_point_observed_without_noise_teaches_nothing() -> None:
    model = SingleTaskGP(X, Y, torch.full_like(Y, 1e-9)).eval()
    made = LogKnowledgeGradient(model, at_one(X[:5]), at_one)
    with torch.no_grad():
        again, anew = made(X[:1].unsqueeze(0)), made(drawn(1, 1, 2, seed=9))
    assert float(again) < float(anew) - 4


def test_gradients_are_those_of_finite_differences() -> None:
    made = LogKnowledgeGradient(exact(), at_one(drawn(6, 2, seed=3)), at_one, drawn(2, 2, seed=5))
    where = drawn(2, 1, 2, seed=4).requires_grad_()
    assert torch.autograd.gradcheck(made, (where,), atol=1e-4)
