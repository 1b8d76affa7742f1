"""Timing, test problems, data sets, and the run of a case unit by unit."""

import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from fnmatch import fnmatch
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.store import Store

Unit = Callable[[], dict[str, Any]]


class MissingDataError(Exception):
    """A case needs a data set that is not there."""


def run_case(case: str, data: Path | None, fresh: bool = False, pattern: str = "*", folder: Path | None = None) -> None:
    """Measure the units of a case that have no result yet and that no other process is measuring.

    Args:
        case: A module of this package, see its docstring.
        data: Folder of data sets.
        fresh: Forget the results there are.
        pattern: Of the names of units to measure.
        folder: Where results are kept; None means benchmarks/results.

    Raises:
        StoreError: if the results there are come from other versions, or another machine and the case is not ANYWHERE.
    """
    module = import_module(f"benchmarks.{case}")
    units: dict[str, Unit] = module.units(data)
    store = Store(case, folder, getattr(module, "ANYWHERE", False))
    if fresh:
        store.clear()
    store.check()
    for name, measure in units.items():
        if not fnmatch(name, pattern):
            continue
        with store.claim(name) as mine:
            if not mine:
                continue
            measured = _measure(measure)
            store.add(name, measured)
            print(f"{case} | {name} | {measured['wall_seconds']:.1f} s", flush=True)
    left = [name for name in units if name not in store.read()["units"]]
    print(f"{case}: {len(units) - len(left)} of {len(units)} units in {store.path}", flush=True)


def _measure(measure: Unit) -> dict[str, Any]:
    """A unit's result, with threads and wall time."""
    torch.manual_seed(0)
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        measured = measure()
    wall = round(time.perf_counter() - start, 2)
    return {**measured, "threads": torch.get_num_threads(), "wall_seconds": wall}


def require_data(data: Path | None, name: str) -> Path:
    """The path of a data set.

    Args:
        data: The folder given by --data or BO_SCALE_DATA.
        name: File name in it.

    Raises:
        MissingDataError: saying what to do.
    """
    if data is None or not (data / name).is_file():
        raise MissingDataError(
            f"{name}: {'no folder of data sets given' if data is None else f'not in {data}'}. Put it into a folder and "
            f"pass --data FOLDER, or set BO_SCALE_DATA; bo_scale/datasets/README.md says where the data come from."
        )
    return data / name


def median_seconds(function: Callable[[], Any], repeats: int, warmup: int = 1) -> float:
    """Median wall time of a call."""
    return interleaved([function], repeats, warmup)[0]


def interleaved(functions: Sequence[Callable[[], Any]], repeats: int, warmup: int = 1) -> list[float]:
    """Median wall time of each function, taken in turns so that all see the same machine.

    Args:
        functions: What to time.
        repeats: Rounds that count.
        warmup: Rounds before, that do not.
    """
    seconds: list[list[float]] = [[] for _ in functions]
    for i in range(warmup + repeats):
        for taken, function in zip(seconds, functions, strict=True):
            start = time.perf_counter()
            function()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            if i >= warmup:
                taken.append(time.perf_counter() - start)
    return [statistics.median(taken) for taken in seconds]


def smooth_data(n: int, d: int = 2, noise: float = 0.1, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Inputs `n × d` in the unit cube and noisy values `n × 1` of a smooth function of unit scale."""
    g = torch.Generator().manual_seed(seed)
    X = torch.rand(n, d, generator=g, dtype=torch.float64)
    f = torch.sin(5 * X[:, :1]) + torch.cos(3 * X[:, 1:].sum(-1, keepdim=True))
    return X, f + noise * torch.randn(n, 1, generator=g, dtype=torch.float64)
