"""Memory of a loop over 1000 asks and tells."""

import gc
from functools import partial
from pathlib import Path
from typing import Any

import torch
from botorch.models import SingleTaskGP

from benchmarks import text
from benchmarks.harness import Unit
from benchmarks.store import Result
from bo_scale.loop import Optimizer

TITLE = "Memory"
PLOTS = {"memory.png": "Resident memory of a loop over asks and tells"}
STEPS, Q, EVERY = {"WISKI": 1000, "SingleTaskGP": 400}, 3, 20


def units(data: Path | None) -> dict[str, Unit]:
    """One for each model. Each should be the first of its process, or memory freed before counts."""
    return {model: partial(measure, model) for model in STEPS}


def resident() -> float:
    """Megabytes of memory in use by this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 1e6


def measure(model: str) -> dict[str, Any]:
    """Megabytes after every so many asks and tells of 3 points, in d = 3."""
    g = torch.Generator().manual_seed(0)
    kind: Any = "wiski" if model == "WISKI" else lambda X, Y, Yvar: SingleTaskGP(X, Y, Yvar)
    loop = Optimizer([(0.0, 1.0)] * 3, model=kind, acquisition="qUCB", acquisition_options={"max_steps": 10})
    n, megabytes = [], []
    for step in range(1, STEPS[model] + 1):
        X = loop.ask(Q)
        f = torch.sin(5 * X[:, 0]) + torch.cos(4 * X[:, 1]) - (X[:, 2] - 0.3).square()
        loop.tell(X, f + 0.5 * torch.randn(Q, generator=g, dtype=torch.float64))
        if step % EVERY == 0:
            gc.collect()
            n.append(loop.num_observations)
            megabytes.append(resident())
    return {"model": model, "seed": 0, "n": n, "megabytes": megabytes}


def table(result: Result) -> str:
    """Memory at some n."""
    rows = []
    for unit in result["units"].values():
        half = len(unit["n"]) // 2
        early, late = max(unit["megabytes"][:half]), max(unit["megabytes"])
        rows.append([unit["model"], f"{unit['n'][-1]:,}", f"{early:,.0f} MB", f"{late:,.0f} MB"])
    return f"Resident memory of a loop in d = 3, batches of {Q}, torch and BoTorch included.\n\n" + text.table(
        ["model", "observations at the end", "peak, first half", "peak"], rows
    )


def plot(result: Result, folder: Path) -> None:
    """Memory against observations."""
    from benchmarks import plots

    lines = {unit["model"]: (unit["n"], unit["megabytes"]) for unit in result["units"].values()}
    with plots.figure(folder / "memory.png") as (axis,):
        for label, (n, megabytes) in lines.items():
            axis.plot(n, megabytes, label=label)
        axis.set(xlabel="Observations", ylabel="MB", ylim=(0, None))
