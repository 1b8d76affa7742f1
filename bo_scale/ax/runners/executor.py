"""Trials in any executor of `concurrent.futures`."""

import os
import time
import uuid
from collections.abc import Callable
from concurrent.futures import CancelledError, Executor, Future
from pathlib import Path
from typing import Any

from typing_extensions import override

from bo_scale.ax.runners import worker
from bo_scale.ax.runners.folder_runner import LOST, FolderRunner, Function
from bo_scale.ax.runners.processes import Record
from bo_scale.errors import RunnerError
from bo_scale.loop.evaluations import Engine


class ExecutorRunner(FolderRunner):
    """A runner whose trials are calls in an executor, such as Dask's, Ray's, or a process pool.

    The state of the trials is a folder, as with `LocalRunner`, which workers must see. Their calls end with the process
    that submitted them: what was under way when it was killed begins again after `attach`, and this is not a retry.
    Results that are in the folder stay. What happens at the time limit, or when a trial is stopped, is up to the
    executor: Dask cancels a call, a process or a thread goes on, and its result is left out unless it comes before that
    of the next attempt. To have processes killed, use `LocalRunner`.

    Args:
        function: The function to run, as for `LocalRunner`. Workers import it by its name.
        folder: Folder of the trials' files, made if absent. Use it for one experiment only.
        executor: An executor of `concurrent.futures`, Dask's `client.get_executor()`, or `bo_scale.distributed.Futures`
            of others. Or a function that makes one, `lambda: ProcessPoolExecutor(8)`: if a process dies, another
            executor is made, and what was under way has failed one attempt. Ax saves the runner without it: after
            loading, call `configure_runner` with a runner of the same folder, and `attach`.
        workers: Maximum number of trials at a time. None for as many as `parallelism` of `run_trials` allows.
        timeout_seconds: Time limit of an attempt, from its start on a worker.
        retries: Number of times a failed trial is tried again. An attempt fails by an exception, a result that is not
            finite, the time limit, or the death of its process. When the last attempt fails, the trial is FAILED.

    Raises:
        InvalidArgumentError: for a number out of range, or a function that a worker could not import.
    """

    def __init__(
        self,
        function: Function | str,
        folder: str | os.PathLike[str],
        executor: Executor | Callable[[], Executor] | None = None,
        workers: int | None = None,
        timeout_seconds: float | None = None,
        retries: int = 1,
    ) -> None:
        super().__init__(function, folder, workers, timeout_seconds, retries, threads=None)
        self.executor = executor
        self._engine = None if executor is None else Engine(executor)
        self._futures: dict[str, Future[Any]] = {}
        self._session = uuid.uuid4().hex

    @override
    def _launch(self, attempt: Path) -> Record:
        if self._engine is None:
            raise RunnerError("executor: it was not saved. Call configure_runner with a runner of the same folder.")
        try:
            future, _ = self._engine.submit(worker.run_within, str(attempt))
        except RuntimeError as error:  # it is closed, or has broken
            raise RunnerError(f"executor: it takes no more calls: {error}") from error
        key = str(attempt)
        self._futures = {name: each for name, each in self._futures.items() if not _is_over(name)}
        self._futures[key] = future
        return {"session": self._session, "key": key, "time": time.time()}

    @override
    def _ended(self, claim: Record | None, launch: Record | None) -> str | None:
        if "given_up" in (claim or {}):
            return str((claim or {})["given_up"])
        future = self._future(launch)
        if future is None:
            return None if launch is None else LOST
        if not future.done():
            return None
        try:
            error = future.exception()
        except CancelledError:
            return "cancelled by the executor"
        return "ended without a result" if error is None else f"the executor failed: {error!r}"

    @override
    def _kill(self, claim: Record | None, launch: Record | None) -> bool:
        future = self._future(launch)
        if future is not None:
            future.cancel()
        return True

    @override
    @classmethod
    def serialize_init_args(cls, obj: Any) -> dict[str, Any]:
        return {name: value for name, value in super().serialize_init_args(obj).items() if name != "executor"}

    def _future(self, launch: Record | None) -> Future[Any] | None:
        """Return the future of an attempt; None if another process has submitted it, or none."""
        ours = launch is not None and launch.get("session") == self._session
        return self._futures.get(launch["key"]) if launch is not None and ours else None


def _is_over(attempt: str) -> bool:
    """Return whether nobody asks for the future of an attempt any more."""
    folder = Path(attempt)
    return (folder / worker.FAILURE).exists() or (folder.parent / worker.RESULT).exists()
