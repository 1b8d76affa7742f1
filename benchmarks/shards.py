"""Rows in shards, made on the fly: seconds, processor time and memory against the number of rows and of processes."""

import resource
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks import text
from benchmarks.child import in_child, peak_megabytes
from benchmarks.harness import Unit
from benchmarks.store import Result

TITLE = "Rows in shards"
D, GRID, SHARD = 3, 14, 1 << 20
RUNS = ((1 << 24, 0), (1 << 24, 1), (1 << 24, 2), (96 << 20, 1), (96 << 20, 2))
"""Numbers of rows and of processes; none for one pass in this process, without shards."""


@dataclass(frozen=True)
class Simulated:
    """Rows of a shard, made where it is called.

    Attributes:
        number: Its number.
        count: Its rows.
    """

    number: int
    count: int

    def __call__(self) -> tuple[Tensor, Tensor]:
        """Return inputs in the unit cube and noisy values of a smooth function."""
        generator = torch.Generator().manual_seed(self.number)
        X = torch.rand(self.count, D, dtype=torch.float64, generator=generator)
        noise = torch.randn(self.count, 1, dtype=torch.float64, generator=generator)
        return X, function(X) + 0.1 * noise


def function(X: Tensor) -> Tensor:
    """Values at inputs, `n × 1`."""
    return (3 * X.sum(-1, keepdim=True)).sin()


def units(data: Path | None) -> dict[str, Unit]:
    """One for each number of rows and processes."""
    return {f"n={n} processes={count}": partial(measure, n, count) for n, count in RUNS}


def measure(n: int, processes: int) -> dict[str, Any]:
    """A run in a fresh process."""
    return in_child(evaluate, n, processes, SHARD)


def evaluate(n: int, processes: int, size: int) -> dict[str, Any]:
    """Sum rows, one pass in this process or shards in others; the error of the model at new points."""
    from bo_scale import WISKI
    from bo_scale.distributed import accumulate

    torch.set_num_threads(1)
    box = torch.tensor([[0.0] * D, [1.0] * D], dtype=torch.float64)
    model = WISKI(*Simulated(0, 2000)(), grid_size=GRID, bounds=box)
    shards = [Simulated(k + 1, min(size, n - k * size)) for k in range(-(-n // size))]
    start, before = time.perf_counter(), (_processor(), _processor(resource.RUSAGE_CHILDREN))
    if processes:
        found = accumulate(model, shards, executor=processes, progress=False)
    else:
        found = model.with_statistics(model.statistics_of(*shards[0]()))
        for shard in shards[1:]:
            found = found.observe_from_host(*shard())
    wall = time.perf_counter() - start
    own, children = _processor() - before[0], _processor(resource.RUSAGE_CHILDREN) - before[1]
    X, _ = Simulated(len(shards) + 1, 1000)()
    posterior = found.posterior(X)
    error = (posterior.mean - function(X)).detach()
    return {
        "n": n,
        "processes": processes,
        "shards": len(shards),
        "seconds": wall,
        "own": own,
        "children": children,
        "megabytes": peak_megabytes(),
        "children_megabytes": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024,
        "rmse": error.square().mean().sqrt().item(),
        "making": _making(size),
    }


def _processor(who: int = resource.RUSAGE_SELF) -> float:
    found = resource.getrusage(who)
    return found.ru_utime + found.ru_stime


def _making(size: int) -> float:
    """Seconds of processor time to make a row."""
    start = time.process_time()
    Simulated(0, size)()
    return (time.process_time() - start) / size


# ---------------------------------------------------------------------- report


def table(result: Result) -> str:
    """Seconds, processor time a row and memory of every run."""
    runs = sorted(result["units"].values(), key=lambda unit: (unit["n"], unit["processes"]))
    alone = {unit["n"]: unit["seconds"] for unit in runs if unit["processes"] == 1}
    rows = []
    for unit in runs:
        count, one = unit["processes"], alone.get(unit["n"])
        rows.append(
            [
                f"{unit['n']:,}",
                f"{count} process{'es' * (count > 1)}" if count else "one pass",
                text.seconds(unit["seconds"]),
                text.seconds(summing(unit)),
                f"{100 * unit['own'] / (unit['own'] + unit['children']):.1f} %" if count else "–",
                "–" if not count or one is None else f"{one / unit['seconds'] / count:.2f}",
                f"{unit['megabytes']:,.0f}",
                f"{unit['children_megabytes']:,.0f}" if count else "–",
                f"{unit['rmse']:.1e}",
            ]
        )
    header = ["rows", "summed by", "time", "processor time a row", "merging", "efficiency", "MB", "MB of a process"]
    return (
        f"`accumulate` sums shards of {SHARD:,} rows of {D} inputs under a grid of {GRID}³, made on the fly; one pass "
        "observes the same rows in one process, without shards.\n\n"
        "- Processor time is that of features and sums, without that of making the rows.\n"
        "- 'merging' is the share of the process that adds up, all that it does included.\n"
        "- 'efficiency' is the time of one process by that of several and their number. Starting processes counts. A "
        "core's speed varies by a fifth from minute to minute here, so it may be above 1.\n"
        "- RMSE is the error for the noise-free function at 1,000 points; noise has a sd of 0.1.\n\n"
        + text.table([*header, "RMSE"], rows)
        + "\n\n"
        + _extrapolated(runs)
    )


def summing(unit: dict[str, Any]) -> float:
    """Seconds of processor time of a row's features and sums."""
    taken = unit["children"] if unit["processes"] else unit["own"]
    return float(taken / unit["n"] - unit["making"])


def _extrapolated(runs: list[dict[str, Any]]) -> str:
    """What 10¹⁰ rows would take on 64 workers at the costs of the largest run."""
    largest = max((unit for unit in runs if unit["processes"]), key=_size, default=None)
    if largest is None:
        return ""
    a_row, a_shard = largest["children"] / largest["n"], largest["own"] / largest["shards"]
    shards = 10**10 / SHARD
    return (
        f"At these costs 10¹⁰ rows would take {1e10 * a_row / 64 / 60:.0f} minutes on 64 workers, and "
        f"{shards * a_shard:.0f} s of the process that adds up {shards:,.0f} shards (computed, not measured)."
    )


def _size(unit: dict[str, Any]) -> tuple[int, int]:
    return unit["n"], unit["processes"]


def headline(result: Result) -> list[text.Row]:
    """The largest run."""
    done = [unit for unit in result["units"].values() if unit["processes"]]
    if not done:
        return []
    unit = max(done, key=_size)
    return [
        (
            f"{unit['n']:,} rows in {unit['shards']} shards, d = {D}, {unit['processes']} processes",
            f"{text.seconds(unit['seconds'])}, {unit['megabytes']:,.0f} MB and {unit['children_megabytes']:,.0f} MB a "
            "process",
            f"an exact GP's matrix alone: {8e-15 * unit['n'] ** 2:,.0f} PB",
        )
    ]
