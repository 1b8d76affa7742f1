"""Tables and plots of the survey case."""

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import text
from benchmarks.fields import FIELDS, quantities
from benchmarks.store import Result

TITLE = "Surveys: where to measure next"
PLOTS = {
    "survey_curves.png": "Error and coverage against sites on each field, for each strategy; exact GP",
}
MAIN = "exact"
COVERED = (0.92, 0.98)
NAMES = {
    "nipv": "integrated variance",
    "even": "integrated variance (all places equally rough)",
    "uncertainty": "largest variance",
    "straddle": "straddle",
    "random": "random",
    "maximin": "maximin",
    "coverage": "coverage (k-means)",
    "latin": "Latin hypercube",
    "stratified": "stratified",
}
RIVALS = ("random", "maximin", "coverage")

Runs = list[dict[str, Any]]


def runs_of(result: Result, field: str, model: str, strategy: str) -> Runs:
    """By seed."""
    wanted = (field, model, strategy)
    found = [u for u in result["units"].values() if (u["field"], u["model"], u["strategy"]) == wanted]
    return sorted(found, key=lambda unit: unit["seed"])


def paired(result: Result, field: str, model: str, *strategies: str) -> list[Runs]:
    """Runs of strategies at the seeds that all of them have."""
    found = [runs_of(result, field, model, strategy) for strategy in strategies]
    seeds = set.intersection(*({run["seed"] for run in runs} for runs in found))
    return [[run for run in runs if run["seed"] in seeds] for runs in found]


def area(run: dict[str, Any], key: str = "rmse") -> float:
    """Under the curve of a score against sites, over their range: its mean."""
    return float(np.trapezoid(run[key], run["n"]) / (run["n"][-1] - run["n"][0]))


def coverage(runs: Runs) -> Any:
    """Mean over seeds, at every number of sites."""
    return np.mean([run["coverage_95"] for run in runs], axis=0)


def table(result: Result) -> str:
    """For every field, model and strategy: mean and last scores, coverage, way and seconds."""
    rows = []
    models = list(dict.fromkeys(unit["model"] for unit in result["units"].values()))
    for field in FIELDS:
        for model in models:
            for strategy, name in NAMES.items():
                if runs := runs_of(result, field, model, strategy):
                    rows.append([field, model, name, *_cells(runs)])
    header = [
        "Field",
        "Model",
        "Strategy",
        "Sites",
        "Seeds",
        "Mean RMSE",
        "Last RMSE",
        "Mean CRPS",
        "Last CRPS",
    ]
    header += ["in 95 %", "least and most", "km", "s per batch", "s per fit"]
    measured = quantities(unit["field"] for unit in result["units"].values())
    said = (
        f"- Batches are chosen among the places of a data set ({measured}). All strategies start from the same "
        f"random sites for each seed. Integrals are over all places.\n"
        f"- Scores are those of held-out measurements, as means over seeds. 'Mean' is the average of the score along "
        f"the curve against sites: its area divided by the range.\n"
        f"- Coverage is that of the 95 % interval, as a mean over seeds. The table shows its mean, least and largest "
        f"value along the curve.\n"
        f"- 'km' is the length of round trips through each batch.\n"
        f"- Seconds are processor seconds. A batch is chosen and conditioned on. A fit follows whenever the sites have "
        f"grown by a quarter.\n"
        f"- Straddle's threshold is the upper quartile of all values.\n"
        f"- 'exact' is the survey's own model. The CaGP has few actions and gives all places the same weight."
    )
    return "\n\n".join([said, text.table(header, rows), *(f"- {line}" for line in _ratios(result))])


def _cells(runs: Runs) -> list[str]:
    first = runs[0]
    covered = coverage(runs)
    cells = [f"{first['n'][0]} to {first['n'][-1]}", str(len(runs))]
    for key in ("rmse", "crps"):
        cells += [f"{np.mean([area(run, key) for run in runs]):.4g}", f"{np.mean([run[key][-1] for run in runs]):.4g}"]
    cells += [f"{covered.mean():.1%}", f"{covered.min():.1%}, {covered.max():.1%}"]
    cells += [f"{np.mean([run['kilometres'][-1] for run in runs]):,.0f}"]
    for key in ("choose_seconds", "fit_seconds"):
        cells.append(text.seconds(float(np.mean([run[key] for run in runs]))))
    return cells


def beside(result: Result, field: str, model: str, rival: str) -> float:
    """Mean area under the RMSE curve of NIPV, over a rival's at the same seeds; NaN without any."""
    ours, theirs = paired(result, field, model, "nipv", rival)
    return float(np.mean([area(r) for r in ours]) / np.mean([area(r) for r in theirs])) if ours else float("nan")


def _ratios(result: Result) -> list[str]:
    """What integrated variance gains on every field, in words."""
    lines = []
    for model in dict.fromkeys(unit["model"] for unit in result["units"].values()):
        for rival in (name for name in NAMES if name != "nipv"):
            found = {field: beside(result, field, model, rival) for field in FIELDS}
            shown = [f"{field} {ratio:.3f}" for field, ratio in found.items() if not np.isnan(ratio)]
            if shown:
                lines.append(
                    f"{model}: mean RMSE with integrated variance, divided by that with '{NAMES[rival]}': "
                    f"{', '.join(shown)}."
                )
    return lines


def headline(result: Result) -> list[text.Row]:
    """Integrated variance beside random and maximin, and its coverage."""
    found = {r: [x for f in FIELDS if not np.isnan(x := beside(result, f, MAIN, r))] for r in RIVALS}
    found = {rival: each for rival, each in found.items() if each}
    if not {"random", "maximin"} <= found.keys():
        return []
    shown = "; ".join(f"{NAMES[rival]} {min(each):.2f} to {max(each):.2f}" for rival, each in found.items())
    covered = np.concatenate([coverage(runs) for f in FIELDS if (runs := runs_of(result, f, MAIN, "nipv"))])
    ours = (
        f"{shown} (target: below 1); coverage {covered.mean():.1%}, {covered.min():.1%} to {covered.max():.1%} over "
        f"the curves (target: {COVERED[0]:.0%} to {COVERED[1]:.0%})"
    )
    what = f"sites by integrated variance on {len(found['random'])} fields: mean RMSE relative to the rival's"
    return [(what, ours, ", ".join(f"{NAMES[rival]} sites" for rival in found))]


def plot(result: Result, folder: Path) -> None:
    """Error above, coverage below, a column for each field."""
    from benchmarks import plots

    fields = [f for f in FIELDS if any(runs_of(result, f, MAIN, s) for s in NAMES)] or list(FIELDS)[:1]
    with plots.figure(folder / next(iter(PLOTS)), panels=len(fields), rows=2, shared=True) as axes:
        for field, axis, below in zip(fields, axes, axes[len(fields) :], strict=False):
            for strategy, name in NAMES.items():
                if runs := runs_of(result, field, MAIN, strategy):
                    n = runs[0]["n"]
                    axis.plot(n, np.mean([run["rmse"] for run in runs], axis=0), linewidth=1.6, label=name)
                    below.plot(n, coverage(runs), linewidth=1.6, label=name)
            axis.set(title=field, xlabel="Sites", ylabel=f"RMSE, {FIELDS[field].quantity}")
            below.axhspan(*COVERED, color="0.5", alpha=0.15, linewidth=0)
            below.set(xlabel="Sites", ylabel="Coverage of the 95 % interval")
