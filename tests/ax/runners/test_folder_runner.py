"""Trials are run once, whatever happens to them, and Ax knows what has become of them."""

import functools
import json
import logging
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import types
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import submitit
import trainings
from ax.api.client import Client
from ax.api.configs import RangeParameterConfig
from ax.core.trial_status import TrialStatus
from ax.orchestration.orchestrator_options import OrchestratorOptions
from clients import client
from trainings import said

from bo_scale.ax import LocalRunner, ResultMetric, SlurmRunner, attach, streaming
from bo_scale.ax.runners import folder_runner as runners
from bo_scale.ax.runners import processes, slurm, worker
from bo_scale.ax.runners.folder_runner import FolderRunner, reference
from bo_scale.errors import RunnerError

FUNCTIONS = Path(trainings.__file__)


@pytest.fixture(autouse=True)
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(trainings.LOG, str(tmp_path / "log"))
    return tmp_path / "log"


def local(folder: Path, name: str, **options: Any) -> LocalRunner:
    return LocalRunner(f"{FUNCTIONS}:{name}", folder / "runs", **options)


def wait(runner: FolderRunner, index: int = 0, seconds: float = 20.0) -> str:
    """Poll until a trial is over."""
    end = time.monotonic() + seconds
    while (status := runner.poll_trial(index, {})) is TrialStatus.RUNNING:
        assert time.monotonic() < end, "the trial does not end"
        time.sleep(0.02)
    return status.name


def until_said(word: str, count: int = 1) -> list[float]:
    end = time.monotonic() + 20.0
    while len(heard := said(word)) < count:
        assert time.monotonic() < end, f"nobody says {word}"
        time.sleep(0.01)
    return heard


def failures(folder: Path, index: int = 0) -> list[str]:
    """Reasons of the attempts at a trial, in order."""
    paths = sorted((folder / "runs" / f"trial-{index:05d}").glob("attempt-*/failure.json"))
    return [json.loads(path.read_text())["reason"] for path in paths]


def alive(pid: int) -> bool:
    return worker.started(pid) is not None


def until_gone(*pids: float) -> None:
    end = time.monotonic() + 20.0
    while any(alive(int(pid)) for pid in pids):
        assert time.monotonic() < end, f"{pids} live on"
        time.sleep(0.005)


class Clock:
    """In place of the module `time` of a module."""

    def __init__(self) -> None:
        self.now = 1e6
        self.time = time.time

    def monotonic(self) -> float:
        return self.now


def test_a_trial_runs_in_a_session_of_its_own_and_leaves_its_outcomes(tmp_path: Path) -> None:
    runner = local(tmp_path, "good", threads=3)
    metadata = runner.run_trial(7, {"x": 3.0})
    assert metadata["attempt"] == 1
    assert metadata["start"] == worker.started(metadata["pid"])
    assert os.getsid(metadata["pid"]) == metadata["pid"] != os.getsid(0)
    assert json.loads(json.dumps(metadata)) == metadata
    assert wait(runner, 7) == "COMPLETED"
    assert said("ended") == [3.0]
    assert ResultMetric("loss").fetch(7, metadata)[1][0] == 9.0
    assert math.isnan(ResultMetric("loss").fetch(7, metadata)[1][1])
    assert ResultMetric("cost").fetch(7, metadata) == (0, (6.0, 0.5))
    assert ResultMetric("threads").fetch(7, metadata)[1][0] == 3.0
    with pytest.raises(KeyError, match=r"no outcome 'speed' among \['cost', 'loss', 'threads'\]"):
        ResultMetric("speed").fetch(7, metadata)


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
        ("leaves", r"process \d+ is gone without a result, exit code 3"),
        ("is_killed", r"process \d+ is gone without a result, killed by SIGKILL"),
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


@pytest.mark.parametrize("cluster", [None, "local"])
def test_children_of_a_worker_that_was_killed_are_killed(tmp_path: Path, cluster: str | None) -> None:
    name = "is_killed_with_a_child"
    runner = local(tmp_path, name, retries=1) if cluster is None else batch(tmp_path, name, cluster=cluster, retries=1)
    runner.run_trial(0, {"x": 1.0})
    assert wait(runner) == "FAILED"
    assert len(said("begun")) == 2
    until_gone(*said("begun"))


def test_of_another_boot_nothing_is_killed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    command = ["sh", "-c", "sleep 60 > /dev/null & echo $!"]
    leader = subprocess.Popen(command, start_new_session=True, stdout=subprocess.PIPE)
    child = int(leader.communicate()[0])
    kill = functools.partial(processes.kill_processes, launch=None)
    claim = {"pid": leader.pid, "start": f"{worker.boot()} 1", "leads": True}
    try:
        assert kill({**claim, "start": f"x{worker.boot()} 1"})
        assert kill({**claim, "leads": False})
        with monkeypatch.context() as patched:
            patched.setattr(worker, "BOOT", tmp_path / "absent")
            assert kill({**claim, "start": " 1"})
        assert alive(child)
    finally:
        assert kill(claim)
    until_gone(child)


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


def test_a_worker_that_comes_after_the_stop_runs_nothing(tmp_path: Path) -> None:
    attempt = begun(tmp_path)
    worker.write_once(attempt.parent / worker.STOPPED, {})
    assert not worker.run(attempt)
    assert said("begun") == []


def begun(folder: Path, parameters: Any = None, name: str = "good") -> Path:
    """What a controller leaves that is killed as it starts the first attempt."""
    attempt = folder / "runs" / "trial-00000" / "attempt-1"
    attempt.mkdir(parents=True)
    task = {"function": f"{FUNCTIONS}:{name}", "threads": None, "cwd": os.getcwd(), "path": []}
    worker.write_once(attempt.parent / worker.TASK, {"parameters": parameters or {"x": 1.0}, **task})
    return attempt


def test_of_many_processes_for_one_attempt_one_runs_it(tmp_path: Path) -> None:
    attempt = begun(tmp_path)
    command = [sys.executable, "-P", worker.__file__, str(attempt)]
    processes = [subprocess.Popen(command) for _ in range(6)]
    codes = [process.wait() for process in processes]
    assert sorted(codes) == [0, 1, 1, 1, 1, 1]
    assert said("begun") == [1.0]
    assert wait(local(tmp_path, "good")) == "COMPLETED"
    assert list(attempt.parent.glob("**/*.partial")) == []


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


def test_a_worker_that_comes_when_its_attempt_was_given_up_runs_nothing(tmp_path: Path) -> None:
    attempt = begun(tmp_path)
    gone = subprocess.Popen(["true"])
    gone.wait()
    (attempt / "launch.json").write_text(json.dumps({"pid": gone.pid, "start": "long ago", "time": 0.0}))
    runner = local(tmp_path, "good", retries=0)
    assert wait(runner) == "FAILED"
    assert not worker.run(attempt)
    assert said("begun") == []
    assert failures(tmp_path) == [f"process {gone.pid} is gone without a result"]


def test_a_number_of_a_process_given_to_another_one_deceives_nobody(tmp_path: Path) -> None:
    attempt = begun(tmp_path)
    other = subprocess.Popen(["sleep", "60"], start_new_session=True)
    try:
        since = worker.started(other.pid)
        assert since is not None
        before = since.rpartition(" ")[0] + " " + str(int(since.rpartition(" ")[2]) - 1)
        worker.write_once(attempt / worker.CLAIM, {"pid": other.pid, "start": before, "time": 0.0})
        runner = local(tmp_path, "good", timeout_seconds=5.0, retries=1)
        assert wait(runner) == "COMPLETED"
        assert runner.metadata(0)["attempt"] == 2
        assert failures(tmp_path) == [f"process {other.pid} is gone without a result"]
        runner.stop_trial(0, {})
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


@pytest.mark.skipif(shutil.which("ps") is None, reason="needs ps")
def test_processes_are_known_without_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "America/New_York")
    child = subprocess.Popen(["sleep", "60"])
    since = worker._listed(child.pid)
    assert since is not None
    assert re.search(r"\d\d:\d\d:\d\d", since)
    for name, value in {"TZ": "Asia/Tokyo", "LC_ALL": "de_DE.UTF-8"}.items():
        monkeypatch.setenv(name, value)
        assert worker._listed(child.pid) == since
    child.kill()
    while (state := worker.started(child.pid)) is not None:
        time.sleep(0.01)
    assert state == worker._listed(child.pid)  # a zombie
    child.wait()
    assert worker._listed(child.pid) is None


def test_processes_are_known_without_a_boot_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = worker.started(os.getpid())
    assert whole is not None
    monkeypatch.setattr(worker, "BOOT", tmp_path / "absent")
    assert worker.started(os.getpid()) == " " + whole.rpartition(" ")[2]


def test_a_record_counts_as_written_when_its_link_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link, synced = os.link, []

    def repeated(source: str, target: Path) -> None:
        """As NFS, where the answer to the first request was lost."""
        link(source, target)
        raise FileExistsError(target)

    monkeypatch.setattr(os, "link", repeated)
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(os.fstat(handle).st_ino))
    assert worker.write_once(tmp_path / "claim.json", {"pid": 1})
    assert not worker.write_once(tmp_path / "claim.json", {"pid": 2})
    assert worker.read(tmp_path / "claim.json") == {"pid": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["claim.json"]
    assert synced[:2] == [(tmp_path / "claim.json").stat().st_ino, tmp_path.stat().st_ino]
    assert len(synced) == 3  # of the second record only the file


def test_metrics_without_a_result_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "result.json").write_text('{"outcomes": {"loss": [1.0, null]}}')
    for metadata in ({}, {"result": str(tmp_path / "gone" / "result.json")}):
        with pytest.raises(RunnerError, match=r"there is no result.*call attach"):
            ResultMetric("loss").fetch(0, metadata)


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


def test_no_zombies_stay_of_completed_trials(tmp_path: Path) -> None:
    runner = local(tmp_path, "good")
    pids = []
    for index in range(3):
        pids.append(runner.run_trial(index, {"x": 1.0})["pid"])
        wait(runner, index)
        while alive(pids[-1]):
            time.sleep(0.01)
    assert not Path(f"/proc/{pids[0]}").exists()
    assert not Path(f"/proc/{pids[1]}").exists()


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
        (lambda point: {}, {}, "put a function at the top of a module"),
        (functools.partial(trainings.good), {}, "put a function at the top of a module"),
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
    with pytest.raises(ValueError, match="put a function at the top of a module"):
        reference(trainings.fails)  # typed in at a prompt
    main.__file__ = "script.py"
    assert reference(trainings.fails) == f"{tmp_path}/script.py:fails"
    with pytest.raises(ImportError, match=r"there is no file .*absent\.py"):
        worker.load(f"{tmp_path}/absent.py:train")


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
    with pytest.raises(RunnerError, match="trials of another experiment are there"):
        attach(second, local(tmp_path, "good"))
    assert second._experiment.runner is None
    assert attach(first, local(tmp_path, "good")) == []
    bare = Client()
    bare.configure_experiment(parameters=[RangeParameterConfig(name="x", parameter_type="float", bounds=(0, 1))])
    with pytest.raises(RunnerError, match="call configure_optimization first"):
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
        assert trial.status.name == ("FAILED" if x > 1.8 else "COMPLETED")
        if x > 1.8:
            assert trial.status_reason == f"FloatingPointError: no convergence at x = {x}"
        else:
            assert data.loc[index, "loss"]["mean"] == pytest.approx((x - 1) ** 2)
            assert list(data.loc[index, "cost"][["mean", "sem"]]) == [x, 0.1]
    assert "FAILED" in {trial.status.name for trial in trials.values()}
    assert streaming(made)["loss"].count > 0  # how many of the ten were there in time depends on the machine


SCRIPTS = {
    "sbatch": """#!/bin/sh
id=$(date +%s%N); cd "$QUEUE"; echo RUNNING > $id; cp "$1" .$id.sh
(SLURM_JOB_ID=$id setsid sh .$id.sh && echo COMPLETED > $id || echo FAILED > $id) > /dev/null 2>&1 &
echo "Submitted batch job $id"
""",
    "sacct": """#!/bin/sh
echo "JobID|State|NodeList"; cd "$QUEUE"
for id in [0-9]*; do echo "$id|$(cat $id)|node"; done
""",
    "scancel": """#!/bin/sh
echo "CANCELLED by 1000" > "$QUEUE/$1"; echo $1 >> "$QUEUE/cancelled"
""",
    "srun": "#!/bin/sh",
}
"""Of a queue that runs everything at once, on this machine; the state of a job is in a file. As Slurm does, `sbatch`
keeps a copy of the script, which submitit renames."""


@pytest.fixture
def queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "bin").mkdir()
    (tmp_path / "queue").mkdir()
    for name, script in SCRIPTS.items():
        (tmp_path / "bin" / name).write_text(script)
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("QUEUE", str(tmp_path / "queue"))
    monkeypatch.setattr(slurm, "VISIBLE_SECONDS", 0.05)
    return tmp_path / "queue"


def batch(folder: Path, name: str, **options: Any) -> SlurmRunner:
    return SlurmRunner(f"{FUNCTIONS}:{name}", folder / "runs", {"slurm_use_srun": False, "mem_gb": 2}, **options)


def test_jobs_of_slurm_succeed_fail_and_are_cancelled(tmp_path: Path, queue: Path) -> None:
    good, fails = batch(tmp_path, "good"), batch(tmp_path, "fails", retries=0)
    slow = batch(tmp_path, "hangs", timeout_seconds=0.1, retries=0)
    jobs = [runner.run_trial(index, {"x": 2.0})["job_id"] for index, runner in enumerate((good, fails, slow))]
    assert [wait(good, 0), wait(fails, 1), wait(slow, 2)] == ["COMPLETED", "FAILED", "FAILED"]
    assert ResultMetric("loss").fetch(0, good.metadata(0))[1][0] == 4.0
    assert [good.metadata(0)["job_id"], fails.metadata(1)["job_id"]] == jobs[:2]
    assert failures(tmp_path, 1) == ["FloatingPointError: no convergence at x = 2.0"]
    assert failures(tmp_path, 2) == ["time limit of 0.1 s exceeded"]
    assert jobs[2] in (queue / "cancelled").read_text().split()
    assert jobs[0] not in (queue / "cancelled").read_text().split()
    (script,) = (tmp_path / "runs" / "trial-00002").glob("attempt-1/submitit/*_submission.sh")
    asked = set(script.read_text().splitlines())
    assert {"#SBATCH --time=1", "#SBATCH --mem=2GB", "#SBATCH --job-name=trial-00002"} <= asked
    os.killpg(os.getpgid(slow.metadata(2)["pid"]), signal.SIGKILL)  # which this scancel does not


@pytest.mark.parametrize("state", ["NODE_FAIL", "PREEMPTED", "CANCELLED by 17", "TIMEOUT", "COMPLETED"])
def test_lost_jobs_of_slurm_are_given_up(tmp_path: Path, queue: Path, state: str) -> None:
    attempt = begun(tmp_path)
    job = f"{time.time_ns()}"
    (attempt / "launch.json").write_text(json.dumps({"job_id": job}))
    runner = batch(tmp_path, "good", retries=0)
    (queue / job).write_text("PENDING")
    assert runner.poll_trial(0, {}) is TrialStatus.RUNNING
    (queue / job).write_text(state)
    submitit.SlurmJob.watcher.update()
    assert runner.poll_trial(0, {}) is TrialStatus.RUNNING  # its result may not be seen yet
    assert wait(runner) == "FAILED"
    assert failures(tmp_path) == [f"job {job} is {state.split()[0]} without a result"]
    assert not worker.run(attempt)
    assert said("begun") == []


def test_a_job_that_slurm_does_not_know_for_an_hour_is_lost(
    tmp_path: Path, queue: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(slurm, "time", clock)
    (begun(tmp_path) / "launch.json").write_text(json.dumps({"job_id": "17"}))
    runner = batch(tmp_path, "good", retries=0, workers=1)
    states = iter(["UNKNOWN", "UNKNOWN", "RUNNING", "UNKNOWN", "FAILED", "UNKNOWN", "UNKNOWN"])
    monkeypatch.setattr(submitit.SlurmJob.watcher, "get_state", lambda job_id: next(states))
    for seconds in (0.0, 0.9, 0.9, 0.9, 0.9, 0.9):
        clock.now += seconds * slurm.LOST_SECONDS
        assert runner.poll_trial(0, {}) is TrialStatus.RUNNING
    clock.now += slurm.LOST_SECONDS
    assert runner.poll_trial(0, {}) is TrialStatus.FAILED
    assert failures(tmp_path) == ["job 17 is UNKNOWN to Slurm for an hour"]
    assert (queue / "cancelled").read_text().split() == ["17", "17"]
    assert runner.poll_available_capacity() == 1
    assert runner._ending == {}


def test_what_is_known_of_jobs_of_slurm_is_dropped(
    tmp_path: Path, queue: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(slurm, "time", clock)
    monkeypatch.setattr(submitit.SlurmJob.watcher, "get_state", lambda job_id: "UNKNOWN")
    runner = batch(tmp_path, "good")
    assert runner._ended(None, {"job_id": "17"}) is None  # after which its result came
    assert "17" in runner._ending
    clock.now += 2 * slurm.LOST_SECONDS
    runner.run_trial(0, {"x": 1.0})
    assert wait(runner) == "COMPLETED"
    assert "17" not in runner._ending


def test_without_submitit_the_remedy_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "submitit", None)
    runner = batch(tmp_path, "good")
    with pytest.raises(ImportError, match=r"pip install 'bo_scale\[slurm\]'"):
        runner.run_trial(0, {"x": 1.0})
    with pytest.raises(ValueError, match="cluster='pbs': choose 'slurm' or 'local'"):
        batch(tmp_path, "good", cluster="pbs")


@pytest.fixture(scope="module")
def lives(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Of controllers, killed again and again; by kind of storage."""
    folder = tmp_path_factory.mktemp("controllers")
    script = Path(__file__).parents[1] / "controllers.py"
    environment = {**os.environ, trainings.LOG: str(folder / "log")}
    done = subprocess.run(
        [sys.executable, str(script), str(folder)], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    return {each["kind"]: each for each in map(json.loads, done.stdout.splitlines())}


@pytest.mark.parametrize("kind", ["sql", "json"])
def test_killed_controllers_finish_every_trial_once(lives: dict[str, Any], kind: str) -> None:
    life = lives[kind]
    assert life["killed"] == [True] * (len(life["killed"]) - 1) + [False]
    assert len(life["killed"]) >= 4
    trials = life["trials"]
    assert [trial["status"] for trial in trials] == ["COMPLETED"] * len(trials)
    xs = [trial["x"] for trial in trials]
    assert Counter(life["begun"]) == Counter(xs)
    assert Counter(life["ended"]) == Counter(xs)
    assert [trial["loss"] for trial in trials] == pytest.approx([x**2 for x in xs], abs=1e-9)
    assert all(trial["result"].endswith(f"trial-{index:05d}/result.json") for index, trial in enumerate(trials))
    (stream,) = life["streams"]
    assert stream["refitted"] > 0


def test_killed_controllers_are_resumed_in_the_middle(lives: dict[str, Any]) -> None:
    assert any(lives["sql"]["new"]), "a trial that was started and not saved was taken up"
    assert any(lives["json"]["new"])
    assert lives["sql"]["without_data"] >= 1


def test_jobs_of_submitit_are_found_again_by_another_process(lives: dict[str, Any]) -> None:
    life = lives["submitit"]
    assert life["statuses"] == ["COMPLETED", "FAILED"]
    assert sorted(life["begun"]) == [3.0, 4.0]
    assert life["ended"] == [3.0]
    assert life["reason"] == "FloatingPointError: no convergence at x = 4.0"
    assert life["running"] == ["RUNNING", "RUNNING"]
    assert life["loss"] == 9.0
    assert all(int(job) for job in life["jobs"])
