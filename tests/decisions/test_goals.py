from typing import Any

import torch
from botorch.utils.multi_objective.pareto import is_non_dominated
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bo_scale.decisions.goals import non_dominated
from bo_scale.loop import Linear
from bo_scale.loop.problem.outcomes import Outcomes


def exact(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


# ---------------------------------------------------------------- ranking


@given(st.lists(st.lists(st.integers(0, 4), min_size=2, max_size=2), min_size=1, max_size=30))
@settings(deadline=None)
def test_what_is_dominated_is_what_botorch_says(rows: list[list[int]]) -> None:
    values = exact(rows)
    assert torch.equal(non_dominated(values), is_non_dominated(values, deduplicate=False))


def test_a_goal_measures_in_units_of_spread_whatever_the_unit() -> None:
    Y = exact([[-1.0, 2.0, 0.2], [-2.0, 5.0, 0.9], [-4.0, 3.0, 0.1], [-5.0, 1.0, -9.0]])
    merits = []
    for unit in (1.0, 1024.0):
        outcomes = Outcomes.of(
            None, {"loss": "minimize", "gain": "maximize"}, [Linear({"cost": 1.0, "loss": 2.0}, 3.0 * unit)], None
        )
        goal = outcomes.goal(unit * Y)
        assert goal.inequalities is not None
        (inequality,) = goal.inequalities
        assert (inequality(unit * Y) <= 0).tolist() == [True, False, False, True]  # 2.2, 4.9, 8.1, 1.0
        assert torch.equal(goal.violation(unit * Y) > 0, ~exact([1, 0, 0, 1]).bool())
        assert goal.front(unit * Y).tolist() == [True, False, False, False]
        torch.testing.assert_close(goal.values(unit * Y).std(0), exact([1.0, 1.0]))
        merits.append(goal.merits(unit * Y))
    torch.testing.assert_close(merits[0], merits[1])
    assert merits[0].argsort(descending=True).tolist() == [0, 3, 1, 2]


def test_where_nothing_is_feasible_the_least_violation_ranks_first() -> None:
    goal = Outcomes.of(None, {"loss": "minimize"}, ["cost <= 0"], None).goal(exact([[-1.0, 3.0], [-9.0, 1.0]]))
    assert goal.merits(exact([[-1.0, 3.0], [-9.0, 1.0]])).argmax() == 1
