"""Planned sites and routes for Google Earth and phones: KML 2.2."""

import os
from collections.abc import Sequence

import geopandas as gpd
import numpy as np
import pyogrio
import shapely
from pyproj import CRS

from bo_scale.files import replacing
from bo_scale.survey.geography.coordinates import WGS84, from_metric
from bo_scale.survey.output.gpx import Waypoint, xml_text
from bo_scale.survey.routes.route import Route


def write_kml(routes: Sequence[Route], waypoints: Sequence[Waypoint], crs: CRS, path: str | os.PathLike[str]) -> None:
    """Write all waypoints in their order, then the whole line of each route. Atomic.

    Args:
        routes: A line in the file each.
        waypoints: A placemark each.
        crs: Metric, of all coordinates.
        path: The file to make or replace.

    Raises:
        SurveyError: if a place is on no map.
    """
    marks = [(place.name, place.description, shapely.points(place.xy)) for place in waypoints]
    marks += [(route.name, route.cost, shapely.linestrings(route.line)) for route in routes if len(route.line) > 1]
    names, texts, shapes = zip(*marks, strict=True) if marks else ((), (), ())
    placed = shapely.transform(np.array(shapes, dtype=object), lambda xy: from_metric(xy, crs, WGS84))
    content = {"Name": list(map(xml_text, names)), "Description": list(map(xml_text, texts))}
    frame = gpd.GeoDataFrame(content, geometry=placed, crs=WGS84)
    with replacing(path) as partial:
        pyogrio.write_dataframe(frame, partial, driver="KML", layer="plan", geometry_type="Unknown")
