"""Chains leave densities invariant, adapt in their burn-in only, and are told apart from chains that have not mixed."""

import pytest
import torch
from torch import Tensor

from bo_scale.gp.weight_space.langevin import ACCEPTANCE, Chains, effective_size, langevin, split_r_hat


def float64(values: object) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


SD = float64([0.1, 1.0, 5.0])
MEAN = float64([1.0, -2.0, 3.0])


def gaussian(u: Tensor) -> tuple[Tensor, Tensor]:
    z = (u - MEAN) / SD
    return -0.5 * z.square().sum(-1), -z / SD


def log_gamma(u: Tensor) -> tuple[Tensor, Tensor]:
    """The logarithm of a variable of a gamma distribution of shape 2: skewed, light to the right."""
    return (2 * u - u.exp()).sum(-1), 2 - u.exp()


def run(iterations: int = 400, burn: int = 200, thin: int = 5, seed: int = 0, chains: int = 4) -> Chains:
    start = MEAN.expand(chains, 3)
    return langevin(gaussian, start, SD, iterations, burn, thin, torch.Generator().manual_seed(seed))


def test_a_gaussian_is_left_invariant() -> None:
    chains = run(1500, 300, 3, chains=100)
    drawn = chains.states.flatten(0, 1)
    assert ((drawn.mean(0) - MEAN).abs() < 0.03 * SD).all()
    torch.testing.assert_close(drawn.std(0), SD, rtol=0.03, atol=0.0)
    correlation = torch.corrcoef(drawn.mT) - torch.eye(3)
    assert correlation.abs().max() < 0.03


def test_a_skewed_density_is_left_invariant() -> None:
    start = torch.zeros(100, 2).double()
    g = torch.Generator().manual_seed(0)
    drawn = langevin(log_gamma, start, float64([0.8, 2.0]), 1500, 300, 3, g).states.flatten(0, 1)
    two = float64(2.0)
    mean, variance = torch.digamma(two), torch.polygamma(1, two)
    assert ((drawn.mean(0) - mean).abs() < 0.06 * variance.sqrt()).all()
    torch.testing.assert_close(drawn.var(0), variance.expand(2), rtol=0.1, atol=0.0)
    skewness = ((drawn - mean) / variance.sqrt()).pow(3).mean(0)
    expected = torch.polygamma(2, two) / variance**1.5
    torch.testing.assert_close(skewness, expected.expand(2), rtol=0.5, atol=0.0)


@pytest.mark.parametrize("wrong", [0.02, 1.0, 50.0])
def test_the_step_adapts_to_the_acceptance_wanted(wrong: float) -> None:
    chains = langevin(gaussian, MEAN.expand(16, 3), wrong * SD, 1200, 800, 5, torch.Generator().manual_seed(0))
    assert chains.acceptance.mean().item() == pytest.approx(ACCEPTANCE, abs=0.06)


def test_the_step_is_fixed_after_the_burn_in() -> None:
    assert torch.equal(run(250, 200).step, run(900, 200).step)
    assert not torch.equal(run(400, 200).step, run(400, 300).step)


def test_chains_are_a_function_of_the_generator() -> None:
    assert torch.equal(run(seed=1).states, run(seed=1).states)
    assert not torch.equal(run(seed=1).states, run(seed=2).states)
    state = torch.get_rng_state()
    run()
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("thin", [1, 7, 200])
def test_every_so_many_states_are_kept(thin: int) -> None:
    chains = run(400, 200, thin)
    assert chains.states.shape == (200 // thin, 4, 3)
    assert torch.equal(chains.states, run(400, 200, 1).states[thin - 1 :: thin])


def test_chains_of_a_batch_know_nothing_of_each_other() -> None:
    """Each has a target of its own, and a step of its own."""
    shifts, widths = float64([[0.0], [5.0], [-3.0]]), float64([[1.0], [0.01], [10.0]])

    def target(u: Tensor) -> tuple[Tensor, Tensor]:
        z = (u - shifts) / widths
        return -0.5 * z.square().sum(-1), -z / widths

    chains = langevin(target, shifts, float64([1.0]), 5000, 1500, 1, torch.Generator().manual_seed(0))
    drawn = chains.states.squeeze(-1)
    assert ((drawn.mean(0) - shifts.squeeze(-1)).abs() < 0.15 * widths.squeeze(-1)).all()
    torch.testing.assert_close(drawn.std(0), widths.squeeze(-1), rtol=0.1, atol=0.0)
    torch.testing.assert_close(chains.step / chains.step[0], widths.squeeze(-1), rtol=0.4, atol=0.0)
    assert (torch.corrcoef(drawn.mT) - torch.eye(3)).abs().max() < 0.1


def test_proposals_where_there_is_no_density_are_refused() -> None:
    def half(u: Tensor) -> tuple[Tensor, Tensor]:
        value = torch.where(u > 0, -u, float("nan")).sum(-1)
        return value, torch.where(u > 0, -1.0, float("nan")).to(u)

    chains = langevin(half, torch.ones(50, 1).double(), float64([1.0]), 1500, 300, 3, torch.Generator().manual_seed(0))
    assert chains.states.min() > 0
    assert chains.states.mean().item() == pytest.approx(1.0, abs=0.06)


# ---------------------------------------------------------------- diagnostics


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


def test_split_r_hat_is_one_for_chains_that_have_mixed() -> None:
    assert (split_r_hat(normal(1000, 4, 6)) - 1).abs().max() < 0.01


def test_split_r_hat_tells_chains_that_are_elsewhere_or_still_moving() -> None:
    values = normal(1000, 4)
    assert split_r_hat(values + 0.7 * torch.arange(4)) > 1.05
    assert split_r_hat(values + torch.linspace(0, 2, 1000).unsqueeze(-1)) > 1.05


def test_split_r_hat_is_of_every_quantity() -> None:
    values = normal(1000, 4, 2, 3)
    values[..., 1, 2] += torch.arange(4)
    found = split_r_hat(values)
    assert found.shape == (2, 3)
    assert (found > 1.05).sum() == 1


def test_independent_draws_are_worth_themselves() -> None:
    size = effective_size(normal(2000, 4, 3))
    assert size.shape == (3,)
    assert ((size > 0.75 * 8000) & (size <= 8000)).all()


@pytest.mark.parametrize("phi", [0.5, 0.9])
def test_draws_of_an_autoregression_are_worth_what_theory_says(phi: float) -> None:
    noise = normal(8000, 4)
    values = noise.clone()
    for t in range(1, len(values)):
        values[t] = phi * values[t - 1] + noise[t]
    expected = 32000 * (1 - phi) / (1 + phi)
    assert effective_size(values).item() == pytest.approx(expected, rel=0.3)


def test_chains_apart_are_worth_few_draws() -> None:
    assert effective_size(normal(1000, 4) + 3 * torch.arange(4)) < 40


def test_chains_that_never_moved_have_not_mixed_unless_they_are_one() -> None:
    apart = torch.arange(4).double().expand(20, 4)
    assert split_r_hat(apart).isinf()
    assert split_r_hat(torch.zeros(20, 4).double()) == 1.0


def test_a_start_without_a_density_is_refused() -> None:
    def nowhere(u: Tensor) -> tuple[Tensor, Tensor]:
        return u.sum(-1) * torch.nan, u

    with pytest.raises(ValueError, match="start: the log density is not finite"):
        langevin(nowhere, torch.zeros(2, 3).double(), torch.ones(3).double(), 10, 5, 1)
