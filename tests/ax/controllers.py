"""Controllers of trials, killed by SIGKILL at awkward moments, and others that go on.

    python controllers.py FOLDER

Of each kind of storage, every life is a process of its own that finds the experiment in FOLDER. Printed is one line of
JSON for each kind: which lives were killed, what Ax knows at the end, and what the trials' function has said.
"""

import functools
import json
import logging
import os
import signal
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import ax.api.client
import torch
import trainings
from ax.orchestration.orchestrator import Orchestrator
from stores import find, kill_before_data, statuses, without_data

from bo_scale.ax import LocalRunner, ResultMetric, SlurmRunner, attach, streaming
from bo_scale.errors import BoScaleWarning

MORE = 2
"""Trials that the last life asks for; the others are killed before they get what they ask for."""
MOMENTS = {"sql": ["spawned", "launched", "data", None], "json": ["launched", "polling", "spawned", None]}
"""When a life ends: as a process was started, and the folder does not know of it yet; as Ax does not know of it yet; at
a poll; as a completed trial is kept, and its data are not; or by itself."""


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_after(owner: Any, name: str, count: int) -> None:
    """Kill this process at the end of a method's so manieth call."""
    method, calls = getattr(owner, name), []

    def last(*arguments: Any, **options: Any) -> Any:
        result = method(*arguments, **options)
        calls.append(name)
        if len(calls) == count:
            die()
        return result

    setattr(owner, name, last)


def live(kind: str, folder: Path, moment: str | None) -> dict[str, Any]:
    """Go on until all trials are done, or the moment has come."""
    made, keep = find(kind, folder)
    lost = len(without_data(made))
    runner = LocalRunner(f"{trainings.__file__}:good", folder / kind, workers=3)
    new = attach(made, runner)
    if not statuses(made):
        keep()
    if moment == "spawned":
        kill_after(LocalRunner, "_launch", 2)
    elif moment == "launched":
        kill_after(LocalRunner, "run_trial", 2)
    elif moment == "polling":
        kill_after(Orchestrator, "poll_trial_status", 3)
    elif moment == "data":
        kill_before_data(made)
    (folder / f"{kind}-new").open("a").write(json.dumps([new, lost]) + "\n")
    made.run_trials(max_trials=50 if moment else MORE, parallelism=3, initial_seconds_between_polls=0.03)
    data = made._experiment.lookup_data().df
    rows = data[data["metric_name"] == "loss"].set_index("trial_index")["mean"]
    trials = [
        {
            "status": trial.status.name,
            "x": trial.arm.parameters["x"],
            "loss": rows.loc[index].item(),
            "result": trial.run_metadata["result"],
        }
        for index, trial in made._experiment.trials.items()
    ]
    return {"trials": trials, "streams": [vars(stream) for stream in streaming(made).values()]}


def batch(folder: Path, moment: str | None) -> dict[str, Any]:
    """Two jobs that are started by one process, and waited for by another one that has not seen them start."""
    runners = [
        SlurmRunner(f"{trainings.__file__}:{name}", folder / "submitit", {"timeout_min": 1}, "local", retries=0)
        for name in ("good", "fails")
    ]
    if moment is not None:
        for index, runner in enumerate(runners):
            runner.run_trial(index, {"x": 3.0 + index})
        die()
    jobs = [runner.metadata(index)["job_id"] for index, runner in enumerate(runners)]
    running = [runner.poll_trial(index, {}).name for index, runner in enumerate(runners)]
    while any(runner.poll_trial(index, {}).name == "RUNNING" for index, runner in enumerate(runners)):
        time.sleep(0.02)
    over = [runner.poll_trial(index, {}).name for index, runner in enumerate(runners)]
    reason = json.loads((folder / "submitit" / "trial-00001" / "attempt-1" / "failure.json").read_text())["reason"]
    loss = ResultMetric("loss").fetch(0, runners[0].metadata(0))[1][0]
    return {"statuses": over, "running": running, "jobs": jobs, "reason": reason, "loss": loss}


def child(kind: str, folder: Path, moment: str | None) -> None:
    os.environ[trainings.LOG] = str(folder / f"{kind}-log")
    said = batch(folder, moment) if kind == "submitit" else live(kind, folder, moment)
    said |= {word: trainings.said(word) for word in ("begun", "ended")}
    (folder / f"{kind}-end").write_text(json.dumps(said))


def main(folder: Path) -> None:
    for kind, moments in {"submitit": ["started", None], **MOMENTS}.items():
        killed = []
        for moment in moments:
            pid = os.fork()
            if pid == 0:
                try:
                    child(kind, folder, moment)
                except BaseException:
                    logging.getLogger().exception("%s, %s", kind, moment)
                    os._exit(1)
                os._exit(0)
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            assert status in (0, -signal.SIGKILL), f"{kind}, {moment}: {status}"
            killed.append(status != 0)
        path = folder / f"{kind}-new"
        lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        counts = {"new": [new for new, _ in lines], "without_data": sum(lost for _, lost in lines)}
        end = json.loads((folder / f"{kind}-end").read_text())
        sys.stdout.write(json.dumps({"kind": kind, "killed": killed, **counts, **end}) + "\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", BoScaleWarning)
    logging.getLogger("ax").setLevel(logging.WARNING)
    ax.api.client.OrchestratorOptions = functools.partial(  # Ax waits a second after every start of a trial
        ax.api.client.OrchestratorOptions,
        min_seconds_before_poll=0.0,
        seconds_between_polls_backoff_factor=1.0,
        logging_level=logging.ERROR,
    )
    main(Path(sys.argv[1]))
