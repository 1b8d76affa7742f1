"""Regret of the loop with WISKI and with SingleTaskGP on six noisy three-dimensional functions.

The protocol of Stanton et al. 2021 (WISKI), appendix C.2: five first points, batches of 3 by qUCB. What is recorded is
the noise-free value at the point the loop calls best, against observations and against wall-clock.
"""

import statistics
import time
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from botorch.models import SingleTaskGP
from botorch.test_functions import Ackley, Griewank, Levy, Michalewicz, Rastrigin, StyblinskiTang
from botorch.utils.sampling import draw_sobol_samples
from scipy.stats import t as student
from torch import Tensor

from benchmarks import text
from benchmarks.harness import Unit
from benchmarks.store import Result
from bo_scale.loop import Optimizer

FUNCTIONS: dict[str, tuple[Any, float]] = {
    "Levy": (Levy, 10.0),
    "Ackley": (Ackley, 4.0),
    "StyblinskiTang": (StyblinskiTang, 20.0),
    "Rastrigin": (Rastrigin, 10.0),
    "Griewank": (Griewank, 4.0),
    "Michalewicz": (Michalewicz, 5.0),
}
"""Each with its noise sd."""
MODELS: dict[str, Any] = {"WISKI": "wiski", "SingleTaskGP": lambda X, Y, Yvar: SingleTaskGP(X, Y, Yvar)}
TITLE = "Regret"
PLOTS = {
    "bo_regret.png": "Noise-free value at `best()` against observations: median and quartiles over seeds",
    "bo_regret_time.png": "Noise-free value at `best()` in one full run, against time",
}
SEEDS, MORE_SEEDS = range(20), range(20, 40)
"""More for Rastrigin: neither model resolves its thousand bumps, so that single runs end in any of them."""
BATCHES, FULL_BATCHES = 100, 1500
RIVAL_SECONDS = 600.0
"""A full run of the rival is cut after so long."""


def value_range(name: str) -> float:
    """Largest less smallest noise-free value over a fine quasi-random sample."""
    function = FUNCTIONS[name][0](dim=3)
    X = draw_sobol_samples(function.bounds, 2**16, 1, seed=0).squeeze(1).to(torch.float64)
    values = function(X, noise=False)
    return float(values.max() - values.min())


def optimise(name: str, model: str, seed: int, batches: int, every: int, limit: float = float("inf")) -> dict[str, Any]:
    """One run. Seconds are the loop's own: asking and telling; evaluating `best` is not counted."""
    kind, noise_sd = FUNCTIONS[name]
    function = kind(dim=3)
    generator = torch.Generator().manual_seed(seed)

    def evaluate(X: Tensor) -> Tensor:
        return function(X, noise=False) + noise_sd * torch.randn(len(X), generator=generator, dtype=torch.float64)

    loop = Optimizer(
        function.bounds, objective="minimize", model=MODELS[model], acquisition="qUCB", seed=seed, num_initial=5
    )
    spent, n, value, seconds = 0.0, [], [], []
    for batch in range(batches + 1):
        started = time.perf_counter()
        X = loop.ask(3 if batch else 5)
        asked = time.perf_counter()
        Y = evaluate(X)
        told = time.perf_counter()
        loop.tell(X, Y)
        spent += (asked - started) + (time.perf_counter() - told)
        if batch % every == 0 or batch == batches:
            n.append(loop.num_observations)
            value.append(float(function(loop.best().x, noise=False)))
            seconds.append(spent)
        if spent > limit:
            break
    return {"function": name, "model": model, "seed": seed, "n": n, "value": value, "seconds": seconds}


def units(data: Path | None) -> dict[str, Unit]:
    """Twenty seeds of each function and model, a full run of each function, the functions' ranges."""
    runs: dict[str, Unit] = {"ranges": lambda: {name: value_range(name) for name in FUNCTIONS}}
    for model in reversed(MODELS):
        for seed in SEEDS:
            for name in FUNCTIONS:
                runs[f"{name} {model} seed {seed}"] = partial(optimise, name, model, seed, BATCHES, 1)
    for seed in MORE_SEEDS:
        for model in reversed(MODELS):
            runs[f"Rastrigin {model} seed {seed}"] = partial(optimise, "Rastrigin", model, seed, BATCHES, 1)
    for name in FUNCTIONS:
        runs[f"{name} WISKI full"] = partial(optimise, name, "WISKI", 100, FULL_BATCHES, 5)
        runs[f"{name} SingleTaskGP full"] = partial(optimise, name, "SingleTaskGP", 100, FULL_BATCHES, 5, RIVAL_SECONDS)
    return runs


def table(result: Result) -> str:
    """Values reached at equal evaluations, their difference and its upper bound; full runs at equal wall-clock."""
    runs = result["units"]
    ranges = runs.get("ranges", {})
    rows = [row for name in FUNCTIONS if (row := _regret_row(name, runs, ranges))]
    more = _regret_row("Rastrigin", runs, ranges, seeds=40)
    rows += [more] if more and int(more[3]) > len(SEEDS) else []
    shown = (
        f"The table shows the noise-free value at `best()` after {5 + 3 * BATCHES} observations, as a mean over seeds. "
        "Lower is better. Each run has five first points and batches of 3 by qUCB. Both models are refitted whenever "
        "the data have grown by a factor of 1.25. The difference is WISKI minus SingleTaskGP on the same seeds. The "
        "bound is the upper end of a one-sided 90 % interval (Student's t) for the mean difference.\n\n"
        + text.table(
            ["function", "noise sd", "range", "seeds", "WISKI", "SingleTaskGP", "difference", "bound, % of range"], rows
        )
    )
    full = [row for name in FUNCTIONS for row in _full_rows(name, runs)]
    if not full:
        return shown
    return (
        shown + f"\n\nThe next table is for one full run of {FULL_BATCHES:,} batches (seed 100). SingleTaskGP was "
        f"stopped after {RIVAL_SECONDS:g} s. Each row has the mean value of SingleTaskGP between two marks of its n, "
        f"and that of WISKI in the same interval of time.\n\n"
        + text.table(["function", "seconds", "n SingleTaskGP", "n WISKI", "SingleTaskGP", "WISKI"], full)
    )


def _seeds(name: str, model: str, runs: dict[str, Any]) -> dict[int, dict[str, Any]]:
    """The runs of a function and model by seed."""
    found = (runs.get(f"{name} {model} seed {seed}") for seed in range(1000))
    return {run["seed"]: run for run in found if run}


def _regret_row(name: str, runs: dict[str, Any], ranges: dict[str, float], seeds: int = 20) -> list[str] | None:
    """A row of the first table, over the first so many seeds."""
    ours, theirs = (_seeds(name, model, runs) for model in MODELS)
    common = sorted(ours.keys() & theirs.keys())[:seeds]
    if len(common) < 2 or name not in ranges:
        return None
    values = [[run[seed]["value"][-1] for seed in common] for run in (ours, theirs)]
    gaps = [a - b for a, b in zip(*values, strict=True)]
    bound = statistics.mean(gaps) + float(student.ppf(0.9, len(gaps) - 1)) * statistics.stdev(gaps) / len(gaps) ** 0.5
    means = [statistics.mean(v) for v in values]
    return [
        name,
        f"{FUNCTIONS[name][1]:g}",
        f"{ranges[name]:.3g}",
        str(len(common)),
        f"{means[0]:.2f}",
        f"{means[1]:.2f}",
        f"{means[0] - means[1]:+.2f}",
        f"{100 * bound / ranges[name]:+.1f}",
    ]


def _full_rows(name: str, runs: dict[str, Any]) -> list[list[str]]:
    """Rows of the second table: stretches of the clock from n = 500 of the rival on."""
    ours, theirs = (runs.get(f"{name} {model} full") for model in MODELS)
    if not ours or not theirs:
        return []
    marks = [500, 750, 1000, 1500, 2000, 3000]
    ends = [next((s for n, s in zip(theirs["n"], theirs["seconds"]) if n >= mark), None) for mark in marks]
    ends = [end for end in ends if end is not None] + [theirs["seconds"][-1]]
    rows = []
    for start, end in pairwise(ends):
        within = [[i for i, s in enumerate(run["seconds"]) if start < s <= end] for run in (theirs, ours)]
        if not within[0]:
            continue
        if not within[1]:
            within[1] = [len(ours["seconds"]) - 1]  # WISKI had finished its run
        means = [statistics.mean(run["value"][i] for i in index) for run, index in zip((theirs, ours), within)]
        counts = [run["n"][index[-1]] for run, index in zip((theirs, ours), within)]
        rows.append([name, f"{start:.0f}-{end:.0f}", *(f"{n:,}" for n in counts), *(f"{mean:.2f}" for mean in means)])
    return rows


def headline(result: Result) -> list[text.Row]:
    """The worst bound, over all seeds there are."""
    units = result["units"]
    found = (_regret_row(name, units, units.get("ranges", {}), seeds=40) for name in FUNCTIONS)
    rows = [row for row in found if row]
    if len(rows) < len(FUNCTIONS):
        return []
    worst = max(rows, key=lambda row: float(row[-1]))
    return [
        (
            f"regret after {5 + 3 * BATCHES} observations, six noisy 3-d functions",
            f"mean difference to SingleTaskGP, upper 90 % bound: {worst[-1]} % of the range at worst ({worst[0]}, "
            f"{worst[3]} seeds)",
            "the same loop with `SingleTaskGP`",
        )
    ]


def plot(result: Result, folder: Path) -> None:
    """Against evaluations, medians over seeds with quartiles; against wall-clock, the full runs."""
    from benchmarks import plots

    runs = result["units"]
    with plots.figure(folder / "bo_regret.png", panels=3, rows=2) as axes:
        for axis, name in zip(axes, FUNCTIONS, strict=True):
            for model in MODELS:
                done = list(_seeds(name, model, runs).values())
                if done:
                    plots.band(axis, done[0]["n"], [run["value"] for run in done], model)
            axis.set(title=f"{name}, noise sd {FUNCTIONS[name][1]:g}", xlabel="Observations", ylabel="Value at best()")
    full = [name for name in FUNCTIONS if f"{name} WISKI full" in runs]
    if not full:
        return
    with plots.figure(folder / "bo_regret_time.png", panels=len(full)) as axes:
        for axis, name in zip(axes, full, strict=True):
            for model in MODELS:
                run = runs.get(f"{name} {model} full")
                if run:
                    axis.plot(run["seconds"], run["value"], label=f"{model}, to n = {run['n'][-1]:,}")
            axis.set(title=name, xlabel="Seconds", ylabel="Value at best()")
