"""Plans for teams that travel: the sites within their budget, the routes, and what is left out."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import shapely
from pyproj import CRS
from shapely.geometry.base import BaseGeometry

from bo_scale.errors import SurveyError
from bo_scale.survey.choice.places import Choice, Places
from bo_scale.survey.geography.coordinates import from_metric, project_shape, to_metric
from bo_scale.survey.geography.region import Region, polygons
from bo_scale.survey.plan.problem import CANDIDATES, PlanningProblem, Proposal, places_anywhere
from bo_scale.survey.plan.travel import Travel, left_out, ordered
from bo_scale.survey.routes.distances import Around
from bo_scale.survey.routes.orienteering import EXPONENTS, Tours, travel

Array = npt.NDArray[np.float64]
REACHED = 1000
"""Places tried, quasi-random within reach of the teams."""


def tours(problem: PlanningProblem, travelled: Travel) -> Proposal:
    """Choose sites that teams can visit within their budget, and their routes.

    Raises:
        SurveyError: if no place is within reach, or keeps the distances.
    """
    request, state, region, crs = problem.request, problem.state, problem.region, CRS(problem.state.sites.crs)
    anywhere, names, notes = places_anywhere(problem)
    places = anywhere if state.candidates is not None else _within_reach(problem, travelled)
    idle = travelled.tours(places.candidates, names, request.batch, request.days, region, crs, _forbidden(problem))
    if isinstance(ways := idle.network.ways, Around) and ways.deviation > 0:
        notes.append(
            f"The barriers have many corners, so their outlines were simplified. Routes may cross them by up to "
            f"{ways.deviation:,.0f} m: check the map."
        )
    notes.extend(_stuck(travelled, idle, places))
    design, objective = problem.state_at(places), problem.objective
    assert objective is not None, "checked with the request"
    with problem.bar(total=len(EXPONENTS), desc="tours") as bar:
        found = ordered(travel(design, places, idle, objective, problem.limit, request.seed, bar.update))
    if not found.choices:
        raise SurveyError(
            f"{travelled.named}: every place within reach is planned already, or too near other sites (spacing, "
            f"clearance). Give a larger budget, or another depot.{_swapped(problem, travelled)}"
        )
    visits = [
        (vehicle.day, vehicle.team, stop)
        for vehicle, stops in zip(found.tours.vehicles, found.tours.stops, strict=True)
        for stop in range(1, len(stops) + 1)
    ]
    wanted = list(problem.choose(anywhere, len(found.choices), design if places is anywhere else None))
    left = _left_out(problem, travelled, wanted, found.tours, names)
    chosen_names = [names[one.candidate] if names else "" for one in found.choices]
    return Proposal(found.choices, chosen_names, visits, *problem.sd(found.choices), notes, found.tours, left)


def _stuck(travelled: Travel, idle: Tours, places: Places) -> list[str]:
    """Return notes on starts from which no free site can be reached, if there are others.

    Raises:
        SurveyError: if barriers keep all teams from all places.
    """
    teams = len(idle.vehicles)
    lost = travelled.stuck(idle, np.ones(len(places.candidates), dtype=bool))
    if len(lost) == teams and isinstance(idle.network.ways, Around):
        each = lost[0]
        raise SurveyError(
            f"{each.name}: no place can be reached from {each.x:.10g}, {each.y:.10g}, because of the barriers. Give "
            f"another place, or fewer barriers."
        )
    lost = travelled.stuck(idle, places.open(places.used(), np.empty((0, 2))))
    if len(lost) == teams:
        return []
    names = dict.fromkeys(each.name for each in lost)
    return [f"{name}: no free site can be reached from here, so no team starts here." for name in names]


def _forbidden(problem: PlanningProblem) -> BaseGeometry | None:
    """Return the forbidden parts of the survey, metres."""
    cut = problem.state.forbidden
    if cut is None:
        return None
    return project_shape(shapely.union_all(cut.geometry.to_numpy()), CRS(cut.crs), problem.region.crs)


def _within_reach(problem: PlanningProblem, travelled: Travel) -> Places:
    """Return places of the area that are within the budget as the crow flies."""
    region, crs = problem.region, CRS(problem.state.sites.crs)
    near = _near(region, problem.request.seed, travelled, crs)
    near = near[problem.allowed(near)]
    if len(near) < REACHED:
        within = polygons(shapely.intersection(region.shape, travelled.within(crs, region.crs)))
        near = near[:0] if within.is_empty else _near(Region(within, region.crs), problem.request.seed, travelled, crs)
        near = near[problem.allowed(near)]
    if not len(near):
        depots = ", ".join(each.name for each in travelled.depots)
        raise SurveyError(
            f"{travelled.named}: no place in the area is within reach of {depots}. Give a larger budget, "
            f"or another depot.{_swapped(problem, travelled)}"
        )
    return problem.places(near[:REACHED])


def _near(region: Region, seed: int, travelled: Travel, crs: CRS) -> Array:
    points = region.points(8 * REACHED, seed)
    return points[travelled.near(points, crs, region.crs)]


def _swapped(problem: PlanningProblem, travelled: Travel) -> str:
    """Return a hint if a depot far from the area would be near it with its coordinates swapped."""
    region, crs = problem.region, CRS(problem.state.sites.crs)
    left, bottom, right, top = region.bounds
    for each in (*travelled.depots, *(travelled.starts or ())):
        given, turned = (_away(region, place, crs) for place in ((each.x, each.y), (each.y, each.x)))
        if turned <= float(np.hypot(right - left, top - bottom)) < given:
            place = f"{each.y:.10g},{each.x:.10g}"
            return f" Are the coordinates of {each.name} swapped? Longitude (easting) comes first: {place}."
    return ""


def _away(region: Region, place: tuple[float, float], crs: CRS) -> float:
    """Return metres from the area; infinite for coordinates that are none."""
    try:
        return float(region.shape.distance(shapely.Point(to_metric(np.array([place]), crs, region.crs)[0])))
    except SurveyError:
        return np.inf


def _left_out(
    problem: PlanningProblem, travelled: Travel, wanted: Sequence[Choice], found: Tours, names: Sequence[str]
) -> list[str]:
    """Say why sites are not visited that would be chosen if nobody had to travel."""
    region, crs = problem.region, CRS(problem.state.sites.crs)
    visited = [stop for stops in found.stops for stop in stops]
    at = found.network.ways.points[visited]
    reach = 0.0 if names else float((region.area / CANDIDATES) ** 0.5)
    far = [one for one in wanted if np.linalg.norm(one.xy - at, axis=1).min() > reach]
    if names:
        return left_out([one.candidate for one in far], found, [names[one.candidate] for one in far])
    xy = np.array([one.xy for one in far]).reshape(-1, 2)
    request, number = problem.request, {stop: len(far) + place for place, stop in enumerate(visited)}
    points = np.concatenate([xy, at])
    idle = travelled.tours(points, [], request.batch, request.days, region, crs, _forbidden(problem))
    tours = replace(idle, stops=[[number[stop] for stop in route] for route in found.stops])
    digits = ".4f" if crs.is_geographic else ".0f"
    told = [f"({x:{digits}}, {y:{digits}})" for x, y in from_metric(xy, region.crs, crs)]
    return left_out(range(len(far)), tours, told)
