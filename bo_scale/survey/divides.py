"""Divides of a survey: polygons and lines that correlation goes around, such as a lake between valleys or a ridge."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import shapely
from pyproj import CRS

from bo_scale.errors import SurveyError
from bo_scale.survey.geography.coordinates import project_shape
from bo_scale.survey.geography.region import polygons
from bo_scale.survey.geography.shapes import read_walls
from bo_scale.survey.mapping.anisotropy import Stretch
from bo_scale.survey.routes.barriers import Barriers
from bo_scale.survey.workspace import Workspace

HALF = 0.5
"""Metres to either side of a line: divides are polygons."""


def with_divides(workspace: Workspace, files: Sequence[str | os.PathLike[str]]) -> Workspace:
    """Return the workspace with other divides, without hyperparameters that were learned with those before.

    Args:
        workspace: The survey.
        files: Files of polygons or lines; none for no divides.

    Raises:
        SurveyError: if a file cannot be read, divides have too many corners or lie off the map, the map is of the
            globe, or an anisotropy was given.
    """
    if files and workspace.globe is not None:
        raise SurveyError("divides: a map of the globe has none; give an area (--area), or leave them out.")
    if files and isinstance(workspace.anisotropy, Stretch):
        raise SurveyError(
            "divides: they come without an anisotropy that is given; set that to learn or none (--anisotropy none)."
        )
    named = {"divides": _read(workspace, files)} if files else {}
    if named.get("divides") == workspace.state.settings.get("divides"):
        return workspace
    kept = {key: value for key, value in workspace.state.settings.items() if key != "divides"}
    spoilt: dict[str, Any] = {name: None for name in ("fit", "presence_fit") if name in kept}
    return replace(workspace, state=replace(workspace.state, settings={**kept, **spoilt, **named}))


def _read(workspace: Workspace, files: Sequence[str | os.PathLike[str]]) -> dict[str, Any]:
    """Return divides as settings hold them: as well-known text on the map, and what their files are called."""
    shapes = []
    for file in files:
        shape, crs = read_walls(file, workspace.crs)
        shape = _on_map(shape, crs, workspace.metric)
        if not shape.intersects(shapely.box(*workspace.region.shape.bounds)):
            raise SurveyError(f"divides: nothing of {file} lies in the area of the survey; look at its coordinates.")
        shapes.append(shape)
    whole = polygons(shapely.union_all(shapes))
    _ = Barriers(whole)  # refuses too many corners
    return {"text": shapely.to_wkt(whole, rounding_precision=2), "files": [Path(file).name for file in files]}


def _on_map(shape: shapely.geometry.base.BaseGeometry, crs: CRS, metric: CRS) -> shapely.MultiPolygon:
    """Return polygons and lines on the map, these half a metre wide to either side."""
    parts = [project_shape(part, crs, metric) for part in shapely.get_parts(shape)]
    return polygons(
        shapely.union_all(
            [
                part if part.area > 0 else shapely.buffer(part, HALF, cap_style="flat", join_style="mitre")
                for part in parts
            ]
        )
    )
