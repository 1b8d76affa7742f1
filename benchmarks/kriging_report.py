"""Table and headline of the kriging case."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks import text
from benchmarks.fields import FIELDS, quantities
from benchmarks.store import Result

TITLE = "Kriging"
SIDES = {"ours": "`bo_scale`", "pykrige": "PyKrige", "window": "PyKrige, window", "gpboost": "GPBoost"}
PYKRIGE = ("pykrige", "window")
RIVALS = (*PYKRIGE, "gpboost")
MARKS = {"rmse": 1.53, "crps": 0.83}
"""The best of the published comparison on the satellite's field: by an SPDE."""
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


def _has(run: dict[str, Any], side: str) -> bool:
    return "error" not in run.get(side, {"error": "not measured"})


def mean(runs: Runs, side: str, key: str) -> float:
    """Over the seeds at which a side did not fail; NaN where there is none."""
    values = [run[side][key] for run in runs if _has(run, side)]
    return float(np.mean(values)) if values else float("nan")


def seconds(runs: Runs, side: str) -> float:
    """Of the whole: choice, fit and prediction; the median over seeds."""
    values = [sum(run[side]["seconds"].values()) for run in runs if _has(run, side)]
    return float(np.median(values)) if values else float("nan")


def best_rival(runs: Runs, key: str = "rmse", sides: Sequence[str] = RIVALS) -> float:
    """The least mean score of the rivals; NaN where all failed."""
    scored = [score for side in sides if not np.isnan(score := mean(runs, side, key))]
    return min(scored, default=float("nan"))


def reach(result: Result) -> tuple[int, int]:
    """The most rows that either of PyKrige's ways took, and that ours did."""
    ours, theirs = 0, 0
    for runs in by_size(result).values():
        for run in runs:
            ours = max(ours, run["n"] if _has(run, "ours") else 0)
            theirs = max([theirs, *(run["n"] for side in PYKRIGE if _has(run, side))])
    return theirs, ours


def table(result: Result) -> str:
    """Scores and times of every side, and why one failed."""
    rows, failed = [], []
    for (field, n), runs in by_size(result).items():
        for side, name in SIDES.items():
            failed += [f"- {field}, n = {n:,}, {name}: {r[side]['error']}" for r in runs if "error" in r.get(side, {})]
            if np.isnan(mean(runs, side, "rmse")):
                continue
            cells = [form.format(mean(runs, side, key)) for key, form in SCORES.items()]
            cells += [_ratio(runs, "rmse") if side == "ours" else "", _ratio(runs, "crps") if side == "ours" else ""]
            cells += [text.seconds(seconds(runs, side)), f"{mean(runs, side, 'megabytes'):,.0f}"]
            rows.append([f"{field}{', mask' if runs[0].get('mask') else ''}", f"{n:,}", name, *cells])
    header = [
        "Field",
        "Rows",
        "Model",
        "RMSE",
        "CRPS",
        "in 95 %",
        "Width",
        "RMSE / the best rival's",
        "CRPS / the best rival's",
        "Time",
        "MB",
    ]
    measured = quantities(unit["field"] for unit in result["units"].values())
    said = (
        f"- Ours is the survey's model. It chooses its kernel by the evidence, and maps more than 1,000 rows from the "
        f"nearest ones.\n"
        f"- The rival is PyKrige's ordinary kriging, with all rows and with a moving window. Its variogram model, "
        f"lags, weighting and window are chosen by cross-validation.\n"
        f"- The other is GPBoost: a Matérn kernel whose smoothness the likelihood chooses, exact up to 1,000 rows, "
        f"else with Vecchia's approximation at its default number of neighbours.\n"
        f"- 'mask' is the split of Heaton et al. 2019, where clouds hide the test: the best there has RMSE "
        f"{MARKS['rmse']:.2f} and CRPS {MARKS['crps']:.2f}.\n"
        f"- All have the same random splits, metric coordinates and scales ({measured}).\n"
        f"- Scores are those of held-out measurements, in the units of the scale, as means over seeds. Time includes "
        f"choice, fit and prediction. Memory is that beyond libraries and data, and limited to 8 GB. "
        f"Each has one thread."
    )
    return "\n\n".join([said, text.table(header, rows), *(["Failed:\n\n" + "\n".join(failed)] if failed else [])])


def _ratio(runs: Runs, key: str) -> str:
    """Ours by the best rival's."""
    rival = best_rival(runs, key)
    return "" if np.isnan(rival) else f"{mean(runs, 'ours', key) / rival:.3f}"


def headline(result: Result) -> list[text.Row]:
    """How accurate ours is beside PyKrige's better way and GPBoost, how many rows PyKrige took; the published split."""
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
    what = "RMSE relative to the best rival (of PyKrige and GPBoost), five fields; most rows"
    return [(what, shown, f"PyKrige: {theirs:,} rows (target: 20×)"), *_masked(result)]


def _masked(result: Result) -> list[text.Row]:
    """The published comparison: scores and time beside GPBoost's."""
    runs = [run for run in result["units"].values() if run.get("mask") and _has(run, "ours")]
    if not runs:
        return []

    def shown(side: str) -> str:
        found = [form.format(mean(runs, side, key)) for key, form in SCORES.items() if key != "width"]
        return f"{', '.join(found)}; {text.seconds(seconds(runs, side))}"

    rival = f"GPBoost {shown('gpboost')}; " if _has(runs[0], "gpboost") else ""
    best = f"best published {MARKS['rmse']:.2f}, {MARKS['crps']:.2f}"
    what = f"RMSE, CRPS, coverage and time of the satellite's field ({runs[0]['n']:,} rows, the published split)"
    return [(what, shown("ours"), rival + best)]
