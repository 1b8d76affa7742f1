"""Coordinate systems: a metric one that suits some places, and the ways to it and back."""

import math
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import shapely
from pyproj import CRS, Proj, Transformer
from shapely.geometry.base import BaseGeometry

from bo_scale.errors import SurveyError

Array = npt.NDArray[np.float64]

WGS84 = CRS.from_epsg(4326)
STRETCH = 0.05
"""Largest relative error of distances in a system that is used: world maps reach 1, national grids 0.035."""


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
    projection = Proj(crs)
    factors = projection.get_factors(*projection(xy[:, 0], xy[:, 1], inverse=True))
    off = np.maximum(factors.tissot_semimajor - 1.0, 1.0 - factors.tissot_semiminor)
    return not float(np.median(off)) > STRETCH  # places that are on no map are complained of elsewhere


def metric_crs(lon: Array, lat: Array) -> tuple[CRS, str]:
    """A metric coordinate system that suits some places: UTM up to 6 degrees of longitude, else Lambert's equal area.

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
    a, b = np.radians(lon), np.radians(lat)
    x, y, z = (float(part.mean()) for part in (np.cos(a) * np.cos(b), np.sin(a) * np.cos(b), np.sin(b)))
    return math.degrees(math.atan2(y, x)), math.degrees(math.atan2(z, math.hypot(x, y)))


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
    step = max(0.01 if is_geographic(source) else 1000.0, float(shape.length) / 20_000.0)
    fine = shapely.segmentize(shapely.force_2d(shape), step)
    return shapely.transform(fine, lambda xy: to_metric(np.asarray(xy, dtype=np.float64), source, target))
