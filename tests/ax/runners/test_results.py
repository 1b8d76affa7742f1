import functools
import logging
from pathlib import Path
from typing import Any

import pytest
from ax.api.client import Client
from ax.api.configs import RangeParameterConfig
from ax.core.trial_status import TrialStatus
from ax.orchestration.orchestrator_options import OrchestratorOptions
from clients import client
from trainings import FAILING, said
from trials import FUNCTIONS, local, wait

from bo_scale.ax import ResultMetric, SlurmRunner, attach, streaming
from bo_scale.errors import RunnerError
from bo_scale.loop import Optimizer


def test_metrics_without_a_result_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "result.json").write_text('{"outcomes": {"loss": [1.0, null]}}')
    for metadata in ({}, {"result": str(tmp_path / "gone" / "result.json")}):
        with pytest.raises(RunnerError, match=r"there is no result.*call attach"):
            ResultMetric("loss").fetch(0, metadata)


def test_runner_and_metrics_are_kept_with_the_experiment(tmp_path: Path) -> None:
    made = client(objective="-loss", constraints=["cost <= 2"])
    options: Any = {"workers": 2, "timeout_seconds": 9.5, "retries": 4, "threads": 1}
    runner = local(tmp_path, "good", **options)
    attach(made, runner, tracking=["threads"])
    made.save_to_json_file(str(tmp_path / "ax.json"))
    again = Client.load_from_json_file(str(tmp_path / "ax.json"))
    assert again._experiment.runner == runner
    assert vars(again._experiment.runner)["function"] == f"{FUNCTIONS}:good"
    metrics = again._experiment.metrics
    assert {name: type(metric) for name, metric in metrics.items()} == dict.fromkeys(
        ("loss", "cost", "threads"), ResultMetric
    )
    assert metrics["loss"].lower_is_better
    batch = SlurmRunner("module:train", tmp_path / "batch", {"mem_gb": 3}, "local", 2, 60.0, 3, 1)
    made.configure_runner(batch)
    made.save_to_json_file(str(tmp_path / "ax.json"))
    assert Client.load_from_json_file(str(tmp_path / "ax.json"))._experiment.runner == batch


def test_a_folder_is_one_experiments_alone(tmp_path: Path) -> None:
    first, second = client(), client()
    attach(first, local(tmp_path, "good"))
    with pytest.raises(RunnerError, match="it holds trials of another experiment"):
        attach(second, local(tmp_path, "good"))
    assert second._experiment.runner is None
    assert attach(first, local(tmp_path, "good")) == []
    bare = Client()
    bare.configure_experiment(parameters=[RangeParameterConfig(name="x", parameter_type="float", bounds=(0, 1))])
    with pytest.raises(RunnerError, match="Call configure_optimization first"):
        attach(bare, local(tmp_path, "good"))


def test_data_that_ax_lost_are_attached_from_results(tmp_path: Path) -> None:
    made, runner = client(), local(tmp_path, "good")
    attach(made, runner)
    for index in range(3):
        made.attach_trial({"x": 0.5 + index, "y": 0.0})
        runner.run_trial(index, {"x": 0.5 + index, "y": 0.0})
    runner.stop_trial(2, {})
    assert [wait(runner, index) for index in range(3)] == ["COMPLETED", "COMPLETED", "ABANDONED"]
    for index in (1, 2):
        made.complete_trial(index, {"loss": 7.0})  # told by hand
    made.complete_trial(0)
    for _ in range(2):
        assert attach(made, runner, tracking=["cost", "unheard_of"]) == []
        data = made._experiment.lookup_data().df
        rows = sorted(data[["trial_index", "metric_name", "mean"]].itertuples(index=False, name=None))
        assert rows == [(0, "cost", 1.0), (0, "loss", 0.25), (1, "cost", 3.0), (1, "loss", 7.0), (2, "loss", 7.0)]
    assert made._experiment.trials[0].run_metadata["result"] == runner.metadata(0)["result"]


def test_trials_that_ax_does_not_know_are_taken_up_and_others_not_mistaken(tmp_path: Path) -> None:
    made, runner = client(), local(tmp_path, "good")
    attach(made, runner)
    made.save_to_json_file(str(tmp_path / "ax.json"))
    for index in range(2):
        runner.run_trial(index, {"x": 0.5 + index, "y": 0.0})
    again = Client.load_from_json_file(str(tmp_path / "ax.json"))
    other = Client.load_from_json_file(str(tmp_path / "ax.json"))
    other.attach_trial({"x": 1.9, "y": 0.0})
    with pytest.raises(RunnerError, match="trial 0 was started there with"):
        attach(other, runner)
    assert attach(again, runner) == [0, 1]
    again.run_trials(0, initial_seconds_between_polls=0)
    trials = again._experiment.trials
    assert [trial.status.name for trial in trials.values()] == ["COMPLETED", "COMPLETED"]
    assert [trial.arm.parameters["x"] for trial in trials.values()] == sorted(said("ended")) == [0.5, 1.5]


def test_metrics_of_the_users_own_stay(tmp_path: Path) -> None:
    class Own(ResultMetric):
        pass

    made = client(constraints=["cost <= 2"])
    own = Own("cost")
    made.configure_metrics([own])
    attach(made, local(tmp_path, "good"))
    assert made._experiment.metrics["cost"] is own


def test_run_trials_learns_from_results_and_of_failures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at_once = functools.partial(OrchestratorOptions, min_seconds_before_poll=0.0, logging_level=logging.ERROR)
    monkeypatch.setattr("ax.api.client.OrchestratorOptions", at_once)  # Ax waits a second after every start of a trial
    made = client(refit_growth=10.0)
    runner = local(tmp_path, "quick", retries=0, workers=3)
    assert attach(made, runner, tracking=["cost"]) == []
    made.run_trials(10, parallelism=5, initial_seconds_between_polls=0.02)  # type: ignore[arg-type]
    trials = made._experiment.trials
    data = made._experiment.lookup_data().df.set_index(["trial_index", "metric_name"])
    assert len(trials) == 10
    for index, trial in trials.items():
        x = trial.arm.parameters["x"]
        assert trial.status.name == ("FAILED" if x > FAILING else "COMPLETED")
        if x > FAILING:
            assert trial.status_reason == f"FloatingPointError: no convergence at x = {x}"
        else:
            assert data.loc[index, "loss"]["mean"] == pytest.approx((x - 1) ** 2)
            assert list(data.loc[index, "cost"][["mean", "sem"]]) == [x, 0.1]
    assert "FAILED" in {trial.status.name for trial in trials.values()}
    assert streaming(made)["loss"].count > 0  # how many of the ten were there in time depends on the machine


def test_points_that_came_home_are_started_as_workers_are_free(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    loop = Optimizer({"x": (0.0, 1.0), "y": (0.0, 1.0)}, objectives={"loss": "minimize"}, num_initial=9)
    points = loop.ask(3)
    loop.tell(points[:1], [{"loss": 1.0}])
    made, runner = loop.to_ax(), local(tmp_path / "runs", "good", workers=1)
    attach(made, runner)
    trials = made._experiment.trials
    running = [trials[1], trials[2]]
    assert runner.poll_trial_status(running) == {TrialStatus.RUNNING: {1, 2}}
    assert [runner.task(index) is not None for index in (1, 2)] == [True, False]
    made.run_trials(0, initial_seconds_between_polls=0)
    assert [trial.status.name for trial in trials.values()] == ["COMPLETED"] * 3
    assert sorted(said("ended")) == sorted(point["x"] for point in points[1:])
    assert caplog.text.count("was running in Ax, but never started") == 2


def test_a_trial_whose_folder_was_lost_fails(tmp_path: Path) -> None:
    made, runner = client(), local(tmp_path, "good")
    attach(made, runner)
    made.attach_trial({"x": 0.5, "y": 0.0})
    trial = made._experiment.trials[0]
    trial.update_run_metadata({"result": "gone"})
    assert runner.poll_trial_status([trial]) == {TrialStatus.FAILED: {0}}
