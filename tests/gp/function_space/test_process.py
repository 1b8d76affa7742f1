"""A process given functionals of it, against dense Gaussian conditioning."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from cases import SmoothKernel, data, exact_gp, rand, randn
from torch import Size, Tensor

from bo_scale.gp.function_space.process import Evaluations, FunctionSpacePosterior, Kernel

X, Y = data(6, 2)
Z = rand(5, 2, seed=9)
NOISE = 0.05


def plain() -> FunctionSpacePosterior:
    return exact_gp(X, Y[:, 0], NOISE)


def with_spread() -> FunctionSpacePosterior:
    return replace(plain(), spread=0.5 * randn(6, 3))


def decoupled() -> FunctionSpacePosterior:
    return replace(with_spread(), mean_basis=Evaluations(rand(4, 2, seed=4)), weights=randn(4, seed=5))


PROCESSES = pytest.mark.parametrize("build", [plain, with_spread, decoupled])


def dense(process: FunctionSpacePosterior, at: Tensor) -> tuple[Tensor, Tensor]:
    """μ + b_μᵀα + bᵀA⁻¹(y − μ) and k − bᵀ(A⁻¹ − E⁻ᵀVVᵀE⁻¹)b, with A the covariance of the observations."""
    kernel, inverse = process.kernel, torch.linalg.inv(process.factor)
    b = kernel(X, at)
    mean = 0.3 + b.mT @ inverse.mT @ inverse @ (Y[:, 0] - 0.3)
    if process.mean_basis is not None:
        mean = mean + kernel(at, rand(4, 2, seed=4)) @ process.weights
    left = (
        torch.eye(6).double() if process.spread is None else torch.eye(6).double() - process.spread @ process.spread.mT
    )
    return mean, kernel(at, at) - b.mT @ inverse.mT @ left @ inverse @ b


def test_the_kernel_of_these_tests_is_one() -> None:
    assert isinstance(SmoothKernel(), Kernel)


@PROCESSES
def test_moments_are_the_dense_ones(build: Callable[[], FunctionSpacePosterior]) -> None:
    process = build()
    mean, covariance = dense(process, Z)
    located = process.locate(Z)
    for found in (process.mean(Z), located.mean):
        torch.testing.assert_close(found, mean)
    torch.testing.assert_close(process.covariance(Z), covariance)
    torch.testing.assert_close(located.variance(), covariance.diagonal())
    torch.testing.assert_close(process.covariance(Z[:2], Z[2:]), covariance[:2, 2:])
    assert process.batch_shape == Size([])


@PROCESSES
def test_a_batch_of_points_is_a_loop(build: Callable[[], FunctionSpacePosterior]) -> None:
    process, batch = build(), rand(2, 3, 4, 2, seed=1)
    assert process.mean(batch[:, :, :0]).shape == (2, 3, 0)
    for i in range(2):
        for j in range(3):
            mean, covariance = dense(process, batch[i, j])
            torch.testing.assert_close(process.mean(batch)[i, j], mean)
            torch.testing.assert_close(process.covariance(batch)[i, j], covariance)


@PROCESSES
def test_joined_points_are_points_located_together(build: Callable[[], FunctionSpacePosterior]) -> None:
    process = build()
    joined, whole = process.locate(Z[:2]).join(process.locate(Z[2:])), process.locate(Z)
    torch.testing.assert_close(joined.mean, whole.mean)
    torch.testing.assert_close(joined.variance(), whole.variance())
    torch.testing.assert_close(joined.covariance(whole), whole.covariance(whole))
    batch = process.locate(Z[:2].expand(3, 2, 2)).join(process.locate(Z[2:]))
    torch.testing.assert_close(batch.covariance(batch), whole.covariance(whole).expand(3, 5, 5))
    torch.testing.assert_close(whole.to(torch.device("cpu")).covariance(whole), whole.covariance(whole))


def test_the_variance_at_an_exact_observation_is_not_negative() -> None:
    process = exact_gp(X, Y[:, 0], 1e-13)
    assert (process.variance(X) >= 0).all()
    torch.testing.assert_close(process.variance(X), torch.zeros(6).double(), rtol=0, atol=1e-9)


@PROCESSES
def test_gradients_in_the_points_are_finite_differences(build: Callable[[], FunctionSpacePosterior]) -> None:
    process = build()
    for moment in (process.mean, process.variance, process.covariance):
        assert torch.autograd.gradcheck(moment, (Z[:2].clone().requires_grad_(),), atol=1e-6)


def test_evaluations_are_the_values_of_a_function() -> None:
    values, kernel, batch = Evaluations(X), SmoothKernel(), rand(3, 4, 2, seed=1)
    assert values.count == 6
    assert torch.equal(values.of_function(lambda points: points.sum(-1)), X.sum(-1))
    torch.testing.assert_close(values.covariance(kernel, batch), kernel(X, batch))
    assert values.state() == {}
    assert torch.equal(values.to(torch.device("cpu")).points, X)


def draw_prior(shape: Size) -> Callable[[Tensor], Tensor]:
    """Functions in the span of the kernel."""
    weights = randn(*shape, 4, seed=8)
    return lambda at: (SmoothKernel()(at, rand(4, 2, seed=7)) @ weights.unsqueeze(-1)).squeeze(-1)


def test_a_function_drawn_is_matherons_rule_on_the_function_of_the_prior() -> None:
    """With the noise drawn at the points given back, it is affine in the values that the prior's function has there."""
    process, prior = plain(), draw_prior(Size([3]))
    drawn = process.draw(draw_prior, Size([3]), torch.Generator().manual_seed(1))
    e = torch.randn(3, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    seen = prior(X) + NOISE**0.5 * e
    K = SmoothKernel()(X, X) + NOISE * torch.eye(6).double()
    residual = Y[:, 0] - 0.3 - seen
    expected = 0.3 + prior(Z) + (SmoothKernel()(Z, X) @ torch.linalg.solve(K, residual.mT)).mT
    torch.testing.assert_close(drawn(Z), expected)
    torch.testing.assert_close(drawn(Z.expand(3, 5, 2)), expected)


def test_what_is_spread_at_the_basis_is_drawn_too() -> None:
    """Less that of a process without it: T(x)ᵀVζ."""
    functions = [p.draw(draw_prior, Size([2]), torch.Generator().manual_seed(1)) for p in (with_spread(), plain())]
    generator = torch.Generator().manual_seed(1)
    _, zeta = (torch.randn(2, count, generator=generator, dtype=torch.float64) for count in (6, 3))
    process = with_spread()
    expected = zeta @ process.spread.mT @ process.locate(Z).reduction
    torch.testing.assert_close(functions[0](Z) - functions[1](Z), expected)


@PROCESSES
def test_a_state_has_all_but_the_kernel_and_the_functionals(build: Callable[[], FunctionSpacePosterior]) -> None:
    process = build()
    state = process.state()
    again = replace(process, **{name: value.clone() for name, value in state.items()})
    assert torch.equal(again.covariance(Z), process.covariance(Z))
    assert ("spread" in state, "weights" in state) == (process.spread is not None, process.weights is not None)
    before = process.mean(Z)
    state["innovation"].zero_()
    assert torch.equal(process.mean(Z), before)
    moved = process.to(torch.device("cpu"))
    assert moved.noise == process.noise
    assert torch.equal(moved.mean(Z), before)
