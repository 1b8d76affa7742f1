"""How sure the test error on keggundirected is: where it comes from, between folds, and with more points."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from benchmarks import text, uci
from benchmarks.child import in_child_or_error
from benchmarks.harness import Unit, require_data
from benchmarks.rivals import Fitted
from benchmarks.store import Result

TITLE = "How sure the test error on keggundirected is"
NAME, FOLDS, MORE_POINTS = "keggundirected", 10, 1024
GREATEST, DRAWS = 0.05, 200
PAPERS = "0.115 ± 0.004 of SoftKI, 0.126 ± 0.005 of SGPR, 0.127 ± 0.007 of SVGP"
"""RMSE of SoftKI's table 1."""


def units(data: Path | None) -> dict[str, Unit]:
    """GRIEF-II on every fold, SoftKI with more points on one."""
    every = [("GRIEF-II", fold) for fold in range(FOLDS)] + [(f"SoftKI, {MORE_POINTS:,} points", 0)]
    return {f"{model} fold {fold}": partial(measure, data, model, fold) for model, fold in every}


def measure(data: Path | None, model: str, fold: int) -> dict[str, Any]:
    """Fit and predict one fold in a process of its own."""
    path = require_data(data, f"{NAME}.npz")
    return in_child_or_error({"model": model, "fold": fold}, evaluate, path, model, fold)


def evaluate(path: Path, model: str, fold: int) -> dict[str, Any]:
    """The error on the test rows of a fold, and what part of it a few of them have."""
    X, Y, test = uci.load(path, fold)
    (X, _), (Y, unit) = uci.standardised(X, ~test), uci.standardised(Y, ~test)
    fit = uci.fit_reweighted_grief if model == "GRIEF-II" else _softki_with_more_points
    mean, _ = fit(X[~test], Y[~test]).predict(X[test])
    return concentration((Y[test] - mean).square().numpy()) | {"unit": unit.item()}


def concentration(squares: Any) -> dict[str, float]:
    """RMSE of all, its standard deviation by the bootstrap, RMSE without the greatest errors, and their share."""
    greatest_first = np.sort(squares)[::-1]
    few = int(GREATEST * len(squares))
    draws = np.random.default_rng(0).choice(squares, (DRAWS, len(squares)))
    return {
        "rmse": float(np.sqrt(squares.mean())),
        "deviation": float(np.sqrt(draws.mean(1)).std()),
        "rmse_of_others": float(np.sqrt(greatest_first[few:].mean())),
        "share": float(greatest_first[:few].sum() / squares.sum()),
    }


def _softki_with_more_points(X: Tensor, Y: Tensor) -> Fitted:
    uci.SOFTKI_POINTS = MORE_POINTS  # of this process, which is one unit's
    return uci.fit_softki(X, Y)


def table(result: Result) -> str:
    """A row for each model and fold, and what they say of the papers' numbers."""
    found = [unit for unit in result["units"].values() if "error" not in unit]
    rows = [
        [
            unit["model"],
            str(unit["fold"]),
            f"{unit['rmse']:.4f} ± {unit['deviation']:.4f}",
            f"{unit['share']:.0%}",
            f"{unit['rmse_of_others']:.4f}",
        ]
        for unit in sorted(found, key=lambda unit: (unit["model"], unit["fold"]))
    ]
    header = ["model", "fold", "RMSE", f"{GREATEST:.0%} of the rows have of the squares", "RMSE of the others"]
    return (
        f"The papers' RMSE: {PAPERS}. The deviation of ours is by the bootstrap over test rows. A few rows, which all "
        f"models miss, have nearly all of the squared error: which of them a test set holds decides what a table says "
        f"to ± 3 %.\n\n{text.table(header, rows)}"
    )
