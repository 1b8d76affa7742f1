"""Runs with several evaluations at a time: how many, what becomes of failures, and what a killed run leaves."""

import logging
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import pytest
import torch
from loops import cheap, f, variances
from torch import Tensor

from bo_scale.errors import InvalidArgumentError, InvalidDataError
from bo_scale.loop import Optimizer
from bo_scale.loop.evaluations import Engine
from bo_scale.loop.workers import FAILURES

QUIET = {"progress": False}


def random(s: Any) -> Tensor:
    """Points at once, for runs in which only their number matters."""
    return torch.rand(s.q, s.observed.shape[-1], dtype=torch.float64)


def quick(path: Path | None = None, **options: Any) -> Optimizer:
    return cheap(path, **{"acquisition": random, "num_initial": 3, **options})


def slow_f(X: Tensor) -> Tensor:
    time.sleep(0.02)
    return f(X)


class Sizes:
    """The function, with a record of the points of each call."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def __call__(self, X: Tensor) -> Tensor:
        self.calls.append(X)
        return f(X)

    @property
    def counts(self) -> list[int]:
        return [len(X) for X in self.calls]


# ---------------------------------------------------------------- how many


@pytest.mark.parametrize("workers", [None, 1, 3, 20])
@pytest.mark.parametrize(("q", "total"), [(1, 8), (3, 8)])
def test_a_run_stops_at_exactly_the_total(workers: int | None, q: int, total: int) -> None:
    loop, evaluate = quick(), Sizes()
    best = loop.run(evaluate, total=total, q=q, workers=workers, **QUIET)
    assert (loop.num_observations, len(loop.pending)) == (total, 0)
    assert (sum(evaluate.counts), max(evaluate.counts)) == (total, q)
    assert best.observed_y == max(f(torch.cat(evaluate.calls)).tolist())


@pytest.mark.parametrize("workers", [None, 2])
def test_a_total_counts_what_was_told_and_begins_with_what_is_pending(workers: int | None) -> None:
    loop, evaluate = quick(), Sizes()
    loop.tell(torch.tensor([[0.5, 0.5], [0.1, 0.1]]), [1.0, 2.0])
    waiting = loop.ask(3)
    loop.run(evaluate, total=8, q=2, workers=workers, **QUIET)
    assert loop.num_observations == 8
    first = torch.cat(evaluate.calls[:2])  # two workers may begin in either order
    assert torch.equal(first[first[:, 0].argsort()], waiting[waiting[:, 0].argsort()])
    assert sorted(evaluate.counts) == [1, 1, 2, 2]


def test_no_more_than_the_total_is_taken_of_what_is_pending() -> None:
    loop, evaluate = quick(), Sizes()
    waiting = loop.ask(5)
    loop.run(evaluate, total=3, workers=2, **QUIET)
    assert loop.num_observations == 3
    assert torch.equal(loop.pending, waiting[3:])
    loop.run(evaluate, total=2, workers=2, **QUIET)
    assert loop.num_observations == 3


@pytest.mark.parametrize("workers", [None, 4])
def test_batches_are_asks(workers: int | None) -> None:
    loop = quick()
    waiting = loop.ask(3)
    loop.run(f, batches=4, q=2, workers=workers, **QUIET)
    assert (loop.num_observations, len(loop.steps)) == (len(waiting) + 8, 5)


def test_one_worker_is_the_same_as_none_and_the_seed_says_everything() -> None:
    runs = [{"batches": 7}, {"total": 7}, {"total": 7, "workers": 1}]
    loops = [cheap() for _ in runs]
    for loop, options in zip(loops, runs):
        loop.run(f, **options, **QUIET)
    for loop in loops[1:]:
        assert torch.equal(loop.observations[0], loops[0].observations[0])


# ---------------------------------------------------------------- at a time


def test_so_many_evaluations_run_at_a_time_and_no_more() -> None:
    barrier, running, most = threading.Barrier(3, timeout=20), [0], [0]
    lock = threading.Lock()

    def evaluate(X: Tensor) -> Tensor:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        barrier.wait()
        with lock:
            running[0] -= 1
        return f(X)

    quick().run(evaluate, total=9, workers=3, **QUIET)
    assert most == [3]


def test_the_first_home_is_told_at_once_and_its_worker_goes_on() -> None:
    slow, calls, loop = threading.Event(), [0], quick()

    def evaluate(X: Tensor) -> Tensor:
        calls[0] += 1
        if calls[0] == 1:
            assert slow.wait(20)
        if calls[0] == 6:
            assert loop.num_observations >= 4
            slow.set()
        return f(X)

    loop.run(evaluate, total=8, workers=2, **QUIET)
    assert loop.num_observations == 8


def test_results_are_told_while_an_ask_is_under_way() -> None:
    told, main = threading.Event(), threading.current_thread()
    tellers: list[threading.Thread] = []

    def acquisition(s: Any) -> Tensor:
        if s.pending is not None:
            assert told.wait(20)
        return random(s)

    loop = quick(acquisition=acquisition, num_initial=1)
    tell = loop.tell

    def watched(X: Any, Y: Any, Yvar: Any = None) -> None:
        tellers.append(threading.current_thread())
        tell(X, Y, Yvar)
        if loop.num_observations >= 3:
            told.set()

    loop.tell(torch.tensor([[0.5, 0.5]]), [1.0])
    loop.ask(2)
    loop.tell = watched  # type: ignore[method-assign]
    loop.run(slow_f, total=5, workers=3, **QUIET)
    assert tellers == [main] * 4


# ---------------------------------------------------------------- failures


class Fails:
    """A function that fails at its call of some number, once others have begun."""

    def __init__(self, *at: int) -> None:
        self.at, self.calls, self.lock = at, 0, threading.Lock()

    def __call__(self, X: Tensor) -> Tensor:
        with self.lock:
            self.calls += 1
            number = self.calls
        if number in self.at:
            raise RuntimeError(f"call {number}")
        return slow_f(X)


@pytest.mark.parametrize("workers", [None, 3])
def test_an_error_loses_nothing(workers: int | None, tmp_path: Path) -> None:
    with quick(tmp_path) as loop:
        with pytest.raises(RuntimeError, match="call 5") as raised:
            loop.run(Fails(5), total=12, workers=workers, **QUIET)
        waiting = loop.pending  # the failed point, and one that was being asked for
        assert len(waiting) == 1 if workers is None else 1 <= len(waiting) <= 2
        assert loop.num_observations == (4 if workers is None else len(loop.observations[0]))
        assert loop.num_observations >= 4
        notes = [f"evaluate failed at [{point}]. The points stay pending" for point in waiting.tolist()]
        assert any(note in raised.value.__notes__[0] for note in notes)
    with quick(tmp_path) as again:
        evaluate = Sizes()
        again.run(evaluate, total=12, workers=workers, **QUIET)
        assert {tuple(X[0].tolist()) for X in evaluate.calls[: len(waiting)]} == set(map(tuple, waiting.tolist()))
        assert (again.num_observations, len(again.pending)) == (12, 0)


def test_of_several_errors_the_first_is_raised_and_others_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    barrier, loop = threading.Barrier(3, timeout=20), quick()

    def evaluate(X: Tensor) -> Tensor:
        barrier.wait()
        raise ValueError(f"at {X[0, 0]:.3f}")

    with pytest.raises(ValueError, match="at 0") as raised:
        loop.run(evaluate, total=6, workers=3, **QUIET)
    assert len(loop.pending) == 3
    assert caplog.text.count("evaluate failed too") == 2
    assert str(raised.value) not in "".join(r.message for r in caplog.records if "failed too" in r.message)


@pytest.mark.parametrize("workers", [None, 3])
def test_failed_points_can_be_given_up(workers: int | None, caplog: pytest.LogCaptureFixture) -> None:
    loop = quick()
    loop.run(Fails(2, 5), total=8, workers=workers, on_error="abandon", **QUIET)
    assert (loop.num_observations, len(loop.pending)) == (8, 0)
    assert caplog.text.count("which was given up: RuntimeError('call") == 2


def test_what_cannot_be_told_is_a_failure() -> None:
    loop, calls = quick(), [0]

    def evaluate(X: Tensor) -> Tensor:
        calls[0] += 1
        return f(X) * torch.nan if calls[0] == 2 else f(X)

    with pytest.raises(InvalidDataError, match="NaN"):
        loop.run(evaluate, total=4, **QUIET)
    assert len(loop.pending) == 1
    calls[0] = 1
    loop.run(evaluate, total=4, on_error="abandon", **QUIET)
    assert (loop.num_observations, len(loop.pending)) == (4, 0)


def test_a_function_that_always_fails_ends_the_run() -> None:
    loop = quick()
    with pytest.raises(ZeroDivisionError) as raised:
        loop.run(lambda X: 1 / 0, total=50, on_error="abandon", **QUIET)
    assert len(loop.steps) == FAILURES
    assert len(loop.pending) == 1
    assert f"{FAILURES} evaluations in a row have failed" in raised.value.__notes__[0]


def test_an_ask_that_fails_awaits_what_is_under_way() -> None:
    def broken(s: Any) -> Tensor:
        raise RuntimeError("no points")

    loop = quick(acquisition=broken, num_initial=2)
    with pytest.raises(RuntimeError, match="no points"):
        loop.run(slow_f, total=9, workers=3, **QUIET)
    assert len(loop.pending) == 0
    assert loop.num_observations >= 2


def test_points_asked_for_when_an_evaluation_fails_stay_pending() -> None:
    asking, failed, calls = threading.Event(), threading.Event(), [0]

    def acquisition(s: Any) -> Tensor:
        if s.pending is not None and len(s.observed) >= 4:
            asking.set()
            assert failed.wait(20)
            time.sleep(0.2)
        return random(s)

    def evaluate(X: Tensor) -> Tensor:
        calls[0] += 1
        if calls[0] < 4:
            return f(X)
        assert asking.wait(20)
        failed.set()
        raise RuntimeError("late")

    loop = quick(acquisition=acquisition, num_initial=4)
    loop.tell(torch.tensor([[0.5, 0.5]]), [1.0])
    loop.ask(1)
    with pytest.raises(RuntimeError, match="late"):
        loop.run(evaluate, total=20, workers=2, **QUIET)
    assert (calls[0], len(loop.pending), loop.num_observations) == (4, 2, 4)


@pytest.mark.parametrize("workers", [None, 3])
def test_what_fails_is_tried_again_and_every_failure_is_in_the_journal(workers: int | None, tmp_path: Path) -> None:
    with quick(tmp_path) as loop:
        loop.run(Fails(2, 3, 5), total=6, workers=workers, retries=3, **QUIET)
        assert (loop.num_observations, len(loop.pending), len(loop.steps)) == (6, 0, 6)
    with quick(tmp_path) as again:
        assert [each.reason for each in again.history.attempts] == [f"RuntimeError('call {k}')" for k in (2, 3, 5)]
        assert all(each.time and each.points.shape == (1, 2) for each in again.history.attempts)


def test_retries_end_and_failed_points_may_be_learned_from(caplog: pytest.LogCaptureFixture) -> None:
    loop, bad = quick(), []

    def evaluate(X: Tensor) -> Tensor:
        bad.append(X)
        if len(bad) <= 3:
            raise RuntimeError(f"try {len(bad)}")
        return f(X)

    loop.run(evaluate, total=4, retries=2, on_error="fail", **QUIET)
    assert torch.equal(bad[0], bad[1])
    assert torch.equal(bad[0], bad[2])
    assert (loop.num_observations, len(loop.pending), len(loop.history.failures)) == (4, 0, 1)
    assert caplog.text.count("try ") >= 2
    assert "which was given up: RuntimeError('try 3')" in caplog.text


@pytest.mark.parametrize("workers", [None, 3])
def test_an_evaluation_that_takes_too_long_counts_as_failed(workers: int | None) -> None:
    loop, calls, ended = quick(), [0], threading.Event()

    def evaluate(X: Tensor) -> Tensor:
        calls[0] += 1
        if calls[0] == 2:
            ended.wait(60)
        return f(X)

    loop.run(evaluate, total=6, workers=workers, timeout_seconds=0.5, on_error="abandon", **QUIET)
    ended.set()
    assert (loop.num_observations, len(loop.pending)) == (6, 0)
    assert ["took longer than timeout_seconds=0.5" in each.reason for each in loop.history.attempts] == [True]


def test_points_of_all_free_workers_are_asked_for_at_once_where_a_batch_costs_no_more() -> None:
    loop, evaluate, everyone = quick(acquisition="Thompson"), Sizes(), threading.Barrier(5, timeout=20)

    def together(X: Tensor) -> Tensor:
        if len(evaluate.calls) < 10:
            everyone.wait()
        return evaluate(X)

    loop.run(together, total=13, workers=5, **QUIET)
    assert evaluate.counts == [1] * 13
    assert len(loop.steps) < 13
    assert loop.steps[0].q == 5
    assert sum(step.q for step in loop.steps) == 13


@pytest.fixture
def interruptible() -> Iterator[None]:
    """SIGINT raises, as in a terminal: what a shell runs in the background ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("workers", [None, 3])
def test_an_interrupt_tells_what_is_there_and_leaves_the_rest_pending(workers: int | None) -> None:
    started, loop = threading.Event(), quick()

    def evaluate(X: Tensor) -> Tensor:
        if len(loop.observations[0]) < 3:
            return f(X)
        if not started.is_set():
            started.set()
            signal.raise_signal(signal.SIGINT) if workers is None else os.kill(os.getpid(), signal.SIGINT)
        time.sleep(5)
        return f(X)

    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        loop.run(evaluate, total=50, workers=workers, **QUIET)
    assert time.monotonic() - begun < 4
    assert loop.num_observations >= 3
    assert 1 <= len(loop.pending) <= (workers or 1) + 1


def test_an_interrupt_cancels_what_has_not_begun_and_tells_what_has_ended() -> None:
    class Ended(Executor):
        """Some evaluations have ended when the run is interrupted, others have not begun."""

        def __init__(self) -> None:
            self.futures: list[Future[Any]] = []

        def submit(self, function: Any, /, *args: Any, **options: Any) -> Future[Any]:
            self.futures.append(future := Future[Any]())
            if len(self.futures) == 4:
                self.futures[1].set_result(function(*args))
                raise KeyboardInterrupt
            return future

    loop, executor = quick(), Ended()
    waiting = loop.ask(4)
    with pytest.raises(KeyboardInterrupt):
        loop.run(f, total=9, workers=4, executor=executor, **QUIET)
    assert [future.cancelled() for future in executor.futures[:3]] == [True, False, True]
    assert torch.equal(loop.observations[0], waiting[1:2])
    assert len(loop.pending) == 3


def test_a_killed_run_is_completed_to_the_total(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        count = [0]

        def evaluate(X: Tensor) -> Tensor:
            count[0] += 1
            if count[0] == 6:
                os.kill(os.getpid(), signal.SIGKILL)
            return slow_f(X)

        try:
            quick(tmp_path).run(evaluate, total=10, workers=3, **QUIET)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status)
    with quick(tmp_path) as again:
        waiting, evaluate = again.pending, Sizes()
        assert len(waiting) >= 1
        again.run(evaluate, total=10, workers=3, **QUIET)
        assert torch.equal(torch.cat(evaluate.calls)[: len(waiting)].sort(0).values, waiting.sort(0).values)
        assert (again.num_observations, len(again.pending)) == (10, 0)


# ---------------------------------------------------------------- executors


def norm(points: list[dict[str, float]]) -> list[float]:
    return [point["x"] ** 2 + os.getpid() * 0 for point in points]


def die(points: Any) -> Any:
    os._exit(1)


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(2, multiprocessing.get_context("fork")) as made:
        made.submit(os.getpid).result()  # the processes are there before threads are
        yield made


def test_evaluations_run_in_processes(pool: ProcessPoolExecutor) -> None:
    loop = quick(space={"x": (0.0, 1.0), "y": (0.0, 1.0)})
    loop.run(norm, total=6, q=2, workers=2, executor=pool, **QUIET)
    assert loop.num_observations == 6
    loop.run(norm, total=8, workers=2, executor=pool, **QUIET)  # it is open still
    assert loop.num_observations == 8


def test_what_no_process_can_have_is_refused_before_anything_is_asked(pool: ProcessPoolExecutor) -> None:
    loop = quick()
    with pytest.raises(InvalidArgumentError, match=r"evaluate: .* at the top of a module, or leave out executor"):
        loop.run(lambda X: f(X), total=6, workers=2, executor=pool, **QUIET)
    assert len(loop.steps) == 0


def test_a_broken_pool_is_raised_and_its_points_stay_pending() -> None:
    loop = quick(space={"x": (0.0, 1.0)})
    loop.ask(3)
    with (
        ProcessPoolExecutor(2, multiprocessing.get_context("fork")) as broken,
        pytest.raises(BrokenProcessPool),
    ):
        loop.run(die, total=6, workers=2, executor=broken, on_error="abandon", **QUIET)
    assert len(loop.pending) == 3


def once(points: list[dict[str, float]]) -> list[float]:
    """The function, whose process dies where no file says that this has happened."""
    flag = Path(os.environ["FLAG"])
    if points[0]["x"] != 0.5 and not flag.exists():
        flag.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return norm(points)


def forked() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(2, multiprocessing.get_context("fork"))


def test_an_executor_whose_process_is_killed_is_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLAG", str(tmp_path / "died"))
    loop = quick(space={"x": (0.0, 1.0)})
    loop.run(once, total=6, workers=2, executor=forked, **QUIET)
    assert (loop.num_observations, len(loop.pending), loop.history.attempts) == (6, 0, [])


def test_points_that_kill_every_process_are_failures() -> None:
    loop = quick(space={"x": (0.0, 1.0)})
    with pytest.raises(BrokenProcessPool) as raised:
        loop.run(die, total=6, workers=1, executor=forked, **QUIET)
    assert "The points stay pending" in raised.value.__notes__[0]
    assert (len(loop.pending), len(loop.history.attempts)) == (1, 1)


def test_an_executor_that_is_closed_is_an_error_and_loses_nothing() -> None:
    loop, closed = quick(), ThreadPoolExecutor(2)
    closed.shutdown()
    with pytest.raises(RuntimeError, match="shutdown"):
        loop.run(f, total=6, workers=2, executor=closed, **QUIET)
    assert len(loop.pending) == 1


# ---------------------------------------------------------------- results


@pytest.mark.parametrize("workers", [None, 2])
@pytest.mark.parametrize("q", [1, 2, 3])
def test_values_with_variances_come_in_any_form(workers: int | None, q: int) -> None:
    forms: list[Any] = [
        lambda X: (f(X), variances(X)),
        lambda X: (f(X).tolist(), variances(X).tolist()),
        lambda X: ((y for y in f(X).tolist()), (v for v in variances(X).tolist())),
    ]
    if q == 1:
        forms.append(lambda X: (f(X).item(), variances(X).item()))
    for form in forms:
        loop = quick()
        loop.run(form, total=4, q=q, workers=workers, **QUIET)
        X, Y, Yvar = loop.observations
        assert torch.equal(Y, f(X))
        assert torch.equal(Yvar, variances(X))


def test_generators_and_pairs_of_values_are_values() -> None:
    for form in (lambda X: (y for y in f(X).tolist()), lambda X: tuple(f(X).tolist()), lambda X: tuple(f(X))):
        loop = quick()
        loop.run(form, total=4, q=2, **QUIET)
        X, Y, Yvar = loop.observations
        assert torch.equal(Y, f(X))
        assert Yvar is None


@pytest.mark.parametrize("q", [1, 2])
def test_several_objectives_give_their_trade_offs(q: int) -> None:
    def evaluate(points: list[dict[str, float]]) -> tuple[Any, ...]:
        return tuple({"loss": point["x"], "gain": point["x"] ** 2} for point in points)

    objectives = {"loss": "minimize", "gain": "maximize"}
    made = Optimizer({"x": (0.0, 1.0)}, objectives=objectives, model="wiski", num_initial=10)  # type: ignore[arg-type]
    front = made.run(evaluate, total=6, q=q, workers=2, **QUIET)
    assert made.num_observations == 6
    assert {"loss", "gain"} == set(front[0].outcomes)


# ---------------------------------------------------------------- what is said


def test_the_bar_counts_observations_and_says_the_best(capfd: pytest.CaptureFixture[str]) -> None:
    loop = quick()
    loop.tell(torch.tensor([[0.5, 0.0]]), [9.1234567])
    loop.run(f, total=4)
    said = capfd.readouterr().err
    assert "4/4" in said
    assert "best 9.12346" in said


def test_only_values_within_constraints_are_the_best(capfd: pytest.CaptureFixture[str]) -> None:
    loop = Optimizer({"x": (0.0, 1.0)}, objectives={"loss": "minimize"}, constraints=["cost >= 10"], num_initial=9)
    told: list[float] = []

    def evaluate(points: Any) -> Any:
        told.append(len(told))
        return [{"loss": -len(told), "cost": 10.0 if len(told) == 2 else 0.0} for _ in points]

    loop.run(evaluate, total=4)
    said = capfd.readouterr().err
    assert "4/4" in said
    assert "best loss -2" in said
    assert "best loss -4" not in said


class Foreign:
    """An executor whose jobs are no futures of `concurrent.futures`."""

    def submit(self, function: Any, /, *args: Any) -> None: ...


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "batches, total: pass one of the two"),
        ({"batches": 2, "total": 3}, "batches, total: pass one of the two"),
        ({"total": 0}, "total=0: must be at least 1"),
        ({"total": True}, "total=True: must be a whole number"),
        ({"total": 3, "q": 0}, "q=0"),
        ({"batches": -1}, "batches=-1"),
        ({"total": 3, "workers": 0}, "workers=0"),
        ({"total": 3, "retries": -1}, "retries=-1"),
        ({"total": 3, "timeout_seconds": 0.0}, "timeout_seconds=0.0: must be above 0"),
        ({"total": 3, "on_error": "ignore"}, "on_error='ignore': choose"),
        ({"total": 3, "executor": ThreadPoolExecutor(1)}, "executor: it needs workers"),
        ({"total": 3, "workers": 2, "executor": lambda: Foreign()}, r"got Foreign\. Wrap"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(options: dict[str, Any], message: str) -> None:
    loop = quick()
    with pytest.raises(InvalidArgumentError, match=message):
        loop.run(f, **options, **QUIET)
    assert len(loop.steps) == 0


def test_what_is_no_executor_is_refused_with_the_remedy() -> None:
    with pytest.raises(InvalidArgumentError, match=r"got Foreign\. Wrap .*bo_scale\.distributed\.Futures"):
        Engine(Foreign())
    with pytest.raises(InvalidArgumentError, match=r"executor: expected an executor of concurrent\.futures.* got int"):
        Engine(8)


def test_nothing_is_logged_of_a_run_in_which_nothing_fails(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        quick(objective="maximize").run(f, total=5, workers=2, **QUIET)
    assert caplog.records == []
