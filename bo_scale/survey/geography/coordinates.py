"""Coordinate systems: a metric one that suits some places, and the ways to it and back."""

import math
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import shapely
from pyproj import CRS, Proj, Transformer
from shapely.geometry.base import BaseGeometry

from bo_scale.errors import SurveyError
from bo_scale.survey.geography.world import is_world, onto_world, unrolled, world_crs

Array = npt.NDArray[np.float64]

WGS84 = CRS.from_epsg(4326)
STRETCH = 0.05
"""Largest relative error of distances in a system that is used: world maps reach 1, national grids 0.035."""
GLOBAL = 60.0
"""Degrees from the middle of places to the farthest of them beyond which they span the globe.

Places that are 120° apart span a third of the way around it. No map of so much is true to scale: the best one is off by
15 % there, and more beyond.
"""


def is_geographic(crs: CRS) -> bool:
    """Whether coordinates are degrees of longitude and latitude."""
    return bool(crs.is_geographic)


def is_metric(crs: CRS) -> bool:
    """Whether distances can be taken in a coordinate system as it is: projected, in metres, and not (web) Mercator."""
    operation = crs.coordinate_operation
    method = operation.method_name if operation is not None else ""
    stretched = "mercator" in method.lower() and "transverse" not in method.lower()
    return bool(crs.is_projected) and not stretched and all(a.unit_conversion_factor == 1.0 for a in crs.axis_info[:2])


def is_true(crs: CRS, xy: Array) -> bool:
    """Whether distances in a projected system are those on the earth within a few per cent, where most places are."""
    lon, lat = Proj(crs)(xy[:, 0], xy[:, 1], inverse=True)
    return not stretch(crs, np.stack([lon, lat], -1)) > STRETCH  # places on no map are complained of elsewhere


def stretch(crs: CRS, degrees: Array) -> float:
    """Return the relative error of distances in a projected system, at the median of places in degrees, `n × 2`."""
    factors = Proj(crs).get_factors(degrees[:, 0], degrees[:, 1])
    return float(np.median(np.maximum(factors.tissot_semimajor - 1.0, 1.0 - factors.tissot_semiminor)))


def reach(lon: Array, lat: Array) -> float:
    """Return the degrees from the mean direction of some places to the farthest of them."""
    towards = directions(lon, lat)
    mean = towards.mean(0)
    length = float(np.linalg.norm(mean))
    if length < 1e-9:  # in balance around the earth
        return 180.0
    return math.degrees(math.acos(float(np.clip((towards @ mean).min() / length, -1.0, 1.0))))


def metric_crs(lon: Array, lat: Array) -> tuple[CRS, str]:
    """A metric coordinate system that suits some places: UTM up to 6 degrees of longitude, else Lambert's equal area.

    Where places span the globe, a third of the way around it (`GLOBAL`), it is a map of the world. Its areas are right
    but its distances are not: take those from `globe.in_space`.

    Args:
        lon: Degrees within ±180; places on both sides of the antimeridian are together.
        lat: Degrees.

    Returns:
        The system, and its name for messages.

    Raises:
        SurveyError: without places, or where they are not degrees.
    """
    if len(lon) == 0 or not bool(np.all((np.abs(lon) <= 180.0) & (np.abs(lat) <= 90.0))):
        raise SurveyError("longitudes must lie within ±180 and latitudes within ±90: check the CRS (--crs).")
    if reach(lon, lat) > GLOBAL:
        return world_crs(lon)
    west, width = _longitudes(lon)
    south, north = float(lat.min()), float(lat.max())
    middle = _wrapped(west + width / 2.0)
    if width <= 6.0 and south >= -80.0 and north <= 84.0:
        zone = min(int((middle + 180.0) // 6.0) + 1, 60)
        half, base = ("north", 32600) if south + north >= 0.0 else ("south", 32700)
        return CRS.from_epsg(base + zone), f"UTM zone {zone} {half} (EPSG:{base + zone})"
    latitude = (south + north) / 2.0
    if width > 180.0:
        middle, latitude = _direction(lon, lat)
    middle, latitude = round(middle, 2) + 0.0, round(latitude, 2) + 0.0
    given = CRS.from_proj4(f"+proj=laea +lat_0={latitude} +lon_0={middle} +datum=WGS84 +units=m +no_defs")
    crs = CRS.from_wkt(given.to_wkt())  # PROJ strings come out an ulp off, and well-known text is what files hold
    where = f"{abs(latitude):g}° {'N' if latitude >= 0 else 'S'}, {abs(middle):g}° {'E' if middle >= 0 else 'W'}"
    return crs, f"Lambert azimuthal equal area, centred at {where}"


def _longitudes(lon: Array) -> tuple[float, float]:
    """Western edge and width of the shortest arc with all longitudes, degrees."""
    turns = np.unique(np.mod(lon, 360.0))
    gaps = np.diff(turns, append=turns[:1] + 360.0)
    widest = int(gaps.argmax())
    return float(turns[(widest + 1) % len(turns)]), float(360.0 - gaps[widest])


def _wrapped(lon: float) -> float:
    return (lon + 180.0) % 360.0 - 180.0


def _direction(lon: Array, lat: Array) -> tuple[float, float]:
    """Longitude and latitude of the mean direction from the centre of the earth."""
    x, y, z = directions(lon, lat).mean(0)
    return math.degrees(math.atan2(y, x)), math.degrees(math.atan2(z, math.hypot(x, y)))


def directions(lon: Array, lat: Array) -> Array:
    """Return directions from the centre of the earth, `n × 3`, of longitudes and latitudes in degrees."""
    a, b = np.radians(lon), np.radians(lat)
    return np.stack([np.cos(a) * np.cos(b), np.sin(a) * np.cos(b), np.sin(b)], -1)


@lru_cache(maxsize=32)
def _transformer(source: CRS, target: CRS) -> Transformer:
    return Transformer.from_crs(source, target, always_xy=True)


def to_metric(xy: Array, source: CRS, target: CRS) -> Array:
    """Coordinates of a source system in a target system; longitude and easting come first in both.

    Args:
        xy: n × 2.
        source: Their coordinate system.
        target: Coordinate system of the result.

    Raises:
        SurveyError: where some point has no place in the target system; says how many.
    """
    moved = np.stack(_transformer(source, target).transform(xy[:, 0], xy[:, 1]), -1) if len(xy) else xy.copy()
    lost = int((~np.isfinite(moved).all(-1)).sum())
    if lost:
        raise SurveyError(
            f"{lost} of {len(xy)} points cannot be converted from {source.name} to {target.name}: check --crs."
        )
    return np.asarray(moved, dtype=np.float64)


def from_metric(xy: Array, source: CRS, target: CRS) -> Array:
    """The way back: `source` is the metric system, `target` the user's. Longitudes come within ±180."""
    return to_metric(xy, source, target)


def project_shape(shape: BaseGeometry, source: CRS, target: CRS) -> BaseGeometry:
    """A shape in another coordinate system; long edges get vertices first, as straight lines become curves.

    Raises:
        SurveyError: where some point has no place in the target system.
    """
    if source == target:
        return shape
    if is_world(target):
        degrees = project_shape(shape, source, WGS84)
        return onto_world(degrees if is_geographic(source) else unrolled(degrees), target)
    step = max(0.01 if is_geographic(source) else 1000.0, float(shape.length) / 20_000.0)
    fine = shapely.segmentize(shapely.force_2d(shape), step)
    return shapely.transform(fine, lambda xy: to_metric(np.asarray(xy, dtype=np.float64), source, target))
