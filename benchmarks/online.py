"""WISKI learning one observation at a time, with a projection and as a classifier, against exact GPs and SVGP.

The protocol of the paper's figures 1, 3 and 4: 5 % of the training rows in batch, then one pass over the others, one
step of Adam an observation, and measures on test rows along the way.
"""

import itertools
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gpytorch.kernels import Kernel, SpectralMixtureKernel
from torch import Tensor

from benchmarks import text
from benchmarks.harness import Unit, require_data
from benchmarks.online_learners import (
    Classification,
    Exact,
    ExactClasses,
    Regression,
    Svgp,
    Wiski,
    WiskiClasses,
    svgp_classes,
    wiski,
)
from benchmarks.store import Result
from benchmarks.uci import load, scores, standardised
from bo_scale import OnlineLearner, WISKIClassifier

TITLE = "Learning online"
PLOTS = {
    "online.png": "Error on the test rows and processor seconds per observation, as observations arrive one at a time",
    "online_classes.png": "Accuracy on the test rows as labels arrive, in random order and region by region",
    "online_series.png": "40 exchange rates after 10, 20 and 30 observations, in order of time and at random",
}
REGRESSION = ("skillcraft", "powerplant", "elevators", "protein")
CLASSES = {"banana": (16, 256), "svmguide1": (7, 256)}
"""Grid points a dimension, and the rank of the prior."""
ANYWHERE = True  # errors are the same, and seconds are compared within a stream
SEEDS = 1
PRETRAINING = 0.05
EXACT_ROWS = 1000
"""Of a stream: an exact GP goes no further."""
CHECKPOINTS = 14
SERIES, SNAPSHOTS, MIXTURES = 40, (10, 20, 30), 3
SERIES_START, SERIES_RATE = 50, 0.05
"""Steps on the first ten, and their size there and later: ten values fitted to convergence say too much."""
STEPS, STILL = 200, 1e-12
"""Steps timed, and a rate at which hyperparameters stay where they are."""
BINS = 10
TICKS = (100, 300, 1000, 3000, 10_000, 30_000)

Evaluate = Callable[[Any], dict[str, float]]
Curve = dict[str, Any]
LEARNERS: dict[str, Callable[..., Regression]] = {"WISKI": Wiski, "exact": Exact, "SVGP": Svgp}
CLASSIFIERS: dict[str, Callable[..., Classification]] = {
    "WISKI": WiskiClasses,
    "exact": ExactClasses,
    "SVGP": svgp_classes,
}


def units(data: Path | None) -> dict[str, Unit]:
    """One for each model, data set, order and seed."""
    seeds, orders = range(SEEDS), ("random", "by region")
    of_series = {
        f"fx2007 {model} {order}": partial(series, data, model, order)
        for model, order in itertools.product(LEARNERS, ("time", "random"))
    }
    of_values = {
        f"{name} {model} seed {seed}": partial(regression, data, name, model, seed)
        for seed, name, model in itertools.product(seeds, REGRESSION, (*LEARNERS, "batch"))
    }
    of_classes = {
        f"{name} {model} {order} seed {seed}": partial(classification, data, name, model, order, seed)
        for seed, name, model, order in itertools.product(seeds, CLASSES, (*CLASSIFIERS, "batch"), orders)
        if model != "batch" or order == "random"
    }
    return {**of_series, **of_classes, **of_values, "protein steps": partial(steps, data)}


# ---------------------------------------------------------------------- streams


def stream(learner: Any, X: Tensor, Y: Tensor, start: int, evaluate: Evaluate, limit: int | None = None) -> Curve:
    """Tell a learner the rows from `start` on, one at a time, and evaluate it along the way.

    Seconds are the processor's, which other work on the machine does not lengthen: a stream takes up to half an hour.

    Args:
        learner: That has seen the rows before.
        X: Rows in the order of the stream.
        Y: Values or labels.
        start: Its first row.
        evaluate: What is measured, by name.
        limit: The last row, if not the last of all.
    """
    end = len(X) if limit is None else min(limit, len(X))
    stops = sorted({int(n) for n in np.geomspace(max(start, 1), end, CHECKPOINTS).round()} | {end})
    curve: Curve = {"n": [start], "seconds": [], **{name: [value] for name, value in evaluate(learner).items()}}
    at = start
    for stop in stops:
        if stop <= at:
            continue
        taken = []
        for i in range(at, stop):
            begin = time.process_time()
            learner.step(X[i : i + 1], Y[i : i + 1])
            taken.append(time.process_time() - begin)
        at = stop
        curve["n"].append(at)
        curve["seconds"].append(float(np.median(taken)))
        for name, value in evaluate(learner).items():
            curve[name].append(value)
    return curve


def regression(data: Path | None, name: str, model: str, seed: int) -> dict[str, Any]:
    """A stream of a fold's training rows in random order, or one fit to all of them."""
    X, Y, test = load(require_data(data, f"{name}.npz"), seed)
    (X, _), (Y, _) = standardised(X, ~test), standardised(Y, ~test)
    Xt, Yt = X[test], Y[test]
    order = torch.randperm(int((~test).sum()), generator=torch.Generator().manual_seed(seed))
    X, Y = X[~test][order], Y[~test][order].unsqueeze(-1)

    def evaluate(learner: Regression) -> dict[str, float]:
        found = scores(Yt, *learner.predict(Xt), unit=1.0)
        return {"rmse": found["rmse"], "nll": found["nll"], "coverage": found["coverage_95"]}

    described = {"data": name, "model": model, "seed": seed, "rows": len(X), "d": X.shape[-1]}
    if model == "batch":
        return {**described, **evaluate(_OfBatch(wiski(X, Y)))}
    start = max(20, int(PRETRAINING * len(X)))
    learner = LEARNERS[model](X[:start], Y[:start])
    curve = stream(learner, X, Y, start, evaluate, EXACT_ROWS if model == "exact" else None)
    return {**described, "curve": curve, "prequential": getattr(learner, "scores", None)}


def steps(data: Path | None) -> dict[str, Any]:
    """Seconds of a step after few observations and after many, at the same hyperparameters: by turns."""
    X, Y, test = load(require_data(data, "protein.npz"), 0)
    (X, _), (Y, _) = standardised(X, ~test), standardised(Y, ~test)
    X, Y = X[~test], Y[~test].unsqueeze(-1)
    start, stop = int(PRETRAINING * len(X)), len(X) - STEPS
    model = wiski(X[:start], Y[:start], learn=False)
    model.projection.requires_grad_(True)
    learners = [OnlineLearner(model, STILL, STILL) for _ in range(2)]
    for rows in torch.arange(start, stop).split(1000):
        learners[1].step(X[rows], Y[rows])
    counts = [learner.scores.count + start for learner in learners]
    seconds: list[list[float]] = [[], []]
    for i in range(stop, len(X)):
        for learner, taken in zip(learners, seconds, strict=True):
            begin = time.process_time()
            learner.step(X[i : i + 1], Y[i : i + 1])
            taken.append(time.process_time() - begin)
    return {"data": "protein", "seed": 0, "n": counts, "seconds": [float(np.median(taken)) for taken in seconds]}


class _OfBatch:
    """A fitted model as a learner that has seen everything."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def predict(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of observations: `M` each."""
        with torch.no_grad():
            posterior = self._model.posterior(X, observation_noise=True)
        return posterior.mean.squeeze(-1), posterior.variance.squeeze(-1)


def classification(data: Path | None, name: str, model: str, order: str, seed: int) -> dict[str, Any]:
    """A stream of labels in random order, or by the first input: region by region."""
    arrays = np.load(require_data(data, f"{name}.npz"))
    X, test = torch.as_tensor(arrays["X"].astype(np.float64)), torch.as_tensor(arrays["test_mask"][:, 0])
    labels = torch.as_tensor((arrays["y"] == arrays["y"].max()).astype(np.int64))
    X = (X - X.amin(0)) / (X.amax(0) - X.amin(0))
    Xt, labels_t = X[test], labels[test]
    X, labels = X[~test], labels[~test]
    shuffled = torch.randperm(len(X), generator=torch.Generator().manual_seed(seed))
    X, labels = X[shuffled], labels[shuffled]
    if order == "by region":
        ordered = X[:, 0].argsort(stable=True)
        X, labels = X[ordered], labels[ordered]

    def evaluate(learner: Classification) -> dict[str, float]:
        return class_scores(learner.probabilities(Xt), labels_t)

    described = {"data": name, "model": model, "order": order, "seed": seed, "rows": len(X), "d": X.shape[-1]}
    options = dict(zip(("grid_size", "rank"), CLASSES[name], strict=True))
    if model == "batch":
        found = WISKIClassifier(X, labels, **options).fit().probabilities(Xt).detach()
        return {**described, **class_scores(found, labels_t)}
    start = max(10, int(PRETRAINING * len(X)))
    learner = CLASSIFIERS[model](X[:start], labels[:start], **options)
    return {
        **described,
        "curve": stream(learner, X, labels, start, evaluate, EXACT_ROWS if model == "exact" else None),
    }


def class_scores(probabilities: Tensor, labels: Tensor) -> dict[str, float]:
    """Accuracy, log loss and expected calibration error of probabilities `M × c`.

    Args:
        probabilities: Of the classes.
        labels: The true ones, `M`.
    """
    sure, predicted = probabilities.max(-1)
    right = (predicted == labels).double()
    bins = (sure * BINS).long().clamp_max(BINS - 1)
    gaps = [(sure - right)[bins == b].sum().abs().item() for b in range(BINS)]
    given = probabilities.gather(-1, labels.unsqueeze(-1))
    return {
        "accuracy": right.mean().item(),
        "log_loss": -given.log().mean().item(),
        "ece": sum(gaps) / len(labels),
    }


def series(data: Path | None, model: str, order: str) -> dict[str, Any]:
    """The first 40 days of a currency: 10 in batch, the others one at a time, by a spectral mixture kernel."""
    values = np.load(require_data(data, "fx2007.npz"))["y"][:SERIES].astype(np.float64)
    Y = torch.as_tensor((values - values.mean()) / values.std()).unsqueeze(-1)
    X = torch.linspace(0.0, 1.0, SERIES, dtype=torch.float64).unsqueeze(-1)
    rows = torch.arange(SERIES)
    if order == "random":
        rows = torch.randperm(SERIES, generator=torch.Generator().manual_seed(0))
    first = rows[: SNAPSHOTS[0]]
    options: dict[str, Any] = {"project": False, "kernel": mixture, "lr": SERIES_RATE}
    options |= {
        "WISKI": {"grid_size": 83, "start": SERIES_START},
        "exact": {"start": SERIES_START},
        "SVGP": {"steps": 6},
    }[model]
    learner = LEARNERS[model](X[first], Y[first], **options)
    grid = torch.linspace(0.0, 1.0, 79, dtype=torch.float64).unsqueeze(-1)
    shots, errors, losses = {}, [], []
    for n, row in enumerate(rows.tolist()):
        if n < SNAPSHOTS[0]:
            continue
        if n in SNAPSHOTS:
            mean, variance = learner.predict(grid)
            shots[str(n)] = {"mean": mean.tolist(), "sd": variance.sqrt().tolist()}
        mean, variance = learner.predict(X[row : row + 1])
        errors.append((mean - Y[row]).square().item())
        losses.append(0.5 * ((mean - Y[row]).square() / variance + (2 * torch.pi * variance).log()).item())
        learner.step(X[row : row + 1], Y[row : row + 1])
    return {
        "data": "fx2007",
        "model": model,
        "order": order,
        "rows": rows.tolist(),
        "values": Y.squeeze(-1).tolist(),
        "snapshots": shots,
        "rmse": float(np.sqrt(np.mean(errors))),
        "nll": float(np.mean(losses)),
    }


def mixture(d: int) -> Kernel:
    """A spectral mixture kernel as it starts: at random, of a seed."""
    torch.manual_seed(0)
    return SpectralMixtureKernel(num_mixtures=MIXTURES, ard_num_dims=d).double()


# ---------------------------------------------------------------------- report


def found_of(result: Result, **wanted: Any) -> list[dict[str, Any]]:
    """Units whose entries are as wanted and that did not fail."""
    return [unit for unit in result["units"].values() if all(unit.get(key) == v for key, v in wanted.items())]


def last(units_found: list[dict[str, Any]], name: str) -> float:
    """The mean over seeds of a measure at the end of the stream, or of a fit in batch; NaN without any."""
    values = [unit["curve"][name][-1] if "curve" in unit else unit[name] for unit in units_found]
    return float(np.mean(values)) if values else float("nan")


def table(result: Result) -> str:
    """Regression, classes and the series, with what was done."""
    tables = (_regression_table(result), _steps(result), _class_table(result), _series_table(result))
    parts = [each for each in tables if each]
    if not parts:
        return ""
    said = (
        f"This is the protocol of figures 3, 4 and 1 of the WISKI paper. {100 * PRETRAINING:g} % of the training rows "
        f"are used for a fit. The others follow in one pass, with one step of Adam per observation. Number of row "
        f"orders: {SEEDS}. 'batch' is WISKI fitted to all rows. The exact GP receives up to {EXACT_ROWS:,} rows, or "
        f"only the rows of the first fit if these are more. Seconds are processor time, as medians over steps."
    )
    return "\n\n".join([said, *parts])


def _regression_table(result: Result) -> str:
    rows = []
    for name in REGRESSION:
        for model in (*LEARNERS, "batch"):
            found = found_of(result, data=name, model=model)
            if not found:
                continue
            n = found[0]["curve"]["n"][-1] if "curve" in found[0] else found[0]["rows"]
            cells = [f"{last(found, measure):.3f}" for measure in ("rmse", "nll", "coverage")]
            stepped = (
                "curve" in found[0] and found[0]["curve"]["seconds"]
            )  # the first rows may be all an exact GP bears
            seconds = [text.seconds(_mean(found, at)) if stepped else "" for at in (0, -1)]
            rows.append([name, model, f"{n:,}", *cells, *seconds])
    header = ["Data", "Model", "Rows", "RMSE", "NLL", "in 95 %", "First observations, processor time", "Last"]
    return text.table(header, rows) if rows else ""


def _steps(result: Result) -> str:
    unit = result["units"].get("protein steps")
    if unit is None:
        return ""
    (few, many), (first, last_) = unit["n"], map(text.seconds, unit["seconds"])
    return (
        f"A step of WISKI costs O(s³) in the rank s of the prior. The rank grows as lengthscales shrink, up to the 256 "
        f"points of the grid. At the same hyperparameters a step on protein takes {first} of processor time after "
        f"{few:,} observations and {last_} after {many:,}. Both were measured in turns."
    )


def _mean(found: list[dict[str, Any]], at: int) -> float:
    return float(np.mean([unit["curve"]["seconds"][at] for unit in found]))


def _class_table(result: Result) -> str:
    rows = []
    for name in CLASSES:
        for model in (*CLASSIFIERS, "batch"):
            for order in ("random", "by region"):
                found = found_of(result, data=name, model=model, order=order)
                if found:
                    n = found[0]["curve"]["n"][-1] if "curve" in found[0] else found[0]["rows"]
                    cells = [f"{last(found, measure):.3f}" for measure in ("accuracy", "log_loss", "ece")]
                    rows.append([name, model, order, f"{n:,}", *cells])
    header = ["Data", "Model", "Order", "Rows", "Accuracy", "Log loss", "ECE"]
    return text.table(header, rows) if rows else ""


def _series_table(result: Result) -> str:
    rows = []
    for model in LEARNERS:
        for order in ("time", "random"):
            for unit in found_of(result, data="fx2007", model=model, order=order):
                rows.append([model, order, f"{unit['rmse']:.3f}", f"{unit['nll']:.3f}"])
    return text.table(["fx2007", "Order", "RMSE of the next", "NLL of the next"], rows) if rows else ""


def headline(result: Result) -> list[text.Row]:
    """How far a stream ends from the fit in batch, and what classes it tells apart."""
    rows: list[text.Row] = []
    shown = []
    for name in REGRESSION:
        online, batch = (found_of(result, data=name, model=model) for model in ("WISKI", "batch"))
        if online and batch:
            rmse = [last(found, "rmse") for found in (online, batch)]
            nll = [last(found, "nll") for found in (online, batch)]
            shown.append(f"{name} {100 * (rmse[0] / rmse[1] - 1):+.1f} %, {nll[0] - nll[1]:+.3f} nats")
    if shown:
        what = "one pass, one gradient step per observation: test RMSE and NLL compared with a batch fit"
        rows.append((what, f"{'; '.join(shown)} (target: 5 %, 0.05 nats)", "`WISKI` fitted to all rows"))
    shown, rivals = [], []
    for name in CLASSES:
        online, rival = (found_of(result, data=name, model=model, order="random") for model in ("WISKI", "SVGP"))
        if online and rival:
            shown.append(f"{name} {last(online, 'accuracy'):.3f}, {last(online, 'ece'):.3f}")
            rivals.append(f"{last(rival, 'accuracy'):.3f}, {last(rival, 'ece'):.3f}")
    if shown:
        what = "labels one at a time: accuracy, calibration error"
        rows.append((what, "; ".join(shown), f"SVGP with a Bernoulli likelihood: {'; '.join(rivals)}"))
    return rows


def plot(result: Result, folder: Path) -> None:
    """Curves of regression, of classes, and the series."""
    _plot_regression(result, folder / "online.png")
    _plot_classes(result, folder / "online_classes.png")
    _plot_series(result, folder / "online_series.png")


def _plot_regression(result: Result, path: Path) -> None:
    from benchmarks import plots

    streamed = {unit["data"] for unit in result["units"].values() if "curve" in unit}
    names = [name for name in REGRESSION if name in streamed] or REGRESSION[:1]
    with plots.figure(path, panels=len(names), rows=2) as axes:
        for axis, below, name in zip(axes, axes[len(names) :], names, strict=False):
            for model in LEARNERS:
                found = found_of(result, data=name, model=model)
                if found:
                    n = found[0]["curve"]["n"]
                    plots.band(axis, n, [unit["curve"]["rmse"] for unit in found], model)
                    if len(n) == 1:
                        below.plot([], [])  # a colour is a model's in every panel
                        axis.plot(n, found[0]["curve"]["rmse"], ".", color=axis.lines[-1].get_color())
                    else:
                        plots.band(below, n[1:], [unit["curve"]["seconds"] for unit in found], model)
            batch = last(found_of(result, data=name, model="batch"), "rmse")
            if not np.isnan(batch):
                axis.axhline(batch, color="0.3", linestyle=":", linewidth=1.2, label="WISKI in batch")
            axis.set(title=name, xscale="log", xlabel="Observations", ylabel="Test RMSE")
            below.set(
                xscale="log",
                yscale="log",
                xlabel="Observations",
                ylabel="Processor seconds an observation",
                ylim=(1e-3, 1.0),
            )
            for panel in (axis, below):
                limits = panel.get_xlim()
                panel.set_xticks([], minor=True)
                panel.set_xticks(TICKS, [f"{tick:,}" for tick in TICKS])
                panel.set_xlim(limits)


def _plot_classes(result: Result, path: Path) -> None:
    from benchmarks import plots

    every = [(name, order) for name in CLASSES for order in ("random", "by region")]
    pairs = [pair for pair in every if found_of(result, data=pair[0], order=pair[1])] or every[:1]
    with plots.figure(path, panels=len(pairs)) as axes:
        for axis, (name, order) in zip(axes, pairs, strict=True):
            for model in CLASSIFIERS:
                found = found_of(result, data=name, model=model, order=order)
                if found:
                    curves = [unit["curve"]["accuracy"] for unit in found]
                    plots.band(axis, found[0]["curve"]["n"], curves, model)
            batch = last(found_of(result, data=name, model="batch"), "accuracy")
            if not np.isnan(batch):
                axis.axhline(batch, color="0.3", linestyle=":", linewidth=1.2, label="WISKI in batch")
            axis.set(title=f"{name}, {order}", xlabel="Labels", ylabel="Test accuracy", ylim=(0.4, 1.0))


def _plot_series(result: Result, path: Path) -> None:
    from benchmarks import plots

    kinds = [(model, order) for model in LEARNERS for order in ("time", "random")]
    with plots.figure(path, panels=len(SNAPSHOTS), rows=len(kinds)) as axes:
        for row, (model, order) in enumerate(kinds):
            for unit in found_of(result, data="fx2007", model=model, order=order):
                for axis, n in zip(axes[row * len(SNAPSHOTS) :], SNAPSHOTS, strict=False):
                    _plot_snapshot(axis, unit, n)
                    axis.set(title=f"{model}, {'in time' if order == 'time' else 'at random'}, n = {n}")


def _plot_snapshot(axis: Any, unit: dict[str, Any], n: int) -> None:
    shot = unit["snapshots"][str(n)]
    mean, sd = np.array(shot["mean"]), np.array(shot["sd"])
    x, days = np.linspace(0, SERIES - 1, len(mean)), np.arange(SERIES)
    values, seen = np.array(unit["values"]), np.array(unit["rows"][:n])
    axis.fill_between(x, mean - 2 * sd, mean + 2 * sd, alpha=0.2, linewidth=0)
    axis.plot(x, mean, linewidth=1.6, label="mean, ± 2 sd")
    axis.plot(days, values, ".", color="0.6", markersize=4, label="to come")
    axis.plot(seen, values[seen], "o", color="0.1", markersize=4, label="seen")
    axis.set(xlabel="Day", ylim=(-4, 4))
