"""Trials as processes of this machine."""

import os
import time
from pathlib import Path
from typing import Any

from typing_extensions import override

from bo_scale.ax.runners.folder_runner import FolderRunner, Function, worker_command
from bo_scale.ax.runners.processes import Record, kill_processes, process_ended, reaped
from bo_scale.ax.runners.worker import RESULT, started
from bo_scale.errors import RunnerError


class LocalRunner(FolderRunner):
    """A runner whose trials are processes on this machine. They survive the process that started them.

    Each process has a session of its own. What it prints is in `output.txt` in the folder of the attempt.

    Args:
        function: The function to run. It takes a dictionary of parameters and returns a dictionary of outcomes, each a
            number or a pair (mean, standard error). Pass a function defined at the top of a module or script, or its
            name as "module:function" or "file.py:function". Workers import it, with the working folder and the import
            path of the moment the trial began. They also import all that its module imports, so keep the function in a
            module without Ax and torch if it does not need them.
        folder: Folder of the trials' files, made if absent. Use it for one experiment only.
        workers: Maximum number of trials at a time. None for as many as `parallelism` of `run_trials` allows.
        timeout_seconds: Time limit of an attempt. The next poll after it kills the process and its children. While no
            trial ends, Ax polls less and less often, down to every few minutes.
        retries: Number of times a failed trial is tried again. An attempt fails by an exception, a result that is not
            finite, the time limit, or the death of its process. When the last attempt fails, the trial is FAILED.
        threads: Value of OMP_NUM_THREADS and similar variables for the workers; None to leave them alone.

    Raises:
        InvalidArgumentError: for a number out of range, or a function that a worker could not import.
    """

    def __init__(
        self,
        function: Function | str,
        folder: str | os.PathLike[str],
        workers: int | None = None,
        timeout_seconds: float | None = None,
        retries: int = 1,
        threads: int | None = None,
    ) -> None:
        super().__init__(function, folder, workers, timeout_seconds, retries, threads)
        self._children: list[tuple[int, Path]] = []

    @override
    def _launch(self, attempt: Path) -> Record:
        if not hasattr(os, "posix_spawn"):
            raise RunnerError("LocalRunner needs a POSIX system: Linux, macOS or WSL.")
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        actions: list[Any] = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(attempt / "output.txt"), flags, 0o644),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ]
        command = worker_command(attempt)
        pid = os.posix_spawn(command[0], command, os.environ, file_actions=actions, setsid=True)
        for child, trial in self._children:
            if (trial / RESULT).exists():  # nobody asks for its exit code any more, and it would stay a zombie
                reaped(child)
        self._children = [(child, trial) for child, trial in self._children if started(child) is not None]
        self._children.append((pid, attempt.parent))
        return {"pid": pid, "start": started(pid), "time": time.time()}

    @override
    def _ended(self, claim: Record | None, launch: Record | None) -> str | None:
        return process_ended(claim, launch)

    @override
    def _kill(self, claim: Record | None, launch: Record | None) -> bool:
        return kill_processes(claim, launch)

    @override
    def _since(self, claim: Record | None, launch: Record | None) -> float | None:
        return (claim or launch or {}).get("time")
