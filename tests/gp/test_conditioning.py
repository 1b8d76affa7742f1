"""Conditioning by Schur complement, of processes in weight space and in function space, against dense solves."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from cases import CosineFeatures, SmoothKernel, conditioned, data, exact_gp, rand, randn
from torch import Size, Tensor

from bo_scale.errors import WrongTypeError
from bo_scale.gp.conditioning import Conditioned, condition
from bo_scale.gp.function_space.process import FunctionSpacePosterior
from bo_scale.gp.processes import PosteriorProcess
from bo_scale.gp.weight_space.posterior import WeightSpacePosterior

D = 2
CPU = torch.device("cpu")
Z = rand(5, D, seed=9)


def in_weight_space() -> WeightSpacePosterior:
    return WeightSpacePosterior.prior(CosineFeatures(torch.tensor([0.05]).double()), torch.tensor(0.3).double())


def in_function_space() -> FunctionSpacePosterior:
    X, Y = data(6, D)
    return exact_gp(X, Y[:, 0], 0.05)


def inexact() -> FunctionSpacePosterior:
    """With variance left over at the points of its basis."""
    return replace(in_function_space(), spread=0.3 * randn(6, 2))


PROCESSES = pytest.mark.parametrize("build", [in_weight_space, in_function_space, inexact])


def noises(*shape: int) -> Tensor:
    return 0.02 + 0.1 * rand(*shape, seed=3)


def assert_same(a: PosteriorProcess, b: PosteriorProcess) -> None:
    torch.testing.assert_close(a.mean(Z), b.mean(Z))
    torch.testing.assert_close(a.variance(Z), b.variance(Z))
    torch.testing.assert_close(a.covariance(Z, Z[:2]), b.covariance(Z, Z[:2]))


@pytest.mark.parametrize("q", [0, 1, 4])
@PROCESSES
def test_moments_are_those_of_a_dense_solve(build: Callable[[], PosteriorProcess], q: int) -> None:
    process, X, y, noise = build(), rand(q, D, seed=1), randn(q, seed=2), noises(q)
    found, (mean, covariance) = condition(process, X, y, noise), conditioned(process, X, y, noise, Z)
    torch.testing.assert_close(found.mean(Z), mean)
    torch.testing.assert_close(found.covariance(Z), covariance)
    torch.testing.assert_close(found.variance(Z), covariance.diagonal())
    torch.testing.assert_close(found.covariance(Z[:3], Z[3:]), covariance[:3, 3:])


@PROCESSES
def test_a_level_extended_is_another_level_is_all_at_once(build: Callable[[], PosteriorProcess]) -> None:
    process, X, y, noise = build(), rand(5, D, seed=1), randn(5, seed=2), noises(5)
    whole, first = condition(process, X, y, noise), condition(process, X[:2], y[:2], noise[:2])
    longer = first.extended(X[2:], y[2:], noise[2:])
    assert longer.base is process
    for found in (longer, condition(first, X[2:], y[2:], noise[2:])):
        assert_same(found, whole)
    torch.testing.assert_close(longer.factor, whole.factor)
    torch.testing.assert_close(longer.noise, noise)
    assert_same(longer.extended(X[:0], y[:0], noise[:0]), whole)


@PROCESSES
def test_fantasies_of_a_batch_are_extended_one_by_one(build: Callable[[], PosteriorProcess]) -> None:
    process, X, y = build(), rand(3, 2, D, seed=1), randn(4, 3, 2, seed=2)
    V, v = rand(4, 1, 1, D, seed=4), randn(4, 3, 1, seed=5)
    batch = condition(process, X, y, noises(3, 2)).extended(V, v, noises(1))
    assert batch.batch_shape == Size([4, 3])
    for i in range(4):
        for j in range(3):
            single = condition(process, X[j], y[i, j], noises(3, 2)[j]).extended(V[i, 0], v[i, j], noises(1))
            torch.testing.assert_close(batch.mean(Z)[i, j], single.mean(Z))
            torch.testing.assert_close(batch.covariance(Z)[i, j], single.covariance(Z))


@PROCESSES
def test_joined_points_are_points_located_together(build: Callable[[], PosteriorProcess]) -> None:
    process = condition(build(), rand(3, D, seed=1), randn(3, seed=2), noises(3))
    joined, whole = process.locate(Z[:2]).join(process.locate(Z[2:])), process.locate(Z)
    torch.testing.assert_close(joined.mean, whole.mean)
    torch.testing.assert_close(joined.covariance(whole), whole.covariance(whole))
    batch = process.locate(Z[:2].expand(3, 2, D)).join(process.locate(Z[2:]))
    torch.testing.assert_close(batch.variance(), whole.variance().expand(3, 5))


@PROCESSES
def test_a_value_told_again_and_again_leaves_a_variance_that_is_not_negative(
    build: Callable[[], PosteriorProcess],
) -> None:
    x, noise = Z[:1], torch.tensor([1e-6]).double()
    found: Any = condition(build(), x, torch.ones(1).double(), noise)
    once = found.variance(x)
    for _ in range(3):
        found = found.extended(x, torch.ones(1).double(), noise)
    torch.testing.assert_close(found.variance(x), once / 4, rtol=1e-3, atol=0)
    exactly = condition(build(), Z, torch.ones(5).double(), torch.full((5,), 1e-14).double())
    assert (exactly.variance(Z) >= 0).all()


@PROCESSES
def test_gradients_in_points_values_and_noise_are_finite_differences(build: Callable[[], PosteriorProcess]) -> None:
    def moments(X: Tensor, y: Tensor, noise: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
        found = condition(build(), X[:1], y[:1], noise[:1]).extended(X[1:], y[1:], noise[1:])
        return found.mean(at), found.covariance(at)

    given = rand(2, D, seed=1), randn(2, seed=2), noises(2), Z[:2].clone()
    assert torch.autograd.gradcheck(moments, tuple(v.requires_grad_() for v in given), atol=1e-6)


# ---------------------------------------------------------------- draws


def draw_prior(shape: Size) -> Callable[[Tensor], Tensor]:
    """Functions in the span of the kernel."""
    centres = rand(4, D, seed=7)
    weights = randn(*shape, 4, seed=8)
    return lambda X: (SmoothKernel()(X, centres) @ weights.unsqueeze(-1)).squeeze(-1)


def test_functions_drawn_go_through_values_without_noise() -> None:
    X, Y = data(3, D)
    Xq, y = rand(2, D, seed=1), randn(4, 2, seed=2)
    found = condition(exact_gp(X, Y[:, 0], 1e-10), Xq, y, torch.full((2,), 1e-10).double())
    function = found.draw(draw_prior, Size([3]), torch.Generator().manual_seed(0))
    assert function(Z).shape == (3, 4, 5)
    torch.testing.assert_close(function(Xq), y.expand(3, 4, 2), rtol=0, atol=1e-3)
    torch.testing.assert_close(function(X), Y[:, 0].expand(3, 4, 3), rtol=0, atol=1e-3)
    assert function(Z).std(0).max() > 1e-3
    again = found.draw(draw_prior, Size([3]), torch.Generator().manual_seed(0))
    assert torch.equal(function(Z), again(Z))


def test_functions_of_a_second_level_go_through_its_values_too() -> None:
    X, y, noise = rand(4, D, seed=1), randn(4, seed=2), torch.full((4,), 1e-10).double()
    first = condition(in_function_space(), X[:2], y[:2], noise[:2])
    function = condition(first, X[2:], y[2:], noise[2:]).draw(draw_prior, Size([3]))
    torch.testing.assert_close(function(X), y.expand(3, 4), rtol=0, atol=1e-3)


def test_weights_drawn_are_functions_through_values_without_noise() -> None:
    process, X, y = in_weight_space(), rand(2, D, seed=1), randn(4, 2, seed=2)
    found = condition(process, X, y, torch.full((2,), 1e-10).double())
    weights = found.sample_weights(Size([3]), torch.Generator().manual_seed(0))
    assert weights.shape == (3, 4, process.features.num_features)
    Phi: Any = process.features(X)
    torch.testing.assert_close(process.constant + weights @ Phi.mT, y.expand(3, 4, 2), rtol=0, atol=1e-3)


def test_what_cannot_be_drawn_is_named() -> None:
    X, y = rand(2, D, seed=1), randn(2, seed=2)
    weights, functions = (condition(build(), X, y, noises(2)) for build in (in_weight_space, in_function_space))
    with pytest.raises(WrongTypeError, match="FunctionSpacePosterior has no weights"):
        functions.sample_weights(Size([1]))
    with pytest.raises(WrongTypeError, match="WeightLocated is not of a function-space process"):
        weights.draw(draw_prior, Size([1]))


# ---------------------------------------------------------------- states


@pytest.mark.parametrize("build", [in_function_space, inexact])
def test_a_process_restored_goes_on_to_the_last_bit(build: Callable[[], FunctionSpacePosterior]) -> None:
    base = build()
    found = condition(base, rand(3, D, seed=1), randn(3, seed=2), noises(3))
    state = found.state()
    assert ("addition" in state) == (base.spread is not None)
    again = Conditioned.restored(base, {name: value.clone() for name, value in state.items()})
    state["innovation"].zero_()  # its own
    for one, other in ((found, again), (found.extended(Z, Z[:, 0], Z[:, 1]), again.extended(Z, Z[:, 0], Z[:, 1]))):
        assert torch.equal(one.mean(Z), other.mean(Z))
        assert torch.equal(one.covariance(Z), other.covariance(Z))


@PROCESSES
def test_a_process_moved_is_the_same_process(build: Callable[[], PosteriorProcess]) -> None:
    found = condition(build(), rand(3, D, seed=1), randn(3, seed=2), noises(3))
    assert_same(found.to(CPU), found)
    located = found.locate(Z)
    torch.testing.assert_close(located.to(CPU).covariance(located), located.covariance(located))
