"""A map of the whole earth, Equal Earth: areas are right everywhere, and its edge is one meridian.

B. Šavrič, T. Patterson, B. Jenny. The Equal Earth map projection. International Journal of Geographical Information
Science 33, 2019.
"""

from functools import lru_cache

import numpy as np
import numpy.typing as npt
import shapely
from pyproj import CRS, Transformer
from shapely.geometry.base import BaseGeometry

Array = npt.NDArray[np.float64]

MAPS = {8857: 0.0, 8859: 150.0, 8858: -90.0}
"""EPSG codes of the projection, and the longitude in the middle of each map."""
CLEAR = 10.0
"""Degrees that places keep from the edge of a map that suits them."""
STEP = 0.1
"""Degrees between vertices of curves: straight lines between them are less than 2 m off."""
EDGE = 1e-6
"""Share of its width by which a map is wider, so that places on its edge are on it: 17 m of 17,000 km."""


@lru_cache(maxsize=32)
def is_world(crs: CRS) -> bool:
    """Whether a coordinate system is that of a map of the whole earth."""
    operation = crs.coordinate_operation
    return operation is not None and operation.method_name == "Equal Earth"


def world_crs(lon: Array) -> tuple[CRS, str]:
    """Return a map whose edge is far from some longitudes, or the common one, and its name for messages."""
    edges = {code: float(np.abs(_within(lon - middle - 180.0)).min()) for code, middle in MAPS.items()}
    code = next((code for code, apart in edges.items() if apart >= CLEAR), 8857)
    return CRS.from_epsg(code), f"Equal Earth, with {MAPS[code]:g}° in the middle (EPSG:{code})"


def middle_of(crs: CRS) -> float:
    """Return the longitude in the middle of a map of the world."""
    operation = crs.coordinate_operation
    assert operation is not None
    return next(float(each.value) for each in operation.params if "ongitude" in each.name)


def earth(crs: CRS) -> BaseGeometry:
    """Return the outline of the whole earth on a map of it, metres."""
    return onto_world(shapely.box(-180.0, -90.0, 180.0, 90.0), crs)


def onto_world(shape: BaseGeometry, crs: CRS) -> BaseGeometry:
    """Return polygons on a map of the world, cut at its edge.

    Args:
        shape: Degrees on WGS 84. Longitudes may go beyond ±180, by a turn at most.
        crs: The map, of those with `is_world`.
    """
    return shapely.transform(shapely.segmentize(turned(shape, middle_of(crs)), STEP), on_world)


def turned(shape: BaseGeometry, middle: float = 0.0) -> BaseGeometry:
    """Return polygons in degrees with longitudes from a middle one, within ±180, cut where they would go beyond."""
    parts = []
    for turn in (-360.0, 0.0, 360.0):
        window = shapely.box(middle + turn - 180.0, -90.0, middle + turn + 180.0, 90.0)
        part = shapely.intersection(shape, window)
        parts.append(shapely.transform(part, lambda xy, turn=turn: xy - [middle + turn, 0.0]))
    return shapely.union_all(parts)


def rows(crs: CRS) -> tuple[float, Array]:
    """Return what tells longitude and latitude on a map of the world: the longitude in its middle, and its rows.

    These are `n × 3`: latitudes in steps of `STEP`, from south to north; the y of each, metres; half its width, metres.
    """
    latitude = np.linspace(-90.0, 90.0, round(180.0 / STEP) + 1)
    x, y = on_world(np.stack([np.full(len(latitude), 180.0), latitude], -1)).T
    return middle_of(crs), np.stack([latitude, y, x], -1)


def on_world(degrees: Array) -> Array:
    """Return places on a map of the world, metres; those on its edge a little beyond. Longitude is from its middle."""
    x, y = Transformer.from_crs(4326, 8857, always_xy=True).transform(degrees[:, 0], degrees[:, 1])
    return np.stack([np.where(np.abs(degrees[:, 0]) > 180.0 - 1e-9, (1.0 + EDGE) * x, x), y], -1)


def unrolled(shape: BaseGeometry) -> BaseGeometry:
    """Return polygons in degrees whose rings jump at the antimeridian as polygons cut there.

    A ring around a pole is closed along it. Vertices must be dense.
    """
    parts = shapely.get_parts(shape)
    shells = [_unrolled(shapely.get_coordinates(shapely.get_exterior_ring(part))) for part in parts]
    holes = [_unrolled(shapely.get_coordinates(ring)) for part in parts for ring in part.interiors]
    return shapely.difference(turned(shapely.union_all(shells)), turned(shapely.union_all(holes)))


def _unrolled(ring: Array) -> BaseGeometry:
    lon, lat = np.unwrap(ring[:, 0], period=360.0), ring[:, 1]
    if abs(lon[-1] - lon[0]) > 180.0:
        pole = np.copysign(90.0, lat.mean())
        lon, lat = np.append(lon, [lon[-1], lon[0]]), np.append(lat, [pole, pole])
    lon = lon - 360.0 * np.round((lon.min() + lon.max()) / 720.0)
    return shapely.make_valid(shapely.Polygon(np.stack([lon, lat], -1)))


def _within(lon: Array) -> Array:
    """Longitudes within ±180."""
    return (lon + 180.0) % 360.0 - 180.0
