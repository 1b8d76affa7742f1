"""Directions and distances on a map: where north is, and whether one scale holds all over it."""

import numpy as np
import numpy.typing as npt
from pyproj import CRS, Proj, Transformer

from bo_scale.survey.geography.coordinates import WGS84
from bo_scale.survey.geography.curves import Box
from bo_scale.survey.geography.world import is_world

SPREAD = 10.0
"""Degrees by which the directions of north on a map may differ."""
UNEVEN = 1.05
"""Ratio of the largest scale on a map to the smallest, up to which one bar serves it all."""
SIDE = 9
"""Places along each side of a map that are looked at."""


def north_of(crs: CRS, bounds: Box) -> float | None:
    """Return the direction of north on a map, degrees clockwise from up; None where it differs by more than `SPREAD`.

    Args:
        crs: Metric coordinate system of the map.
        bounds: Left, bottom, right and top, metres.
    """
    if is_world(crs):
        return None
    xy = _grid(bounds)
    back = Transformer.from_crs(crs, WGS84, always_xy=True)
    lon, lat = back.transform(xy[:, 0], xy[:, 1])
    if not np.isfinite(lon).all() or np.abs(lat).max() > 89.9:
        return None
    x, y = np.stack(back.transform(lon, lat + 1e-4, direction="INVERSE")) - xy.T
    angles = np.degrees(np.arctan2(x, y))
    around = (angles - angles[len(angles) // 2] + 180.0) % 360.0 - 180.0
    return None if np.ptp(around) > SPREAD else float(angles[len(angles) // 2] + around.mean())


def is_even(crs: CRS, bounds: Box) -> bool:
    """Whether one scale bar holds all over a map, within 5 %.

    Args:
        crs: Metric coordinate system of the map.
        bounds: Left, bottom, right and top, metres.
    """
    if is_world(crs):
        return False
    projection, xy = Proj(crs), _grid(bounds)
    factors = projection.get_factors(*projection(xy[:, 0], xy[:, 1], inverse=True))
    least, most = np.min(factors.tissot_semiminor), np.max(factors.tissot_semimajor)
    return bool(np.isfinite(most) and most <= UNEVEN * least)


def _grid(bounds: Box) -> npt.NDArray[np.float64]:
    x, y = np.linspace(bounds[0], bounds[2], SIDE), np.linspace(bounds[1], bounds[3], SIDE)
    return np.stack(np.meshgrid(x, y), -1).reshape(-1, 2)
