"""Executors of other packages as executors of `concurrent.futures`: submitit, Ray, and whatever is alike."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future, InvalidStateError
from contextlib import suppress
from typing import Any

from typing_extensions import override

from bo_scale.distributed.scheduling import Submits
from bo_scale.errors import InvalidArgumentError, MissingDependencyError


class Futures(Executor):
    """An executor over another one whose jobs are no futures of `concurrent.futures`, such as submitit's.

    Jobs have `done()` and `result()`, and `cancel()` if they can be cancelled. One thread looks at all of them now and
    then, so that a thousand cost no more than a look each.

    Args:
        executor: An executor with `submit`, such as `submitit.AutoExecutor`.
        seconds: Time between two looks.

    Raises:
        InvalidArgumentError: if `seconds` is not above 0.
    """

    def __init__(self, executor: Submits, seconds: float = 1.0) -> None:
        if not seconds > 0:
            raise InvalidArgumentError(f"seconds={seconds}: must be above 0.")
        self._executor, self._seconds = executor, seconds
        self._jobs: dict[Future[Any], Any] = {}
        self._changed = threading.Condition()
        self._watched = False

    @override
    def submit(self, function: Callable[..., Any], /, *args: Any, **options: Any) -> Future[Any]:
        job: Any = self._executor.submit(function, *args, **options)
        future = _Cancels(job)
        with self._changed:
            self._jobs[future] = job
            if not self._watched:
                self._watched = True
                threading.Thread(target=self._watch, daemon=True).start()
        return future

    def _watch(self) -> None:
        """Look at all jobs until there are none."""
        while True:
            with self._changed:
                jobs = dict(self._jobs)
                if not jobs:
                    self._watched = False
                    return
            for future, job in jobs.items():
                if future.done() or job.done():
                    _into(future, job)
                    with self._changed:
                        del self._jobs[future]
            time.sleep(self._seconds)


class _Cancels(Future[Any]):
    """A future that cancels its job, whether or not it has begun."""

    def __init__(self, job: Any) -> None:
        super().__init__()
        self._job = job

    @override
    def cancel(self) -> bool:
        if self.done():
            return self.cancelled()
        if hasattr(self._job, "cancel"):
            self._job.cancel()
        return super().cancel() and not self.set_running_or_notify_cancel()


def _into(future: Future[Any], job: Any) -> None:
    """Give a future the outcome of its job, unless it was cancelled."""
    with suppress(InvalidStateError):
        try:
            future.set_result(job.result())
        except InvalidStateError:
            raise
        except BaseException as error:  # it is raised where the result is read
            future.set_exception(error)


class RayExecutor(Executor):
    """An executor whose calls are tasks of Ray.

    Args:
        options: Options of each task, such as `num_cpus=1` or `max_retries=3`; see `ray.remote`.

    Raises:
        MissingDependencyError: if Ray is not installed.
    """

    def __init__(self, **options: Any) -> None:
        try:
            import ray
        except ImportError as error:
            raise MissingDependencyError("RayExecutor needs Ray: pip install 'bo_scale[ray]'") from error
        self._ray, self._options = ray, options

    @override
    def submit(self, function: Callable[..., Any], /, *args: Any, **options: Any) -> Future[Any]:
        called = self._ray.remote(_call)
        task = called.options(**self._options) if self._options else called
        future: Future[Any] = task.remote(function, args, options).future()
        return future


def _call(function: Callable[..., Any], args: Any, options: Any) -> Any:
    return function(*args, **options)
