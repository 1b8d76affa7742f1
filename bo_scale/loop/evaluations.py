"""Evaluations of a run: where they run, and what they return."""

import logging
import pickle
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor
from dataclasses import dataclass
from threading import Thread
from typing import Any

from typing_extensions import override

from bo_scale.errors import InvalidArgumentError
from bo_scale.loop.problem.space import Points

logger = logging.getLogger("bo_scale.loop")


@dataclass(frozen=True)
class Evaluation:
    """The function, with what it yields computed where it runs."""

    function: Callable[[Any], Any]

    def __call__(self, points: Points) -> Any:
        """Return what the function returns, with generators as lists."""
        result = self.function(points)
        return tuple(map(_listed, result)) if isinstance(result, tuple) else _listed(result)


def _listed(result: Any) -> Any:
    return list(result) if isinstance(result, Iterator) else result


class Inline(Executor):
    """An executor that runs what is submitted at once, in the calling thread."""

    @override
    def submit(self, function: Callable[..., Any], /, *args: Any, **options: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(function(*args, **options))
        except Exception as error:
            future.set_exception(error)
        return future


class Threads(Executor):
    """An executor with a thread for each call. They are daemons: after Ctrl-C the process ends without them."""

    @override
    def submit(self, function: Callable[..., Any], /, *args: Any, **options: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()
        Thread(target=_into, args=(future, function, args, options), daemon=True).start()
        return future


def _into(future: Future[Any], function: Callable[..., Any], args: Any, options: Any) -> None:
    """Call a function, with its outcome as that of a future."""
    try:
        future.set_result(function(*args, **options))
    except BaseException as error:  # it is raised where the result is read
        future.set_exception(error)


class Engine:
    """An executor, or those that a function makes, a new one whenever one breaks.

    Args:
        given: The executor, which stays open, or the function.

    Raises:
        InvalidArgumentError: if it is neither, or the function makes no executor of `concurrent.futures`.
    """

    def __init__(self, given: Any) -> None:
        if isinstance(given, Executor):
            self._make, self._executor = None, given
        elif hasattr(given, "submit") or not callable(given):
            raise _no_executor(given)
        else:
            self._make, self._executor = given, given()
            if not isinstance(self._executor, Executor):
                raise _no_executor(self._executor)

    @property
    def pickles(self) -> bool:
        """Return whether functions are sent to other processes of this machine."""
        return isinstance(self._executor, ProcessPoolExecutor)

    def submit(self, function: Callable[..., Any], /, *args: Any) -> tuple[Future[Any], Executor]:
        """Return the future of a call, and the executor that makes it."""
        try:
            return self._executor.submit(function, *args), self._executor
        except BrokenExecutor:
            if not self.renewed(self._executor):
                raise
            return self._executor.submit(function, *args), self._executor

    def renewed(self, broken: Executor | None) -> bool:
        """Make another executor unless that was done since this one broke; return whether it can be done."""
        if self._make is None:
            return False
        if broken is self._executor:
            self._executor.shutdown(wait=False)
            self._executor = self._make()
            logger.warning("A process of the executor has died. What was under way begins again in a new executor.")
        return True

    def close(self) -> None:
        """Close an executor that was made here, without waiting for what goes on in it."""
        if self._make is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)


def _no_executor(given: Any) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"executor: expected an executor of concurrent.futures, or a function that makes one, got "
        f"{type(given).__name__}. Wrap one of another package, such as submitit's: "
        "executor=bo_scale.distributed.Futures(executor)."
    )


def require_pickled(evaluate: Callable[[Any], Any]) -> None:
    """Refuse a function that cannot be sent to another process."""
    try:
        pickle.dumps(evaluate)
    except Exception as error:  # pickle raises errors of several kinds, and those of the objects within
        raise InvalidArgumentError(
            f"evaluate: it cannot be sent to another process ({error}). Define it with def at the top of a module, or "
            f"leave out executor to use threads."
        ) from error


def parted(result: Any, n: int, m: int) -> tuple[Any, Any]:
    """Return the values, and the variances or None, that a function returned of n points with m outcomes.

    A pair is values and variances, except where it is two values: of two points, or the two outcomes of one.
    """
    if not isinstance(result, tuple) or len(result) != 2:
        return result, None
    first = result[0]
    single = isinstance(first, int | float) or getattr(first, "ndim", None) == 0
    named = isinstance(first, Mapping)
    values = (single and (n, m) != (1, 1)) or (named and n != 1)
    return (result, None) if values else result


def shown(points: Points) -> str:
    """Write points for a message, the first few of many."""
    rows = points if isinstance(points, list) else points.tolist()
    return f"{rows[:3]}{'' if len(rows) <= 3 else f' and {len(rows) - 3} more points'}"
