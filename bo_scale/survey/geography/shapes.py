"""Polygons from files of other programs: GeoJSON, GeoPackage and Shapefile."""

import warnings
from os import PathLike
from pathlib import Path
from typing import Any

import pyogrio
import shapely
from pyproj import CRS
from shapely.geometry.base import BaseGeometry

from bo_scale.errors import SurveyError, SurveyWarning
from bo_scale.survey.geography.coordinates import WGS84, is_geographic, project_shape
from bo_scale.survey.geography.region import polygons
from bo_scale.survey.geography.world import turned
from bo_scale.survey.paths import require_file

FORMATS = "GeoJSON, GeoPackage or Shapefile"


def read_shape(path: str | PathLike[str], fallback_crs: CRS | None = None) -> tuple[shapely.MultiPolygon, CRS]:
    """Return the polygons of a file (GeoJSON, GeoPackage, Shapefile), as one shape, in the file's own coordinates.

    Args:
        path: The file.
        fallback_crs: Coordinate system for a file that says none; that it is used is warned of.

    Raises:
        SurveyError: as `read_polygons`.
    """
    parts, crs = read_polygons(path, fallback_crs)
    return polygons(shapely.union_all(parts)), crs


def read_polygons(path: str | PathLike[str], fallback_crs: CRS | None = None) -> tuple[list[shapely.MultiPolygon], CRS]:
    """Return the polygons of a file (GeoJSON, GeoPackage, Shapefile), a shape for each feature, in its own coordinates.

    Polygons that cross themselves are repaired, with a warning that says how much area they have. Longitudes beyond
    ±180 become those within.

    Args:
        path: The file.
        fallback_crs: Coordinate system for a file that says none; that it is used is warned of.

    Raises:
        SurveyError: no such file, nothing with polygons in it or more than one layer of them, no CRS, or degrees that
            are none.
    """
    layer = _layer(path)
    try:
        frame = pyogrio.read_dataframe(path, layer=layer, columns=[])
        shapes = [shape for shape in frame.geometry if shape is not None]
        found = [part for part in (polygons(shape) for shape in shapes) if not part.is_empty]
        whole = polygons(shapely.union_all(found))
    except (*ERRORS, shapely.errors.ShapelyError) as error:
        raise SurveyError(f"{path}: the file has a damaged geometry ({error}); repair it, or draw it again.") from error
    if not found:
        raise SurveyError(f"{path}: the file has no polygons; it needs at least one.")
    others = len(frame) - len(found)
    if others:
        warnings.warn(
            f"{path}: {others} of {len(frame)} features are not polygons and were left out.", SurveyWarning, 2
        )
    crs = _crs(path, frame.crs, fallback_crs)
    _check_degrees(whole, crs, path)
    _tell_of_repairs(path, shapes, whole, crs)
    beyond = is_geographic(crs) and max(abs(whole.bounds[0]), abs(whole.bounds[2])) > 180.0
    return [polygons(turned(part)) for part in found] if beyond else found, crs


def read_walls(path: str | PathLike[str], fallback_crs: CRS | None = None) -> tuple[BaseGeometry, CRS]:
    """Return the polygons and lines of a file, as one shape, in the file's own coordinates.

    Args:
        path: The file.
        fallback_crs: Coordinate system for a file that says none; that it is used is warned of.

    Raises:
        SurveyError: no such file, neither polygons nor lines in it or more than one layer of them, or no CRS.
    """
    layer = _layer(path, "polygons or lines", (*AREAS, "Line", "Curve"))
    try:
        frame = pyogrio.read_dataframe(path, layer=layer, columns=[])
        every = [shapely.force_2d(shape) for shape in frame.geometry if shape is not None]
        parts = [part for shape in every for part in _flattened(shape) if part.geom_type in WALLS and not part.is_empty]
    except (*ERRORS, shapely.errors.ShapelyError) as error:
        raise SurveyError(f"{path}: the file has a damaged geometry ({error}); repair it, or draw it again.") from error
    if not parts:
        raise SurveyError(f"{path}: the file has no polygons or lines; it needs at least one.")
    crs = _crs(path, frame.crs, fallback_crs)
    areas = [each for part in parts if part.geom_type == "Polygon" for each in polygons(part).geoms]
    lines = [part for part in parts if part.geom_type != "Polygon"]
    whole = shapely.GeometryCollection([*areas, *lines])
    _check_degrees(whole, crs, path)
    return whole, crs


def _flattened(shape: BaseGeometry) -> list[BaseGeometry]:
    """Return the single polygons, lines and points of a shape."""
    parts = list(shapely.get_parts(shape))
    return [each for part in parts for each in (_flattened(part) if hasattr(part, "geoms") else [part])]


WALLS = ("Polygon", "LineString", "LinearRing")
AREAS = ("Polygon", "Surface", "Unknown", "Coll")
ERRORS = (pyogrio.errors.DataSourceError, pyogrio.errors.DataLayerError, pyogrio.errors.FeatureError)
"""Errors of a file that GDAL cannot read."""


def _crs(path: str | PathLike[str], found: Any, fallback: CRS | None) -> CRS:
    """Return the coordinate system of a file, or the one that it is to have if it says none."""
    if found is not None:
        return CRS.from_user_input(found)
    beside = " Copy its .prj file beside it, which says it." if Path(path).suffix.lower() == ".shp" else ""
    if fallback is None:
        raise SurveyError(
            f"{path}: the file has no CRS.{beside} Save it with one, or name the one that it shares with the table "
            "(--crs)."
        )
    warnings.warn(f"{path}: the file has no CRS, so it is read in {fallback.name}, that of --crs.", SurveyWarning, 3)
    return fallback


def _tell_of_repairs(path: str | PathLike[str], shapes: list[BaseGeometry], found: BaseGeometry, crs: CRS) -> None:
    """Warn of polygons that were repaired: which reason, and how much area all have now."""
    bad = [shape for shape in shapes if shape.geom_type.endswith("Polygon") and not shape.is_valid]
    if bad:
        warnings.warn(
            f"{path}: {len(bad)} of {len(shapes)} polygons were repaired ({shapely.is_valid_reason(bad[0])}). The file "
            f"now has {len(found.geoms)} separate parts, with {_square_kilometres(found, crs):,.4g} km² in all: look "
            "at the map, and correct the file if that is wrong.",
            SurveyWarning,
            3,
        )


def _square_kilometres(shape: BaseGeometry, crs: CRS) -> float:
    """Return an area on the ellipsoid."""
    geod = WGS84.get_geod()
    assert geod is not None
    return abs(float(geod.geometry_area_perimeter(project_shape(shape, crs, WGS84))[0])) / 1e6


def _layer(path: str | PathLike[str], sought: str = "polygons", kinds: tuple[str, ...] = AREAS) -> str:
    """Return the one layer of a file that may hold what is sought."""
    require_file(path)
    _require_companions(Path(path))
    try:
        layers = pyogrio.list_layers(path)
    except ERRORS as error:
        raise SurveyError(f"{path}: the file cannot be read as {FORMATS}: {error}") from error
    able = [str(name) for name, kind in layers if kind and any(k in kind for k in kinds)]
    if not able:
        raise SurveyError(f"{path}: the file has no {sought}; it needs at least one.")
    if len(able) > 1:
        raise SurveyError(
            f"{path}: several layers may be the area ({', '.join(able)}); save the right one in a file of its own."
        )
    return able[0]


def _require_companions(path: Path) -> None:
    """Refuse a part of a shapefile that is alone: it is several files of one name."""
    if path.suffix.lower() in (".shx", ".dbf", ".prj", ".cpg"):
        raise SurveyError(f"{path}: this is a part of a shapefile; give {path.stem}.shp, and keep all parts together.")
    if path.suffix.lower() == ".shp" and not any(path.with_suffix(each).is_file() for each in (".shx", ".SHX")):
        raise SurveyError(
            f"{path}: {path.stem}.shx is missing. A shapefile is several files of one name (.shp, .shx, .dbf, .prj): "
            "copy all of them, or save it as a GeoPackage."
        )


def _check_degrees(shape: BaseGeometry, crs: CRS, path: str | PathLike[str]) -> None:
    left, bottom, right, top = shape.bounds
    if not is_geographic(crs) or (left >= -360.0 and right <= 360.0 and bottom >= -90.0 and top <= 90.0):
        return
    raise SurveyError(
        f"{path}: coordinates go from {left:g}, {bottom:g} to {right:g}, {top:g}, so they are not degrees of longitude "
        f"and latitude ({crs.name}). GeoJSON without a CRS must be in degrees. Save it in degrees, or as a GeoPackage."
    )
