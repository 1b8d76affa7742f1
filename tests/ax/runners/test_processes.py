import functools
import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import trainings
from ax.core.trial_status import TrialStatus
from trainings import said

from bo_scale.ax import LocalRunner, SlurmRunner
from bo_scale.ax.runners import processes, worker
from bo_scale.ax.runners.folder_runner import FolderRunner

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


def begun(folder: Path, parameters: Any = None, name: str = "good") -> Path:
    """What a controller leaves that is killed as it starts the first attempt."""
    attempt = folder / "runs" / "trial-00000" / "attempt-1"
    attempt.mkdir(parents=True)
    task = {"function": f"{FUNCTIONS}:{name}", "threads": None, "cwd": os.getcwd(), "path": []}
    worker.write_once(attempt.parent / worker.TASK, {"parameters": parameters or {"x": 1.0}, **task})
    return attempt


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


def batch(folder: Path, name: str, **options: Any) -> SlurmRunner:
    return SlurmRunner(f"{FUNCTIONS}:{name}", folder / "runs", {"slurm_use_srun": False, "mem_gb": 2}, **options)
