"""Rows that arrive later condition the base process of every output, exactly."""

from collections.abc import Callable

import pytest
import torch
from cases import conditioned, data, exact_gp, rand, randn
from torch import Tensor

from bo_scale.gp.conditioning import Conditioned
from bo_scale.gp.function_space.inference import FunctionSpaceInference

SCALE = torch.tensor([0.05, 0.2], dtype=torch.float64)
X, Y = data(9, 2, 2)
D = 0.5 + rand(9, 2, seed=3)
Z = rand(5, 2, seed=9)


def base(n: int = 4) -> FunctionSpaceInference:
    return FunctionSpaceInference(randn(3), SCALE, tuple(exact_gp(X[:n], Y[:n, j], 0.05) for j in range(2)))


def assert_same(a: FunctionSpaceInference, b: FunctionSpaceInference, equal: Callable[..., None]) -> None:
    for one, other in zip(a.processes, b.processes, strict=True):
        equal(one.mean(Z), other.mean(Z))
        equal(one.covariance(Z), other.covariance(Z))


def bit_for_bit(a: Tensor, b: Tensor) -> None:
    assert torch.equal(a, b)


def test_observed_rows_condition_every_output_with_its_own_noise() -> None:
    found = base().observe(X[4:], Y[4:], D[4:])
    for j, process in enumerate(found.processes):
        noise = SCALE[j] * D[4:, j]
        mean, covariance = conditioned(base().processes[j], X[4:], Y[4:, j], noise, Z)
        torch.testing.assert_close(process.mean(Z), mean)
        torch.testing.assert_close(process.covariance(Z), covariance)


def test_rows_one_by_one_are_rows_at_once_in_one_level() -> None:
    grown = base()
    for i in range(4, 9):
        before = grown
        grown = grown.observe(X[i : i + 1], Y[i : i + 1], D[i : i + 1])
        assert before is not grown
    assert_same(grown, base().observe(X[4:], Y[4:], D[4:]), torch.testing.assert_close)
    for process in grown.processes:
        assert isinstance(process, Conditioned)
        assert not isinstance(process.base, Conditioned)
        assert len(process.noise) == 5


def test_no_rows_change_nothing() -> None:
    found = base()
    assert found.observe(X[:0], Y[:0], D[:0]) is found


def test_rows_of_no_more_noise_than_the_base_are_the_gp_of_all_rows() -> None:
    found = FunctionSpaceInference(randn(3), torch.full((2,), 0.05).double(), base().every)
    assert_same(found.observe(X[4:], Y[4:], torch.ones(5, 2).double()), base(9), torch.testing.assert_close)


def test_outputs_and_hyperparameters_are_exchanged_without_the_others() -> None:
    found = base().observe(X[4:], Y[4:], D[4:])
    swapped = found.outputs([1, 0])
    assert torch.equal(swapped.noise, SCALE.flip(0))
    assert swapped.processes == found.processes[::-1]
    (only,) = found.outputs([1]).observe(Z[:1], Y[:1, 1:], D[:1, 1:]).processes
    whole = found.observe(Z[:1], Y[:1], D[:1]).processes[1]
    assert torch.equal(only.mean(Z), whole.mean(Z))
    other = found.at_theta(torch.zeros(1).double())
    assert other.theta.tolist() == [0.0]
    assert_same(other, found, bit_for_bit)
    assert_same(found.to(torch.device("cpu")), found, bit_for_bit)


@pytest.mark.parametrize("streamed", [False, True])
def test_a_saved_inference_goes_on_to_the_last_bit(streamed: bool) -> None:
    found = base().observe(X[4:7], Y[4:7], D[4:7]) if streamed else base()
    saved = found.state()["processes"]
    for state, process in zip(saved, base().processes, strict=True):
        assert torch.equal(state["base"]["factor"], process.factor)  # type: ignore[attr-defined]
        assert bool(state["observed"]) == streamed
    again = base().with_observed([state["observed"] for state in saved])
    assert_same(again, found, bit_for_bit)
    assert_same(again.observe(X[7:], Y[7:], D[7:]), found.observe(X[7:], Y[7:], D[7:]), bit_for_bit)


def test_states_of_another_number_of_outputs_are_not_taken() -> None:
    with pytest.raises(ValueError, match="zip"):
        base().with_observed([{}])
