import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest
import submitit
from ax.core.trial_status import TrialStatus
from trainings import said
from trials import Clock, batch, begun, failures, wait

from bo_scale.ax import ResultMetric
from bo_scale.ax.runners import slurm, worker

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
    assert failures(tmp_path) == [f"job {job} ended as {state.split()[0]} without a result"]
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
    assert failures(tmp_path) == ["job 17 has been UNKNOWN to Slurm for an hour"]
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
