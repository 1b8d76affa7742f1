"""Trials as jobs of Slurm, submitted by submitit."""

import math
import os
import subprocess
import time
from pathlib import Path
from typing import Any

from typing_extensions import override

from bo_scale.ax.runners.folder_runner import FolderRunner, Function, worker_command
from bo_scale.ax.runners.processes import Record, kill_processes, process_ended
from bo_scale.ax.runners.worker import started
from bo_scale.errors import InvalidArgumentError, MissingDependencyError

OVER = {
    *("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE"),
    *("PREEMPTED", "REVOKED"),
}
"""States from which a job does not come back, unless it is requeued: then it finds its attempt claimed, and ends."""
VISIBLE_SECONDS = 60.0
"""A file written on another machine is seen here by then."""
LOST_SECONDS = 3600.0
"""A job that Slurm's accounting does not know for so long is lost; before, it may be new, or the accounting away."""


class SlurmRunner(FolderRunner):
    """Trials as jobs of Slurm; the folder must be one that its nodes see.

    A job that was preempted, ran out of time or memory, whose node was lost, or of which Slurm has known nothing for an
    hour, is a failed attempt, and cancelled; if one outlives `scancel` and comes to a result beside the next attempt,
    the first result stays. What has become of jobs `sacct` tells, which submitit asks less and less often, at least
    every ten minutes; results are seen at once.

    Args:
        function: See `LocalRunner`.
        folder: See `LocalRunner`.
        parameters: For submitit's AutoExecutor, {"timeout_min": 60, "mem_gb": 8, "slurm_partition": "gpu"} say. Without
            a `timeout_min` it is that of `timeout_seconds`, or else submitit's 5 minutes.
        cluster: "slurm", or "local" for processes of this machine, which `parameters` hardly concern.
        workers: See `LocalRunner`; jobs in the queue count.
        timeout_seconds: A job is cancelled when it has run for longer, at the next poll.
        retries: See `LocalRunner`.
        threads: See `LocalRunner`.

    Raises:
        InvalidArgumentError: as `LocalRunner`; or for another cluster.
    """

    def __init__(
        self,
        function: Function | str,
        folder: str | os.PathLike[str],
        parameters: dict[str, Any] | None = None,
        cluster: str = "slurm",
        workers: int | None = None,
        timeout_seconds: float | None = None,
        retries: int = 1,
        threads: int | None = None,
    ) -> None:
        super().__init__(function, folder, workers, timeout_seconds, retries, threads)
        if cluster not in ("slurm", "local"):
            raise InvalidArgumentError(f"cluster={cluster!r}: choose 'slurm' or 'local'.")
        self.parameters = dict(parameters or {})
        self.cluster = cluster
        self._ending: dict[str, tuple[str, float]] = {}

    @override
    def _launch(self, attempt: Path) -> Record:
        self._forget()
        given = {"name": attempt.parent.name, **self.parameters}
        if self.timeout_seconds is not None and not {"timeout_min", "slurm_time"} & given.keys():
            given["timeout_min"] = math.ceil(self.timeout_seconds / 60)
        executor = _submitit().AutoExecutor(folder=attempt / "submitit", cluster=self.cluster)
        executor.update_parameters(**given)
        command = worker_command(attempt)
        if self.cluster == "local":
            job = executor.submit(subprocess.check_call, [*command, "--session"])
            return {"job_id": job.job_id, "pid": int(job.job_id), "start": started(int(job.job_id))}
        job = executor.submit(subprocess.check_call, command)
        return {"job_id": job.job_id}

    @override
    def _ended(self, claim: Record | None, launch: Record | None) -> str | None:
        if self.cluster == "local":
            return process_ended(claim, launch)
        if claim is not None and "given_up" in claim:
            return str(claim["given_up"])
        job_id = _job_id(claim, launch)
        state = _submitit().SlurmJob.watcher.get_state(job_id).split()[0]
        if state not in OVER | {"UNKNOWN"}:
            self._ending.pop(job_id, None)
            return None
        known, since = self._ending.get(job_id, ("", 0.0))
        if known != state:
            since = time.monotonic()
            self._ending[job_id] = state, since
        return _reason(job_id, state, time.monotonic() - since)

    @override
    def _kill(self, claim: Record | None, launch: Record | None) -> bool:
        if self.cluster == "local":
            return kill_processes(claim, launch)
        for job_id in {each["job_id"] for each in (claim, launch) if each and each.get("job_id")}:
            subprocess.run(["scancel", job_id], check=False)
            self._ending.pop(job_id, None)
        return True

    def _forget(self) -> None:
        """Forget jobs that have finished; no other is waited for that long."""
        oldest = time.monotonic() - 2 * LOST_SECONDS
        self._ending = {job_id: (state, since) for job_id, (state, since) in self._ending.items() if since > oldest}


def _reason(job_id: str, state: str, seconds: float) -> str | None:
    """Return why a job that has been in such a state for so long is given up; None while it is waited for."""
    if state == "UNKNOWN":
        return f"job {job_id} is UNKNOWN to Slurm for an hour" if seconds >= LOST_SECONDS else None
    return f"job {job_id} is {state} without a result" if seconds >= VISIBLE_SECONDS else None


def _job_id(claim: Record | None, launch: Record | None) -> str:
    """Return the job that has the claim, or else the last one submitted."""
    return str((claim or {}).get("job_id") or (launch or {})["job_id"])


def _submitit() -> Any:
    try:
        import submitit
    except ImportError as error:
        raise MissingDependencyError("SlurmRunner needs submitit: pip install 'bo_scale[slurm]'.") from error
    return submitit
