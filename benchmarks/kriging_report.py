"""Table and headline of the kriging case."""

from typing import Any

import numpy as np

from benchmarks import text
from benchmarks.fields import FIELDS, quantities
from benchmarks.store import Result

TITLE = "Kriging"
SIDES = {"ours": "`bo_scale`", "pykrige": "PyKrige", "window": "PyKrige, window"}
RIVALS = ("pykrige", "window")
SCORES = {"rmse": "{:.4g}", "crps": "{:.4g}", "coverage_95": "{:.1%}", "width": "{:.3g}"}

Runs = list[dict[str, Any]]


def by_size(result: Result) -> dict[tuple[str, int], Runs]:
    """Units of every field and number of training rows, in order; seeds together."""
    found: dict[tuple[str, int], Runs] = {}
    for field in FIELDS:
        for unit in sorted(result["units"].values(), key=lambda unit: (unit["n"], unit["seed"])):
            if unit["field"] == field:
                found.setdefault((field, unit["n"]), []).append(unit)
    return found


def mean(runs: Runs, side: str, key: str) -> float:
    """Over the seeds at which a side did not fail; NaN where there is none."""
    values = [run[side][key] for run in runs if "error" not in run[side]]
    return float(np.mean(values)) if values else float("nan")


def seconds(runs: Runs, side: str) -> float:
    """Of the whole: choice, fit and prediction; the median over seeds."""
    values = [sum(run[side]["seconds"].values()) for run in runs if "error" not in run[side]]
    return float(np.median(values)) if values else float("nan")


def best_rival(runs: Runs) -> float:
    """The least mean RMSE of PyKrige's two; NaN where both failed."""
    errors = [error for side in RIVALS if not np.isnan(error := mean(runs, side, "rmse"))]
    return min(errors, default=float("nan"))


def reach(result: Result) -> tuple[int, int]:
    """The most rows that either of PyKrige's ways took, and that ours did."""
    ours, theirs = 0, 0
    for runs in by_size(result).values():
        for run in runs:
            ours = max(ours, run["n"] if "error" not in run["ours"] else 0)
            theirs = max([theirs, *(run["n"] for side in RIVALS if "error" not in run[side])])
    return theirs, ours


def table(result: Result) -> str:
    """Scores and times of every side, and why one failed."""
    rows, failed = [], []
    for (field, n), runs in by_size(result).items():
        rival = best_rival(runs)
        for side, name in SIDES.items():
            failed += [f"- {field}, n = {n:,}, {name}: {r[side]['error']}" for r in runs if "error" in r[side]]
            if np.isnan(mean(runs, side, "rmse")):
                continue
            cells = [form.format(mean(runs, side, key)) for key, form in SCORES.items()]
            ratio = "" if side != "ours" or np.isnan(rival) else f"{mean(runs, side, 'rmse') / rival:.3f}"
            cells += [ratio, text.seconds(seconds(runs, side)), f"{mean(runs, side, 'megabytes'):,.0f}"]
            rows.append([f"{field}", f"{n:,}", name, *cells])
    header = [
        "Field",
        "Rows",
        "Model",
        "RMSE",
        "CRPS",
        "in 95 %",
        "Width",
        "RMSE / that of the better PyKrige",
        "Time",
        "MB",
    ]
    measured = quantities(unit["field"] for unit in result["units"].values())
    said = (
        f"- Ours is the survey's model. It chooses its kernel by the evidence, and maps more than 1,000 rows from the "
        f"nearest ones.\n"
        f"- The rival is PyKrige's ordinary kriging, with all rows and with a moving window. Its variogram model, "
        f"lags, weighting and window are chosen by cross-validation.\n"
        f"- Both have the same random splits, metric coordinates and scales ({measured}).\n"
        f"- Scores are those of held-out measurements, in the units of the scale, as means over seeds. Time includes "
        f"choice, fit and prediction. Memory is that beyond libraries and data, and limited to 8 GB."
    )
    return "\n\n".join([said, text.table(header, rows), *(["Failed:\n\n" + "\n".join(failed)] if failed else [])])


def headline(result: Result) -> list[text.Row]:
    """How accurate ours is beside PyKrige's better way, and how many rows each took."""
    compared = {key: runs for key, runs in by_size(result).items() if not np.isnan(best_rival(runs))}
    ratios = {key: mean(runs, "ours", "rmse") / best_rival(runs) for key, runs in compared.items()}
    ratios = {key: ratio for key, ratio in ratios.items() if not np.isnan(ratio)}
    if not ratios:
        return []
    (field, n), worst = max(ratios.items(), key=lambda pair: pair[1])
    theirs, ours = reach(result)
    shown = (
        f"median {np.median(list(ratios.values())):.3f}, at most {worst:.3f} ({field}, {n:,} rows; target: 1.02); "
        f"{ours:,} rows"
    )
    what = "RMSE relative to ordinary kriging, five fields; most rows"
    return [(what, shown, f"PyKrige: {theirs:,} rows (target: 20×)")]
