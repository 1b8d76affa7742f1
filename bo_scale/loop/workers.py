"""Run a search to its end: ask, evaluate and tell, with several evaluations at a time."""

import logging
import pickle
from collections.abc import Callable
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    ProcessPoolExecutor,
    wait,
)
from contextlib import suppress
from typing import Any

from bo_scale.errors import InvalidArgumentError, InvalidDataError, SpaceError
from bo_scale.loop.evaluations import Evaluation, Inline, Threads, parted, shown
from bo_scale.loop.problem.space import Points
from bo_scale.loop.progress import Progress
from bo_scale.models.shell.door import require_whole

logger = logging.getLogger("bo_scale.loop")
FAILURES = 10
"""So many evaluations that fail in a row mean that the function is broken, not the points."""


def run_loop(
    optimizer: Any,
    evaluate: Callable[[Any], Any],
    batches: int | None = None,
    q: int = 1,
    *,
    total: int | None = None,
    workers: int | None = None,
    executor: Executor | None = None,
    on_error: str = "raise",
    progress: bool = True,
) -> None:
    """Ask, evaluate and tell until so many points were asked for, or told: all that `Optimizer.run` does.

    Args:
        optimizer: An `Optimizer`. Only what it offers to users is needed.
        evaluate: The function.
        batches: Number of asks.
        q: Number of points per ask.
        total: Number of observations at the end.
        workers: Number of evaluations at a time.
        executor: Where evaluations run.
        on_error: "raise" or "abandon".
        progress: Whether there is a progress bar.

    Raises:
        InvalidArgumentError: naming an argument, or a pair of them, that is not allowed.
    """
    workers = _require_run(batches, q, total, workers, executor, on_error)
    if isinstance(executor, ProcessPoolExecutor):
        _require_pickled(evaluate)
    alone = workers == 1 and executor is None
    asker: Executor = Inline() if alone else Threads()
    supply = _Supply(optimizer, optimizer.pending, q, batches, total, whole=alone and total is None)
    with Progress(optimizer, supply.expected, progress) as bar:
        _Run(optimizer, Evaluation(evaluate), supply, workers, asker, executor or asker, on_error, bar).run()


def _require_run(
    batches: int | None, q: int, total: int | None, workers: int | None, executor: Executor | None, on_error: str
) -> int:
    """Check the arguments of a run; return the number of workers."""
    if (batches is None) == (total is None):
        raise InvalidArgumentError(
            "batches, total: pass one of the two. batches is a number of asks, total the number of observations at "
            "which the run ends, earlier ones included."
        )
    if executor is not None and workers is None:
        raise InvalidArgumentError("executor: it needs workers too, the number of evaluations at a time.")
    workers = 1 if workers is None else workers
    for name, value, least in (("batches", batches, 0), ("total", total, 1), ("q", q, 1), ("workers", workers, 1)):
        if value is not None and require_whole(value, name) < least:
            raise InvalidArgumentError(f"{name}={value}: must be at least {least}.")
    if on_error not in ("raise", "abandon"):
        raise InvalidArgumentError(f"on_error={on_error!r}: choose 'raise' or 'abandon'.")
    return workers


def _require_pickled(evaluate: Callable[[Any], Any]) -> None:
    """Refuse a function that cannot be sent to another process."""
    try:
        pickle.dumps(evaluate)
    except Exception as error:  # pickle raises errors of several kinds, and those of the objects within
        raise InvalidArgumentError(
            f"evaluate: it cannot be sent to another process ({error}). Define it with def at the top of a module, or "
            f"leave out executor to use threads."
        ) from error


# ---------------------------------------------------------------- what is left


class _Supply:
    """The points left to evaluate: those that were pending before the run, then new ones.

    Args:
        optimizer: It counts the observations.
        waiting: Points pending before the run.
        q: Number of points of an ask.
        batches: Number of asks, or None.
        total: Number of observations at the end, or None.
        whole: Whether waiting points are evaluated in one call.
    """

    def __init__(
        self, optimizer: Any, waiting: Points, q: int, batches: int | None, total: int | None, whole: bool
    ) -> None:
        self._optimizer, self._waiting, self._q = optimizer, waiting, q
        self._batches, self._total = batches, total
        self._chunk = max(len(waiting), 1) if whole else q

    @property
    def expected(self) -> int:
        """The number of observations at the end, if nothing fails."""
        if self._total is not None:
            return self._total
        return self._optimizer.num_observations + len(self._waiting) + (self._batches or 0) * self._q

    def take(self, under_way: int) -> Points | None:
        """Return waiting points to evaluate next; None if there are none.

        Args:
            under_way: Number of points that are evaluated or asked for at present.
        """
        size = min(self._chunk, len(self._waiting), self._room(under_way))
        if size <= 0:
            return None
        points, self._waiting = self._waiting[:size], self._waiting[size:]
        return points

    def order(self, under_way: int) -> int:
        """Return the number of points to ask for next, 0 for none; the caller asks for them."""
        size = min(self._q, self._room(under_way))
        if size <= 0 or self._batches == 0:
            return 0
        if self._batches is not None:
            self._batches -= 1
        return size

    def _room(self, under_way: int) -> int:
        if self._total is None:
            return max(self._q, self._chunk)
        return self._total - self._optimizer.num_observations - under_way


# ---------------------------------------------------------------- the run


class _Run:
    """One run: what is under way, and what became of it. Points are told, and given up, in the calling thread."""

    def __init__(
        self,
        optimizer: Any,
        evaluate: Evaluation,
        supply: _Supply,
        workers: int,
        asker: Executor,
        executor: Executor,
        on_error: str,
        bar: Progress,
    ) -> None:
        self._optimizer, self._evaluate, self._supply, self._workers = optimizer, evaluate, supply, workers
        self._asker, self._executor, self._abandons, self._bar = asker, executor, on_error == "abandon", bar
        self._evaluating: dict[Future[Any], Points] = {}
        self._asking: tuple[Future[Any], int] | None = None
        self._failures = 0
        self._error: BaseException | None = None

    def run(self) -> None:
        """Go on until nothing is left, then raise the first error, if there was one.

        Whatever else is raised, of Ctrl-C for example, is raised once the results at hand are told.
        """
        try:
            self._start()
            while self._evaluating or self._asking is not None:
                self._next()
                self._start()
        except BaseException:
            self._leave()
            raise
        if self._error is not None:
            raise self._error

    def _start(self) -> None:
        """Give every free worker something to do, or ask for it."""
        while self._error is None and self._asking is None and len(self._evaluating) < self._workers:
            under_way = sum(map(len, self._evaluating.values()))
            points = self._supply.take(under_way)
            if points is not None:
                self._submit(points)
                continue
            size = self._supply.order(under_way)
            if size == 0:
                return
            self._asking = self._asker.submit(self._optimizer.ask, size), size

    def _submit(self, points: Points) -> None:
        try:
            self._evaluating[self._executor.submit(self._evaluate, points)] = points
        except Exception as error:  # the executor is broken or was shut down
            self._stop(error)

    def _next(self) -> None:
        """Wait for something to come home, and deal with it."""
        asking = [] if self._asking is None else [self._asking[0]]
        done, _ = wait([*self._evaluating, *asking], return_when=FIRST_COMPLETED)
        for future in [each for each in self._evaluating if each in done]:
            self._came_home(future, self._evaluating.pop(future))
        if self._asking is not None and self._asking[0] in done:
            future, self._asking = self._asking[0], None
            error = future.exception()
            if error is not None:
                self._stop(error)
            elif self._error is None:  # or the points stay pending
                self._submit(future.result())

    def _came_home(self, future: Future[Any], points: Points) -> None:
        """Tell a result, or deal with a failure."""
        error = _error_of(future)
        if error is None:
            try:
                self._tell(points, future.result())
            except (InvalidDataError, SpaceError) as refused:
                error = refused
        if error is None:
            self._failures = 0
            return
        self._failures += 1
        broken = isinstance(error, BrokenExecutor | CancelledError) or not isinstance(error, Exception)
        if self._abandons and not broken and self._failures < FAILURES:
            logger.warning("evaluate failed at %s, which was given up: %r", shown(points), error)
            with suppress(InvalidDataError, SpaceError):  # of a space that is no longer theirs
                self._optimizer.abandon(points)
            return
        many = f" {FAILURES} evaluations in a row have failed." if self._failures == FAILURES and self._abandons else ""
        more = " It gets all points of a batch, in a list or tensor." if isinstance(error, TypeError) else ""
        error.add_note(f"evaluate failed at {shown(points)}.{more}{many} The points stay pending: run again to go on.")
        self._stop(error)

    def _tell(self, points: Points, result: Any) -> None:
        Y, Yvar = parted(result, len(points), len(self._optimizer.outcomes.signs))
        self._optimizer.tell(points, Y, Yvar)
        self._bar.told(points, Y, len(points))

    def _stop(self, error: BaseException) -> None:
        """Start nothing more; what is under way is awaited. The first error is raised then, others are logged."""
        if self._error is None:
            self._error = error
            if self._evaluating:
                logger.warning("Waiting for %d evaluations under way before raising %r.", len(self._evaluating), error)
        else:
            logger.warning("evaluate failed too: %r %s", error, " ".join(getattr(error, "__notes__", ())))

    def _leave(self) -> None:
        """Cancel what has not begun, and tell what has ended; the rest stays pending."""
        for future in self._evaluating:
            future.cancel()
        for future, points in self._evaluating.items():
            if future.done() and not future.cancelled() and future.exception() is None:
                try:
                    self._tell(points, future.result())
                except Exception as error:
                    logger.warning("The result at %s was not told: %r", shown(points), error)


def _error_of(future: Future[Any]) -> BaseException | None:
    try:
        return future.exception()
    except CancelledError as error:  # the executor was shut down
        return error
