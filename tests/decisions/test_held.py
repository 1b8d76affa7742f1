"""Proposals with some inputs held at given values, on every path by which points are chosen."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from botorch.acquisition import UpperConfidenceBound, qKnowledgeGradient, qUpperConfidenceBound
from botorch.models import SingleTaskGP
from botorch.models.model import Model
from gpytorch.likelihoods import GaussianLikelihood
from settings import NAMES, OPTIONS, model, setting
from torch import Tensor

from bo_scale.decisions.by_name import ACQUISITIONS, acquisition_kind
from bo_scale.decisions.goals import Goal
from bo_scale.decisions.propose import propose
from bo_scale.decisions.setting import Setting
from bo_scale.errors import SpaceError
from bo_scale.loop import Choice, Integer, Space

MIXED = Space.of({"n": Integer(0, 9), "kind": Choice(("a", "b", "c")), "x": (0.0, 1.0)})
TRIANGLE = Space.of({"x": (0.0, 1.0), "y": (0.0, 1.0)}, ["x + y <= 1"])
DISCRETE = [name for name, kind in ACQUISITIONS.items() if kind.serves(1, 0, discrete=True)]


def exact(space: Space, held: dict[str, Any], q: int = 1, pending: Tensor | None = None, **options: Any) -> Setting:
    """A model of a smooth function whose top is at 0.6 of every input."""
    X = space.admissible.sample(16, 1)
    likelihood = GaussianLikelihood()
    likelihood.noise = 1e-3
    Y = -(X - 0.6).square().sum(-1, keepdim=True)
    made = SingleTaskGP(X, Y, likelihood=likelihood).eval()
    return Setting(made, X, pending, q, 7, {**OPTIONS, **options}, space.admissible, held=space.held(held))


@NAMES
@pytest.mark.parametrize("q", [1, 2, 9])
def test_every_acquisition_holds_an_input_of_a_box(name: str, q: int) -> None:
    if name == "qKG" and q == 9:
        q = 3
    s = replace(setting(model(), q=q, max_steps=5), held={1: 0.3})
    torch.manual_seed(0)
    X = propose(acquisition_kind(name).make, s)
    assert X.shape == (q, 2)
    assert not X.requires_grad
    assert (X[:, 1] == 0.3).all()
    assert ((X >= 0) & (X <= 1)).all()
    assert len(X.unique(dim=0)) == q


@pytest.mark.parametrize("name", ["qUCB", "qLogEI", "qLogNEI", "qNIPV"])
def test_the_best_of_what_is_left_is_found(name: str) -> None:
    s = replace(setting(model(), q=1), held={1: 0.3})
    make = acquisition_kind(name).make
    made = make(s)
    line = torch.stack([torch.linspace(0, 1, 501), torch.full((501,), 0.3)], -1).double()
    with torch.no_grad():
        values, found = made(line.unsqueeze(-2)), made(propose(make, s).unsqueeze(-2))
    assert found.item() >= values.max().item() - 0.01 * (values.max() - values.min()).item()


@pytest.mark.parametrize("name", DISCRETE)
@pytest.mark.parametrize("held", [{"kind": "b"}, {"n": 4}, {"x": 0.25}, {"n": 4, "kind": "c"}, {"n": 2, "x": 0.5}])
def test_numbers_and_choices_are_held_in_a_mixed_space(held: dict[str, Any], name: str) -> None:
    s = exact(MIXED, held, q=2, pending=MIXED.admissible.sample(2, 5), max_steps=3)
    torch.manual_seed(0)
    X = propose(acquisition_kind(name).make, s)
    torch.testing.assert_close(MIXED.admissible.snap(X), X)
    assert len(X.unique(dim=0)) == 2
    for point in MIXED.decode(X):
        assert {each: point[each] for each in held} == held


@pytest.mark.usefixtures("short_fits", "short_walks")
@pytest.mark.parametrize("name", [*DISCRETE, "qKG"])
@pytest.mark.parametrize("q", [1, 2])
def test_constraints_hold_beside_held_values(name: str, q: int) -> None:
    s = exact(TRIANGLE, {"x": 0.7}, q, max_steps=10 if name == "qLogEI" else 3)
    torch.manual_seed(0)
    X = propose(acquisition_kind(name).make, s)
    assert (X[:, 0] == 0.7).all()
    assert TRIANGLE.admissible.feasible(X).all()
    if name == "qLogEI" and q == 1:
        assert X[0, 1].item() == pytest.approx(0.3, abs=0.01)  # at the edge


def test_fantasies_are_free() -> None:
    """The knowledge gradient is that of points at x = 0.1 and of maxima anywhere."""
    tried: list[Tensor] = []

    class Watched(qKnowledgeGradient):
        def forward(self, X: Tensor) -> Tensor:
            tried.append(X.detach())
            return super().forward(X)

    s = replace(setting(model()), held={0: 0.1})
    propose(lambda s: Watched(s.model, 4), s)
    every = torch.cat([each.reshape(-1, *each.shape[-2:]) for each in tried])
    assert (every[:, 0, 0] == 0.1).all()
    assert every[:, 1:, 0].std() > 0.1


def test_a_function_of_one_point_and_points_of_a_factory() -> None:
    s = replace(setting(model(), q=1), held={1: 0.3})
    assert propose(lambda s: UpperConfidenceBound(s.model, beta=1.0), s)[0, 1] == 0.3
    points = torch.tensor([[0.2, 0.9]], dtype=torch.float64)
    assert propose(lambda s: points, s).tolist() == [[0.2, 0.3]]
    triangle = exact(TRIANGLE, {"x": 0.7})
    assert propose(lambda s: points, triangle)[0].tolist() == pytest.approx([0.7, 0.3])


@NAMES
def test_where_everything_is_held_points_repeat(name: str) -> None:
    s = replace(setting(model(), q=3, pending=torch.tensor([[0.2, 0.3]], dtype=torch.float64)), held={0: 0.2, 1: 0.3})
    assert propose(acquisition_kind(name).make, s).tolist() == [[0.2, 0.3]] * 3


@pytest.mark.parametrize("name", ["qUCB", "Thompson"])
def test_few_points_that_are_left_come_once_before_any_comes_again(name: str) -> None:
    s = exact(MIXED, {"n": 4, "x": 0.5}, q=3)
    torch.manual_seed(0)
    assert len(propose(acquisition_kind(name).make, s).unique(dim=0)) == 3
    assert propose(acquisition_kind(name).make, replace(s, q=5)).shape == (5, 5)


def test_several_objectives_and_constraints_on_outcomes() -> None:
    from botorch.models import ModelListGP

    def several(*models: Model) -> Model:
        return ModelListGP(*models)

    goal = Goal(2, torch.ones(2).double(), torch.zeros(0, 2).double(), torch.zeros(0).double(), None)
    s = replace(setting(several(model("SingleTaskGP"), model("SingleTaskGP", scale=-1.0))), held={0: 0.4}, goal=goal)
    for name in ("qLogNEHVI", "qLogEHVI"):
        assert (propose(acquisition_kind(name).make, s)[:, 0] == 0.4).all()


def test_values_that_no_admissible_point_has_are_refused() -> None:
    s = replace(exact(TRIANGLE, {}), held={0: 0.7, 1: 0.7})
    with pytest.raises(SpaceError, match="2 inputs are held"):
        propose(lambda s: qUpperConfidenceBound(s.model, 1.0), s)
