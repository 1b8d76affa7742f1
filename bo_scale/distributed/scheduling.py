"""Tasks on any executor: a few are submitted ahead, results come as they are ready, and dead workers are replaced."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
from multiprocessing import get_context
from typing import Any, Protocol, runtime_checkable

from tqdm import tqdm

from bo_scale.errors import InvalidArgumentError

AHEAD = 64
"""Items that are submitted and not finished yet, at most: their results wait in memory."""
TRIES = 3
"""Times that a pool of our own is made, where worker processes die."""
Task = Callable[[int, Any], Any]
"""Function of the number of an item and the item."""


@runtime_checkable
class Submits(Protocol):
    """An executor: of `concurrent.futures`, Dask's `Client.get_executor()`, submitit's, or anything alike."""

    def submit(self, function: Any, /, *arguments: Any) -> Any:
        """Return a future of the function's result."""


class Processes:
    """Processes of this machine, which are started when they are first needed.

    Args:
        count: Their number.

    Raises:
        InvalidArgumentError: for a number below 1.
    """

    def __init__(self, count: int) -> None:
        if count < 1:
            raise InvalidArgumentError(f"executor={count}: a number of processes is at least 1.")
        self.count = count
        self._pool: ProcessPoolExecutor | None = None

    def pool(self) -> Submits:
        """Return a pool of them."""
        if self._pool is None:
            self._pool = ProcessPoolExecutor(self.count, get_context("spawn"))
        return self._pool

    def close(self) -> None:
        """End them; what waits is not begun any more. They may be started again."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None


@contextmanager
def kept_open(executor: "Submits | int | None") -> "Iterator[Submits | Processes | None]":
    """Yield an executor for several passes; a number of processes are started once for all of them."""
    if not isinstance(executor, int):
        yield executor
        return
    with closing(Processes(executor)) as processes:
        yield processes


def finished(
    task: Task, items: Sequence[Any], executor: "Submits | int | Processes | None", progress: bool | None, called: str
) -> Iterator[tuple[int, Any]]:
    """Yield the number and the result of every item as it is ready, in any order.

    Args:
        task: Picklable, where other processes do it.
        items: The items.
        executor: Where; a number of processes on this machine, or None for this process.
        progress: Whether to show a bar; None for only on a terminal.
        called: What items are called in the bar.

    Raises:
        InvalidArgumentError: for a number of processes below 1, or if processes die again and again.
    """
    results = _one_by_one(task, items) if executor is None else _submitted(task, items, executor)
    yield from tqdm(results, desc=called, total=len(items), disable=None if progress is None else not progress)


def _one_by_one(task: Task, items: Sequence[Any]) -> Iterator[tuple[int, Any]]:
    for number, item in enumerate(items):
        yield number, task(number, item)


def _submitted(task: Task, items: Sequence[Any], executor: "Submits | int | Processes") -> Iterator[tuple[int, Any]]:
    """Yield results as they are ready; processes of our own are made anew if one dies."""
    if isinstance(executor, int):
        with closing(Processes(executor)) as processes:
            yield from _submitted(task, items, processes)
        return
    left = dict(enumerate(items))
    if not isinstance(executor, Processes):
        yield from _ready(task, left, executor)
        return
    for attempt in range(TRIES):
        try:
            for number, result in _ready(task, dict(left), executor.pool()):
                del left[number]
                yield number, result
            return
        except BrokenProcessPool as error:
            executor.close()
            if attempt == TRIES - 1:
                raise InvalidArgumentError(
                    f"executor={executor.count}: processes died {TRIES} times. A script must make the call under "
                    "`if __name__ == '__main__':`, since each process imports it. Otherwise memory may be too small: "
                    "use fewer processes, or fewer rows at once."
                ) from error


def _ready(task: Task, left: dict[int, Any], executor: Any) -> Iterator[tuple[int, Any]]:
    """Yield results as they are ready; a few items are submitted ahead."""
    running: dict[Any, int] = {}
    try:
        while left or running:
            while left and len(running) < AHEAD:
                number = next(iter(left))
                running[executor.submit(task, number, left.pop(number))] = number
            for future in _done(list(running)):
                yield running.pop(future), future.result()
    finally:
        for future in running:
            if hasattr(future, "cancel"):
                future.cancel()


def _done(running: list[Any]) -> list[Any]:
    """Return futures that are ready, or the first where futures of another kind cannot be waited for together."""
    if all(isinstance(future, Future) for future in running):
        return list(wait(running, return_when=FIRST_COMPLETED).done)
    return running[:1]
