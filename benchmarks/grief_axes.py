"""What GRIEF misses on correlated inputs: its error by number of eigenfunctions, on raw and on principal axes."""

from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from benchmarks import text, uci
from benchmarks.harness import Unit
from benchmarks.rivals import Fitted, of_botorch
from benchmarks.store import Result

TITLE = "Why GRIEF misses on correlated inputs"
DATA_SETS, FOLDS = ("elevators", "pol", "bike"), 2
AXES, COUNTS = ("raw", "principal"), (1000, 3000)
PAPER = {"elevators": "0.091 ± 0.002"}
"""RMSE in raw units of GP-GRIEF's table 1."""


def units(data: Path | None) -> dict[str, Unit]:
    """One for each data set, axes, number of eigenfunctions and fold."""
    every = [(n, a, p, f) for f in range(FOLDS) for n in DATA_SETS for a in AXES for p in COUNTS]
    return {f"{n} {a} p={p} fold {f}": partial(measure, data, n, a, p, f) for n, a, p, f in every}


def measure(data: Path | None, name: str, axes: str, count: int, fold: int) -> dict[str, Any]:
    """Fit and predict one fold in a process of its own."""
    uci.MODELS[f"{axes} {count}"] = partial(fit, axes, count)
    unit = uci.measure(data, name, f"{axes} {count}", fold)
    return {**unit, "axes": axes, "count": count}


def fit(axes: str, count: int, X: Tensor, Y: Tensor) -> Fitted:
    """Fit a GRIEF on the axes of the inputs, or on their principal ones."""
    from botorch.fit import fit_gpytorch_mll
    from gpytorch.mlls import ExactMarginalLogLikelihood

    from bo_scale import GRIEF, PrincipalAxes

    transform = PrincipalAxes(X) if axes == "principal" else None
    model = GRIEF(X, Y.unsqueeze(-1), num_eigenfunctions=count, input_transform=transform)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    return of_botorch(model.eval())


def table(result: Result) -> str:
    """RMSE and log density of each."""
    rows = []
    for name in DATA_SETS:
        for axes in AXES:
            for count in COUNTS:
                found = [
                    unit
                    for unit in result["units"].values()
                    if (unit["data"], unit["axes"], unit["count"]) == (name, axes, count) and "error" not in unit
                ]
                if found:
                    shown = [f"{uci.mean(found, key):.4g}" for key in ("rmse_raw", "rmse", "nll")]
                    rows.append([name, axes, f"{count:,}", *shown, PAPER.get(name, "–")])
    header = ["data", "axes", "eigenfunctions", "RMSE, raw", "RMSE", "NLL", "the paper's RMSE, raw"]
    return (
        f"GRIEF keeps the leading eigenfunctions of a product kernel on a grid. If inputs are correlated, most of the "
        f"grid is far from all rows, and so are many of these eigenfunctions. `PrincipalAxes` turns the grid. Means "
        f"over {FOLDS} folds.\n\n{text.table(header, rows)}"
    )
