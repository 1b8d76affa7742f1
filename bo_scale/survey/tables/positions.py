"""Coordinates of a table: rows whose place cannot be right are refused."""

import numpy as np
import numpy.typing as npt
import pandas as pd
from pyproj import CRS, Transformer

from bo_scale.errors import SurveyError
from bo_scale.survey.tables.columns import Columns
from bo_scale.survey.tables.numbers import refuse

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

FAR = 10_000.0
"""Coordinates in metres, mostly beyond this, are not among those that look like degrees."""
BEYOND = 15.0
"""Degrees around the area of use of a coordinate system within which it is used nevertheless.

National maps use one zone for the whole country: 14 degrees beyond its edge in Norway.
"""


def wrapped(frame: pd.DataFrame, columns: Columns, crs: CRS) -> list[str]:
    """Replace longitudes from 180 to 360 by those from -180 to 0, in place; return a note where there are some."""
    x, y = frame.x.to_numpy(), frame.y.to_numpy()
    beyond: Mask = (x > 180.0) & (x <= 360.0) & (np.abs(y) <= 90.0)
    if not crs.is_geographic or not beyond.any():
        return []
    frame["x"] = np.where(beyond, np.round(x - 360.0, 9), x)
    return [f"{columns.x} goes beyond 180 in {int(beyond.sum()):,} rows, where 360 is subtracted: 190 is -170."]


def check_coordinates(frame: pd.DataFrame, columns: Columns, crs: CRS, reasons: npt.NDArray[np.object_]) -> None:
    """Refuse rows whose coordinates are of another kind than most.

    Raises:
        SurveyError: if most are not of the kind of the coordinate system.
    """
    x, y = frame.x.to_numpy(), frame.y.to_numpy()
    known = np.isfinite(x) & np.isfinite(y)
    degrees: Mask = known & (np.abs(x) <= 180.0) & (np.abs(y) <= 90.0)
    if not crs.is_geographic:
        if crs.area_of_use is None:  # a system of somebody's own may well have its origin among the sites
            return
        if 2 * int(degrees.sum()) > int(known.sum()):
            raise SurveyError(
                f"{columns.x} and {columns.y} look like degrees, but {crs.name} is not: pass --crs EPSG:4326."
            )
        if bool(known.any()) and float(np.median(np.abs(y[known]))) > FAR:
            refuse(reasons, degrees, "coordinates look like degrees, unlike those of most rows")
        return
    latitudes: Mask = known & (np.abs(x) <= 90.0)
    swapped: Mask = latitudes & (np.abs(y) > 90.0) & (y >= -180.0) & (y <= 360.0)
    # longitudes of the whole globe are beyond 90 in half of all rows
    if (2 if (known & ~latitudes).any() else 3) * int(swapped.sum()) > int(known.sum()):
        raise SurveyError(
            f"longitude and latitude look swapped: {columns.y} goes beyond ±90. Pass --x {columns.y} --y {columns.x}."
        )
    if 2 * int((known & ~degrees).sum()) > int(known.sum()):
        raise SurveyError(
            f"{columns.x} and {columns.y} are not degrees of longitude and latitude (±180, ±90): "
            "pass --crs, such as EPSG:25832."
        )
    refuse(reasons, swapped, "latitude is beyond ±90; longitude and latitude may be swapped")
    refuse(reasons, known & ~degrees, "coordinates are not degrees, unlike those of most rows")


def check_area_of_use(frame: pd.DataFrame, columns: Columns, crs: CRS, reasons: npt.NDArray[np.object_]) -> list[str]:
    """Refuse rows far outside the area of use of a coordinate system; return a note on those a little outside.

    Raises:
        SurveyError: if most are far outside.
    """
    area, xy = crs.area_of_use, frame[["x", "y"]].to_numpy(dtype=np.float64)
    known = np.isfinite(xy).all(1) & (reasons == "")
    if area is None or not known.any():
        return []
    where = f"{crs.name} ({area.west:g} to {area.east:g}° E, {area.south:g} to {area.north:g}° N)"
    outside = np.zeros(len(frame))
    outside[known] = _degrees_outside(_in_degrees(xy[known], crs), area.bounds)
    far: Mask = outside > BEYOND
    if 2 * int(far.sum()) > int(known.sum()):
        swapped = _degrees_outside(_in_degrees(xy[known][:, ::-1], crs), area.bounds)
        hint = (
            f"They fit if {columns.x} and {columns.y} are exchanged: pass --x {columns.y} --y {columns.x}."
            if 2 * int((swapped == 0).sum()) > int(known.sum())
            else "Check --crs."
        )
        raise SurveyError(f"most places lie far outside the area of use of {where}. {hint}")
    refuse(reasons, far, f"far outside the area of use of {where}; check the coordinates")
    near = int((known & (outside > 0) & ~far).sum())
    return [f"{near:,} places lie a little outside the area of use of {where}; check --crs."] if near else []


def _in_degrees(xy: Array, crs: CRS) -> Array:
    """Return longitudes and latitudes, infinite where a place is on no map."""
    if crs.is_geographic:
        return xy
    to = Transformer.from_crs(crs, CRS.from_epsg(4326), always_xy=True)
    return np.stack(to.transform(xy[:, 0], xy[:, 1]), -1)


def _degrees_outside(degrees: Array, bounds: tuple[float, float, float, float]) -> Array:
    """Return how far places are outside bounds, in degrees; nothing for those inside."""
    west, south, east, north = bounds
    lon, lat = degrees.T
    width = (east - west) % 360.0 if east - west < 360.0 else 360.0
    with np.errstate(invalid="ignore"):
        turn = np.mod(lon - west, 360.0)
        aside = np.where(turn <= width, 0.0, np.minimum(turn - width, 360.0 - turn))
        above = np.maximum(np.maximum(south - lat, lat - north), 0.0)
    return np.where(np.isfinite(degrees).all(1), np.maximum(aside, above), np.inf)
