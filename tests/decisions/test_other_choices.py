"""A search that has converged with one choice gives evaluations to others, until half of them had such."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from botorch.acquisition import qUpperConfidenceBound
from botorch.models import SingleTaskGP
from torch import Tensor

from bo_scale.decisions import propose as proposing
from bo_scale.decisions.batch_search import search
from bo_scale.decisions.by_name import acquisition_kind
from bo_scale.decisions.propose import _improvement, propose
from bo_scale.decisions.setting import Setting
from bo_scale.loop import Choice, Integer, Space, When

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


def with_others(s: Setting, point: Tensor) -> bool:
    assert s.admissible is not None
    return bool(s.admissible.take_other_choices(point, s.best(1)[0]))


def some(kind: int, count: int) -> Tensor:
    return torch.cat([torch.linspace(0, 1, count, dtype=torch.float64).unsqueeze(-1), torch.eye(3)[[kind] * count]], -1)


@pytest.mark.parametrize("name", ["qLogEI", "qLogNEI"])
@pytest.mark.parametrize(("others", "elsewhere"), [(2, True), (5, True), (6, False)])
def test_other_choices_are_proposed_until_half_had_such(name: str, others: int, elsewhere: bool) -> None:
    s = converged(others)
    (point,) = propose(acquisition_kind(name).make, s)
    assert with_others(s, point) == elsewhere
    assert elsewhere or point[0] == pytest.approx(0.4, abs=0.1)


def test_points_that_failed_or_are_pending_count_too() -> None:
    s = converged(2)
    make = acquisition_kind("qLogEI").make
    assert not with_others(s, propose(make, replace(s, failed=torch.cat([some(1, 5), some(2, 5)])))[0])
    assert not with_others(s, propose(make, replace(s, pending=torch.cat([some(1, 5), some(2, 5)])))[0])
    assert with_others(s, propose(make, replace(s, pending=some(1, 2)))[0])


def test_the_improvement_is_that_of_the_point_alone() -> None:
    s = replace(converged(2), pending=some(0, 3) + 0.01 * torch.tensor([1.0, 0, 0, 0]))
    made = acquisition_kind("qLogEI").make(s)
    point = s.best(1)
    alone = acquisition_kind("qLogEI").make(replace(s, pending=None))
    assert _improvement(made, point) == pytest.approx(float(alone(point)), rel=1e-3)
    assert made.X_pending is not None
    assert len(made.X_pending) == 3


def test_what_is_proposed_is_the_best_of_all_other_choices() -> None:
    s = converged(4)
    make = acquisition_kind("qLogEI").make
    point = propose(make, s)
    mesh = torch.cat([some(1, 200), some(2, 200)])
    made = make(s)
    with torch.no_grad():
        assert made(point) >= made(mesh.unsqueeze(-2)).max() - 1e-3


def test_without_a_new_point_of_other_choices_the_best_one_stays() -> None:
    """Of twelve points, eight of which have other choices and failed."""
    space = Space.of({"x": Integer(0, 3), "kind": Choice(("a", "b", "c"))})
    X = torch.cat([some(0, 4)[:3], some(0, 4)[:2]])
    made = SingleTaskGP(X, value(X), outcome_transform=None).eval()
    made.likelihood.noise = 1e-4
    s = Setting(made, X, None, 1, 3, {"mc_samples": 64}, space.admissible, failed=torch.cat([some(1, 4), some(2, 4)]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(proposing, "OTHER_CHOICES", 0.9)
        patch.setattr(proposing, "WORTH", 1e9)
        (point,) = propose(acquisition_kind("qLogEI").make, s)
    assert not with_others(s, point)


@pytest.mark.parametrize("values", [2, 3])
def test_an_idle_choice_is_another_one(values: int) -> None:
    kind = When("n", (1, 2), Choice(tuple("abc"[:values])))
    space = Space.of({"n": Integer(0, 2), "kind": kind})
    X = space.encode([{"n": 1, "kind": "a"}, {"n": 2, "kind": "a"}, {"n": 0}])
    assert space.admissible is not None
    assert space.admissible.take_other_choices(X, X[0]).tolist() == [False, False, True]


@pytest.mark.parametrize("name", ["qUCB", "qLogEI"])
def test_a_search_that_has_not_converged_goes_where_the_acquisition_is_highest(name: str) -> None:
    s = converged(2)
    if name == "qLogEI":  # with noise that leaves something to gain
        s.model.likelihood.noise = 0.05
    assert not with_others(s, propose(acquisition_kind(name).make, s)[0])


def test_where_values_are_held_the_acquisition_decides() -> None:
    s = converged(2)
    make = acquisition_kind("qLogEI").make
    assert not with_others(s, propose(make, replace(s, held={0: 0.4}))[0])
    assert propose(make, replace(s, held={1: 1.0, 2: 0.0, 3: 0.0}))[0, 1] == 1.0


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
