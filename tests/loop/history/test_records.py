from dataclasses import FrozenInstanceError

import pytest
import torch

from bo_scale.loop.history.records import Best, Step, TradeOff

X = torch.tensor([0.1, 0.2])


def best() -> Best:
    return Best(X, 1.0, 0.1, X, 1.2)


def test_steps_of_equal_numbers_are_equal_and_stay() -> None:
    steps = [Step(ask=0, n=5, q=2, fitted=True, model_seconds=0.1, acquisition_seconds=0.2) for _ in range(2)]
    assert steps[0] == steps[1]
    assert len(set(steps)) == 1
    with pytest.raises(FrozenInstanceError):
        steps[0].n = 6  # type: ignore[misc]


@pytest.mark.parametrize("make", [best, lambda: TradeOff(X, {"cost": (1.0, 0.1)})])
def test_records_of_tensors_are_compared_and_kept_in_sets_by_what_they_are(make) -> None:
    """Tensors of several numbers are neither equal nor not."""
    one, other = make(), make()
    assert one != other
    assert len({one, other, one}) == 2


def test_the_best_of_a_problem_without_names_is_feasible_and_shares_nothing() -> None:
    assert best().feasible
    assert best().outcomes == {}
    assert best().outcomes is not best().outcomes
