"""Seconds an ask and a tell of the package's own loop, up to 100,000 observations, beside Ax's as far as it goes."""

import logging
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from ax.utils.common.logger import set_ax_logger_levels
from ax.utils.common.random import with_rng_seed
from torch import Tensor

from benchmarks import text
from benchmarks.ax_overhead import client_with, smooth
from benchmarks.harness import Unit
from benchmarks.store import Result
from bo_scale.ax import generation_strategy
from bo_scale.loop import Optimizer

TITLE = "An ask of the loop"
PLOTS = {"loop_overhead.png": "Seconds of an ask for ten points against the number of observations"}
SIZES = (1000, 3000, 10_000, 30_000, 100_000)
AX_SIZES = (1000, 3000)
"""Beyond, a trial of Ax's own bookkeeping takes seconds."""
MODELS = {2: "wiski", 3: "wiski", 10: "softki"}
"""The model measured in so many dimensions."""
BATCHES = {"qLogEI": (1, 10), "Thompson": (1, 10, 100)}
AX_BATCHES = (1, 10)
REPEATS, BUDGET = 5, 60.0
"""Timed asks of each kind; no further one once they have taken so many seconds."""
HEADLINE, HEADLINE_Q, TARGET_SECONDS = 100_000, 10, 1.0
AX = "Ax"


def units(data: Path | None) -> dict[str, Unit]:
    """One for every n, d and way to ask; those of one n and d one after the other."""
    found: dict[str, Unit] = {}
    for d, model in MODELS.items():
        for n in SIZES:
            for acquisition, batches in BATCHES.items():
                found[name(d, n, acquisition)] = partial(measure, model, d, n, acquisition, batches)
            if n in AX_SIZES:
                found[name(d, n, AX)] = partial(measure_ax, model, d, n)
    return found


def name(d: int, n: int, way: str) -> str:
    """Of a unit."""
    return f"d={d} n={n} {way}"


def data_of(d: int, n: int) -> tuple[Tensor, Tensor, torch.Generator]:
    """Random points, noisy values of a smooth function to minimise, and what draws further noise."""
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(n, d, generator=generator, dtype=torch.float64)
    return X, smooth(X, generator), generator


def measure(model: str, d: int, n: int, acquisition: str, batches: tuple[int, ...]) -> dict[str, Any]:
    """The first ask, which fits, and the next ones, which count: for every q their seconds, and of telling of each."""
    X, y, generator = data_of(d, n)
    space = [(0.0, 1.0)] * d
    optimizer = Optimizer(space, objective="minimize", model=model, acquisition=acquisition, refit_growth=1.25)
    told, _ = timed(optimizer.tell, X, y)

    def complete(points: Tensor) -> float:
        return timed(optimizer.tell, points, smooth(points, generator))[0]

    first, points = timed(optimizer.ask, 1)
    complete(points)
    found: dict[str, Any] = {"model": model, "d": d, "n": n, "seed": 0, "all_told": told, "first": first, "asks": {}}
    for q in batches:
        found["asks"][str(q)] = repeated(partial(optimizer.ask, q), complete)
        recent = optimizer.steps[-len(found["asks"][str(q)]["asks"]) :]
        found["asks"][str(q)]["fits"] = sum(step.fitted for step in recent)
    return found


def measure_ax(model: str, d: int, n: int) -> dict[str, Any]:
    """As `measure`, by Ax's client with the same model, which streams."""
    set_ax_logger_levels(logging.ERROR)
    X, y, generator = data_of(d, n)
    client = client_with(X, y)
    client.set_generation_strategy(generation_strategy(model, seed=0))
    found: dict[str, Any] = {"model": model, "d": d, "n": n, "seed": 0, "asks": {}}

    def complete(trials: Mapping[int, Any]) -> float:
        points = torch.tensor([list(point.values()) for point in trials.values()], dtype=torch.float64)
        values = zip(trials, smooth(points, generator).tolist(), strict=True)
        return sum(timed(client.complete_trial, index, {"loss": value})[0] for index, value in values)

    with with_rng_seed(0):
        started = time.perf_counter()
        for _ in range(2):  # the centre, and the one that fits
            complete(client.get_next_trials(1))
        found["first"] = time.perf_counter() - started
        for q in AX_BATCHES:
            found["asks"][str(q)] = repeated(partial(client.get_next_trials, q), complete)
    return found


def repeated(ask: Callable[[], Any], complete: Callable[[Any], float]) -> dict[str, list[float]]:
    """Seconds of asks and of telling of what was asked for, as often as there is time for."""
    asks: list[float] = []
    tells: list[float] = []
    while len(asks) < REPEATS and sum(asks) < BUDGET:
        taken, points = timed(ask)
        asks.append(taken)
        tells.append(complete(points))
    return {"asks": asks, "tells": tells}


def timed(function: Callable[..., Any], *arguments: Any) -> tuple[float, Any]:
    """Seconds that a call takes, and its result."""
    started = time.perf_counter()
    result = function(*arguments)
    return time.perf_counter() - started, result


# ---------------------------------------------------------------------- report


def medians(result: Result, d: int, n: int, way: str, q: int) -> tuple[float, float] | None:
    """Seconds of an ask for q points and of telling of them; None where that was not measured."""
    unit = result["units"].get(name(d, n, way))
    if not unit or str(q) not in unit["asks"]:
        return None
    it = unit["asks"][str(q)]
    return statistics.median(it["asks"]), statistics.median(it["tells"])


def ways() -> list[tuple[str, int]]:
    """How to ask, and for how many points."""
    ours = [(acquisition, q) for acquisition, batches in BATCHES.items() for q in batches]
    return [*ours, *((AX, q) for q in AX_BATCHES)]


def table(result: Result) -> str:
    """Seconds of an ask and a tell, by inputs, n, way and q."""
    rows = []
    for d, model in MODELS.items():
        for n in SIZES:
            for way, q in ways():
                found = medians(result, d, n, way, q)
                if found:
                    rows.append([str(d), f"{n:,}", model, way, str(q), *map(text.seconds, found)])
    return (
        f"The times are those of `ask(q)` and of `tell(…)` with q points. Before them, n random points with noisy "
        f"values of a smooth function were told. A first ask, which fits the model, is not timed. The timed asks "
        f"condition the existing model. Times are medians of up to {REPEATS}, or of fewer once they have taken "
        f"{BUDGET:g} s. 'Ax' is `client.get_next_trials(q)`, and `client.complete_trial(…)` for each trial, with the "
        f"same model by `generation_strategy(…)`, which streams too.\n\n"
        + text.table(["d", "n", "model", "acquisition", "q", "ask", "tell"], rows)
    )


def headline(result: Result) -> list[text.Row]:
    """At the n and q of the target."""
    rows = []
    for d in MODELS:
        ours = {way: medians(result, d, HEADLINE, way, HEADLINE_Q) for way in BATCHES}
        shown = ", ".join(f"{way} {text.seconds(it[0])}" for way, it in ours.items() if it)
        rival = medians(result, d, AX_SIZES[-1], AX, HEADLINE_Q)
        if shown:
            theirs = f"Ax at n = {AX_SIZES[-1]:,}: {text.seconds(rival[0])}" if rival else ""
            what = f"asking the loop for {HEADLINE_Q} points at n = {HEADLINE:,}, d = {d}"
            rows.append((what, f"{shown} (target: {TARGET_SECONDS:g} s)", theirs))
    return rows


def plot(result: Result, folder: Path) -> None:
    """An ask for ten points against n."""
    from benchmarks import plots

    with plots.figure(folder / "loop_overhead.png", panels=len(MODELS)) as axes:
        for axis, (d, model) in zip(axes, MODELS.items(), strict=True):
            lines = {}
            for way in (*BATCHES, AX):
                done = [(n, it[0]) for n in SIZES if (it := medians(result, d, n, way, HEADLINE_Q))]
                if done:
                    lines[way] = tuple(zip(*done, strict=True))
            plots.against_n(axis, lines, f"Seconds of asking for {HEADLINE_Q}")
            axis.set(title=f"{model}, {d} parameters")
