"""A day's tour: what is learned a kilometre, planned as a tour or as the best sites that are then visited."""

import math
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from benchmarks import text
from benchmarks.fields import load_field
from benchmarks.harness import Unit
from benchmarks.store import Result
from bo_scale.datasets import load_malaria
from bo_scale.survey import Depot, Survey, Travel
from bo_scale.survey.choice.places import Choice
from bo_scale.survey.geography.coordinates import from_metric
from bo_scale.survey.plan.plan import batch
from bo_scale.survey.plan.problem import PlanningProblem, Request
from bo_scale.survey.plan.teams import tours

TITLE = "Tours"
ANYWHERE = True
"""What is compared is lengths and variances, whatever the machine."""
Array = npt.NDArray[np.float64]
DATA = ("malaria", "jura")
SEEDS, SITES, BATCH = 20, 80, 20
"""Surveys a data set, measurements there are, and sites of a plan without travel: as many as a day could hold."""
HOURS, STAY = 8.0, 15.0
"""A day, and minutes at a site."""
REACH = 2.0
"""Ways of a day without stops, by the square root of the area."""
SOMEWHERE = (5e5, 5.2e6)
"""Where jura's own origin is taken to be, which the data do not say."""
TARGET = 1.2


def units(data: Path | None) -> dict[str, Unit]:
    """One for every survey: other measurements and another depot each."""
    return {f"{name} seed {seed}": partial(measure, data, name, seed) for name in DATA for seed in range(SEEDS)}


def rows(data: Path | None, name: str) -> tuple[Array, str]:
    """Coordinates and values, and their coordinate system."""
    if name == "malaria":
        places = load_malaria()
        return np.concatenate([places.X.numpy(), places.Y.numpy()], -1).astype(np.float64), "EPSG:4326"
    xy, z = load_field(data, name)
    return np.column_stack([xy + SOMEWHERE, z]), "EPSG:32632"


def measure(data: Path | None, name: str, seed: int) -> dict[str, Any]:
    """The tour, and the plan without travel visited nearest first, or best first on the shortest routes."""
    table, crs = rows(data, name)
    chosen = np.random.default_rng(seed).permutation(len(table))[:SITES]
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        file = Path(folder) / "sites.csv"
        np.savetxt(file, table[chosen], "%.9g", ",", header="x,y,value", comments="")
        survey = Survey.create(f"{folder}/s.gpkg", file, "value", x="x", y="y", crs=crs)
        found = survey.fitted()
        space = found.workspace
        request = Request(BATCH, "variance", None, 0.0, None, 1, seed, False)
        problem = PlanningProblem(
            request, space.state, space.region, found.sites, found.fit, found.model, space.scale, progress=False
        )
    (home,) = survey.region.points(1, seed)
    (place,) = from_metric(home[None], space.metric, space.crs)
    speed = REACH * math.sqrt(survey.region.area) / 1000 / HOURS
    travelled = Travel([Depot(*place.tolist())], hours=HOURS, speed=speed, stay=STAY)
    with torch.no_grad():
        start = time.perf_counter()
        toured = tours(replace(problem, request=replace(request, batch=None, travel=travelled)), travelled)
        seconds = time.perf_counter() - start
        sites = np.stack([one.xy for one in batch(problem).chosen])
        plans = {
            "tour": np.stack([one.xy for one in toured.chosen]),
            "best sites, nearest first": nearest_first(home, sites, travelled),
            "best sites, best first": best_first(home, sites, travelled),
        }
        found = {
            way: {"sites": len(xy), "km": length(home, xy), "value": worth(problem, xy)} for way, xy in plans.items()
        }
    return {"data": name, "seed": seed, "seconds": seconds, "plans": found}


def length(home: Array, xy: Array) -> float:
    """Of a round, kilometres."""
    line = np.concatenate([home[None], xy, home[None]])
    return float(np.linalg.norm(np.diff(line, axis=0), axis=1).sum()) / 1000


def fits(home: Array, xy: Array, travelled: Travel) -> bool:
    """Whether a round can be done in a day."""
    assert travelled.speed is not None
    assert travelled.hours is not None
    return length(home, xy) / travelled.speed + len(xy) * travelled.stay / 60 <= travelled.hours


def nearest_first(home: Array, sites: Array, travelled: Travel) -> Array:
    """From each site to the nearest that is left, as long as one gets home in time."""
    visited, left = np.empty((0, 2)), list(sites)
    while left:
        at = visited[-1] if len(visited) else home
        following = left.pop(int(np.argmin([np.linalg.norm(site - at) for site in left])))
        if not fits(home, longer := np.concatenate([visited, following[None]]), travelled):
            break
        visited = longer
    return visited


def best_first(home: Array, sites: Array, travelled: Travel) -> Array:
    """In the order of the plan, each where it adds least to the round; those that no longer fit are left out."""
    visited = np.empty((0, 2))
    for site in sites:
        rounds = [np.insert(visited, place, site, axis=0) for place in range(len(visited) + 1)]
        shortest = min(rounds, key=partial(length, home))
        if fits(home, shortest, travelled):
            visited = shortest
    return visited


def worth(problem: PlanningProblem, xy: Array) -> float:
    """By how much of itself the variance over the area falls."""
    if not len(xy):
        return 0.0
    before, after = problem.sd([Choice(place, -1, 0.0) for place in xy])
    return 1 - (after / before) ** 2


def ratio(result: Result, name: str, way: str) -> float:
    """Value a kilometre of the tours, by that of another way; of means over surveys."""
    each = [unit["plans"] for unit in result["units"].values() if unit["data"] == name]

    def rate(way: str) -> float:
        return float(np.sum([plans[way]["value"] for plans in each]) / np.sum([plans[way]["km"] for plans in each]))

    return rate("tour") / rate(way)


def table(result: Result) -> str:
    """Means over surveys."""
    lines = []
    for name in dict.fromkeys(unit["data"] for unit in result["units"].values()):
        each = [unit for unit in result["units"].values() if unit["data"] == name]
        for way in each[0]["plans"]:
            sites, km, value = (np.mean([unit["plans"][way][key] for unit in each]) for key in ("sites", "km", "value"))
            by = "" if way == "tour" else f"{ratio(result, name, way):.2f}"
            lines.append([name, way, f"{sites:.1f}", f"{km:,.3g}", f"{100 * value:.2f} %", by])
    head = ["Data", "Plan", "Sites", "Kilometres", "Variance falls by", "Tour's value per km / this plan's"]
    return (
        "A tour is planned for one day, and compared with visits to the best sites, in two orders. The value of a plan "
        "is the fall of the integrated variance. All values are means over surveys.\n\n" + text.table(head, lines)
    )


def headline(result: Result) -> list[text.Row]:
    """By how much a tour learns more a kilometre."""
    shown = []
    for name in dict.fromkeys(unit["data"] for unit in result["units"].values()):
        ratios = {way: ratio(result, name, way) for way in ("best sites, nearest first", "best sites, best first")}
        surveys = sum(unit["data"] == name for unit in result["units"].values())
        shown.append(
            f"{name}: {', '.join(f'{value:.2f} times ({way})' for way, value in ratios.items())}, {surveys} surveys"
        )
    return (
        [
            (
                f"value per kilometre of a day's tour, relative to the rival's (target: {TARGET:g} times)",
                "; ".join(shown),
                "",
            )
        ]
        if shown
        else []
    )
