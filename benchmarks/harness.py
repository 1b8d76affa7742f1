"""Timing, test problems, and results with the machine and versions they were measured on."""

import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import botorch
import gpytorch
import torch
from torch import Tensor

RESULTS = Path(__file__).parent / "results"


def median_seconds(function: Callable[[], Any], repeats: int, warmup: int = 1) -> float:
    """Median wall time of a call."""
    return interleaved([function], repeats, warmup)[0]


def interleaved(functions: Sequence[Callable[[], Any]], repeats: int, warmup: int = 1) -> list[float]:
    """Median wall time of each function, taken in turns so that all see the same machine."""
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
    """Inputs in the unit cube and noisy values of a smooth function of unit scale."""
    g = torch.Generator().manual_seed(seed)
    X = torch.rand(n, d, generator=g, dtype=torch.float64)
    f = torch.sin(5 * X[:, :1]) + torch.cos(3 * X[:, 1:].sum(-1, keepdim=True))
    return X, f + noise * torch.randn(n, 1, generator=g, dtype=torch.float64)


def write(case: str, result: dict[str, Any]) -> Path:
    """Write a result beside the machine and versions it was measured on."""
    machine = {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }
    versions = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "gpytorch": gpytorch.__version__,
        "botorch": botorch.__version__,
    }
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{case}.json"
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps({"case": case, "machine": machine, "versions": versions, **result}, indent=1) + "\n")
    partial.replace(path)
    return path


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())
