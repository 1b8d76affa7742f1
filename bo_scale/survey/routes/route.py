"""Routes of teams, and their form in a survey's file."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import geopandas as gpd
import numpy as np
import numpy.typing as npt
import shapely
from pyproj import CRS

from bo_scale.survey.geography.coordinates import from_metric, to_metric

Array = npt.NDArray[np.float64]

SAME = 0.01
"""Metres between two places that are one."""


@dataclass(frozen=True)
class Route:
    """A team's way on a day, from its start past its sites to its end.

    Attributes:
        day: Day, from 1.
        team: Team, from 1.
        sites: Ids in the order in which they are visited: P3, P1.
        line: The way itself with all its corners, `k × 2`, metres.
        kilometres: Its length; None where a matrix says minutes only.
        hours: Its duration, with the work at the sites; None if no speed is known.
    """

    day: int
    team: int
    sites: list[str]
    line: Array
    kilometres: float | None
    hours: float | None

    @property
    def name(self) -> str:
        """Day 1, team 2."""
        return f"Day {self.day}, team {self.team}"

    @property
    def cost(self) -> str:
        """Its length and its duration, as far as known: 34.2 km, 6.1 h."""
        costs = ((self.kilometres, "km"), (self.hours, "h"))
        return ", ".join(f"{cost:,.1f} {unit}" for cost, unit in costs if cost is not None)


def to_go(route: Route, pending: Collection[str], places: Mapping[str, Array]) -> Route:
    """Return the rest of a route: pending sites, on the same line. A one-way route ends at the last of them.

    Args:
        route: The route as planned.
        pending: Sites that are still to be measured, at least one of them on the route.
        places: Places of all its sites, metres.
    """
    sites, line = [site for site in route.sites if site in pending], route.line
    if np.linalg.norm(line[-1] - places[route.sites[-1]]) < SAME:
        line = line[: int(np.linalg.norm(line - places[sites[-1]], axis=1).argmin()) + 1]
    return replace(route, sites=sites, line=line)


def lines_of(routes: Sequence[Route], batch: int, metric: CRS, crs: CRS) -> gpd.GeoDataFrame | None:
    """Return routes as the survey keeps them."""
    if not routes:
        return None
    content = {
        "batch": batch,
        "day": [each.day for each in routes],
        "team": [each.team for each in routes],
        "sites": [" ".join(each.sites) for each in routes],
        "kilometres": [np.nan if each.kilometres is None else each.kilometres for each in routes],
        "hours": [np.nan if each.hours is None else each.hours for each in routes],
    }
    shapes = [shapely.LineString(from_metric(each.line, metric, crs)) for each in routes]
    return gpd.GeoDataFrame(content, geometry=shapes, crs=crs)


def routes_of(frame: gpd.GeoDataFrame | None, pending: Sequence[str], metric: CRS) -> list[Route]:
    """Return planned routes with a site that is still to be measured."""
    if frame is None:
        return []
    waits = set(pending)
    rows = [row for row in frame.itertuples() if waits & set(row.sites.split())]
    return [
        Route(
            int(row.day),
            int(row.team),
            row.sites.split(),
            to_metric(shapely.get_coordinates(row.geometry), CRS(frame.crs), metric),
            *(None if np.isnan(cost) else float(cost) for cost in (row.kilometres, row.hours)),
        )
        for row in rows
    ]
