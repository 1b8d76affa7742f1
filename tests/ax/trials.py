"""Trials that run, and what becomes of them."""

import json
import os
import time
from pathlib import Path
from typing import Any

import trainings
from ax.core.trial_status import TrialStatus
from trainings import said

from bo_scale.ax import LocalRunner, SlurmRunner
from bo_scale.ax.runners import worker
from bo_scale.ax.runners.folder_runner import FolderRunner

FUNCTIONS = Path(trainings.__file__)


def local(folder: Path, name: str, **options: Any) -> LocalRunner:
    return LocalRunner(f"{FUNCTIONS}:{name}", folder / "runs", **options)


def batch(folder: Path, name: str, **options: Any) -> SlurmRunner:
    return SlurmRunner(f"{FUNCTIONS}:{name}", folder / "runs", {"slurm_use_srun": False, "mem_gb": 2}, **options)


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


def begun(folder: Path, parameters: Any = None, name: str = "good") -> Path:
    """What a controller leaves that is killed as it starts the first attempt."""
    attempt = folder / "runs" / "trial-00000" / "attempt-1"
    attempt.mkdir(parents=True)
    task = {"function": f"{FUNCTIONS}:{name}", "threads": None, "cwd": os.getcwd(), "path": []}
    worker.write_once(attempt.parent / worker.TASK, {"parameters": parameters or {"x": 1.0}, **task})
    return attempt
