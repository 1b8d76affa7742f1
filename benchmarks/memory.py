"""Memory of a loop, and time a batch, over 1500 asks and tells."""

import gc
import statistics
import time
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from botorch.models import SingleTaskGP
from botorch.test_functions import Levy

from benchmarks import text
from benchmarks.harness import Unit
from benchmarks.store import Result
from bo_scale.loop import Optimizer

TITLE = "Memory and time of a loop"
PLOTS = {"memory.png": "Resident memory of a loop and seconds per batch against the number of observations"}
STEPS, Q, EVERY = {"WISKI": 1500, "SingleTaskGP": 330}, 3, 30
NOISE_SD = 10.0


def units(data: Path | None) -> dict[str, Unit]:
    """One for each model. Each should be the first of its process, or memory freed before counts."""
    return {model: partial(measure, model) for model in STEPS}


def resident() -> float:
    """Megabytes of memory in use by this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 1e6


def measure(model: str) -> dict[str, Any]:
    """Megabytes and seconds a batch, every so many batches of 3 on noisy Levy-3."""
    g = torch.Generator().manual_seed(0)
    function = Levy(dim=3)
    kind: Any = "wiski" if model == "WISKI" else lambda X, Y, Yvar: SingleTaskGP(X, Y, Yvar)
    loop = Optimizer(function.bounds, objective="minimize", model=kind, acquisition="qUCB")
    n, megabytes, seconds, fits = [], [], [], []
    started = time.perf_counter()
    for step in range(1, STEPS[model] + 1):
        X = loop.ask(Q)
        loop.tell(X, function(X, noise=False) + NOISE_SD * torch.randn(Q, generator=g, dtype=torch.float64))
        if step % EVERY == 0:
            part = loop.steps[-EVERY:]
            seconds.append((time.perf_counter() - started) / EVERY)
            fits.append(sum(step.model_seconds for step in part if step.fitted) / EVERY)
            gc.collect()
            n.append(loop.num_observations)
            megabytes.append(resident())
            started = time.perf_counter()
    return {"model": model, "seed": 0, "n": n, "megabytes": megabytes, "seconds": seconds, "fits": fits}


def table(result: Result) -> str:
    """Memory and time in stretches of n."""
    rows = []
    for unit in result["units"].values():
        for low, high in pairwise((0, 500, 1000, 1500, 3000, 4500)):
            within = [i for i, n in enumerate(unit["n"]) if low < n <= high]
            if within:
                memory = max(unit["megabytes"][i] for i in within)
                whole = statistics.mean(unit["seconds"][i] for i in within)
                plain = statistics.median(unit["seconds"][i] - unit["fits"][i] for i in within)
                last = unit["n"][within[-1]]
                rows.append(
                    [unit["model"], f"{low:,}-{last:,}", f"{memory:,.0f} MB", text.seconds(plain), text.seconds(whole)]
                )
    return (
        f"A loop optimises Levy-3 (noise sd {NOISE_SD:g}) in batches of {Q} by qUCB. Memory is the largest resident "
        f"memory, including torch and BoTorch, sampled every {EVERY} batches. Seconds per batch are a median without "
        "fits, and a mean with fits.\n\n"
        + text.table(["model", "n", "memory at most", "a batch without fits", "a batch with fits"], rows)
    )


def headline(result: Result) -> list[text.Row]:
    """Time a batch early and late, and memory."""
    unit = result["units"].get("WISKI")
    if unit is None or unit["n"][-1] < 4500:
        return []
    early = [s for s, n in zip(unit["seconds"], unit["n"], strict=True) if 500 < n <= 1500]
    late = [s for s, n in zip(unit["seconds"], unit["n"], strict=True) if n > 3500]
    memory = [max(m for m, n in zip(unit["megabytes"], unit["n"], strict=True) if n <= k) for k in (1500, 4500)]
    return [
        (
            "a batch of 3 in the loop on noisy Levy-3, mean time with fits",
            f"{text.seconds(statistics.mean(early))} at n = 500-1,500, {text.seconds(statistics.mean(late))} at "
            f"3,500-4,500; memory at most {memory[0]:,.0f} and {memory[1]:,.0f} MB",
            "`SingleTaskGP`: see [long runs](long-runs.md)",
        )
    ]


def plot(result: Result, folder: Path) -> None:
    """Memory and time against observations."""
    from benchmarks import plots

    with plots.figure(folder / "memory.png", panels=2) as axes:
        for unit in result["units"].values():
            axes[0].plot(unit["n"], unit["megabytes"], label=unit["model"])
            axes[1].plot(unit["n"], unit["seconds"], ".-", label=unit["model"])
        axes[0].set(xlabel="Observations", ylabel="MB", ylim=(0, None))
        axes[1].set(xlabel="Observations", ylabel="Seconds a batch, means of 30", ylim=(0, None))
