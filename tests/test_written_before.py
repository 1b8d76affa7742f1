"""Files that version 0.1.0 wrote, before modules were moved: what is in them is read, and goes on."""

import json
import math
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from ax.api.client import Client
from torch import Tensor
from written_before.builders import (
    FOLDER,
    LOOPS,
    MODELS,
    STATE_DICTS,
    classes,
    classifier,
    learner,
    loop,
    loop_from_ax,
    online_classifier,
    outcomes,
    points,
    runner,
    tell,
    values,
)

from bo_scale import AveragedEnsemble, WISKIClassifier, load_model
from bo_scale.ax import LocalRunner, attach, streaming
from bo_scale.loop import Optimizer
from bo_scale.survey import Survey

EXPECTED: dict[str, Any] = json.loads((FOLDER / "expected.json").read_text())
pytestmark = pytest.mark.filterwarnings("ignore::bo_scale.errors.InterpolationWarning")


DRAWS = 1e-2
"""How much probabilities differ that were made of other draws: `--seed` shifts these."""


def assert_near(found: Any, expected: Any, atol: float = 1e-8) -> None:
    """Equal, and numbers but for what processors round differently."""
    if isinstance(expected, dict):
        assert set(found) == set(expected)
        for name in expected:
            assert_near(found[name], expected[name], atol)
    elif isinstance(expected, list):
        found = found.tolist() if isinstance(found, Tensor) else list(found)
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_near(one, other, atol)
    elif isinstance(expected, float) and math.isnan(expected):
        assert math.isnan(found)
    elif isinstance(expected, float):
        assert float(found) == pytest.approx(expected, rel=1e-6, abs=atol)
    else:
        assert found == expected


def assert_says(model: Any, d: int, expected: dict[str, Any]) -> None:
    """The posterior that is kept."""
    posterior = model.posterior(points(5, d, 500))
    assert_near(posterior.mean.detach(), expected["mean"])
    assert_near(posterior.variance.detach(), expected["variance"])


# ---------------------------------------------------------------- models


@pytest.mark.parametrize("name", MODELS)
def test_models_say_what_they_said_and_are_told_more(name: str) -> None:
    case, expected = MODELS[name], EXPECTED[name]
    model: Any = load_model(case.make(points(7, case.d, 900)), FOLDER / f"{name}.pt")
    assert model.num_observations == expected["count"]
    assert_says(model, case.d, expected["now"])
    assert_says(case.told(model, points(2, case.d, 200)), case.d, expected["after"])
    if "averaged" in expected:
        assert_says(AveragedEnsemble(model), case.d, expected["averaged"])


@pytest.mark.parametrize("name", STATE_DICTS)
def test_state_dicts_are_loaded(name: str) -> None:
    case = MODELS[name]
    model = case.make(points(24, case.d))
    model.load_state_dict(torch.load(FOLDER / f"{name}_state_dict.pt", weights_only=True))
    assert_says(model.eval(), case.d, EXPECTED[f"{name}_state_dict"]["now"])


def test_the_model_of_a_classifier_is_loaded() -> None:
    expected, model = EXPECTED["classifier"], classifier(points(7, 1, 900)).model
    found = WISKIClassifier.of(load_model(model, FOLDER / "classifier.pt"))
    assert_says(found, 1, expected["now"])
    assert_near(found.probabilities(points(5, 1, 500)).detach(), expected["probabilities"], DRAWS)


def test_learners_go_on() -> None:
    expected, found = EXPECTED["learner"], learner(points(20, 4)).restore(FOLDER / "learner.pt")
    assert_near([found.scores.rmse, found.scores.nll], [expected["rmse"], expected["nll"]])
    assert_says(found, 4, expected["now"])
    found.step(points(2, 4, 200), values(points(2, 4, 200)))
    assert_says(found, 4, expected["after"])


def test_online_classifiers_go_on() -> None:
    expected, probes = EXPECTED["online_classifier"], points(5, 1, 500)
    found = online_classifier(points(20, 1)).restore(FOLDER / "online_classifier.pt")
    assert_near([found.scores.count, found.scores.correct, found.scores.log_loss], expected["scores"], DRAWS)
    assert_near(found.probabilities(probes).detach(), expected["probabilities"], DRAWS)
    found.step(points(2, 1, 200), classes(points(2, 1, 200)))
    assert_near(found.probabilities(probes).detach(), expected["after"], DRAWS)


# ---------------------------------------------------------------- loops


def copied(name: str, folder: Path) -> Path:
    """A folder of the fixtures, to write in."""
    return Path(shutil.copytree(FOLDER / name, folder / name))


def assert_stands(made: Optimizer, expected: dict[str, Any]) -> None:
    """Where the loop was. A snapshot of no use is a warning, and an error here."""
    assert_near(made.observations, [expected["X"], expected["Y"], expected["Yvar"]])
    assert_near(made.pending, expected["pending"])
    assert [[step.ask, step.n, step.q, step.fitted] for step in made.steps] == expected["steps"]
    if made.outcomes.several:
        assert_near([[one.x, one.outcomes] for one in made.pareto()], expected["pareto"])
    else:
        best = made.best()
        found = [best.x, best.mean, best.sd, best.observed_x, best.observed_y, best.outcomes]
        assert_near(found, expected["best"])


@pytest.mark.parametrize("name", LOOPS)
def test_loops_go_on(name: str, tmp_path: Path) -> None:
    folder, expected = copied(name, tmp_path), EXPECTED[name]
    assert (folder / "snapshot.pt").exists()
    with loop(name, folder) as made:
        assert_stands(made, expected)
        tell(made, name, made.ask(1))
    with loop(name, folder) as made:
        assert made.num_observations == len(expected["Y"]) + 1
        assert len(made.steps) == len(expected["steps"]) + 1


def test_loops_that_came_from_ax_go_on(tmp_path: Path) -> None:
    folder, expected = copied("loop_from_ax", tmp_path), EXPECTED["loop_from_ax"]
    client = Client.load_from_json_file(str(FOLDER / "loop_from_ax.json"))
    assert_holds(client, EXPECTED["loop_from_ax_client"])
    with loop_from_ax(client, folder) as made:
        assert_stands(made, expected)
        for point in made.ask(1):
            made.tell(point, [outcomes(point)])
        trials = made.to_ax()._experiment.trials
        assert len(trials) == len(EXPECTED["loop_from_ax_client"]["statuses"]) + 2
        assert trials[max(trials)].status.is_completed


# ---------------------------------------------------------------- Ax


def assert_holds(client: Client, expected: dict[str, Any]) -> None:
    """The trials that are kept, and their data."""
    trials = client._experiment.trials.values()
    data = client._experiment.lookup_data().df.sort_values(["metric_name", "trial_index"])
    assert [trial.status.name for trial in trials] == expected["statuses"]
    assert [trial.arms[0].parameters for trial in trials] == expected["parameters"]
    assert_near(data[["trial_index", "metric_name", "mean"]].to_numpy().tolist(), expected["data"])


@pytest.mark.filterwarnings("ignore::botorch.exceptions.warnings.InputDataWarning")
def test_experiments_go_on() -> None:
    client = Client.load_from_json_file(str(FOLDER / "ax.json"))
    assert_holds(client, EXPECTED["ax"])
    ((index, point),) = client.get_next_trials(max_trials=1).items()
    assert index == len(EXPECTED["ax"]["statuses"])
    assert {name: stream.count for name, stream in streaming(client).items()} == {"loss": 4, "gain": 4}
    client.complete_trial(index, outcomes(point))
    ((mean, sd),) = [said["loss"] for said in client.predict([point])]
    assert math.isfinite(mean)
    assert sd > 0


def test_trials_of_a_runner_go_on(tmp_path: Path) -> None:
    """Results are known, a stopped trial stays so, and that whose process is gone is run once more."""
    folder, client = copied("runs", tmp_path), Client.load_from_json_file(str(FOLDER / "runs.json"))
    assert_holds(client, EXPECTED["runs"])
    assert isinstance(client._experiment.runner, LocalRunner)
    made = runner(folder)
    assert attach(client, made) == []
    assert [made.poll_trial(k, {}).name for k in range(4)] == ["COMPLETED", "COMPLETED", "ABANDONED", "RUNNING"]
    deadline = time.monotonic() + 60
    while not made.poll_trial(3, {}).is_completed:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert [path.name for path in sorted((folder / "trial-00003").glob("attempt-*"))] == ["attempt-1", "attempt-2"]
    result = json.loads((folder / "trial-00003" / "result.json").read_text())
    assert {name: mean for name, (mean, _) in result["outcomes"].items()} == EXPECTED["runs"]["parameters"][3]


# ---------------------------------------------------------------- surveys


def rows(frame: Any, *columns: str) -> list[list[Any]]:
    """Places, and what is in some columns."""
    kept = frame[[*columns]].astype(object).to_numpy().tolist()
    return [[shape.x, shape.y, *row] for row, shape in zip(kept, frame.geometry, strict=True)]


def test_surveys_go_on(tmp_path: Path) -> None:
    expected = EXPECTED["survey"]
    path = Path(shutil.copy(FOLDER / "survey.gpkg", tmp_path / "survey.gpkg"))
    survey = Survey(path)
    said = survey.status().splitlines()[1:]
    assert [line for line in said if not line.startswith("Range ")] == expected["status"]  # told since then
    assert survey.settings == expected["settings"]
    assert_near(rows(survey.sites, "value", "site", "file", "row", "batch"), expected["sites"])
    assert_near(rows(survey.planned, "site", "batch", "status", "score"), expected["planned"])
    assert survey.rejected.to_numpy().tolist() == expected["aside"]
    assert_near([[route.team, route.sites, route.kilometres] for route in survey.routes], expected["routes"])
    found = survey.predict_at(5.7 + 0.01 * np.arange(1, 6), 50.95 + 0.008 * np.arange(1, 6))
    assert_near(found.to_numpy(), expected["predicted"])
    table = survey.pending().astype({"zinc": object})
    table.loc[0, "zinc"] = 9.5
    table.to_csv(tmp_path / "measured.csv", index=False)
    survey.update(tmp_path / "measured.csv")
    again = Survey(path)
    assert len(again.sites) == len(expected["sites"]) + 1
    assert again.planned.status[again.planned.site == table.site[0]].tolist() == ["measured"]
    planned = again.plan(batch=2, objective="maximin", add=True).table
    assert isinstance(planned, pd.DataFrame)
    assert planned.site.tolist() == ["P9", "P10"]
