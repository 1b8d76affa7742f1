"""Planned sites and routes for handheld units: GPX 1.1."""

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from jaxtyping import Float
from pyproj import CRS

from bo_scale.errors import MissingDependencyError, SurveyError
from bo_scale.survey.geography.coordinates import WGS84, from_metric
from bo_scale.survey.routes.route import SAME, Route
from bo_scale.survey.whole_files import write_whole

Point = TypeVar("Point")

NO_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True)
class Waypoint:
    """A place that a unit shows by its name.

    Attributes:
        name: P12.
        xy: Metres.
        description: A text about it.
        kind: site or depot.
    """

    name: str
    xy: Float[np.ndarray, " 2"]
    description: str = ""
    kind: str = "site"


def write_gpx(routes: Sequence[Route], waypoints: Sequence[Waypoint], crs: CRS, path: str | os.PathLike[str]) -> None:
    """All waypoints; of each route its stops in their order, to navigate by, and as a track the whole line. Atomic.

    Args:
        routes: A route in the file, and a track, each.
        waypoints: One for each site of the routes, and others. A route that starts or ends at one has its name.
        crs: Metric, of all coordinates.
        path: The file to make or replace.

    Raises:
        SurveyError: if a route has a site without a waypoint, or two of them, or a place is on no map.
        MissingDependencyError: without gpxpy.
    """
    try:
        from gpxpy import gpx
    except ImportError as error:
        raise MissingDependencyError("GPX files need gpxpy: pip install 'bo_scale[survey]'.") from error
    written = gpx.GPX()
    written.creator = "bo_scale"
    written.waypoints = _points(waypoints, crs, gpx.GPXWaypoint)
    for number, route in enumerate(routes, start=1):
        stops = gpx.GPXRoute(xml_text(route.name), xml_text(route.cost), number)
        stops.points = _points(_stops(route, waypoints), crs, gpx.GPXRoutePoint)
        written.routes.append(stops)
        track = gpx.GPXTrack(xml_text(route.name), xml_text(route.cost), number)
        line = [gpx.GPXTrackPoint(latitude, longitude) for latitude, longitude in _degrees(route.line, crs)]
        track.segments.append(gpx.GPXTrackSegment(line))
        written.tracks.append(track)
    write_whole(path, [written.to_xml("1.1").encode()])


def _stops(route: Route, waypoints: Sequence[Waypoint]) -> list[Waypoint]:
    """Return its start, its sites, and its end unless that is at the last of them."""
    found = []
    for site in route.sites:
        known = [place for place in waypoints if place.name == site]
        if len(known) != 1:
            raise SurveyError(f"waypoints: {route.name} needs exactly one named {site}, but there are {len(known)}.")
        found += known
    for name, at, end in (("Start", 0, 0), ("End", -1, len(found) + 1)):
        if len(route.line) and not (found and _apart(found[at].xy, route.line[at]) < SAME):
            there = (place for place in waypoints if _apart(place.xy, route.line[at]) < SAME)
            found.insert(end, next(there, Waypoint(name, route.line[at], kind="depot")))
    return found


def _apart(a: Float[np.ndarray, " 2"], b: Float[np.ndarray, " 2"]) -> float:
    return float(np.linalg.norm(a - b))


def _degrees(xy: Float[np.ndarray, "n 2"], crs: CRS) -> list[list[float]]:
    """Latitude and longitude."""
    return from_metric(xy, crs, WGS84)[:, ::-1].tolist()


def _points(places: Sequence[Waypoint], crs: CRS, make: Callable[..., Point]) -> list[Point]:
    at = _degrees(np.stack([place.xy for place in places]), crs) if places else []
    return [
        make(
            latitude,
            longitude,
            name=xml_text(place.name),
            description=xml_text(place.description) or None,
            symbol="Flag, Blue" if place.kind == "site" else "Residence",
            type=xml_text(place.kind),
        )
        for place, (latitude, longitude) in zip(places, at)
    ]


def xml_text(text: str) -> str:
    """Return a text without the characters that no XML file may hold."""
    return NO_XML.sub("", text)
