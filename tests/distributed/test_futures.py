"""Executors of other packages, as executors of `concurrent.futures`."""

import os
import threading
import time
from concurrent.futures import wait
from pathlib import Path
from typing import Any

import pytest
import torch
from made_rows import Made, same, wiski

from bo_scale.distributed import Futures, RayExecutor, accumulate
from bo_scale.errors import InvalidArgumentError
from bo_scale.loop import Optimizer


class Job:
    """A job of some other package, which is no future."""

    def __init__(self, function: Any, arguments: Any) -> None:
        self.begun, self.ended = threading.Event(), threading.Event()
        self.function, self.arguments, self.cancelled = function, arguments, False
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        try:
            self.value, self.error = self.function(*self.arguments), None
        except Exception as error:
            self.error = error
        self.ended.set()

    def done(self) -> bool:
        return self.ended.is_set()

    def result(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.value

    def cancel(self) -> None:
        self.cancelled = True


class Jobs:
    def __init__(self) -> None:
        self.made: list[Job] = []

    def submit(self, function: Any, /, *arguments: Any) -> Job:
        self.made.append(Job(function, arguments))
        return self.made[-1]


def test_jobs_become_futures_in_the_order_in_which_they_end() -> None:
    first, executor = threading.Event(), Futures(Jobs(), seconds=0.01)
    slow, fast, wrong = executor.submit(first.wait, 20), executor.submit(abs, -3), executor.submit(int, "x")
    assert fast.result(20) == 3
    assert isinstance(wrong.exception(20), ValueError)
    assert not slow.done()
    first.set()
    assert slow.result(20) is True
    time.sleep(0.05)
    assert executor.submit(abs, -4).result(20) == 4  # although the watcher had nothing left to do


def test_a_future_that_is_cancelled_cancels_its_job() -> None:
    jobs, never = Jobs(), threading.Event()
    future = Futures(jobs, seconds=0.01).submit(never.wait, 20)
    assert future.cancel()
    assert future.cancel()
    assert wait([future], 1).done == {future}
    assert jobs.made[0].cancelled
    never.set()


def test_a_time_that_is_not_positive_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"seconds=0.0: must be above 0"):
        Futures(Jobs(), seconds=0.0)


def test_jobs_of_submitit_become_futures(tmp_path: Path) -> None:
    submitit = pytest.importorskip("submitit")
    executor = Futures(submitit.LocalExecutor(tmp_path), seconds=0.05)
    good, bad = executor.submit(abs, -3), executor.submit(int, "x")
    assert good.result(60) == 3
    assert "invalid literal" in str(bad.exception(60))


def test_submitit_jobs_sum_shards_to_the_same_bits(tmp_path: Path) -> None:
    submitit = pytest.importorskip("submitit")
    model, shards = wiski(), [Made(k) for k in range(2)]
    found = accumulate(model, shards, executor=Futures(submitit.DebugExecutor(tmp_path), 0.01), progress=False)
    assert same(found, accumulate(model, shards, progress=False))


def test_ray_runs_trials_and_sums_shards() -> None:
    ray = pytest.importorskip("ray")
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    ray.init(num_cpus=2, include_dashboard=False, runtime_env={"env_vars": {"PYTHONPATH": path}})
    try:
        model, shards = wiski(), [Made(k) for k in range(3)]
        executor = RayExecutor(num_cpus=1)
        assert same(accumulate(model, shards, executor=executor, progress=False), accumulate(model, shards))
        optimizer = Optimizer([(0.0, 1.0)], objective="maximize", seed=0, num_initial=4)
        optimizer.run(torch.sum, total=3, workers=2, executor=executor, progress=False)
        assert optimizer.num_observations == 3
    finally:
        ray.shutdown()
