"""Batches of the loop, chosen point by point, against BoTorch's joint optimisation of the same acquisition function."""

import itertools
import statistics
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from botorch.acquisition.acquisition import AcquisitionFunction
from botorch.optim import optimize_acqf
from botorch.test_functions import Ackley, Hartmann, Levy, SyntheticTestFunction
from torch import Tensor

from benchmarks import text
from benchmarks.harness import Unit
from benchmarks.store import Result
from bo_scale.decisions.by_name import acquisition_kind
from bo_scale.loop import Optimizer, Setting

TITLE = "Batches"
PROBLEMS: dict[str, tuple[SyntheticTestFunction, str]] = {
    "Hartmann-6": (Hartmann(6), "grief"),
    "Levy-3": (Levy(3), "wiski"),
    "Ackley-5": (Ackley(5), "grief"),
}
"""Functions and the models of the loop."""
ACQUISITIONS = ("qLogEI", "qUCB")
WAYS = ("point by point", "jointly")
SEEDS, INITIAL, BATCHES, BATCH, NOISE = 8, 10, 9, 5, 0.05
"""Runs; quasi-random points, batches, points of a batch and standard deviation of the noise of each."""


def units(data: Path | None) -> dict[str, Unit]:
    """One for each function, acquisition, way and seed."""
    every = itertools.product(PROBLEMS, ACQUISITIONS, range(SEEDS), WAYS)
    return {f"{p} {a} {way} seed {s}": partial(optimise, p, a, way, s) for p, a, s, way in every}


def optimise(problem: str, acquisition: str, way: str, seed: int) -> dict[str, Any]:
    """The regret at the point called best after the last batch, and processor seconds."""
    function, model = PROBLEMS[problem]
    torch.manual_seed(seed)
    bounds = [tuple(pair) for pair in function.bounds.double().T.tolist()]
    chosen: Any = acquisition if way == WAYS[0] else partial(_jointly, acquisition)
    optimizer = Optimizer(bounds, objective="minimize", model=model, seed=seed, acquisition=chosen, num_initial=INITIAL)
    started = time.process_time()
    for q in (INITIAL, *[BATCH] * BATCHES):
        points = torch.as_tensor(optimizer.ask(q), dtype=torch.float64)
        optimizer.tell(points, function(points) + NOISE * torch.randn(q, dtype=torch.float64))
    best = torch.as_tensor(optimizer.best().x, dtype=torch.float64).unsqueeze(0)
    regret = function(best).item() - function.optimal_value
    return {"regret": regret, "seconds": time.process_time() - started, "seed": seed}


def _jointly(acquisition: str, setting: Setting) -> Tensor | AcquisitionFunction:
    """The points of BoTorch's joint optimisation, with as many restarts and raw samples as the loop has for each."""
    made = acquisition_kind(acquisition).make(setting)
    points: Tensor = optimize_acqf(
        made,
        setting.bounds,
        q=setting.q,
        num_restarts=4,
        raw_samples=128,
        options={"maxiter": 60, "seed": setting.seed},
    )[0]
    return points


def table(result: Result) -> str:
    """Mean regret and its standard error."""
    rows = []
    for problem, acquisition in itertools.product(PROBLEMS, ACQUISITIONS):
        runs = {way: _runs(result, f"{problem} {acquisition} {way} ") for way in WAYS}
        if all(runs.values()):
            regrets = [text.mean_and_error([run["regret"] for run in runs[way]]) for way in WAYS]
            times = [text.seconds(statistics.median(run["seconds"] for run in runs[way]) / BATCHES) for way in WAYS]
            rows.append([problem, acquisition, *regrets, *times, str(len(runs[WAYS[0]]))])
    introduction = (
        f"{BATCHES} batches of {BATCH} points after {INITIAL} quasi-random ones, noise of sd {NOISE}. Regret is the "
        f"true regret at the point that the model calls best, mean and standard error over seeds. The loop chooses "
        f"points one after the other, from starts near good points. The rival is BoTorch's joint optimisation of the "
        f"same acquisition function with the same model. Seconds are the processor's for each batch, fits included."
    )
    header = ["function", "acquisition", *WAYS, *(f"a batch, {way}" for way in WAYS), "seeds"]
    return f"{introduction}\n\n{text.table(header, rows)}"


def headline(result: Result) -> list[text.Row]:
    """Mean regrets of expected improvement."""
    shown: dict[str, list[str]] = {way: [] for way in WAYS}
    for problem in PROBLEMS:
        runs = {way: _runs(result, f"{problem} qLogEI {way} ") for way in WAYS}
        if all(runs.values()):
            for way in WAYS:
                shown[way].append(f"{problem} {statistics.mean(run['regret'] for run in runs[way]):.2f}")
    if not shown[WAYS[0]]:
        return []
    what = f"mean regret after {BATCHES} batches of {BATCH} by qLogEI"
    return [(what, ", ".join(shown[WAYS[0]]), f"BoTorch's joint batches: {', '.join(shown[WAYS[1]])}")]


def _runs(result: Result, name: str) -> list[dict[str, Any]]:
    return [unit for unit_name, unit in result["units"].items() if unit_name.startswith(name)]
