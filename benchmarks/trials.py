"""A thousand simulated workers at a hundred results a second: whether the loop keeps them busy."""

import heapq
import math
import random
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from pathlib import Path
from typing import Any

import torch
from typing_extensions import override

from benchmarks import text
from benchmarks.child import in_child, peak_megabytes
from benchmarks.harness import Unit
from benchmarks.store import Result

TITLE = "A thousand workers"
WORKERS, SECONDS, TOTAL = 1000, 10.0, 10_000
"""Workers, mean time of an evaluation, and results."""
RUNS = (("wiski", 2), ("wiski", 3), ("grief", 6))
"""Model and number of inputs."""
QUICK = {"num_restarts": 1, "raw_samples": 512, "max_steps": 15}
"""Options of the acquisition with more than four inputs, where the default takes four times as long a point."""


class Simulated(Executor):
    """Any number of workers, whose evaluations end after random times, half to one and a half of the mean.

    Args:
        seconds: The mean.
    """

    def __init__(self, seconds: float) -> None:
        self._mean, self._random = seconds, random.Random(0)
        self._under_way: list[tuple[float, int, Future[Any], Callable[..., Any], Any]] = []
        self._changed, self._count = threading.Condition(), 0
        self.busy, self.ends = 0.0, list[float]()
        threading.Thread(target=self._work, daemon=True).start()

    @override
    def submit(self, function: Callable[..., Any], /, *args: Any, **options: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()
        seconds = self._random.uniform(0.5, 1.5) * self._mean
        with self._changed:
            self._count += 1
            self.busy += seconds
            heapq.heappush(self._under_way, (time.monotonic() + seconds, self._count, future, function, args))
            self._changed.notify()
        return future

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._under_way or self._under_way[0][0] > time.monotonic():
                    self._changed.wait(self._under_way[0][0] - time.monotonic() if self._under_way else None)
                _, _, future, function, args = heapq.heappop(self._under_way)
            self.ends.append(time.monotonic())
            future.set_result(function(*args))


def function(points: list[dict[str, float]]) -> list[float]:
    """Noisy values of a smooth function with its maximum of 0 where every input is 0.3."""
    return [-sum((value - 0.3) ** 2 for value in point.values()) + random.gauss(0, 0.01) for point in points]


def units(data: Path | None) -> dict[str, Unit]:
    """One for each model and number of inputs."""
    return {f"{model} d={d}": partial(measure, model, d) for model, d in RUNS}


def measure(model: str, d: int) -> dict[str, Any]:
    """A run in a fresh process."""
    return in_child(evaluate, model, d, WORKERS, SECONDS, TOTAL)


def evaluate(model: str, d: int, workers: int, seconds: float, total: int) -> dict[str, Any]:
    """Run a search with a journal; how busy workers were, and what asks took."""
    from bo_scale.loop import Optimizer

    torch.set_num_threads(1)
    executor, space = Simulated(seconds), {f"x{i}": (0.0, 1.0) for i in range(d)}
    with tempfile.TemporaryDirectory() as folder:
        kinds: dict[str, Any] = {"model": model, "acquisition": "Thompson", "objective": "maximize"}
        optimizer = Optimizer(space, seed=0, path=folder, acquisition_options=QUICK if d > 4 else None, **kinds)
        start, processor = time.monotonic(), time.process_time()
        best = optimizer.run(function, total=total, workers=workers, executor=executor, progress=False)
        told, steps = optimizer.num_observations, optimizer.steps
        optimizer.close()
    wall, used = time.monotonic() - start, time.process_time() - processor
    return {
        "model": model,
        "d": d,
        "workers": workers,
        "mean_seconds": seconds,
        "told": told,
        "seconds": wall,
        "processor": used,
        "rate": _rate(executor.ends),
        "asks": len(steps),
        "largest": max(step.q for step in steps),
        "slowest": max(step.model_seconds + step.acquisition_seconds for step in steps),
        "value": function_of(best.x),
        "megabytes": peak_megabytes(),
    }


def function_of(point: dict[str, float]) -> float:
    """The value at a point without noise."""
    return -sum((value - 0.3) ** 2 for value in point.values())


def _rate(ends: list[float]) -> float:
    """Results a second, from the first tenth of them to the last fifth, in which no worker gets a new point."""
    first, last = len(ends) // 10, len(ends) * 4 // 5
    return (last - first) / max(ends[last] - ends[first], math.ulp(1.0))


# ---------------------------------------------------------------------- report


def table(result: Result) -> str:
    """Results a second beside those of workers that never wait."""
    rows = [
        [
            f"{unit['model']}, d = {unit['d']}",
            f"{unit['told']:,}",
            text.seconds(unit["seconds"]),
            f"{unit['rate']:.1f}",
            f"{100 * unit['rate'] * unit['mean_seconds'] / unit['workers']:.0f} %",
            f"{unit['asks']}",
            f"{unit['largest']}",
            text.seconds(unit["slowest"]),
            f"{100 * unit['processor'] / unit['seconds']:.0f} %",
            f"{unit['megabytes']:,.0f}",
            f"{-unit['value']:.1e}",
        ]
        for unit in result["units"].values()
    ]
    header = ["model", "results", "time", "a second", "workers busy", "asks", "largest", "slowest ask", "processor"]
    return (
        f"`Optimizer.run` with {WORKERS:,} simulated workers, whose evaluations take {SECONDS / 2:.0f} to "
        f'{1.5 * SECONDS:.0f} s, acquisition "Thompson", and a journal on disk: workers that never wait give '
        f"{WORKERS / SECONDS:.0f} results a second. With more than four inputs the acquisition has the options "
        f"{', '.join(f'{name}={value}' for name, value in QUICK.items())}.\n\n"
        "- 'a second' and 'workers busy' are of the time between the first tenth of the results and the last fifth.\n"
        "- 'largest' is the largest number of points of an ask; 'slowest ask' includes a fit, during which results are "
        "told on.\n"
        "- 'processor' is the share of one core that the loop takes, the function's evaluations included.\n"
        "- 'regret' is how far the best point's value without noise is from the maximum; noise has a sd of 0.01.\n\n"
        + text.table([*header, "MB", "regret"], rows)
    )


def headline(result: Result) -> list[text.Row]:
    """The busiest and the least busy."""
    done = list(result["units"].values())
    if not done:
        return []
    busy = [unit["rate"] * unit["mean_seconds"] / unit["workers"] for unit in done]
    return [
        (
            f"{WORKERS:,} simulated workers, {WORKERS / SECONDS:.0f} results a second, Thompson",
            f"workers busy {100 * min(busy):.0f} to {100 * max(busy):.0f} %",
            "–",
        )
    ]
