"""Distances on the globe: straight lines through the earth, for surveys that no map shows true to scale."""

import numpy as np
import numpy.typing as npt
from pyproj import CRS

from bo_scale.survey.geography.coordinates import WGS84, to_metric
from bo_scale.survey.geography.world import is_world

Array = npt.NDArray[np.float64]

RADIUS = 6_371_008.8
"""Mean radius of the earth, metres."""
EQUATOR, FLATTENING = 6_378_137.0, 1 / 298.257223563
"""Those of WGS 84, metres."""


def in_space(xy: Array, crs: CRS) -> Array:
    """Return places in coordinates whose straight lines are distances, metres.

    On a map of the world these are places on the ellipsoid, `n × 3` from the centre of the earth, whose straight lines
    are chords; on any other map the places as they are, `n × 2`.

    Args:
        xy: Places, `n × 2`, metres.
        crs: Their metric coordinate system.
    """
    if not is_world(crs):
        return xy
    lon, lat = np.radians(to_metric(xy, crs, WGS84)).T
    squared = FLATTENING * (2.0 - FLATTENING)
    normal = EQUATOR / np.sqrt(1.0 - squared * np.sin(lat) ** 2)
    out = normal * np.cos(lat)
    return np.stack([out * np.cos(lon), out * np.sin(lon), (1.0 - squared) * normal * np.sin(lat)], -1)


def straight(distance: float, crs: CRS) -> float:
    """Return the straight line, in `in_space`, between places so far apart on the ground; both metres."""
    return 2 * RADIUS * float(np.sin(min(distance / RADIUS, np.pi) / 2)) if is_world(crs) else distance


def on_ground(line: float, crs: CRS) -> float:
    """Return the distance on the ground between places with such a straight line; both metres.

    It is right to 0.6 % up to 15,000 km, and to 5 % at the antipode of a pole, for the earth is no sphere.
    """
    return 2 * RADIUS * float(np.arcsin(min(line / (2 * RADIUS), 1.0))) if is_world(crs) else line
