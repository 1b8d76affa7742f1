"""Tensors of the wrong device are refused by the name of the argument."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from cases import cagp, data, decoupled, grief, points, ring, softki

from bo_scale import OnlineClassifier, OnlineLearner, WISKIClassifier
from bo_scale.errors import InvalidDataError
from bo_scale.gp.weight_space.statistics import SufficientStatistics
from bo_scale.models.wiski.model import WISKI
from bo_scale.thompson import thompson_batch

BUILDS = [lambda X, Y, **kw: WISKI(X, Y, grid_size=6, **kw), softki, grief, cagp, decoupled]


@pytest.mark.parametrize("build", BUILDS, ids=["WISKI", "SoftKI", "GRIEF", "CaGP", "Decoupled"])
def test_every_argument_of_a_model(build: Callable[..., Any], gpu: torch.device) -> None:
    X, Y = data(12, 2)
    there = X.to(gpu), Y.to(gpu)
    model = build(*there).eval()
    attempts: dict[str, Callable[[], Any]] = {
        "train_Y": lambda: build(there[0], Y),
        "train_Yvar": lambda: build(*there, train_Yvar=torch.ones_like(Y)),
        "X": lambda: model.posterior(X),
        "Y": lambda: model.condition_on_observations(there[0], Y),
        "noise": lambda: model.condition_on_observations(*there, noise=torch.ones_like(Y)),
        "observation_noise": lambda: model.posterior(there[0], observation_noise=torch.ones_like(Y)),
        "inputs": lambda: model.set_train_data(X, there[1].squeeze(-1)),
        "targets": lambda: model.set_train_data(there[0], Y.squeeze(-1)),
        "means": lambda: model.restandardised(torch.zeros(1, 1).double(), there[1].std(0, keepdim=True)),
        "stdvs": lambda: model.restandardised(there[1].mean(0, keepdim=True), torch.ones(1, 1).double()),
    }
    for name, attempt in attempts.items():
        with pytest.raises(InvalidDataError, match=rf"^{name}: on cpu, but the others are on cuda:0"):
            attempt()


def test_every_argument_beside_models(gpu: torch.device) -> None:
    X, Y = data(12, 2)
    there = X.to(gpu), Y.to(gpu)
    model, box = WISKI(*there, grid_size=6).eval(), torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    classifier = WISKIClassifier(there[0], ring(X).to(gpu), 3, grid_size=6)
    learner, features = OnlineLearner(model), model._feature_map(0, frozen=True)
    attempts: list[tuple[str, Callable[[], Any]]] = [
        ("X", lambda: learner.step(X, there[1])),
        ("Y", lambda: learner.step(there[0], Y)),
        ("X", lambda: classifier.predict(X)),
        ("bounds", lambda: thompson_batch(model, box, 2)),
        ("X", lambda: WISKI(*there, grid_size=6, keep_data=False).remove_observations(X=X, Y=there[1])),
        ("X", lambda: SufficientStatistics.empty(features, 1, gpu).observe(features, X, Y)),
    ]
    for name, attempt in attempts:
        with pytest.raises(InvalidDataError, match=rf"^{name}: on cpu, but"):
            attempt()


def test_options_of_few_numbers_may_be_anywhere(gpu: torch.device) -> None:
    X, Y = (values.to(gpu) for values in data(12, 2))
    box = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    for model in (WISKI(X, Y, grid_size=6, bounds=box), grief(X, Y, bounds=box), softki(X, Y)):
        assert model.posterior(points(2).to(gpu)).mean.device == gpu


def test_labels_may_be_anywhere(gpu: torch.device) -> None:
    X = points(12)
    labels = ring(X)
    learner = OnlineClassifier(WISKIClassifier(X.to(gpu), labels, 3, grid_size=6))
    learner.step(X.to(gpu), labels)
    assert learner.scores.count == 12
