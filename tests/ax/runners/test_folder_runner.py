"""Trials are run once, whatever happens to them, and Ax knows what has become of them."""

import functools
import json
import re
import subprocess
import sys
import time
import types
from pathlib import Path
from typing import Any

import pytest
import trainings
from ax.core.trial_status import TrialStatus
from clients import client
from trainings import said
from trials import Clock, alive, begun, failures, local, until_gone, until_said, wait

from bo_scale.ax import LocalRunner, ResultMetric, attach
from bo_scale.ax.runners import folder_runner as runners
from bo_scale.ax.runners import worker
from bo_scale.ax.runners.folder_runner import reference
from bo_scale.errors import RunnerError


def test_a_trial_is_started_once_and_not_again_with_a_result(tmp_path: Path) -> None:
    runner = local(tmp_path, "good")
    for _ in range(3):
        runner.run_trial(0, {"x": 1.0})
    assert wait(runner) == "COMPLETED"
    again = local(tmp_path, "good")
    again.run_trial(0, {"x": 1.0})
    assert again.poll_trial(0, {}) is TrialStatus.COMPLETED
    assert said("begun") == [1.0]
    with pytest.raises(RunnerError, match=r"trial 0 was started there with {'x': 1.0}.*call attach"):
        again.run_trial(0, {"x": 2.0})
    assert said("begun") == [1.0]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("fails", "FloatingPointError: no convergence at x = 1.0"),
        ("diverges", "ValueError: outcome 'loss' is inf; return finite numbers, and standard errors of at least 0."),
        ("returns_nothing", "TypeError: the function returned NoneType; return a dict of outcomes by name."),
        ("leaves", r"process \d+ ended without a result, exit code 3"),
        ("is_killed", r"process \d+ ended without a result, killed by SIGKILL"),
        ("absent", "AttributeError: module 'trainings' has no attribute 'absent'"),
    ],
)
def test_failed_attempts_are_repeated_and_reasons_kept(tmp_path: Path, name: str, reason: str) -> None:
    runner = local(tmp_path, name, retries=1)
    runner.run_trial(0, {"x": 1.0})
    assert wait(runner) == "FAILED"
    assert len(failures(tmp_path)) == 2
    assert all(re.fullmatch(reason, found) for found in failures(tmp_path))
    assert runner.metadata(0)["attempt"] == 2


def test_the_traceback_is_in_the_folder_and_ax_gets_a_short_reason(tmp_path: Path) -> None:
    runner = local(tmp_path, "complains", retries=0)
    made = client()
    attach(made, runner)
    index = made.attach_trial({"x": 1.0, "y": 0.0})
    runner.run_trial(index, {"x": 1.0, "y": 0.0})
    assert wait(runner) == "FAILED"
    why = runner.poll_exception(made._experiment.trials[index])
    assert why == "RuntimeError: " + "o" * 85 + "…"
    attempt = tmp_path / "runs" / "trial-00000" / "attempt-1"
    assert "in complains" in json.loads((attempt / "failure.json").read_text())["traceback"]
    assert "in complains" in (attempt / "output.txt").read_text()
    assert failures(tmp_path) == ["RuntimeError: " + "o" * 200]


def test_an_attempt_that_fails_is_followed_by_one_that_succeeds(tmp_path: Path) -> None:
    runner = local(tmp_path, "fails_once")
    runner.run_trial(0, {"x": 2.0})
    assert wait(runner) == "COMPLETED"
    assert said("begun") == [2.0, 2.0]
    assert said("ended") == [2.0]
    assert runner.metadata(0)["attempt"] == 2
    assert ResultMetric("loss").fetch(0, runner.metadata(0))[1][0] == 4.0


def test_beyond_the_time_limit_the_process_is_killed_with_its_children(tmp_path: Path) -> None:
    runner = local(tmp_path, "hangs", timeout_seconds=0.3, retries=0)
    metadata = runner.run_trial(0, {"x": 1.0})
    (child,) = until_said("begun")
    assert wait(runner) == "FAILED"
    assert failures(tmp_path) == ["time limit of 0.3 s exceeded"]
    assert not alive(metadata["pid"])
    assert not alive(int(child))


def test_a_trial_is_stopped_with_its_children_and_stays_so(tmp_path: Path) -> None:
    runner = local(tmp_path, "hangs")
    metadata = runner.run_trial(0, {"x": 1.0})
    (child,) = until_said("begun")
    runner.stop_trial(0, metadata)
    assert wait(local(tmp_path, "hangs")) == "ABANDONED"
    assert not alive(metadata["pid"])
    assert not alive(int(child))
    assert failures(tmp_path) == []
    good = local(tmp_path, "good")
    good.run_trial(1, {"x": 1.0})
    assert wait(good, 1) == "COMPLETED"
    good.stop_trial(1, {})
    assert wait(good, 1) == "COMPLETED"


def test_a_controller_killed_before_it_noted_its_process_starts_no_second_run(tmp_path: Path) -> None:
    attempt = begun(tmp_path)
    unknown = subprocess.Popen([sys.executable, "-P", worker.__file__, str(attempt)])
    runner = local(tmp_path, "good")
    runner.run_trial(0, {"x": 1.0})
    assert wait(runner) == "COMPLETED"
    unknown.wait()
    assert said("begun") == [1.0]


def test_a_controller_killed_before_it_started_a_process_is_made_up_for(tmp_path: Path) -> None:
    begun(tmp_path)
    assert wait(local(tmp_path, "good")) == "COMPLETED"
    assert said("begun") == [1.0]


def test_a_result_that_comes_late_counts_and_nothing_is_run_again(tmp_path: Path) -> None:
    attempt = begun(tmp_path)
    worker.write_once(attempt / worker.FAILURE, {"reason": "given up"})
    worker.write_once(attempt.parent / worker.RESULT, {"outcomes": {"loss": [1.0, None]}})
    assert wait(local(tmp_path, "good")) == "COMPLETED"
    assert not worker.write_once(attempt.parent / worker.RESULT, {})
    assert not worker.run(attempt)
    assert said("begun") == []


def test_a_trial_without_files_is_lost(tmp_path: Path) -> None:
    assert wait(local(tmp_path, "good"), 4) == "FAILED"


def test_capacity_counts_trials_of_an_earlier_controller(tmp_path: Path) -> None:
    local(tmp_path, "hangs").run_trial(0, {"x": 1.0})
    (tmp_path / "runs" / "trial-00001").mkdir()  # its controller was killed there: nothing was started
    runner = local(tmp_path, "hangs", workers=2)
    assert runner.poll_available_capacity() == 1
    runner.run_trial(1, {"x": 1.0})
    assert runner.poll_available_capacity() == 0
    for index in range(2):
        runner.stop_trial(index, {})
    assert runner.poll_available_capacity() == 2
    good = local(tmp_path, "good", workers=2)
    good.run_trial(2, {"x": 5.0})
    assert good.poll_available_capacity() == 1
    until_said("ended")  # nobody polls: Ax has given it up
    while (tmp_path / "runs" / "trial-00002" / "result.json").exists() is False:
        time.sleep(0.01)
    assert good.poll_available_capacity() == 2
    assert local(tmp_path, "hangs").poll_available_capacity() == -1


def test_failed_trials_take_no_worker_when_there_are_more_attempts(tmp_path: Path) -> None:
    runner = local(tmp_path, "leaves", workers=2, retries=0)
    for index in range(2):
        runner.run_trial(index, {"x": 1.0})
    assert [wait(runner, index) for index in range(2)] == ["FAILED", "FAILED"]
    again = local(tmp_path, "leaves", workers=2, retries=1)
    assert again.poll_available_capacity() == 2
    assert again.poll_trial(0, {}) is TrialStatus.RUNNING
    assert again.poll_available_capacity() == 1
    assert wait(again) == "FAILED"


def test_dead_trials_that_nobody_polls_take_no_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(runners, "time", clock)
    runner = local(tmp_path, "is_killed", workers=2)
    lives = local(tmp_path, "hangs").run_trial(1, {"x": 1.0})
    until_gone(runner.run_trial(0, {"x": 1.0})["pid"])
    assert local(tmp_path, "is_killed", workers=2).poll_available_capacity() == 1
    assert runner.poll_available_capacity() == 0  # the next poll starts it again
    clock.now += runners.POLLED_SECONDS
    assert runner.poll_available_capacity() == 1
    assert runner.poll_trial(0, {}) is TrialStatus.RUNNING
    assert runner.metadata(0)["attempt"] == 2
    assert runner.poll_available_capacity() == 0
    runner.stop_trial(0, {})
    runner.stop_trial(1, lives)
    assert runner.poll_available_capacity() == 2


@pytest.mark.parametrize(
    ("function", "options", "message"),
    [
        (lambda point: {}, {}, "Define the function at the top of a module"),
        (functools.partial(trainings.good), {}, "Define the function at the top of a module"),
        ("trainings.good", {}, "give 'module:function' or 'file.py:function'"),
        ("trainings:two words", {}, "give 'module:function' or 'file.py:function'"),
        (trainings.good, {"workers": 0}, "workers=0: must be at least 1"),
        (trainings.good, {"timeout_seconds": 0.0}, "timeout_seconds=0.0: must be above 0"),
        (trainings.good, {"retries": -1}, "retries=-1: must be at least 0"),
        (trainings.good, {"threads": 0}, "threads=0: must be at least 1"),
    ],
)
def test_what_cannot_be_run_is_refused(tmp_path: Path, function: Any, options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LocalRunner(function, tmp_path / "runs", **options)
    assert not (tmp_path / "runs").exists()


def test_functions_are_known_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert reference(trainings.good) == "trainings:good"
    assert reference("package.module:Class.method") == "package.module:Class.method"
    monkeypatch.chdir(tmp_path)
    assert reference("script.py:train") == f"{tmp_path}/script.py:train"
    runner = LocalRunner(trainings.good, tmp_path / "runs")  # by the controller's sys.path
    runner.run_trial(0, {"x": 1.0})
    assert wait(runner) == "COMPLETED"
    (tmp_path / "script.py").write_text("def train(point):\n    return {'loss': point['x']}\n")
    assert worker.load(f"{tmp_path}/script.py:train")({"x": 5.0}) == {"loss": 5.0}
    main = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.setattr(trainings.fails, "__module__", "__main__")
    with pytest.raises(ValueError, match="Define the function at the top of a module"):
        reference(trainings.fails)  # typed in at a prompt
    main.__file__ = "script.py"
    assert reference(trainings.fails) == f"{tmp_path}/script.py:fails"
    with pytest.raises(ImportError, match=r"there is no file .*absent\.py"):
        worker.load(f"{tmp_path}/absent.py:train")
