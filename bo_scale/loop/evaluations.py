"""Evaluations of a run: where they run, and what they return."""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from threading import Thread
from typing import Any

from typing_extensions import override

from bo_scale.loop.problem.space import Points


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
