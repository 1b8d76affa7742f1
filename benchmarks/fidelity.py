"""Evaluations at fidelities that the loop chooses, against evaluations at the target alone, at the same total cost."""

import itertools
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from botorch.test_functions.multi_fidelity import AugmentedBranin, AugmentedHartmann
from torch import Tensor

from benchmarks import text
from benchmarks.harness import Unit
from benchmarks.store import Result
from bo_scale.loop import Optimizer

TITLE = "Fidelities"
BUDGET, FIXED_COST, SEEDS = 25.0, 0.1, 10
"""What a run may spend, in evaluations at the target; the cost that does not depend on the fidelity; runs."""
WAYS = ("qMFKG", "qLogNEI at the target")


def _training(X: Tensor) -> Tensor:
    """Return the loss of a network by log learning rate, dropout and share of epochs: cut short, rates look better."""
    rate, dropout, missing = X[:, 0] + 2.2 + 0.4 * (X[:, 2] - 1), X[:, 1] - 0.3, 1 - X[:, 2]
    return rate.square() + 2 * dropout.square() + 0.5 * torch.sin(3 * X[:, 0]) * dropout + 0.6 * missing.square()


Bounds = list[tuple[float, float]]
PROBLEMS: dict[str, tuple[Callable[[Tensor], Tensor], Bounds]] = {
    "Branin": (AugmentedBranin(), [(-5.0, 10.0), (0.0, 15.0), (0.0, 1.0)]),
    "Hartmann-6": (AugmentedHartmann(), [(0.0, 1.0)] * 7),
    "Training": (_training, [(-4.0, -1.0), (0.0, 0.9), (0.0, 1.0)]),
}
"""Functions to be minimised, whose last input is the fidelity, with its target at 1."""
GRID = 200_000


def units(data: Path | None) -> dict[str, Unit]:
    """One for each function, seed and way."""
    every = itertools.product(PROBLEMS, range(SEEDS), WAYS)
    return {f"{p} {way} seed {s}": partial(optimise, p, way, s) for p, s, way in every}


def optimise(problem: str, way: str, seed: int) -> dict[str, Any]:
    """Return the regret at the point called best when half of the budget is spent and at its end."""
    function, bounds = PROBLEMS[problem]
    last = len(bounds) - 1
    chooses = way == WAYS[0]
    optimizer = Optimizer(
        bounds, objective="minimize", seed=seed, acquisition=way.split()[0], fidelity={last: 1.0} if chooses else None
    )
    spent, evaluations, started, regrets = 0.0, 0, time.process_time(), []
    for budget in (BUDGET / 2, BUDGET):
        while spent < budget:
            point = torch.as_tensor(optimizer.ask(fixed=None if chooses else {last: 1.0}), dtype=torch.float64)
            cost = (FIXED_COST + point[0, last].item()) / (FIXED_COST + 1)
            optimizer.tell(point, function(point), cost=cost)
            spent, evaluations = spent + cost, evaluations + 1
        best = torch.as_tensor(optimizer.best(fixed={last: 1.0}).x, dtype=torch.float64).unsqueeze(0)
        regrets.append(function(best).item() - _least(problem))
    seconds = (time.process_time() - started) / evaluations
    return {"half": regrets[0], "regret": regrets[1], "evaluations": evaluations, "seconds": seconds, "seed": seed}


def _least(problem: str) -> float:
    """Return the smallest value at the target."""
    function, bounds = PROBLEMS[problem]
    if problem != "Training":
        return float(function.optimal_value)  # type: ignore[attr-defined]
    low, high = torch.tensor(bounds, dtype=torch.float64).T
    X = low + (high - low) * torch.quasirandom.SobolEngine(len(bounds)).draw(GRID, dtype=torch.float64)
    X[:, -1] = 1.0
    return function(X).min().item()


def table(result: Result) -> str:
    """Mean regrets and their standard errors."""
    rows = []
    for problem in PROBLEMS:
        runs = {way: _runs(result, f"{problem} {way} ") for way in WAYS}
        for way, found in runs.items():
            if found:
                shown = [_mean_and_error([max(run[key], 0.0) for run in found]) for key in ("half", "regret")]
                counts = statistics.mean(run["evaluations"] for run in found)
                seconds = text.seconds(statistics.median(run["seconds"] for run in found))
                rows.append([problem, way, *shown, f"{counts:.0f}", seconds, str(len(found))])
    introduction = (
        f"A run may spend as much as {BUDGET:g} evaluations at the target cost. An evaluation costs {FIXED_COST:g} "
        f"plus its fidelity, between 0 and 1. Regret is the true one at the point that the model calls best at the "
        f"target, mean and standard error over seeds. The rival spends all on evaluations at the target. Seconds "
        f"are the processor's for each evaluation, fits included."
    )
    header = ["function", "way", "regret, half of the budget", "all of it", "evaluations", "an ask", "seeds"]
    return f"{introduction}\n\n{text.table(header, rows)}"


def headline(result: Result) -> list[text.Row]:
    """Mean regrets at the end."""
    shown: dict[str, list[str]] = {way: [] for way in WAYS}
    for problem in PROBLEMS:
        runs = {way: _runs(result, f"{problem} {way} ") for way in WAYS}
        if all(runs.values()):
            for way in WAYS:
                shown[way].append(f"{problem} {statistics.mean(max(run['regret'], 0.0) for run in runs[way]):.2g}")
    if not shown[WAYS[0]]:
        return []
    what = f"mean regret with fidelities to choose, at the cost of {BUDGET:g} evaluations at the target"
    return [(what, ", ".join(shown[WAYS[0]]), f"qLogNEI at the target alone: {', '.join(shown[WAYS[1]])}")]


def _mean_and_error(values: list[float]) -> str:
    error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0
    return f"{statistics.mean(values):.2g} ± {error:.1g}"


def _runs(result: Result, name: str) -> list[dict[str, Any]]:
    return [unit for unit_name, unit in result["units"].items() if unit_name.startswith(name)]
