"""Lines in degrees on a map: curved as it curves them, cut where it tears them, and clipped."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import shapely
from pyproj import CRS, Geod, Transformer

from bo_scale.survey.geography.coordinates import WGS84
from bo_scale.survey.geography.world import is_world, middle_of, on_world

Array = npt.NDArray[np.float64]
Box = tuple[float, float, float, float]
"""Left, bottom, right, top, metres."""
Lines = npt.NDArray[np.object_]

STEP = 0.5
"""Degrees between vertices of a line, at most."""
FAR = 120.0
"""Degrees from the middle of a map beyond which its projection is not trusted."""
TORN = 4.0
"""Ratio of lengths, on the map and on the ground, from which a line is torn. Maps that are used stretch by 2."""
SPHERE = Geod(a=6_371_008.8, f=0.0)


def on_map(lines: Sequence[Array], crs: CRS, box: Box, step: float = STEP) -> list[list[Array]]:
    """Return the pieces of each line on a map, `k × 2` metres, without what lies outside a box.

    Args:
        lines: Degrees of longitude and latitude, `k × 2` each, which may jump at the antimeridian.
        crs: Metric coordinate system of the map.
        box: What is kept.
        step: Degrees between vertices, at most: more are added, as straight lines become curves.
    """
    found: list[list[Array]] = [[] for _ in lines]
    if not lines:
        return found
    whole = [np.stack([np.unwrap(line[:, 0], period=360.0), line[:, 1]], -1) for line in lines]
    fine = shapely.segmentize(np.array([shapely.linestrings(line) for line in whole]), step)
    drawn, owners = _around_world(fine, crs) if is_world(crs) else _near_middle(fine, crs, box)
    for clipped, owner in zip(shapely.clip_by_rect(np.array(drawn, dtype=object), *box), owners, strict=True):
        found[owner] += [shapely.get_coordinates(part) for part in shapely.get_parts(clipped) if part.length > 0.0]
    return found


def _around_world(lines: Lines, crs: CRS) -> tuple[list[shapely.LineString], list[int]]:
    """Return the pieces of lines on a map of the world, cut at its edge, and the number of the line of each."""
    middle, found, owners = middle_of(crs), list[shapely.LineString](), list[int]()
    for turn in (-720.0, -360.0, 0.0, 360.0, 720.0):
        west = middle + turn - 180.0
        parts, owner = shapely.get_parts(
            shapely.clip_by_rect(lines, west, -90.0, west + 360.0, 90.0), return_index=True
        )
        kept = shapely.length(parts) > 0.0
        found += [
            shapely.transform(part, lambda xy, west=west: on_world(xy - [west + 180.0, 0.0])) for part in parts[kept]
        ]
        owners += owner[kept].tolist()
    return found, owners


def _near_middle(lines: Lines, crs: CRS, box: Box) -> tuple[list[shapely.LineString], list[int]]:
    """Return the pieces of lines near the middle of a box, on a map of a part of the earth, and the line of each."""
    degrees, owner = shapely.get_coordinates(lines, return_index=True)
    there = np.flatnonzero(_distance(degrees, crs, box) <= _reach(crs, box))
    degrees, owner = degrees[there], owner[there]
    if not len(there):
        return [], []
    lon = (degrees[:, 0] + 180.0) % 360.0 - 180.0
    xy = np.stack(Transformer.from_crs(WGS84, crs, always_xy=True).transform(lon, degrees[:, 1]), -1)
    ground = np.asarray(SPHERE.inv(degrees[:-1, 0], degrees[:-1, 1], degrees[1:, 0], degrees[1:, 1])[2])
    with np.errstate(invalid="ignore"):  # infinity where the projection has no place
        long = np.linalg.norm(np.diff(xy, axis=0), axis=-1)
    together = (owner[1:] == owner[:-1]) & (np.diff(there) == 1) & (long <= TORN * ground + 1.0)
    starts = np.concatenate([[0], np.flatnonzero(~together) + 1])
    pieces = zip(np.split(xy, starts[1:]), owner[starts].tolist(), strict=True)
    kept = [(shapely.linestrings(piece), number) for piece, number in pieces if len(piece) > 1]
    return [piece for piece, _ in kept], [number for _, number in kept]


def middle_degrees(crs: CRS, box: Box) -> tuple[float, float]:
    """Return longitude and latitude of the middle of a box."""
    left, bottom, right, top = box
    back = Transformer.from_crs(crs, WGS84, always_xy=True)
    lon, lat = back.transform((left + right) / 2, (bottom + top) / 2)
    return float(lon), float(lat)


def _distance(degrees: Array, crs: CRS, box: Box) -> Array:
    """Return how far places are from the middle of a box, metres on a sphere."""
    lon, lat = middle_degrees(crs, box)
    ends = np.full(len(degrees), lon), np.full(len(degrees), lat)
    return np.asarray(SPHERE.inv(*ends, degrees[:, 0], degrees[:, 1])[2], dtype=np.float64)


def _reach(crs: CRS, box: Box) -> float:
    """Return how far from its middle the places of a box are at most, with room to spare, metres."""
    left, bottom, right, top = box
    farthest = np.radians(FAR) * SPHERE.a
    return min(1.5 * np.hypot(right - left, top - bottom) / 2 + np.radians(2 * STEP) * SPHERE.a, farthest)
