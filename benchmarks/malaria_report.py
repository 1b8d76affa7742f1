"""Tables and plots of the malaria case."""

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import text
from benchmarks.store import Result

TITLE = "Active sampling of malaria incidence"
PLOTS = {"malaria_curves.png": "Error against sites and against time, and seconds per batch against sites"}
CHECKPOINTS = (160, 310, 760, 1510, 3010)
TICKS = (0.03, 0.04, 0.05, 0.07, 0.1, 0.15)
SETTLED = 100
"""Before so many sites the curves depend on the accidents of the first sites."""
SAME = "exact, product kernel"
WINDOW = 25
"""Batches over which the time a batch is taken."""

Runs = dict[str, list[dict[str, Any]]]


def table(result: Result) -> str:
    """Error, coverage and time at some numbers of sites; medians over seeds."""
    runs = _by_model(result)
    header = ["sites", *(f"{what}, {model}" for what in ("RMSE", "coverage", "s a batch") for model in runs)]
    rows = []
    for n in CHECKPOINTS:
        there = {model: [run for run in group if n in run["n"]] for model, group in runs.items()}
        if any(there.values()):
            cells = [_median(group, _at("rmse", n), ".4f") for group in there.values()]
            cells += [_median(group, _at("coverage", n), ".1%") for group in there.values()]
            cells += [_median(group, lambda run, n=n: _seconds_a_batch(run, n), ".2f") for group in there.values()]
            rows.append([f"{n:,}", *cells])
    return f"{_protocol(runs)}\n\n{text.table(header, rows)}\n\n{_summary(runs)}"


def headline(result: Result) -> list[text.Row]:
    """Error and time of both at the exact GP's last batch."""
    runs = _by_model(result)
    if not {"WISKI", SAME} <= set(runs):
        return []
    n = runs[SAME][0]["n"][-1]
    cells = []
    for model in ("WISKI", SAME):
        error = _median(runs[model], _at("rmse", n), ".4f")
        minutes = statistics.median(_elapsed(run)[run["n"].index(n)] for run in runs[model]) / 60
        cells.append(f"{error}, {text.digits(minutes)} min")
    cells[0] += f" (then {_median(runs['WISKI'], lambda run: run['rmse'][-1], '.4f')} at {runs['WISKI'][0]['n'][-1]:,})"
    return [
        (
            f"malaria sampling, {n:,} sites chosen by NIPV, refits included: RMSE, time",
            cells[0],
            f"exact GP with the same kernel: {cells[1]}",
        )
    ]


def plot(result: Result, folder: Path) -> None:
    """Error against sites, error against time, seconds a batch against sites."""
    from benchmarks import plots

    with plots.figure(folder / "malaria_curves.png", panels=3) as axes:
        for model, group in _by_model(result).items():
            style = "--" if "product" in model else "-"
            n = group[0]["n"]
            plots.band(axes[0], n, [run["rmse"] for run in group], model, style)
            minutes = np.median([_elapsed(run) for run in group], axis=0) / 60
            axes[1].plot(minutes, np.median([run["rmse"] for run in group], axis=0), style, label=model)
            plots.band(axes[2], n[1:], [[_seconds_a_batch(run, k) for k in n[1:]] for run in group], model, style)
        for axis, xlabel in zip(axes, ("Sites measured", "Minutes, refits included"), strict=False):
            axis.set(xlabel=xlabel, ylabel="RMSE at 10,000 places", yscale="log")
            axis.set_yticks(TICKS, [str(tick) for tick in TICKS])
            axis.set_yticks([], minor=True)
        axes[2].set(xlabel="Sites measured", ylabel="Seconds a batch without refits", ylim=(0, None))


def _by_model(result: Result) -> Runs:
    """Runs of every model, by seed."""
    runs: Runs = {}
    for unit in sorted(
        result["units"].values(), key=lambda unit: (unit["model"] != "WISKI", unit["model"], unit["seed"])
    ):
        runs.setdefault(unit["model"], []).append(unit)
    return runs


def _at(what: str, n: int) -> Any:
    return lambda run: run[what][run["n"].index(n)]


def _median(runs: Sequence[dict[str, Any]], value: Any, style: str) -> str:
    return format(statistics.median(map(value, runs)), style) if runs else ""


def _batch_of(run: dict[str, Any], n: int) -> int:
    """How many batches were done when n sites were measured."""
    q = (run["n"][-1] - run["n"][0]) // len(run["seconds"]["choose"])
    return (n - run["n"][0]) // q


def _seconds_a_batch(run: dict[str, Any], n: int) -> float:
    """Choosing and conditioning, without refits: the median over the last batches before n sites."""
    last = _batch_of(run, n)
    part = slice(max(0, last - WINDOW), last)
    seconds = run["seconds"]
    return statistics.median(a + b for a, b in zip(seconds["choose"][part], seconds["condition"][part], strict=True))


def _elapsed(run: dict[str, Any]) -> list[float]:
    """Seconds until every recorded number of sites, refits included."""
    total = np.cumsum([0.0, *np.add(run["seconds"]["choose"], run["seconds"]["condition"])])
    refits = run["refits"]
    return [
        total[_batch_of(run, n)] + sum(s for k, s in zip(refits["n"], refits["seconds"], strict=True) if k <= n)
        for n in run["n"]
    ]


def _protocol(runs: Runs) -> str:
    run, seeds = next(iter(runs.values()))[0], max(map(len, runs.values()))
    return (
        "This is the protocol of Stanton et al. 2021, appendix C.3, on malaria incidence in Central Africa. 10,000 "
        "random places are both the test set and the integration points. Batches of 6 are chosen from 10,000 other "
        f"places for the largest reduction of the integrated variance, starting from {run['n'][0]} sites. The kernel "
        f"is Matérn-{int(2 * run['nu'])}/2 with the paper's priors and learned noise. Models are refitted whenever the "
        "sites have grown by a quarter. The exact GP chooses by a dense rank-one computation written for this "
        "comparison, because BoTorch's own acquisition function takes seconds per evaluation (see [look-ahead]"
        f"(look-ahead.md)). Values are medians over {seeds} seed{'s' * (seeds > 1)}. Times are processor seconds on "
        f"one thread."
    )


def _summary(runs: Runs) -> str:
    """Largest ratio of errors, cost of refits."""
    lines = []
    for rival in [model for model in runs if model != "WISKI" and "WISKI" in runs]:
        ours = {run["seed"]: run for run in runs["WISKI"]}
        pairs = [(ours[run["seed"]], run) for run in runs[rival] if run["seed"] in ours]
        if pairs:
            ours_mean, theirs_mean = (
                np.mean([run["rmse"][: len(b["rmse"])] for run, b in zip(group, (b for _, b in pairs))], axis=0)
                for group in zip(*pairs, strict=True)
            )
            start = min(SETTLED, pairs[0][1]["n"][-1])
            ratios = (ours_mean / theirs_mean)[np.asarray(pairs[0][1]["n"]) >= start]
            lines.append(
                f"From {start} sites on, WISKI's RMSE (mean over {len(pairs)} seed{'s' * (len(pairs) > 1)}) is on "
                f"average {np.mean(ratios):.3f} times that of '{rival}', and at most {np.max(ratios):.3f} times. At "
                f"{np.mean(ratios <= 1.03):.0%} of {len(ratios)} evaluations it is at most 3 % larger."
            )
    for model, group in runs.items():
        last = statistics.median(run["refits"]["seconds"][-1] for run in group)
        total = statistics.median(sum(run["refits"]["seconds"]) for run in group)
        lines.append(
            f"'{model}' had {len(group[0]['refits']['n'])} refits, which took {total:.0f} s together. The last one "
            f"took {last:.0f} s at {group[0]['refits']['n'][-1]:,} sites."
        )
    return "\n".join(f"- {line}" for line in lines)
