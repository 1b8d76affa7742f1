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
    """A runner whose trials are Slurm jobs.

    An attempt fails, and its job is cancelled, if the job was preempted, ran out of time or memory, or lost its node,
    or if Slurm has not known it for an hour. A job may outlive `scancel` and finish beside the next attempt: the first
    result stays. Results are seen at once. The state of a job comes from `sacct`, which submitit asks less and less
    often, at least every ten minutes.

    Args:
        function: See `LocalRunner`.
        folder: See `LocalRunner`. The nodes of the cluster must see it.
        parameters: Parameters for submitit's AutoExecutor, for example
            {"timeout_min": 60, "mem_gb": 8, "slurm_partition": "gpu"}. Without `timeout_min`, the limit is
            `timeout_seconds`, or submitit's default of 5 minutes.
        cluster: "slurm", or "local" for processes on this machine, which ignore most `parameters`.
        workers: See `LocalRunner`; queued jobs count.
        timeout_seconds: Time limit of a running job. The next poll after it cancels the job.
        retries: See `LocalRunner`.
        threads: See `LocalRunner`.

    Raises:
        InvalidArgumentError: as for `LocalRunner`, or for another cluster.
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
        return f"job {job_id} has been UNKNOWN to Slurm for an hour" if seconds >= LOST_SECONDS else None
    return f"job {job_id} ended as {state} without a result" if seconds >= VISIBLE_SECONDS else None


def _job_id(claim: Record | None, launch: Record | None) -> str:
    """Return the job that has the claim, or else the last one submitted."""
    return str((claim or {}).get("job_id") or (launch or {})["job_id"])


def _submitit() -> Any:
    try:
        import submitit
    except ImportError as error:
        raise MissingDependencyError("SlurmRunner needs submitit: pip install 'bo_scale[slurm]'.") from error
    return submitit
