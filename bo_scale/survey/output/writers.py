"""Files of a survey, by their endings: maps, exports and plans for navigation."""

import os
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import shapely

from bo_scale.survey.geography.coasts import read_outline
from bo_scale.survey.mapping.prediction import Prediction
from bo_scale.survey.output.exports import write_csv, write_geotiff
from bo_scale.survey.output.gpx import Waypoint, write_gpx
from bo_scale.survey.output.kml import write_kml
from bo_scale.survey.output.page import write_page
from bo_scale.survey.output.png import Picture, write_png
from bo_scale.survey.paths import EXPORT_ENDINGS, MAP_ENDINGS, NAVIGATION_ENDINGS, require_ending
from bo_scale.survey.plan.removal import Removal
from bo_scale.survey.routes.route import to_go
from bo_scale.survey.tables.columns import PREDICTED
from bo_scale.survey.workspace import Workspace

MAPS = dict(zip(MAP_ENDINGS, (write_page, write_page, write_png), strict=True))
EXPORTS = dict(zip(EXPORT_ENDINGS, (write_geotiff, write_geotiff, write_csv), strict=True))
NAVIGATION = dict(zip(NAVIGATION_ENDINGS, (write_gpx, write_kml), strict=True))


def writer(path: str | os.PathLike[str], kinds: dict[str, Any]) -> Any:
    """Return what writes a file of that name.

    Args:
        path: The file.
        kinds: Writers by ending: `MAPS`, `EXPORTS` or `NAVIGATION`.

    Raises:
        SurveyError: if no writer has that ending.
    """
    return kinds[require_ending(path, kinds)]


def picture_of(
    workspace: Workspace,
    prediction: Prediction,
    title: str | None,
    outline: str | os.PathLike[str] | None = None,
    removal: Removal | None = None,
) -> Picture:
    """Return a map of a prediction with measured and planned sites, routes, depots and barriers.

    Args:
        workspace: The survey.
        prediction: The prediction.
        title: Title of the map; None for the quantity, and its date if it changes.
        outline: File of polygons to draw instead of the coasts that ship.
        removal: Stations to give up.

    Raises:
        SurveyError: if the outline cannot be read.

    Warns:
        SurveyWarning: if no line of the outline lies on the map or near it.
    """
    pending, drawn = workspace.pending, drawn_at(workspace, prediction.date)
    if len(drawn) < len(workspace.state.sites):
        note = "Of places that were measured several times, the measurement nearest to the date is drawn."
        prediction = replace(prediction, notes=[*prediction.notes, note])
    shown = Picture(
        prediction,
        workspace.region.shape,
        workspace.xy(workspace.state.sites.iloc[drawn]),
        workspace.values()[drawn],
        workspace.xy(pending),
        list(pending.site),
        workspace.metric,
        title or ", ".join(filter(None, [workspace.quantity, prediction.date])),
        routes=workspace.routes,
        depots=workspace.placed(workspace.depots),
        barriers=workspace.barriers,
        divides=shapely.MultiPolygon() if workspace.divides is None else shapely.from_wkt(workspace.divides),
    )
    if removal is not None:
        shown = replace(shown, removed=removal.xy, removed_labels=removal.labels)
    if outline is None:
        return shown
    return replace(shown, outline=read_outline(outline, workspace.crs, shown.reach, shown.crs))


def drawn_at(workspace: Workspace, date: str) -> npt.NDArray[np.intp]:
    """Return the positions of measurements to draw: all, or of each place the one nearest to a date.

    Args:
        workspace: The survey.
        date: The date, as a text; empty for a survey without time.
    """
    sites = workspace.state.sites
    if not date or workspace.time is None:
        return np.arange(len(sites))
    order = np.argsort(np.abs(workspace.times - workspace.read_time(date)), kind="stable")  # NaN comes last
    _, first = np.unique(workspace.xy(sites)[order], axis=0, return_index=True)
    return np.sort(order[first])


def write_navigation(workspace: Workspace, sheet: pd.DataFrame, path: str | os.PathLike[str]) -> None:
    """Write the sites to be measured and the routes, if there are any, for a navigation device or Google Earth.

    Args:
        workspace: The survey.
        sheet: Table of all sites that are to be measured.
        path: The file to make or replace.
    """
    told = [f"{workspace.quantity}: {mean:g} ± {sd:g} expected" for mean, sd in sheet[list(PREDICTED)].to_numpy()]
    if "name" in sheet:
        told = [f"{name}. {text}" if name else text for name, text in zip(sheet["name"], told, strict=True)]
    planned = workspace.state.planned
    places = dict(zip(planned.site, workspace.xy(planned), strict=True))
    routes = [to_go(route, set(sheet.site), places) for route in workspace.routes]
    points = [Waypoint(name, places[name], text) for name, text in zip(sheet.site, told, strict=True)]
    depots = workspace.depots
    starts = zip(depots, workspace.placed(depots), strict=True)
    points += [Waypoint(each.name, at, "start", "depot") for each, at in starts]
    writer(path, NAVIGATION)(routes, points, workspace.metric, path)
