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


def test_records_are_shown_with_six_digits_and_are_exact() -> None:
    third, point = 1 / 3, {"x": 2e5 / 3, "n": 1234567, "kind": "a", "bias": True}
    made = Best(point, 1e-9 / 3, third, X.double() / 3, 12.0, {"cost": (third, 1e9 / 3)})
    assert repr(made) == str(made)
    assert repr(made) == (
        "Best(x={'x': 66666.7, 'n': 1234567, 'kind': 'a', 'bias': True}, mean=3.33333e-10, sd=0.333333, "
        "observed_x=[0.0333333, 0.0666667], observed_y=12.0, outcomes={'cost': (0.333333, 333333000.0)}, "
        "feasible=True, suspect=False)"
    )
    assert made.sd == third
    assert str(TradeOff(X, {"cost": (third, 0.1)})) == "TradeOff(x=[0.1, 0.2], outcomes={'cost': (0.333333, 0.1)})"
