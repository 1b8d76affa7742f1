"""A search that has converged with one choice gives evaluations to others, until half of them had such."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from botorch.acquisition import qUpperConfidenceBound
from botorch.models import SingleTaskGP
from torch import Tensor

from bo_scale.decisions.batch_search import search
from bo_scale.decisions.by_name import acquisition_kind
from bo_scale.decisions.propose import propose
from bo_scale.decisions.setting import Setting
from bo_scale.loop import Choice, Space

SPACE = Space.of({"x": (0.0, 1.0), "kind": Choice(("a", "b", "c"))})


def value(unit: Tensor) -> Tensor:
    """Highest at x = 0.4 with the first choice, as far as anybody knows."""
    return (6 * unit[:, 1:2] - (unit[:, :1] - 0.4).square()).double()


def converged(others: int, space: Space = SPACE) -> Setting:
    """Twelve points, most of them at the top of the first choice, and so many with others."""
    x = torch.cat([torch.linspace(0, 1, 5), 0.4 + torch.linspace(-2e-3, 2e-3, 7 - others), torch.rand(others)])
    kinds = torch.eye(3)[[0] * (12 - others) + [1, 2, 1, 2, 1, 2][:others]]
    X = torch.cat([x.unsqueeze(-1), kinds], -1).double()
    made = SingleTaskGP(X, value(X), outcome_transform=None).eval()
    made.likelihood.noise = 1e-4
    made.covar_module.lengthscale = torch.tensor([0.5, 1.0, 1.0, 1.0])
    return Setting(made, X, None, 1, 3, {"mc_samples": 64}, space.admissible)


@pytest.mark.parametrize("name", ["qLogEI", "qLogNEI"])
@pytest.mark.parametrize(("others", "elsewhere"), [(2, True), (6, False)])
def test_other_choices_are_proposed_until_half_had_such(name: str, others: int, elsewhere: bool) -> None:
    s = converged(others)
    (point,) = propose(acquisition_kind(name).make, s)
    assert s.admissible is not None
    assert bool(s.admissible.take_other_choices(point, s.best(1)[0])) == elsewhere
    assert elsewhere or point[0] == pytest.approx(0.4, abs=0.1)


@pytest.mark.parametrize("name", ["qUCB", "qLogEI"])
def test_a_search_that_has_not_converged_goes_where_the_acquisition_is_highest(name: str) -> None:
    s = converged(2)
    if name == "qLogEI":  # with noise that leaves something to gain
        s.model.likelihood.noise = 0.05
    (point,) = propose(acquisition_kind(name).make, s)
    assert s.admissible is not None
    assert not s.admissible.take_other_choices(point, s.best(1)[0])


def test_held_choices_and_spaces_without_any_are_left_alone() -> None:
    s = converged(2)
    held = replace(s, held={1: 1.0, 2: 0.0, 3: 0.0})
    assert propose(acquisition_kind("qLogEI").make, held)[0, 1] == 1.0
    box = replace(s, admissible=None)
    assert propose(acquisition_kind("qLogEI").make, box).shape == (1, 4)


@pytest.mark.parametrize("few", [False, True])
def test_points_unlike_one_are_found_if_there_are_any(few: bool) -> None:
    s = converged(2)
    admissible: Any = SPACE.admissible
    if few:
        admissible = replace(admissible, held={0: 0.4})
    made = qUpperConfidenceBound(s.model, 0.1)
    best = s.best(1)[0]
    (point,) = search(made, admissible, 1, 0, s.taken, s.best(4), unlike=best)
    assert admissible.take_other_choices(point, best)
    only = admissible.holding({1: 1.0, 2: 0.0, 3: 0.0})
    (point,) = search(made, only, 1, 0, s.taken, s.best(4), unlike=best)
    assert point[1] == 1.0
