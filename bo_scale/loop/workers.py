"""Run a search to its end: ask, evaluate and tell, with several evaluations at a time."""

import logging
import time
from collections.abc import Callable
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    wait,
)
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any

from bo_scale.errors import InvalidArgumentError, InvalidDataError, SpaceError
from bo_scale.loop.evaluations import Engine, Evaluation, Inline, Threads, parted, require_pickled, shown
from bo_scale.loop.problem.space import Points
from bo_scale.loop.progress import Progress
from bo_scale.loop.supply import Supply
from bo_scale.models.shell.door import require_whole

logger = logging.getLogger("bo_scale.loop")
FAILURES = 10
"""So many evaluations that fail in a row mean that the function is broken, not the points."""
BREAKS = 3
"""Executors that may break under an evaluation until it counts as failed."""
ON_ERROR = ("raise", "abandon", "fail")


def run_loop(
    optimizer: Any,
    evaluate: Callable[[Any], Any],
    batches: int | None = None,
    q: int = 1,
    *,
    total: int | None = None,
    workers: int | None = None,
    executor: Executor | Callable[[], Executor] | None = None,
    on_error: str = "raise",
    retries: int = 0,
    timeout_seconds: float | None = None,
    progress: bool = True,
    at_once: int = 1,
    note: Callable[[Points, str], None] = lambda points, reason: None,
) -> None:
    """Ask, evaluate and tell until so many points were asked for, or told: all that `Optimizer.run` does.

    Args:
        optimizer: An `Optimizer`. Only what it offers to users is needed.
        evaluate: The function.
        batches: Number of asks.
        q: Number of points per ask.
        total: Number of observations at the end.
        workers: Number of evaluations at a time.
        executor: Where evaluations run, or a function that makes it.
        on_error: "raise", "abandon" or "fail".
        retries: Number of times that an evaluation that failed is tried again.
        timeout_seconds: Time after which an evaluation counts as failed.
        progress: Whether there is a progress bar.
        at_once: Largest number of points for which to ask at once, for workers that are free at the same time.
        note: What writes down that the evaluation of points failed, and why.

    Raises:
        InvalidArgumentError: naming an argument, or a pair of them, that is not allowed.
    """
    workers = _require_run(batches, q, total, workers, executor, on_error, retries, timeout_seconds)
    alone = workers == 1 and executor is None and timeout_seconds is None
    asker: Executor = Inline() if alone else Threads()
    supply = Supply(optimizer, optimizer.pending, q, batches, total, alone and total is None, at_once)
    policy = Policy(workers, on_error, retries, timeout_seconds, note)
    with closing(Engine(executor or asker)) as engine, Progress(optimizer, supply.expected, progress) as bar:
        if engine.pickles:
            require_pickled(evaluate)
        _Run(optimizer, Evaluation(evaluate), engine, supply, policy, asker, bar).run()


def _require_run(
    batches: int | None,
    q: int,
    total: int | None,
    workers: int | None,
    executor: Any,
    on_error: str,
    retries: int,
    timeout_seconds: float | None,
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
    wholes = ("batches", batches, 0), ("total", total, 1), ("q", q, 1), ("workers", workers, 1), ("retries", retries, 0)
    for name, value, least in wholes:
        if value is not None and require_whole(value, name) < least:
            raise InvalidArgumentError(f"{name}={value}: must be at least {least}.")
    if timeout_seconds is not None and not timeout_seconds > 0:
        raise InvalidArgumentError(f"timeout_seconds={timeout_seconds}: must be above 0, or None for no limit.")
    if on_error not in ON_ERROR:
        raise InvalidArgumentError(f"on_error={on_error!r}: choose 'raise', 'abandon' or 'fail'.")
    return workers


@dataclass(frozen=True)
class Policy:
    """The rules of a run for its evaluations.

    Attributes:
        workers: Number of evaluations at a time.
        on_error: What becomes of points whose evaluation failed: one of `ON_ERROR`.
        retries: Number of times that an evaluation that failed is tried again.
        timeout_seconds: Time after which an evaluation counts as failed; None for no limit.
        note: What writes down that the evaluation of points failed, and why.
    """

    workers: int
    on_error: str
    retries: int
    timeout_seconds: float | None
    note: Callable[[Points, str], None]


@dataclass
class _Trial:
    """Points that are evaluated.

    Attributes:
        points: The points.
        tries: Number of tries that have failed.
        breaks: Number of executors that broke under it.
        executor: Where it runs.
        deadline: `time.monotonic` at which it counts as failed; None for no limit.
    """

    points: Points
    tries: int = 0
    breaks: int = 0
    executor: Executor | None = None
    deadline: float | None = None


class _Run:
    """One run: what is under way, and what became of it. Points are told, and given up, in the calling thread."""

    def __init__(
        self,
        optimizer: Any,
        evaluate: Evaluation,
        engine: Engine,
        supply: Supply,
        policy: Policy,
        asker: Executor,
        bar: Progress,
    ) -> None:
        self._optimizer, self._evaluate, self._engine = optimizer, evaluate, engine
        self._supply, self._policy, self._asker, self._bar = supply, policy, asker, bar
        self._evaluating: dict[Future[Any], _Trial] = {}
        self._asking: Future[Any] | None = None
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
        while self._error is None and self._asking is None and len(self._evaluating) < self._policy.workers:
            under_way = sum(len(trial.points) for trial in self._evaluating.values())
            points = self._supply.take(under_way)
            if points is not None:
                self._submit(_Trial(points))
                continue
            size = self._supply.order(under_way, self._policy.workers - len(self._evaluating))
            if size == 0:
                return
            self._asking = self._asker.submit(self._optimizer.ask, size)

    def _submit(self, trial: _Trial) -> None:
        limit = self._policy.timeout_seconds
        try:
            future, trial.executor = self._engine.submit(self._evaluate, trial.points)
        except Exception as error:  # the executor is broken or was shut down
            self._stop(error)
        else:
            trial.deadline = None if limit is None else time.monotonic() + limit
            self._evaluating[future] = trial

    def _next(self) -> None:
        """Wait for something to come home, or for a time limit, and deal with it."""
        asking = [] if self._asking is None else [self._asking]
        limits = [trial.deadline for trial in self._evaluating.values() if trial.deadline is not None]
        seconds = max(min(limits) - time.monotonic(), 0.0) if limits else None
        done, _ = wait([*self._evaluating, *asking], seconds, FIRST_COMPLETED)
        for future in [each for each in self._evaluating if each in done]:
            self._came_home(future, self._evaluating.pop(future))
        if self._asking is not None and self._asking in done:
            self._asked(self._asking)
        for future in [each for each, trial in self._evaluating.items() if _overdue(trial)]:
            self._failed(self._evaluating.pop(future), self._out_of_time(future))

    def _asked(self, asking: Future[Any]) -> None:
        self._asking, error = None, asking.exception()
        if error is not None:
            self._stop(error)
        elif self._error is None:  # or the points stay pending
            for points in self._supply.parts(asking.result()):
                self._submit(_Trial(points))

    def _came_home(self, future: Future[Any], trial: _Trial) -> None:
        """Tell a result, or deal with a failure."""
        error = _error_of(future)
        if error is None:
            try:
                self._tell(trial.points, future.result())
            except (InvalidDataError, SpaceError) as refused:
                error = refused
        if error is None:
            self._failures = 0
        elif not self._moved(trial, error):
            self._failed(trial, error)

    def _moved(self, trial: _Trial, error: BaseException) -> bool:
        """Evaluate points elsewhere if their executor has broken and there is another; return whether."""
        trial.breaks += isinstance(error, BrokenExecutor)
        if not isinstance(error, BrokenExecutor) or trial.breaks == BREAKS or self._error is not None:
            return False
        if not self._engine.renewed(trial.executor):
            return False
        self._submit(trial)
        return True

    def _failed(self, trial: _Trial, error: BaseException) -> None:
        """Try again, give points up, or stop."""
        policy, points = self._policy, trial.points
        fatal = isinstance(error, CancelledError) or not isinstance(error, Exception)
        fatal = fatal or (isinstance(error, BrokenExecutor) and trial.breaks < BREAKS)
        if not fatal:
            with suppress(InvalidDataError, SpaceError):  # of a space that is no longer theirs
                policy.note(points, repr(error))
        trial.tries += 1
        if not fatal and trial.tries <= policy.retries and self._error is None:
            logger.warning("evaluate failed at %s, try %d: %r", shown(points), trial.tries, error)
            self._submit(trial)
            return
        self._failures += 1
        gives_up = policy.on_error != "raise"
        if gives_up and not fatal and self._failures < FAILURES:
            logger.warning("evaluate failed at %s, which was given up: %r", shown(points), error)
            self._give_up(points)
            return
        many = f" {FAILURES} evaluations in a row have failed." if self._failures == FAILURES and gives_up else ""
        more = " It gets all points of a batch, in a list or tensor." if isinstance(error, TypeError) else ""
        error.add_note(f"evaluate failed at {shown(points)}.{more}{many} The points stay pending: run again to go on.")
        self._stop(error)

    def _give_up(self, points: Points) -> None:
        with suppress(InvalidDataError, SpaceError):  # of a space that is no longer theirs
            if self._policy.on_error == "fail":
                self._optimizer.tell(points, failed=True)
            else:
                self._optimizer.abandon(points)

    def _out_of_time(self, future: Future[Any]) -> TimeoutError:
        future.cancel()
        return TimeoutError(f"it took longer than timeout_seconds={self._policy.timeout_seconds:g}")

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
        for future, trial in self._evaluating.items():
            if future.done() and not future.cancelled() and future.exception() is None:
                try:
                    self._tell(trial.points, future.result())
                except Exception as error:
                    logger.warning("The result at %s was not told: %r", shown(trial.points), error)


def _overdue(trial: _Trial) -> bool:
    return trial.deadline is not None and trial.deadline <= time.monotonic()


def _error_of(future: Future[Any]) -> BaseException | None:
    try:
        return future.exception()
    except CancelledError as error:  # the executor was shut down
        return error
