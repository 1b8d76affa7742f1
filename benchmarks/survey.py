"""Active sampling of seven fields: error, coverage and way against sites, by what they are chosen for and by model.

Places of a test set are drawn, a quarter of small fields. Sites are chosen among the others, at random first, the same
for all strategies of a seed, then in batches; integrals are over all places, gathered in square cells: a survey knows
its area, what is held out are the values. The model is fitted anew at every quarter more sites, as a survey does.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from scipy.spatial.distance import cdist

from benchmarks.fields import Array, Rows, load_field, scores
from benchmarks.harness import Unit
from benchmarks.survey_models import FewActions, Learner, SurveyLearner
from benchmarks.survey_report import PLOTS, TITLE, headline, plot, table
from bo_scale.models.shell.model import ScalableModel
from bo_scale.survey.choice.design_state import design_state
from bo_scale.survey.choice.designs import Design, design
from bo_scale.survey.choice.greedy import choose
from bo_scale.survey.choice.objectives import objective_named
from bo_scale.survey.choice.places import Places
from bo_scale.survey.geography.thinning import gathered
from bo_scale.survey.mapping.fit import Fit
from bo_scale.survey.mapping.kernels import Box
from bo_scale.survey.mapping.model import box_of, coordinates, forecast
from bo_scale.survey.mapping.sites import Sites

__all__ = ["PLOTS", "TITLE", "headline", "plot", "table", "units"]

SEEDS, MANY_SEEDS = range(5), range(20)
MANY = 1000
"""Values held out with which `SEEDS` are enough to look at a strategy."""
EXACT = 10**9
CELLS = 2000
"""Square cells that integrals are over, about: as many as a survey has where they are not in closed form."""
THRESHOLD = 0.75
"""The quantile of all values that straddle is about."""


@dataclass(frozen=True)
class Course:
    """How a field is sampled: numbers of places of the test set, at most as candidates, first, a batch, batches."""

    test: int
    candidates: int
    first: int
    batch: int
    batches: int


COURSES = {
    "meuse": Course(38, 115, 15, 8, 9),
    "jura": Course(90, 269, 20, 12, 10),
    "satellite_temp": Course(1000, 1500, 30, 20, 15),
    "shelikof_sst": Course(1000, 1500, 30, 20, 15),
    "malaria": Course(1000, 1500, 30, 20, 15),
    "hotspots": Course(500, 1000, 30, 20, 10),
    "roads": Course(1000, 1500, 30, 20, 15),
}
OBJECTIVES: dict[str, str] = {
    "nipv": "variance",
    "even": "variance",
    "uncertainty": "uncertainty",
    "straddle": "straddle",
}
"""By name; "nipv" as the survey has it, "even" as if the quantity were as rough everywhere."""
DESIGNS: tuple[Design, ...] = ("random", "maximin", "coverage", "latin", "stratified")
MAIN = ("nipv", "random", "maximin")
COMPARED = (*MAIN, "coverage")
MODELS: dict[str, Callable[[Box], Learner]] = {
    "exact": partial(SurveyLearner, exact_up_to=EXACT),
    "CaGP": FewActions,
    "WISKI": partial(SurveyLearner, exact_up_to=0),
}


def units(data: Path | None) -> dict[str, Unit]:
    """One for every field, model, strategy and seed."""
    every = [(f, m, s, k) for m in MODELS for f in COURSES for s in strategies_of(m) for k in seeds_of(f, m, s)]
    every.sort(key=lambda unit: (unit[1] != "exact", unit[3]))
    return {f"{f} {m} {s} seed {k}": partial(measure, data, f, m, s, k) for f, m, s, k in every}


def strategies_of(model: str) -> tuple[str, ...]:
    """All with the exact model, the main ones with others."""
    return (*OBJECTIVES, *DESIGNS) if model == "exact" else MAIN


def seeds_of(field: str, model: str, strategy: str) -> range:
    """Of a field with a model: more for the main strategies, and where few values are held out."""
    many = strategy in COMPARED or COURSES[field].test < MANY
    return MANY_SEEDS if many and model == "exact" else SEEDS


def measure(data: Path | None, field: str, model: str, strategy: str, seed: int) -> dict[str, Any]:
    """One run: scores, the way so far and seconds, at the first sites and after every batch."""
    course = COURSES[field]
    xy, z = load_field(data, field)
    test, pool, measured = split(len(z), course, seed)
    learner = MODELS[model](box_of(xy, (np.inf, np.inf, -np.inf, -np.inf)))
    threshold = float(np.quantile(z, THRESHOLD))
    cells = gathered(xy, CELLS)
    run: dict[str, Any] = {"field": field, "model": model, "strategy": strategy, "seed": seed}
    run |= {key: [] for key in ("n", "rmse", "crps", "coverage_95", "width", "kilometres", "fit_seconds")}
    run |= {"choose_seconds": []}
    way = 0.0
    for batch in range(course.batches + 1):
        sites = Sites(xy[measured], z[measured], None)
        (fit, gp), fitting = timed(partial(learner.update, sites))
        mean, sd = forecast(gp, fit, xy[test], progress=False)
        noise = fit.unit**2 * float(gp.measurement_noise(0))
        found = scores(z[test], mean, np.sqrt(np.square(sd) + noise)) | {"n": len(measured)}
        for key, value in (found | {"kilometres": way, "fit_seconds": fitting}).items():
            run[key].append(value)
        if batch == course.batches:
            break
        left = np.setdiff1d(pool, measured)
        knowledge = Knowledge(gp, fit, threshold, partial(learner.roughness, sites))
        pick = partial(select, strategy, knowledge, xy, (left, measured), cells, course.batch, seed + 1000 * batch)
        chosen, choosing = timed(pick)
        run["choose_seconds"].append(choosing)
        way += tour(xy[chosen]) / 1000
        measured = np.concatenate([measured, chosen])
    return run


def split(count: int, course: Course, seed: int) -> tuple[Rows, Rows, Rows]:
    """Rows of the test set, of the candidates, and of those the first that are measured."""
    order = np.random.default_rng(seed).permutation(count)
    pool = order[course.test : course.test + course.candidates]
    return order[: course.test], np.sort(pool), pool[: course.first]


@dataclass(frozen=True)
class Knowledge:
    """What sites are chosen by.

    Attributes:
        gp: Of what is measured.
        fit: Its hyperparameters.
        threshold: For straddle, on the scale of the values.
        roughness: At places, metres, as the survey takes it into account.
    """

    gp: ScalableModel
    fit: Fit
    threshold: float
    roughness: Callable[[Array], Array]


def select(
    strategy: str,
    known: Knowledge,
    xy: Array,
    rows: tuple[Rows, Rows],
    cells: tuple[Array, Array],
    batch: int,
    seed: int,
) -> Rows:
    """Rows of a batch.

    Args:
        strategy: One of `OBJECTIVES` or `DESIGNS`.
        known: By which it chooses.
        xy: All places, metres.
        rows: Those that may be chosen, and those measured.
        cells: Places that integrals are over, with weights.
        batch: How many.
        seed: Of what is random.
    """
    left, measured = rows
    if strategy not in OBJECTIVES:
        return left[design(cast(Design, strategy), xy[left], xy[measured], batch, seed)]
    gp, fit, to_model = known.gp, known.fit, partial(coordinates, known.gp, known.fit)
    places = Places(xy[left], [], 0.0, 1, None, 0.0, to_model)
    weights = cells[1] * known.roughness(cells[0]) if strategy == "nipv" else cells[1]
    with torch.no_grad():
        state = design_state(
            gp.processes[0],
            to_model(xy[left]),
            to_model(cells[0]),
            torch.from_numpy(weights),
            gp.measurement_noise(0),
            torch.Generator().manual_seed(seed),
        )
        limit = (known.threshold - fit.offset) / fit.unit
        found = list(choose(state, places, batch, objective_named(OBJECTIVES[strategy]), limit, seed))
    return left[[one.candidate for one in found]]


def tour(xy: Array) -> float:
    """Length of a round trip: to the nearest site that is left, then crossings are undone until none is (2-opt)."""
    distance, order = cdist(xy, xy), [0]
    left = set(range(1, len(xy)))
    while left:
        order.append(min(left, key=lambda site: distance[order[-1], site]))
        left.remove(order[-1])
    better = True
    while better:
        better = False
        for i in range(len(order) - 1):
            for j in range(i + 2, len(order) - (i == 0)):
                a, b, c, d = order[i], order[i + 1], order[j], order[(j + 1) % len(order)]
                if distance[a, c] + distance[b, d] < distance[a, b] + distance[c, d] - 1e-9:
                    order[i + 1 : j + 1] = order[i + 1 : j + 1][::-1]
                    better = True
    return float(distance[order, np.roll(order, -1)].sum())


def timed(function: Callable[[], Any]) -> tuple[Any, float]:
    """What a function returns, and the processor seconds it took."""
    start = time.process_time()
    value = function()
    return value, time.process_time() - start
