import pytest
import torch
from cases import rand

from bo_scale.gp.weight_space.forgetting import KEEPS_ALL, OLDEST, Forgetting

CPU = torch.device("cpu")


def test_weights_are_powers_of_the_factor_by_age() -> None:
    weights = Forgetting(0.8).weights(4, CPU)
    torch.testing.assert_close(weights, torch.tensor([0.8**3, 0.8**2, 0.8, 1.0]).double())
    assert Forgetting(0.8).weights(0, CPU).shape == (0,)
    assert Forgetting(0.8).weights(1, CPU).tolist() == [1.0]


@pytest.mark.parametrize("factor", [0.3, 0.999])
def test_what_arrives_takes_from_all_before_alike(factor: float) -> None:
    """So sums need not be made anew."""
    rule = Forgetting(factor)
    torch.testing.assert_close(rule.weights(9, CPU)[:5], rule.after(4) * rule.weights(5, CPU))
    assert Forgetting(0.5).after(3) == 0.125
    assert rule.after(0) == 1.0


def test_a_small_weight_is_large_noise() -> None:
    rule, D = Forgetting(0.8), 0.5 + rand(9, 2)
    torch.testing.assert_close(rule.noise_of(D), D / rule.weights(9, CPU).unsqueeze(-1))


def test_whatever_is_old_still_has_a_weight() -> None:
    rule = Forgetting(1e-12)
    weights = rule.weights(60, CPU)
    assert weights.min() == rule.after(10**6) == OLDEST
    assert weights[-1] == 1.0
    assert rule.noise_of(torch.ones(60, 1).double()).isfinite().all()


def test_a_factor_of_one_forgets_nothing() -> None:
    D = rand(9, 2)
    assert not KEEPS_ALL.forgets
    assert Forgetting(0.9).forgets
    assert KEEPS_ALL.weights(9, CPU) is None
    assert KEEPS_ALL.after(100) == 1.0
    assert KEEPS_ALL.noise_of(D) is D
