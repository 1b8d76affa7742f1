"""A batch of sites: how it is chosen, and how the survey keeps it."""

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from itertools import count, islice
from typing import Any

import geopandas as gpd
import numpy as np
import numpy.typing as npt
import pandas as pd
import shapely
from pyproj import CRS

from bo_scale.errors import SurveyError
from bo_scale.survey.choice.designs import unhit
from bo_scale.survey.geography.coordinates import from_metric
from bo_scale.survey.geography.region import Region, polygons
from bo_scale.survey.geography.world import is_world
from bo_scale.survey.plan.numbers import BATCH
from bo_scale.survey.plan.problem import PlanningProblem, Proposal, Request, places_anywhere
from bo_scale.survey.plan.sheet import write_table
from bo_scale.survey.plan.teams import tours
from bo_scale.survey.plan.travel import routes
from bo_scale.survey.routes.route import Route, lines_of
from bo_scale.survey.store.geopackage import State
from bo_scale.survey.tables.columns import VISIT
from bo_scale.survey.tables.records import Dialect

Array = npt.NDArray[np.float64]
NAMED = 12
"""Dropped sites that are all named; of more the first and the last are."""
UNEVEN = 0.5
"""Standard deviation of factors from which roughness is told: where the field is as rough everywhere it is 1/3."""


@dataclass(frozen=True)
class Plan:
    """A batch of sites.

    Attributes:
        table: `site`, the coordinates as in the user's table, an empty column for the value (and its error, or how many
            were examined), and `predicted`, `predicted_sd` in the user's units; `name` where candidate sites have one;
            `day`, `team` and `stop` where there are several days or teams, or a route.
        objective: Name of the objective or the design.
        sd_before: Root of the mean variance over the area, the candidates or the weights, in the model's units.
        sd_after: The same once the batch is measured, as the model expects.
        notes: Sentences that a reader should know.
        routes: Routes of teams that travel, by day and team.
        left_out: Why teams do not visit sites that would come first if nobody had to travel, a sentence each.
        over: Domain of both means: "weights" if the survey or the plan has some, else "candidates" if the survey has
            some, else "area".
        dialect: The way in which text is written: that of the survey's first table.
    """

    table: pd.DataFrame
    objective: str
    sd_before: float
    sd_after: float
    notes: list[str]
    routes: list[Route] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    over: str = "area"
    dialect: Dialect = field(default_factory=Dialect)

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the table, to fill in and to give to `update`: a workbook if the file ends in .xlsx, else text.

        Raises:
            SurveyError: for an ending of other workbooks.
        """
        write_table(self.table, path, self.dialect)


def propose(problem: PlanningProblem) -> Proposal:
    """Choose the sites.

    Raises:
        SurveyError: if no place keeps the distance, none is within reach, or tours should go around the globe.
    """
    if problem.request.travel is not None and is_world(problem.region.crs):
        raise SurveyError(
            "travel: tours need a map that is true to scale, and none of the globe is. Leave out travel (--depot), "
            "or begin a survey of a part of it (--area)."
        )
    request, planned = problem.request, problem.state.planned
    found = batch(problem) if request.travel is None else tours(problem, request.travel)
    if problem.adapted and float(problem.rough.std()) > UNEVEN:
        most = float(problem.rough.max())
        found.notes.append(
            "In parts of the area measurements were farther from what the others let expect than the model knows. The "
            f"plan favours them: the variance there weighs up to {most:.1f} times as much as the model alone says."
        )
    if problem.state.weights is not None and (problem.objective is None or problem.objective.ignores_weights):
        found.notes.append(
            f"Weights do not affect which sites are chosen: {request.objective} ignores them, unlike variance and "
            "misclassification."
        )
    if problem.hardly_predictable:
        found.notes.append(
            "Measurements tell hardly anything of each other: they vary over shorter distances than those between "
            "sites, or their errors are large. A plan can then gain little over one at random."
        )
    dropped = [] if request.add else list(planned.site[planned.status == "planned"])
    if dropped:
        some = ", ".join(dropped if len(dropped) <= NAMED else [dropped[0], "…", dropped[-1]])
        found.notes.append(f"These planned sites were not measured and are dropped: {some} (--add keeps them).")
    return found


def batch(problem: PlanningProblem) -> Proposal:
    """Choose sites wherever they are best."""
    request = problem.request
    places, names, notes = places_anywhere(problem)
    chosen = list(problem.bar(problem.choose(places, request.sites), total=request.sites, desc="sites"))
    if not chosen and max(request.spacing, request.apart) == 0:
        raise SurveyError(
            "candidates: every candidate site is planned or measured already. Give more (init --candidates), or raise "
            "repeats (--repeats)."
        )
    if not chosen:
        raise SurveyError(
            f"spacing={request.spacing:g}, clearance={request.apart:g}: no place in the area keeps these distances. "
            f"Reduce spacing (distance between planned sites) or clearance (distance from measured sites)."
        )
    if len(chosen) < request.sites:
        why = (
            "no other place keeps the distances" if max(request.spacing, request.apart) > 0 else "no candidate is left"
        )
        notes.append(f"Only {len(chosen)} of the {request.sites} sites wanted are planned: {why}.")
    missed = unhit(places, np.stack([one.xy for one in chosen])) if request.objective == "latin" else 0
    if missed:
        notes.append(
            f"Latin hypercube: {missed} of {2 * len(chosen)} strata have no site, because no place is left in them."
        )
    visits = [(number // (request.batch or BATCH) + 1, 0, 0) for number in range(len(chosen))]
    called = [names[one.candidate] if names else "" for one in chosen]
    return Proposal(chosen, called, visits, *problem.sd(chosen), notes)


def recorded(state: State, request: Request, proposal: Proposal, region: Region) -> tuple[State, list[Route]]:
    """Return the survey with the batch, and its routes.

    Sites planned before and not measured are dropped, unless the request adds to them.
    """
    crs, earlier = CRS(state.sites.crs), state.planned.copy()
    if not request.add:
        earlier.loc[earlier.status == "planned", "status"] = "dropped"
    number = len(state.settings["plans"]) + 1
    asked = json.loads(json.dumps(asdict(request), default=_plain))
    made = {**asked, "batch": number, "sites": len(proposal.chosen), "measurements": len(state.sites)}
    made |= {"sd_before": proposal.sd_before, "sd_after": proposal.sd_after}
    xy = np.stack([one.xy for one in proposal.chosen])
    ids = list(islice(_ids(state), len(xy)))
    content = {
        "site": ids,
        "name": proposal.names,
        "batch": number,
        "status": "planned",
        "score": [one.score for one in proposal.chosen],
        **{name: list(values) for name, values in zip(VISIT, zip(*proposal.visits, strict=True), strict=True)},
    }
    new = gpd.GeoDataFrame(content, geometry=shapely.points(from_metric(xy, region.crs, crs)), crs=crs)
    whole = gpd.GeoDataFrame(pd.concat([earlier, new], ignore_index=True), crs=crs) if len(earlier) else new
    whole = whole.fillna(dict.fromkeys(VISIT, 0)).astype(dict.fromkeys(VISIT, int))
    ways = [] if proposal.tours is None or request.travel is None else routes(proposal.tours, ids, request.travel)
    settings = {**state.settings, "plans": [*state.settings["plans"], made]}
    walls = [] if request.travel is None else request.travel.walls(region.crs)
    around = gpd.GeoDataFrame(geometry=[polygons(wall) for wall in walls], crs=region.crs) if walls else None
    before = (state.routes, state.barriers) if request.add else (None, None)
    lines = _joined(before[0], lines_of(ways, number, region.crs, crs))
    barriers = _joined(before[1], around)
    return replace(state, planned=whole, routes=lines, barriers=barriers, settings=settings), ways


def _plain(value: Any) -> Any:
    """Return a path or a number of NumPy's as JSON can hold it."""
    return value.item() if isinstance(value, np.generic) else os.fspath(value)


def _joined(before: gpd.GeoDataFrame | None, new: gpd.GeoDataFrame | None) -> gpd.GeoDataFrame | None:
    if before is None or new is None:
        return new if before is None else before
    return gpd.GeoDataFrame(pd.concat([before, new], ignore_index=True), crs=before.crs)


def _ids(state: State) -> Iterator[str]:
    """Yield P1, P2, … that neither a planned site nor one of the user's has had."""
    taken = {*state.planned.site, *state.sites.site}
    return (name for name in map("P{}".format, count(len(state.planned) + 1)) if name not in taken)
