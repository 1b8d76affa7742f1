"""Fantasies of any inference: every output conditioned with its own noise, the base left as it was."""

from collections.abc import Callable

import pytest
import torch
from cases import CosineFeatures, conditioned, data, exact_gp, rand, randn
from torch import Size, Tensor

from bo_scale.errors import WrongTypeError
from bo_scale.gp.conditioning import condition
from bo_scale.gp.function_space.inference import FunctionSpaceInference
from bo_scale.gp.inference import Fantasised, Inference
from bo_scale.gp.weight_space.inference import Hyperparameters, WeightSpaceInference, no_statistics
from bo_scale.gp.weight_space.predictive_variance import MissingVariance

SCALE = torch.tensor([0.05, 0.2], dtype=torch.float64)
Z = rand(5, 2, seed=9)


def in_function_space() -> Inference:
    X, Y = data(6, 2, 2)
    return FunctionSpaceInference(randn(3), SCALE, tuple(exact_gp(X, Y[:, j], 0.05, 0.1 * j) for j in range(2)))


def in_weight_space() -> Inference:
    phi, (X, Y) = CosineFeatures(torch.tensor([0.05]).double()), data(12, 2, 2)
    known = Hyperparameters(randn(3), (phi, phi), SCALE, 0.1 * SCALE, extra=MissingVariance(few=False))
    empty = WeightSpaceInference(known, no_statistics(known.features, 1, torch.device("cpu")))
    return empty.observe(X, Y, torch.ones_like(Y))


INFERENCES = pytest.mark.parametrize("build", [in_function_space, in_weight_space])


@INFERENCES
def test_the_noise_of_an_output_scales_what_is_relative(build: Callable[[], Inference]) -> None:
    found, D = build(), 1 + rand(3, 4)
    torch.testing.assert_close(found.noise_of(1, D, Z[:4]), 0.2 * D)
    torch.testing.assert_close(found.noise_of(0, torch.ones(1).double(), Z[:4]), torch.full((4,), 0.05).double())
    assert found.noise_of(0, torch.ones(3, 1).double(), Z[:4]).shape == (3, 4)


@pytest.mark.parametrize("rows", [1, 3], ids=["one noise for all", "a noise for each"])
@INFERENCES
def test_fantasies_condition_every_output_with_its_own_noise(build: Callable[[], Inference], rows: int) -> None:
    found, X, Y, D = build(), rand(3, 2, seed=1), randn(4, 3, 2, seed=2), 0.5 + rand(rows, 2, seed=3)
    fantasised = found.fantasised(X, Y, D)
    assert fantasised.base is found
    for j in range(2):
        process = fantasised.processes[j]
        assert process.batch_shape == Size([4])
        for i in range(4):
            noise = (SCALE[j] * D[:, j]).expand(3)
            mean, covariance = conditioned(found.processes[j], X, Y[i, :, j], noise, Z)
            torch.testing.assert_close(process.mean(Z)[i], mean)
            torch.testing.assert_close(process.covariance(Z), covariance)


@INFERENCES
def test_more_fantasies_and_rows_are_another_object_on_the_same_base(build: Callable[[], Inference]) -> None:
    found, X, Y, ones = build(), rand(3, 2, seed=1), randn(3, 2, seed=2), torch.ones(1, 2).double()
    first = found.fantasised(X[:1], Y[:1], ones)
    before = first.processes[0].mean(Z)
    whole = found.fantasised(X, Y, ones)
    for more in (first.fantasised(X[1:], Y[1:], ones), first.observe(X[1:], Y[1:], ones.expand(2, 2))):
        assert isinstance(more, Fantasised)
        assert more.base is found
        for one, other in zip(more.processes, whole.processes, strict=True):
            torch.testing.assert_close(one.mean(Z), other.mean(Z))
            torch.testing.assert_close(one.covariance(Z), other.covariance(Z))
    assert torch.equal(first.processes[0].mean(Z), before)


@INFERENCES
def test_fantasies_have_the_noise_and_hyperparameters_of_their_base(build: Callable[[], Inference]) -> None:
    found = build()
    fantasised = found.fantasised(Z[:2], randn(2, 2), torch.ones(1, 2).double())
    assert torch.equal(fantasised.theta, found.theta)
    assert torch.equal(fantasised.noise, found.noise)
    assert fantasised.samples_shape == found.samples_shape == Size([])
    assert fantasised.sampled_noise is found.sampled_noise is None
    torch.testing.assert_close(fantasised.noise_of(1, torch.ones(2).double(), Z[:2]), torch.full((2,), 0.2).double())
    added, expected = (each.extra_variance(Z, 0) for each in (fantasised, found))
    assert (added is None) == isinstance(found, FunctionSpaceInference)
    if added is not None:
        torch.testing.assert_close(added, expected)
        assert (added > 0).all()
    other = fantasised.at_theta(torch.ones(2).double())
    assert other.theta.tolist() == [1.0, 1.0]
    torch.testing.assert_close(other.processes[0].mean(Z), fantasised.processes[0].mean(Z))


@INFERENCES
def test_outputs_of_fantasies_come_in_the_order_asked_for(build: Callable[[], Inference]) -> None:
    fantasised = build().fantasised(Z[:2], randn(2, 2), torch.ones(1, 2).double())
    swapped = fantasised.outputs([1, 0])
    assert torch.equal(swapped.noise, SCALE.flip(0))
    for j in range(2):
        assert torch.equal(swapped.processes[j].mean(Z), fantasised.processes[1 - j].mean(Z))
    moved = fantasised.to(torch.device("cpu"))
    assert torch.equal(moved.processes[1].mean(Z), fantasised.processes[1].mean(Z))


def test_fantasies_are_not_saved_and_noise_has_no_gradient() -> None:
    found = in_function_space()
    with pytest.raises(WrongTypeError, match="fantasies are not saved; save the model"):
        found.fantasised(Z[:1], randn(1, 2), torch.ones(1, 2).double()).state()
    learned = SCALE.clone().requires_grad_()
    tracked = FunctionSpaceInference(found.theta, learned, found.processes)
    assert not tracked.noise_of(0, torch.ones(1).double(), Z[:1]).requires_grad


def test_observed_rows_have_no_batch_so_fantasies_are_a_level_of_their_own() -> None:
    found, X, Y = in_function_space(), rand(2, 2, seed=1), randn(2, 2, seed=2)
    observed = found.observe(X, Y, torch.ones(2, 2).double())
    process = observed.fantasised(Z[:1], randn(3, 1, 2), torch.ones(1, 2).double()).processes[0]
    expected: Tensor = condition(observed.processes[0], Z[:1], randn(3, 1, 2)[..., 0], SCALE[:1]).mean(Z)
    torch.testing.assert_close(process.mean(Z), expected)
