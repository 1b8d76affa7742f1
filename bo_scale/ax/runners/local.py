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
    """Trials as processes of this machine, in sessions of their own: they go on when the controller is gone.

    What they print is in `output.txt` of the attempt's folder.

    Args:
        function: Takes the parameters by name and returns outcomes by name, each a number or a pair (mean, standard
            error). A function at the top of a module or script, or a name of one, "module:function" or
            "file.py:function": workers import it, and see the files and paths that were there when the trial began.
            What the module imports every worker imports, so that a function is better kept apart from Ax and torch.
        folder: The folder of the trials' files, for one experiment alone; made if absent.
        workers: At most so many at a time; None for as many as `run_trials` asks for by `parallelism`.
        timeout_seconds: A process is killed with its children when it is older, at the next poll. Ax polls less and
            less often, down to every few minutes, while no trial ends.
        retries: The number of attempts that may fail, by an exception, a result that is not finite, the time limit, or
            the death of the process; after one more the trial is FAILED.
        threads: OMP_NUM_THREADS and its like for the workers; None to leave them as they are.

    Raises:
        ValueError: for a number out of range, or a function that a worker could not import.
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
