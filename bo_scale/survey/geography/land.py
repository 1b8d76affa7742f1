"""Places far from land: sites that may be mistyped, and plans that nobody can carry out on foot."""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import shapely
from pyproj import CRS
from scipy.spatial import cKDTree

from bo_scale.datasets.natural_earth import load_atlas
from bo_scale.survey.geography.coasts import SMALLEST
from bo_scale.survey.geography.coordinates import WGS84, to_metric
from bo_scale.survey.geography.globe import RADIUS
from bo_scale.survey.geography.world import unrolled

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

SCALE = "50m"
OFFSHORE = 25_000.0
"""Metres from land beyond which a place counts as at sea: 98 % of the coasts of the world, at 1:10 million, are nearer.

The rest are islands that are too small for a map of 1:50 million.
"""
FEW = 0.1
"""Share of sites at sea up to which these are worth a note; with more, a survey is marine."""
STEP = 0.05
"""Degrees between points of the coast, at most: distances from it are right to 3 km."""
NAMED = 5
"""Sites that are named; of more, the others are counted."""


def offshore(xy: Array, crs: CRS) -> Mask:
    """Return which places lie more than `OFFSHORE` from land.

    Args:
        xy: Places, `n × 2`, in the coordinates of `crs`.
        crs: Their coordinate system.
    """
    degrees = to_metric(xy, crs, WGS84)
    found: Mask = np.zeros(len(xy), dtype=np.bool_)
    wet = np.flatnonzero(~shapely.intersects_xy(_land(), degrees[:, 0], degrees[:, 1]))
    distance, _ = _coast().query(_in_space(degrees[wet]), distance_upper_bound=OFFSHORE)
    found[wet] = ~np.isfinite(distance)
    return found


def note_at_sea(what: str, names: Sequence[str], xy: Array, sites: Array, crs: CRS, remedy: str) -> list[str]:
    """Return a note about places at sea; none for a marine survey, or where all are on land.

    Args:
        what: What the places are, as a sentence begins with it.
        names: Their names, one each.
        xy: The places, `m × 2`, in the coordinates of `crs`.
        sites: All measured sites, `n × 2`: with more than a few at sea, the survey is marine.
        crs: Coordinate system of both.
        remedy: A sentence on what to do.
    """
    at_sea = offshore(xy, crs)
    count = int(at_sea.sum())
    if count == 0 or _is_marine(offshore(sites, crs)):
        return []
    some = [name for name, one in zip(names, at_sea.tolist(), strict=True) if one]
    told = ", ".join(some if count <= NAMED else [*some[:NAMED], f"… ({count:,} in all)"])
    lie = "lies" if count == 1 else "lie"
    return [f"{what}: {told} {lie} more than {OFFSHORE / 1000:g} km from land, on a coarse map. {remedy}"]


def note_on_area(cells: Array, sites: Array, crs: CRS, size: float) -> list[str]:
    """Return a note on an area that nobody gave, if much of it is sea while the sites are on land.

    Args:
        cells: Places all over the area, `n × 2`, in the coordinates of `crs`.
        sites: The measured sites, `n × 2`.
        crs: Coordinate system of both.
        size: Metres across the area; of small ones the coarse map tells nothing.
    """
    sea = _in_water(cells, crs).mean()
    if size < SMALLEST or sea < FEW or _is_marine(_in_water(sites, crs)):
        return []
    return [f"About {100 * sea:.0f} % of the area is sea, so plans may be at sea: give an area of land (--area)."]


def _is_marine(at_sea: Mask) -> bool:
    """Whether so many of all sites are at sea that this is no mistake."""
    count = int(at_sea.sum())
    return count > max(1.0, FEW * len(at_sea)) or 2 * count >= len(at_sea)


def _in_water(xy: Array, crs: CRS) -> Mask:
    inside: Mask = shapely.intersects_xy(_land(), *to_metric(xy, crs, WGS84).T)
    return ~inside


@lru_cache(maxsize=1)
def _land() -> shapely.MultiPolygon:
    """Return the land in degrees, cut at the antimeridian, prepared for many questions."""
    whole, torn = list[shapely.Polygon](), list[shapely.Polygon]()
    for rings in load_atlas(SCALE).land:
        longitudes = rings[0][:, 0]
        (torn if np.abs(np.diff(longitudes)).max() > 180.0 else whole).append(shapely.Polygon(rings[0], rings[1:]))
    cut = unrolled(shapely.MultiPolygon(torn))
    land = shapely.multipolygons([*whole, *shapely.get_parts(cut)])
    shapely.prepare(land)
    return land


@lru_cache(maxsize=1)
def _coast() -> cKDTree:
    """Return points along the coasts, in space, by nearness."""
    rings = [ring for rings in load_atlas(SCALE).land for ring in rings]
    unwrapped = [np.stack([np.unwrap(ring[:, 0], period=360.0), ring[:, 1]], -1) for ring in rings]
    fine = shapely.segmentize(np.array([shapely.linestrings(ring) for ring in unwrapped]), STEP)
    return cKDTree(_in_space(shapely.get_coordinates(fine)))


def _in_space(degrees: Array) -> Array:
    """Return places on a sphere, `n × 3`, metres from its centre."""
    lon, lat = np.radians(degrees).T
    return RADIUS * np.stack([np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat)], -1)
