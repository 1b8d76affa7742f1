"""Budgets of teams that travel, as users give them, and the routes of their tours."""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise

import numpy as np
import numpy.typing as npt
import shapely
from pyproj import CRS
from shapely.geometry.base import BaseGeometry

from bo_scale.errors import SurveyError
from bo_scale.survey.geography.coordinates import project_shape, to_metric
from bo_scale.survey.geography.region import Region, polygons
from bo_scale.survey.geography.shapes import read_shape
from bo_scale.survey.routes.distances import Around, Given, Straight, Ways, given_ways
from bo_scale.survey.routes.orienteering import Found, Network, Tours, Vehicle
from bo_scale.survey.routes.route import Route

Array = npt.NDArray[np.float64]
MOST = 100
"""Sites of a team and a day by default, at most."""
MANY = 10**9
"""Stops, where their number does not matter."""
UNITS = ("km", "minutes")


@dataclass(frozen=True)
class Depot:
    """The start of a team.

    Attributes:
        x: Longitude or easting, as in the table of the survey.
        y: Latitude or northing.
        name: Its name in messages and in a matrix.
    """

    x: float
    y: float
    name: str = "depot"


MOST_TEAMS = 100
"""Teams of a plan, at most."""


@dataclass(frozen=True)
class Travel:
    """Budgets of teams for a day: kilometres of ways, or hours of ways and work.

    Attributes:
        depots: Start and end of each team's day; one for all teams, or one for each.
        kilometres: Budget of a team's day; or
        hours: Budget of a team's day.
        speed: Kilometres an hour; with hours.
        stay: Minutes of work at a site; with hours.
        teams: Number of teams; None for as many as there are depots.
        one_way: A day ends at the last site.
        starts: Present place of each team, where its first day starts; None for its depot.
        barriers: Files of polygons that no way crosses.
        around_forbidden: Let no way cross the forbidden parts of the survey either.
        matrix: CSV of the ways between candidate sites and depots by name; then no others are known.
        unit: Unit of the matrix, "km" or "minutes"; the latter with hours.
    """

    depots: Sequence[Depot]
    kilometres: float | None = None
    hours: float | None = None
    speed: float | None = None
    stay: float = 0.0
    teams: int | None = None
    one_way: bool = False
    starts: Sequence[Depot] | None = None
    barriers: Sequence[str | os.PathLike[str]] = ()
    around_forbidden: bool = False
    matrix: str | os.PathLike[str] | None = None
    unit: str = "km"

    def __post_init__(self) -> None:
        """Refuse what does not fit together.

        Raises:
            SurveyError: naming the argument.
        """
        if (self.kilometres is None) == (self.hours is None):
            raise SurveyError("travel: give a budget, either kilometres or hours (--kilometres, --hours).")
        for name in ("kilometres", "hours", "speed"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise SurveyError(f"{name}={value}: give a positive number.")
        if not (math.isfinite(self.stay) and self.stay >= 0):
            raise SurveyError(f"stay={self.stay}: give the minutes at each site, 0 or more.")
        if self.unit not in UNITS:
            raise SurveyError(f"unit={self.unit!r}: choose one of {', '.join(UNITS)}.")
        self._check_speed()
        self._check_teams()

    def _check_speed(self) -> None:
        timed = self.matrix is not None and self.unit == "minutes"
        if self.hours is None and (timed or self.speed is not None or self.stay):
            raise SurveyError("speed, stay, matrix in minutes: these need a budget in hours; give hours (--hours).")
        if self.hours is not None and timed == (self.speed is not None):
            raise SurveyError(
                "hours: this budget needs either a speed in km/h (--speed) or a matrix in minutes, but not both."
            )
        if self.matrix is None and self.unit != "km":
            raise SurveyError(f"unit={self.unit!r}: this is the unit of a matrix; give a matrix (--matrix).")
        if self.matrix is not None and (self.barriers or self.around_forbidden):
            raise SurveyError(
                "matrix: a matrix replaces all other distances; leave out barriers (--barrier, --around-forbidden)."
            )

    def _check_teams(self) -> None:
        if not self.depots:
            raise SurveyError("depots: say where the teams start (--depot X,Y).")
        if self.count < 1:
            raise SurveyError(f"teams={self.count}: give at least 1.")
        if self.count > MOST_TEAMS:
            raise SurveyError(f"teams={self.count}: plan for {MOST_TEAMS} teams at most.")
        if len(self.depots) not in (1, self.count):
            raise SurveyError(
                f"depots: {len(self.depots)} for {self.count} teams; give one for all teams, or one for each."
            )
        if self.starts is not None and len(self.starts) != self.count:
            raise SurveyError(f"starts: {len(self.starts)} for {self.count} teams; give one for each.")
        for each in (*self.depots, *(self.starts or ())):
            if not (math.isfinite(each.x) and math.isfinite(each.y)):
                raise SurveyError(f"{each.name}: its coordinates are {each.x}, {each.y}; give finite numbers.")

    @property
    def count(self) -> int:
        """Number of teams."""
        return len(self.depots) if self.teams is None else self.teams

    @property
    def budget(self) -> float:
        """Budget of a team's day, kilometres or hours."""
        found = self.hours if self.kilometres is None else self.kilometres
        assert found is not None, "checked at the beginning"
        return found

    @property
    def reach(self) -> float:
        """Kilometres of ways in a day with a stop, at most; not with a matrix in minutes."""
        return self.budget if self.speed is None else (self.budget - self.stay / 60) * self.speed

    @property
    def _ends(self) -> list[Depot]:
        return [*self.depots, *(self.starts or ())]

    @property
    def named(self) -> str:
        """The budget, for messages."""
        return f"{'hours' if self.kilometres is None else 'kilometres'}={self.budget:g}"

    @property
    def unit_name(self) -> str:
        """Unit of the budget."""
        return "h" if self.kilometres is None else "km"

    def near(self, points: Array, crs: CRS, metric: CRS) -> npt.NDArray[np.bool_]:
        """Return which of n×2 places, metres, are within some team's budget as the crow flies; all, with a matrix."""
        if self.matrix is not None:
            return np.ones(len(points), dtype=bool)
        homes, starts = (
            to_metric(np.array([[each.x, each.y] for each in ends]), crs, metric) for ends in (self.depots, self._ends)
        )
        out, home = (np.linalg.norm(points[:, None] - ends, axis=-1).min(1) / 1000 for ends in (starts, homes))
        way = out if self.one_way else out + home
        return way <= self.reach

    def within(self, crs: CRS, metric: CRS) -> BaseGeometry:
        """Return discs, metres, that hold all places that are `near`, and some others; not with a matrix."""
        starts = to_metric(np.array([[each.x, each.y] for each in self._ends]), crs, metric)
        radius = 1010 * self.reach / (1 if self.one_way else 2)  # metres, and 1 %: a polygon is no circle
        return shapely.union_all(shapely.buffer(shapely.points(starts), radius))

    def stuck(self, tours: Tours, free: npt.NDArray[np.bool_]) -> list[Depot]:
        """Return starts of vehicles from which no way, however long, leads past a free candidate and home."""
        endless = replace(tours, network=replace(tours.network, budget=math.inf))
        added = (endless.additions(number, len(free))[0] for number in range(len(tours.vehicles)))
        return [
            self._ends[vehicle.start - len(free)]
            for vehicle, costs in zip(tours.vehicles, added, strict=True)
            if not np.isfinite(costs[free]).any()
        ]

    def walls(self, metric: CRS) -> list[BaseGeometry]:
        """Return the barriers, a shape for each file, metres."""
        return [project_shape(shape, crs, metric) for shape, crs in map(read_shape, self.barriers)]

    def tours(
        self, candidates: Array, names: Sequence[str], batch: int | None, days: int, region: Region, crs: CRS,
        forbidden: BaseGeometry | None,
    ) -> Tours:  # fmt: skip
        """Return tours without stops; O(M) for M candidates, and O(M · corners) with barriers.

        Args:
            candidates: Places, `M × 2`, metres.
            names: Names of candidate sites; empty if sites may be anywhere.
            batch: Sites of a team and a day at most.
            days: Number of days.
            region: Region of the survey.
            crs: Coordinate system of depots.
            forbidden: Parts of the survey, metres.

        Raises:
            SurveyError: if a file does not fit, or a depot is within a barrier.
        """
        where = to_metric(np.array([[each.x, each.y] for each in self._ends]), crs, region.crs)
        ways = self._ways(np.concatenate([candidates, where]), names, region, forbidden)
        first = len(candidates)
        unit = 1e-3 if self.matrix is None else 1.0
        if self.hours is not None:
            unit = 1 / 60 if self.speed is None else unit / self.speed
        vehicles = []
        for day in range(1, days + 1):
            for team in range(self.count):
                home = first + (team if len(self.depots) > 1 else 0)
                start = first + len(self.depots) + team if self.starts is not None and day == 1 else home
                vehicles.append(Vehicle(day, team + 1, start, None if self.one_way else home))
        return Tours.empty(Network(ways, unit, self.unit_name, self.stay / 60, self.budget, batch or MOST), vehicles)

    def _ways(self, points: Array, names: Sequence[str], region: Region, forbidden: BaseGeometry | None) -> Ways:
        ends = self._ends
        if self.matrix is not None:
            return Given(points, self._matrix([*names, *(each.name for each in ends)], bool(names)))
        shapes: list[BaseGeometry] = self.walls(region.crs)
        if self.around_forbidden and forbidden is None:
            raise SurveyError("around_forbidden: this survey has no forbidden parts (init --forbidden); leave it out.")
        if self.around_forbidden:
            shapes.append(forbidden)
        if not shapes:
            return Straight(points)
        ways = Around(points, shapely.union_all([_cropped(shape, points, region, self.reach) for shape in shapes]))
        for number, each in enumerate(ends, start=len(points) - len(ends)):
            if ways.inside[number]:
                raise SurveyError(
                    f"{each.name}: {each.x:.10g}, {each.y:.10g} lies inside a barrier; give a place outside it."
                )
        return ways

    def _matrix(self, names: Sequence[str], listed: bool) -> Array:
        """Return the ways between named places."""
        assert self.matrix is not None
        if not listed:
            raise SurveyError(
                "matrix: the survey needs candidate sites with names (init --candidates, with a column 'name')."
            )
        known, lengths = given_ways(self.matrix)
        number = {name: place for place, name in enumerate(known)}
        if absent := sorted({name for name in names if name not in number}):
            raise SurveyError(
                f"{self.matrix}: names are missing: {', '.join(absent[:10])}. Add every candidate, depot and start."
            )
        order = [number[name] for name in names]
        return lengths[np.ix_(order, order)]


def _cropped(shape: BaseGeometry, points: Array, region: Region, reach: float) -> BaseGeometry:
    """Return the part of a barrier that ways of so many kilometres may meet; the rest would coarsen its outline."""
    corners, around = np.concatenate([points, np.reshape(region.bounds, (2, 2))]), 1000 * max(reach, 0.0) + 1
    low, high = corners.min(0) - around, corners.max(0) + around
    left, bottom, right, top = shape.bounds
    if low[0] <= left and low[1] <= bottom and right <= high[0] and top <= high[1]:
        return shape
    return shapely.intersection(polygons(shape), shapely.box(*low, *high))


def ordered(found: Found) -> Found:
    """Return the tours with choices in the order in which they are visited.

    Of a team's equal days the one worth most comes first: if bad weather ends the work early, most is done.
    """
    tours, chosen = found.tours, {choice.candidate: choice for choice in found.choices}
    worth = [sum(chosen[stop].score for stop in stops) for stops in tours.stops]
    alike: dict[tuple[int, int, int | None], list[int]] = {}
    for number, each in enumerate(tours.vehicles):
        alike.setdefault((each.team, each.start, each.end), []).append(number)
    stops = list(tours.stops)
    for numbers in alike.values():
        for number, other in zip(numbers, sorted(numbers, key=lambda number: -worth[number]), strict=True):
            stops[number] = tours.stops[other]
    choices = [chosen[stop] for route in stops for stop in route]
    return replace(found, choices=choices, tours=replace(tours, stops=stops))


def route(tours: Tours, number: int, ids: Sequence[str], travelled: Travel) -> Route:
    """Return the route of a vehicle, with the ids of its stops."""
    places, ways = tours.places(number), tours.network.ways
    parts = [ways.path(a, b) for a, b in pairwise(places)]
    line = np.concatenate([parts[0][:1], *(part[1:] for part in parts)])
    length: float | None = float(np.linalg.norm(np.diff(line, axis=0), axis=1).sum()) / 1000
    if travelled.matrix is not None:
        length = float(sum(ways.starting(a)[b] for a, b in pairwise(places))) if travelled.unit == "km" else None
    hours = None if travelled.hours is None else tours.cost(number)
    vehicle = tours.vehicles[number]
    return Route(vehicle.day, vehicle.team, list(ids), line, length, hours)


def left_out(wanted: Sequence[int], tours: Tours, names: Sequence[str]) -> list[str]:
    """Say why sites are not visited that would be chosen without a budget, a sentence each.

    Args:
        wanted: Candidates.
        tours: Tours of the plan.
        names: Names of the wanted candidates.
    """
    count, budget, unit = max(wanted, default=-1) + 1, tours.network.budget, tours.network.unit_name
    many = replace(tours, network=replace(tours.network, most=MANY))
    free = replace(tours, network=replace(many.network, budget=math.inf))
    idle = replace(free, stops=[[] for _ in tours.vehicles])
    alone, more, within = (
        np.array([each.additions(number, count)[0] for number in range(len(tours.vehicles))])
        for each in (idle, free, many)
    )
    alone, within = alone.min(0), within.min(0)
    left = budget - np.array([tours.cost(number) for number in range(len(tours.vehicles))])
    nearest = (more - left[:, None]).argmin(0)
    notes = []
    for place, name in zip(wanted, names, strict=True):
        if not np.isfinite(alone[place]):
            notes.append(f"{name}: it cannot be reached.")
        elif alone[place] > budget:
            notes.append(
                f"{name}: visiting it alone takes {_long(alone[place])} {unit}; the budget is {_long(budget)} {unit}."
            )
        elif not np.isfinite(more[:, place]).any():
            notes.append(f"{name}: it cannot be reached from the other sites of a tour.")
        elif np.isfinite(within[place]):
            notes.append(f"{name}: the budget allows it, but the batch is full or another site is too near.")
        else:
            added, there = _long(more[nearest[place], place]), _long(max(left[nearest[place]], 0.0))
            notes.append(f"{name}: it would take {added} {unit} more, but only {there} {unit} is left.")
    return notes


def routes(tours: Tours, ids: Sequence[str], travelled: Travel) -> list[Route]:
    """Return routes of all vehicles that go anywhere; ids are in the order of their stops."""
    left = iter(ids)
    names = [list(islice(left, len(stops))) for stops in tours.stops]
    return [route(tours, number, sites, travelled) for number, sites in enumerate(names) if sites]


def _long(cost: float) -> str:
    """Format a cost with three digits at least."""
    return f"{cost:,.0f}" if cost >= 100 else f"{cost:.3g}"
