"""Files of a survey, by their endings: maps, exports and routes."""

import os
from typing import Any

import pandas as pd

from bo_scale.survey.mapping.prediction import Prediction
from bo_scale.survey.output.exports import write_csv, write_geotiff
from bo_scale.survey.output.gpx import Waypoint, write_gpx
from bo_scale.survey.output.page import write_page
from bo_scale.survey.output.png import Picture, write_png
from bo_scale.survey.paths import EXPORT_ENDINGS, MAP_ENDINGS, ROUTE_ENDINGS, require_ending
from bo_scale.survey.plan.sheet import PREDICTED
from bo_scale.survey.routes.route import to_go
from bo_scale.survey.workspace import Workspace

MAPS = dict(zip(MAP_ENDINGS, (write_page, write_page, write_png), strict=True))
EXPORTS = dict(zip(EXPORT_ENDINGS, (write_geotiff, write_geotiff, write_csv), strict=True))
ROUTES = dict(zip(ROUTE_ENDINGS, (write_gpx,), strict=True))


def writer(path: str | os.PathLike[str], kinds: dict[str, Any]) -> Any:
    """Return what writes a file of that name.

    Args:
        path: The file.
        kinds: Writers by ending: `MAPS`, `EXPORTS` or `ROUTES`.

    Raises:
        SurveyError: if no writer has that ending.
    """
    return kinds[require_ending(path, kinds)]


def picture_of(workspace: Workspace, prediction: Prediction, title: str | None) -> Picture:
    """Return a map of a prediction with measured and planned sites, routes, depots and barriers."""
    pending = workspace.pending
    return Picture(
        prediction,
        workspace.region.shape,
        workspace.xy(workspace.state.sites),
        workspace.values(),
        workspace.xy(pending),
        list(pending.site),
        workspace.metric,
        title or workspace.quantity,
        routes=workspace.routes,
        depots=workspace.placed(workspace.depots),
        barriers=workspace.barriers,
    )


def write_routes(workspace: Workspace, sheet: pd.DataFrame, path: str | os.PathLike[str]) -> None:
    """Write planned routes for a satellite navigation device: their lines, and the sites to be measured.

    Args:
        workspace: The survey.
        sheet: Table of all sites that are to be measured.
        path: The file to make or replace.
    """
    told = [f"{workspace.quantity}: {mean:g} ± {sd:g} expected" for mean, sd in sheet[list(PREDICTED)].to_numpy()]
    planned = workspace.state.planned
    places = dict(zip(planned.site, workspace.xy(planned), strict=True))
    routes = [to_go(route, set(sheet.site), places) for route in workspace.routes]
    points = [Waypoint(name, places[name], text) for name, text in zip(sheet.site, told, strict=True)]
    depots = workspace.depots
    starts = zip(depots, workspace.placed(depots), strict=True)
    points += [Waypoint(each.name, at, "start", "depot") for each, at in starts]
    writer(path, ROUTES)(routes, points, workspace.metric, path)
