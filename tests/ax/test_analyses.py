"""What Ax's analyses make of our models: none fails, and what they tell of the parameters is right."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from ax.analysis.plotly.sensitivity import SensitivityAnalysisPlot
from ax.api.client import Client
from ax.api.configs import ChoiceParameterConfig, RangeParameterConfig
from ax.core.analysis_card import AnalysisCard, AnalysisCardGroup, ErrorAnalysisCard
from ax.generators.torch.botorch_modular import acquisition
from clients import client, loss, run

OBJECTIVES: dict[str, dict[str, Any]] = {
    "one": {"objective": "-loss"},
    "two": {"objective": "-loss, gain"},
    "constrained": {"objective": "-loss", "constraints": ["cost <= 3"]},
}
METRICS = {"one": ("loss",), "two": ("loss", "gain"), "constrained": ("loss", "cost")}
SHOWN = {"SensitivityAnalysisPlot", "SlicePlot", "ContourPlot", "CrossValidationPlot", "ArmEffectsPlot"}
OF = {"one": set(), "two": {"ScatterPlot"}, "constrained": {"PFeasiblePlot", "ObjectivePFeasibleFrontierPlot"}}


@pytest.fixture(autouse=True)
def _few_generations(monkeypatch: pytest.MonkeyPatch) -> None:
    """The frontier of objective and feasibility is otherwise searched for longer than all the rest takes."""
    quick = partial(acquisition.optimize_with_nsgaii, max_gen=3, population_size=20)
    monkeypatch.setattr(acquisition, "optimize_with_nsgaii", quick)


def leaves(cards: Any) -> Iterator[AnalysisCard]:
    for card in cards:
        if isinstance(card, AnalysisCardGroup):
            yield from leaves(card.children)
        else:
            yield card


def analysed(made: Client, **options: Any) -> list[AnalysisCard]:
    """Cards, none of which is of an error."""
    cards = list(leaves(made.compute_analyses(display=False, **options)))
    assert [(card.name, card.subtitle) for card in cards if isinstance(card, ErrorAnalysisCard)] == []
    return cards


@pytest.mark.parametrize(("model", "kind"), [("wiski", "two"), ("wiski", "constrained"), ("grief_bayes", "one")])
def test_no_analysis_fails(model: str, kind: str) -> None:
    fewer = {"num_samples": 4} if model == "grief_bayes" else {}
    made = client(model, initialization_budget=3, **OBJECTIVES[kind], **fewer)
    run(made, 4, METRICS[kind])
    assert {card.name for card in analysed(made)} >= SHOWN | OF[kind]
    assert set(made.predict([{"x": 1.0, "y": 0.5}])[0]) == set(METRICS[kind])
    best = made.get_pareto_frontier() if kind == "two" else [made.get_best_parameterization()]
    for point, values, trial, _ in best:
        assert set(values) == set(METRICS[kind])
        assert point == made._experiment.trials[trial].arm.parameters


def test_after_a_choice_of_the_model_and_one_hot() -> None:
    kind = ChoiceParameterConfig(name="kind", parameter_type="str", values=["a", "b", "c"])
    floats = [RangeParameterConfig(name=name, parameter_type="float", bounds=(0.0, 2.0)) for name in "xy"]
    made = client("auto", parameters=[*floats, kind], initialization_budget=4)
    run(made, 5)
    assert {card.name for card in analysed(made)} >= SHOWN


@pytest.mark.parametrize("model", ["wiski", "softki", "grief", "grief_bayes", "cagp", "decoupled"])
def test_the_parameter_that_matters_is_told_from_the_one_that_does_not(model: str) -> None:
    made = client(model, initialization_budget=0)
    generator = torch.Generator().manual_seed(0)
    for point in 2 * torch.rand(16, 2, generator=generator, dtype=torch.float64):
        x, y = point.tolist()
        made.complete_trial(made.attach_trial({"x": x, "y": y}), {"loss": loss({"x": x, "y": 0.0})})
    made.get_next_trials(max_trials=1)
    importances = made._generation_strategy.adapter.generator.feature_importances()
    assert importances.shape[-1] == 2
    assert importances.sum(-1) == pytest.approx(1.0)
    assert (importances[..., 0] > importances[..., 1]).all()
    (card,) = analysed(made, analyses=[SensitivityAnalysisPlot(metric_name="loss")])
    shares = dict(zip(card.df["parameter_name"], card.df["sensitivity"], strict=True))
    assert sum(abs(share) for share in shares.values()) == pytest.approx(1.0)
    assert abs(shares["x"]) > 0.5
    assert made.get_best_parameterization()[0]["x"] == pytest.approx(1.2, abs=0.4)
    low, top, high = (each["loss"][0] for each in made.predict([{"x": x, "y": 1.0} for x in (0.3, 1.2, 2.0)]))
    assert top < min(low, high)
