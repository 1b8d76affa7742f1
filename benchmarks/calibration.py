"""The model that `choose` takes, and every family, on all data sets at hand: error, log density, coverage and width."""

import math
import statistics
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize
from torch import Tensor
from torch.distributions import Normal

from benchmarks import text
from benchmarks.child import in_child_or_error
from benchmarks.harness import Unit, require_data
from benchmarks.store import Result

TITLE = "Calibration of all models"
DATA_SETS = (
    "airfoil",
    "3droad_head5k",
    "autompg",
    "bike",
    "elevators",
    "energy",
    "gas",
    "hotspots_civ",
    "hotspots_mwi",
    "jason3_wind",
    "jura",
    "keggundirected",
    "kin40k",
    "malaria_central_africa_2017",
    "meuse",
    "parkinsons",
    "pol",
    "powerplant",
    "protein",
    "satellite_temp",
    "shelikof_pollock",
    "shelikof_sst",
    "skillcraft",
)
"""Sets with a continuous target."""
SIZES: tuple[int | None, ...] = (50, 200, 1000, 5000, None)
"""Numbers of training rows; None for all."""
FOLDS = {50: 20, 200: 20, 1000: 3, 5000: 3}
"""Numbers of random splits; one with all rows."""
SMALL, MOST_FOLDS = ("autompg", "jura", "meuse"), 20
"""Sets of so few rows that three splits say little, and their number of splits with any number of rows. Larger numbers
than they have are the same fits."""
TEST_ROWS = 1000
MODELS = ("choose", "CaGP", "SoftKI", "GRIEF", "SingleTaskGP")
LOG_TARGETS = "choose, log targets"
"""`choose`, which models logarithms of targets where these are the likelier."""
OURS = MODELS[:-1]
LARGEST = {"CaGP": 5000, "SingleTaskGP": 200}
"""Largest number of rows of some models."""
LEVELS = (0.5, 0.8, 0.95)


def units(data: Path | None) -> dict[str, Unit]:
    """One for each size, split, data set and model, small sizes first."""
    return {
        f"{name} n={n or 'all'} {model} split {fold}": partial(measure, data, name, n, model, fold)
        for n in SIZES
        for fold in range(MOST_FOLDS)
        for name in DATA_SETS
        if fold < (MOST_FOLDS if name in SMALL else FOLDS.get(n or 0, 1))
        for model in MODELS
        if (n or 10**9) <= LARGEST.get(model, 10**9)
    }


def measure(data: Path | None, name: str, n: int | None, model: str, fold: int) -> dict[str, Any]:
    """One fit, in a process of its own if it may take much memory."""
    path, described = require_data(data, f"{name}.npz"), {"data": name, "n": n, "model": model, "fold": fold}
    if n is not None and n <= 1000:
        return {**described, **evaluate(path, n, model, fold)}
    return in_child_or_error(described, evaluate, path, n, model, fold)


def evaluate(path: Path, n: int | None, model: str, fold: int) -> dict[str, Any]:
    """Fit a model to some rows of a file in raw units, and predict others."""
    npz = np.load(path)
    X, y = (torch.from_numpy(np.asarray(npz[key], dtype=np.float64)) for key in ("X", "y"))
    return evaluated(X, y, n, model, fold)


def evaluated(X: Tensor, y: Tensor, n: int | None, model: str, fold: int) -> dict[str, Any]:
    """Fit a model to n rows at random, or to all, and predict others.

    Args:
        X: Inputs `N × d`.
        y: Targets `N`.
        n: Number of training rows; None for all but the test rows.
        model: One of `MODELS`, or `LOG_TARGETS`.
        fold: Seed for the split.
    """
    order = torch.from_numpy(np.random.default_rng(fold).permutation(len(X)))
    test = order[: min(TEST_ROWS, len(X) // 5)]
    train = order[len(test) :][:n]
    Y = y[train].unsqueeze(-1)
    started = time.perf_counter()
    fitted: Any = _fitted(model, X[train], Y)
    seconds = time.perf_counter() - started
    with torch.no_grad():
        posterior = fitted.posterior(X[test].unsqueeze(1), observation_noise=True)
    scale, truth, chosen = Y.std(), y[test], getattr(fitted, "choice", None)
    logs = getattr(posterior, "logarithms", None)  # Gaussian ones, of a log-normal posterior
    positive = truth.clamp_min(torch.finfo(truth.dtype).tiny).log()  # other values have hardly a density
    values, gaussian, change = (truth, posterior, 0.0) if logs is None else (positive, logs, positive)
    mean, deviation = gaussian.mean.flatten(), gaussian.variance.flatten().sqrt()
    z, ends = (values - mean) / deviation, [mean + sign * _quantile(0.95) * deviation for sign in (-1, 1)]
    lower, upper = ends if logs is None else [end.exp() for end in ends]
    return {
        "rows": len(train),
        "inputs": X.shape[-1],
        "rmse": ((truth - posterior.mean.flatten()) / scale).square().mean().sqrt().item(),
        "nll": (change - Normal(mean, deviation).log_prob(values) - scale.log()).mean().item(),
        "coverage": [(z.abs() < _quantile(level)).double().mean().item() for level in LEVELS],
        "width": ((upper - lower) / scale).mean().item(),
        "seconds": seconds,
        "chosen": None if chosen is None else str(chosen.plan),
    }


def _quantile(level: float) -> float:
    return Normal(0.0, 1.0).icdf(torch.tensor(0.5 + 0.5 * level)).item()


def _fitted(model: str, X: Tensor, Y: Tensor) -> Any:
    from botorch.fit import fit_gpytorch_mll
    from gpytorch.mlls import ExactMarginalLogLikelihood

    import bo_scale

    if model == "choose":
        return bo_scale.choose(X, Y)
    if model == LOG_TARGETS:
        return bo_scale.choose(X, Y, log_targets=None)
    made: dict[str, Any] = {
        "CaGP": lambda: bo_scale.CaGP(X, Y, policy="cg", epochs=0, progress=False),
        "SoftKI": lambda: bo_scale.SoftKI(X, Y, progress=False),
        "GRIEF": lambda: bo_scale.GRIEF(X, Y),
        "SingleTaskGP": lambda: SingleTaskGP(X, Y, input_transform=Normalize(X.shape[-1])),
    }
    fitted = made[model]()
    fit_gpytorch_mll(ExactMarginalLogLikelihood(fitted.likelihood, fitted))
    return fitted.eval()


def table(result: Result) -> str:
    """For each size, means over data sets; then every data set."""
    every = [unit for unit in result["units"].values() if "rmse" in unit]
    rows, details = [], []
    for n in SIZES:
        of_size = [unit for unit in every if unit["n"] == n]
        best = {key: min(group, key=lambda unit: unit["nll"]) for key, group in _grouped(of_size).items()}
        for model in MODELS:
            mine = [unit for unit in of_size if unit["model"] == model]
            if mine:
                rows.append([str(n or "all"), model, *_means(mine, best)])
    for (name, n), group in _by_set(every).items():
        details.append([name, str(n or "all"), *(_cell(group, model) for model in MODELS), _chosen(group)])
    introduction = (
        "Inputs are in raw units. Test rows are up to 1,000 others, at random. There are 20 splits with up to 200 rows "
        "and of the smallest three sets, three with up to 5,000 rows, and one with all. Errors, densities and widths "
        "are in units of the training targets' standard deviation; a width of 3.92 is that of a model that knows "
        "nothing. `CaGP` is the exact GP with an RBF kernel up to 4,096 rows. Regret is the difference from the best "
        "model in hindsight, and the worst split is in brackets. All are means over data sets of means over splits, "
        "seconds the median over data sets. Means of log densities cut single values off at 5."
    )
    beside = [row for n in SIZES if (row := _beside_the_best(n, [unit for unit in every if unit["n"] == n]))]
    compared = (
        "`choose` beside the best model in hindsight, itself included, each by the mean of its splits: mean over data "
        "sets, and the worst one in brackets. Its 95 % intervals hold a share of test rows between those of "
        "two data sets. Seconds are those of `choose` by those of the best other model, the median over data sets."
    )
    short = ["n", "data sets", "RMSE", "NLL", "95 %", "times the seconds"]
    header = ["n", "model", "RMSE", "NLL", "NLL regret", "50 %", "80 %", "95 %", "width", "seconds"]
    wide = ["data", "n", *(f"{model}: RMSE / NLL / 95 %" for model in MODELS), "chosen"]
    tables = f"{text.table(header, rows)}\n\n{compared}\n\n{text.table(short, beside)}"
    return f"{introduction}\n\n{tables}\n\nEach data set:\n\n{text.table(wide, details)}"


def headline(result: Result) -> list[text.Row]:
    """Coverage and width of `choose` beside BoTorch's exact GP."""
    every = [unit for unit in result["units"].values() if "rmse" in unit and unit["n"] == 200]
    found = {model: [unit for unit in every if unit["model"] == model] for model in ("choose", "SingleTaskGP")}
    if not all(found.values()):
        return []
    errors, covered = (
        {model: statistics.mean(of(unit) for unit in units) for model, units in found.items()}
        for of in (lambda unit: unit["rmse"], lambda unit: unit["coverage"][-1])
    )
    what = f"mean RMSE of 200 rows, {len(found['choose'])} splits of {len(DATA_SETS)} data sets"
    shown = f"`choose` {errors['choose']:.3f}, 95 % intervals hold {100 * covered['choose']:.0f} %"
    rival = f"`SingleTaskGP` {errors['SingleTaskGP']:.3f}, {100 * covered['SingleTaskGP']:.0f} %"
    return [(what, shown, rival)]


def _beside_the_best(n: int | None, units: list[dict[str, Any]]) -> list[str]:
    """How far `choose` is behind the best model in hindsight; nothing where it was not measured."""
    sets = [_by_model(group) for group in _by_set(units).values()]
    sets = [found for found in sets if "choose" in found and len(found) > 1]
    if not sets:
        return []
    errors, densities, covered, seconds = [], [], [], []
    for found in sets:
        ours, others = found["choose"], [each for model, each in found.items() if model != "choose"]
        errors.append(100 * (ours["rmse"] / min(each["rmse"] for each in found.values()) - 1))
        densities.append(ours["nll"] - min(each["nll"] for each in found.values()))
        covered.append(ours["covered"])
        seconds.append(ours["seconds"] / min(others, key=lambda each: each["nll"])["seconds"])
    return [
        str(n or "all"),
        str(len(sets)),
        f"{statistics.mean(errors):.1f} % ({max(errors):.1f} %)",
        f"{statistics.mean(densities):.3f} ({max(densities):.2f})",
        f"{100 * min(covered):.0f} to {100 * max(covered):.0f} %",
        f"{statistics.median(seconds):.1f}",
    ]


def _by_model(units: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Means over splits for each model that has them all."""
    folds, found = {unit["fold"] for unit in units}, {}
    for model in MODELS:
        mine = [unit for unit in units if unit["model"] == model]
        if {unit["fold"] for unit in mine} == folds:
            found[model] = {
                "rmse": statistics.mean(unit["rmse"] for unit in mine),
                "nll": statistics.mean(min(5.0, unit["nll"]) for unit in mine),
                "covered": statistics.mean(unit["coverage"][-1] for unit in mine),
                "seconds": statistics.mean(unit["seconds"] for unit in mine),
            }
    return found


def _grouped(units: list[dict[str, Any]]) -> dict[tuple[str, int], list[dict[str, Any]]]:
    groups: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for unit in units:
        groups.setdefault((unit["data"], unit["fold"]), []).append(unit)
    return groups


def _by_set(units: list[dict[str, Any]]) -> dict[tuple[str, int | None], list[dict[str, Any]]]:
    groups: dict[tuple[str, int | None], list[dict[str, Any]]] = {}
    for unit in sorted(units, key=lambda unit: (unit["data"], unit["n"] or math.inf)):
        groups.setdefault((unit["data"], unit["n"]), []).append(unit)
    return groups


def _means(units: list[dict[str, Any]], best: dict[tuple[str, int], dict[str, Any]]) -> list[str]:
    regrets = [min(5.0, unit["nll"] - best[unit["data"], unit["fold"]]["nll"]) for unit in units]

    def of_sets(values: Iterable[float]) -> list[float]:
        """Return the means over splits of each data set."""
        found: dict[str, list[float]] = {}
        for unit, value in zip(units, values, strict=True):
            found.setdefault(unit["data"], []).append(value)
        return [statistics.mean(values) for values in found.values()]

    def mean(values: Iterable[float]) -> float:
        return statistics.mean(of_sets(values))

    return [
        f"{mean(unit['rmse'] for unit in units):.3f}",
        f"{mean(min(5.0, unit['nll']) for unit in units):.2f}",
        f"{mean(regrets):.2f} ({max(regrets):.2f})",
        *(f"{100 * mean(unit['coverage'][level] for unit in units):.0f} %" for level in range(len(LEVELS))),
        f"{mean(unit['width'] for unit in units):.2f}",
        text.seconds(statistics.median(of_sets(unit["seconds"] for unit in units))),
    ]


def _cell(units: list[dict[str, Any]], model: str) -> str:
    mine = [unit for unit in units if unit["model"] == model]
    if not mine:
        return ""
    errors, densities, covered = (
        statistics.mean(of(unit) for unit in mine)
        for of in (lambda unit: unit["rmse"], lambda unit: unit["nll"], lambda unit: unit["coverage"][-1])
    )
    return f"{errors:.3f} / {densities:.2f} / {100 * covered:.0f} %"


def _chosen(units: list[dict[str, Any]]) -> str:
    return "; ".join(sorted({str(unit["chosen"]) for unit in units if unit["chosen"]}))
