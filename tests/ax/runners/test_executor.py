"""Trials in executors: threads, processes that are killed, and controllers that come back."""

import multiprocessing
import os
import signal
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import trainings
from ax.api.client import Client
from ax.api.configs import RangeParameterConfig
from trials import FUNCTIONS, failures, until_said, wait

from bo_scale.ax import ExecutorRunner, ResultMetric, attach
from bo_scale.errors import RunnerError


def runner(folder: Path, name: str, executor: Any, **options: Any) -> ExecutorRunner:
    return ExecutorRunner(f"{FUNCTIONS}:{name}", folder / "runs", executor, **options)


def forked() -> Executor:
    return ProcessPoolExecutor(1, multiprocessing.get_context("fork"))


def test_a_trial_runs_in_a_thread_of_an_executor_and_leaves_its_outcomes(tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as threads:
        made = runner(tmp_path, "good", threads)
        metadata = made.run_trial(3, {"x": 3.0})
        assert wait(made, 3) == "COMPLETED"
    assert ResultMetric("loss").fetch(3, metadata)[1][0] == 9.0
    with pytest.raises(RunnerError, match="executor: it takes no more calls"):
        made.run_trial(4, {"x": 3.0})


def test_what_fails_is_tried_again_until_no_attempt_is_left(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as threads:
        assert wait(_started(runner(tmp_path, "fails_once", threads, retries=1))) == "COMPLETED"
        other = _started(runner(tmp_path / "other", "fails", threads, retries=1))
        assert wait(other) == "FAILED"
    assert failures(tmp_path / "other") == ["FloatingPointError: no convergence at x = 2.0"] * 2


def test_a_process_that_is_killed_costs_an_attempt_and_the_executor_is_made_anew(tmp_path: Path) -> None:
    made = _started(runner(tmp_path, "dies_once", forked, retries=1))
    assert wait(made) == "COMPLETED"
    assert ["BrokenProcessPool" in reason for reason in failures(tmp_path)] == [True]


def test_what_was_under_way_in_a_controller_that_is_gone_begins_again_and_is_no_retry(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        try:
            _started(runner(tmp_path, "waits", ThreadPoolExecutor(1), retries=0))
            until_said("begun")
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    (tmp_path / "go").touch()
    with ThreadPoolExecutor(1) as threads:
        again = runner(tmp_path, "waits", threads, retries=0)
        assert wait(again) == "COMPLETED"
    assert failures(tmp_path) == ["the process that submitted it is gone"]
    assert trainings.said("begun") == [2.0, 2.0]


def test_the_time_limit_and_a_stop_end_a_trial(tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as threads:
        late = _started(runner(tmp_path, "waits", threads, retries=0, timeout_seconds=0.05))
        assert wait(late) == "FAILED"
        assert "time limit of 0.05 s exceeded" in failures(tmp_path)[0]
        stopped = _started(runner(tmp_path / "other", "waits", threads))
        stopped.stop_trial(0, {})
        assert wait(stopped) == "ABANDONED"
        (tmp_path / "go").touch()


def test_ax_keeps_the_runner_without_its_executor(tmp_path: Path) -> None:
    client = Client()
    client.configure_experiment([RangeParameterConfig("x", (0.0, 2.0), "float")])
    client.configure_optimization("-loss")
    client.configure_metrics([ResultMetric("loss")])
    with ThreadPoolExecutor(2) as threads:
        client.configure_runner(runner(tmp_path, "good", threads))
        client.run_trials(max_trials=2, parallelism=2, initial_seconds_between_polls=0)
        client.save_to_json_file(str(tmp_path / "ax.json"))
        again = Client.load_from_json_file(str(tmp_path / "ax.json"))
        saved: Any = again._experiment.runner
        with pytest.raises(RunnerError, match=r"executor: it was not saved. Call configure_runner"):
            saved.run_trial(7, {"x": 1.0})
        made = runner(tmp_path, "good", threads)
        again.configure_runner(made)
        attach(again, made)
        again.run_trials(max_trials=1, parallelism=1, initial_seconds_between_polls=0)
    assert len(again.summarize()) == 3


def _started(made: ExecutorRunner) -> ExecutorRunner:
    made.run_trial(0, {"x": 2.0})
    return made
