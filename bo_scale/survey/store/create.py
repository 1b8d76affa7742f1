"""The beginning of a survey: its coordinate system, its area, and its places, from files."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import geopandas as gpd
import numpy as np
import pandas as pd
import shapely
from pyproj import CRS

from bo_scale.errors import SurveyError
from bo_scale.survey.geography.coordinates import (
    WGS84,
    from_metric,
    is_metric,
    is_true,
    metric_crs,
    project_shape,
    to_metric,
)
from bo_scale.survey.geography.region import Region, buffered_hull, make_region, read_shape
from bo_scale.survey.mapping.kernels import KERNELS
from bo_scale.survey.mapping.scales import scale_of
from bo_scale.survey.plan.sheet import require_unreserved
from bo_scale.survey.store.arrivals import Arrival, arrive
from bo_scale.survey.store.geopackage import State
from bo_scale.survey.tables.delimited import read_records
from bo_scale.survey.tables.table import Columns, Table, read_table

FilePath = str | os.PathLike[str]


def create_state(
    table: FilePath,
    value: str,
    *,
    x: str | None,
    y: str | None,
    crs: str | None,
    error: str | None,
    of: str | None,
    area: FilePath | None,
    forbidden: Iterable[FilePath],
    candidates: FilePath | None,
    weights: FilePath | None,
    transform: str | None,
    lower: float,
    upper: float,
    threshold: float | None,
    kernel: str,
    keep_outside: bool,
) -> State:
    """Begin a survey from a table of measurements; arguments are those of `Survey.create`.

    Raises:
        SurveyError: saying what cannot be used, and what to do.
    """
    if kernel not in KERNELS:
        raise SurveyError(f"kernel={kernel!r}: choose one of {', '.join(KERNELS)}.")
    if of is not None and (transform not in (None, "logit") or error is not None):
        raise SurveyError("of: counts have a scale (logit) and errors of their own; leave out transform and error.")
    if of is not None and (lower, upper) != (0.0, 1.0):
        raise SurveyError("of: shares lie between 0 and 1; leave out lower and upper.")
    scale = scale_of("logit" if of is not None else transform or "none", lower, upper)
    if threshold is not None:
        scale.require(threshold)
    read = read_table(table, value, x, y, crs, error, of)
    require_unreserved(read.columns)
    state, region = begin(read, area, list(forbidden), candidates, weights)
    state.settings |= {
        "transform": {"name": scale.name, "lower": lower, "upper": upper},
        "threshold": threshold,
        "kernel": kernel,
        "keep_outside": keep_outside,
        "fit": None,
        "plans": [],
    }
    arrival = arrive(state, read, Path(table).name, region, scale, keep_outside, repeats=True)
    _require_usable(arrival, table)
    arrival.state.settings["said"] += arrival.notes
    return arrival.state


def _require_usable(arrival: Arrival, table: FilePath) -> None:
    """Refuse a table without any row that can be used, or with more rows that cannot."""
    if not arrival.added:
        reasons = "; ".join(dict.fromkeys(reason for _, reason in arrival.rejected)) or "there are no rows"
        raise SurveyError(f"{table}: no row can be used: {reasons}.")
    unusable = [reason for _, reason in arrival.rejected if reason != "outside the area"]
    if len(unusable) > arrival.added:
        some = "; ".join(list(dict.fromkeys(unusable))[:3])
        raise SurveyError(
            f"{table}: {len(unusable)} rows cannot be used, and only {arrival.added} can ({some}). Correct them."
        )


def begin(
    table: Table,
    area: FilePath | None,
    forbidden: list[FilePath],
    candidates: FilePath | None,
    weights: FilePath | None,
) -> tuple[State, Region]:
    """Return a survey of the area of some measurements, still without these, and its region.

    Raises:
        SurveyError: saying what cannot be used.
    """
    if not len(table.frame):
        some = "; ".join(f"row {one.row}: {one.reason}" for one in table.refused[:5])
        raise SurveyError(f"no row of the table can be used ({some}). Correct the rows.")
    notes = list(table.notes)
    xy = table.frame[["x", "y"]].to_numpy(dtype=np.float64)
    shape, shape_crs = (None, None) if area is None else read_shape(area)
    metric, name = _metric_of(xy, table.crs, shape, shape_crs)
    notes.append(f"Distances are computed in {name}.")
    if table.crs.is_geographic:
        (west, south), (east, north) = xy.min(0), xy.max(0)
        notes.append(
            f"Sites lie between longitudes {west:.5g} and {east:.5g} and between latitudes {south:.5g} and {north:.5g}."
        )
    if shape is None or shape_crs is None:
        # in degrees it would be torn apart at the antimeridian
        shape, shape_crs = buffered_hull(to_metric(xy, table.crs, metric)), metric
        notes.append("No area was given, so it is the hull of the sites, widened on all sides by 5 % of its diagonal.")
    else:
        _require_overlap(xy, table, shape, shape_crs)
    cuts = [read_shape(each) for each in forbidden]
    moved = [project_shape(cut, crs, metric) for cut, crs in cuts]
    region = make_region(project_shape(shape, shape_crs, metric), moved, metric)
    places, more = _points(candidates, table.columns, table.crs, "name", lambda at: region.contains(at), metric)
    counted, further = _points(weights, table.columns, table.crs, "weight", lambda at: region.contains(at), metric)
    settings = {
        "columns": {name: getattr(table.columns, name) for name in ("x", "y", "value", "error", "of")},
        "metric": metric.to_wkt(),
        "said": notes + more + further,
    }
    forbidden_frame = None
    if cuts:
        whole = shapely.union_all([project_shape(cut, crs, shape_crs) for cut, crs in cuts])
        forbidden_frame = _shape_frame(whole, shape_crs)
    state = State(
        settings,
        sites=_empty(
            table.crs, number=int, value=float, error=float, of=float, site=str, file=str, row=int, text=str, batch=int
        ),
        area=_shape_frame(shape, shape_crs),
        forbidden=forbidden_frame,
        candidates=places,
        weights=counted,
        planned=_empty(table.crs, site=str, name=str, batch=int, status=str, score=float),
        rejected=pd.DataFrame({"file": [], "row": np.array([], dtype=int), "text": [], "reason": []}),
    )
    return state, region


def weights_of(path: FilePath, columns: Columns, crs: CRS, region: Region) -> tuple[gpd.GeoDataFrame, list[str]]:
    """Read places with weights from a table with the survey's columns; return them, and notes about them.

    Raises:
        SurveyError: saying what cannot be used.
    """
    found, notes = _points(path, columns, crs, "weight", region.contains, region.crs)
    assert found is not None, "of a file"
    return found, notes


def _metric_of(xy: Any, crs: CRS, shape: Any, shape_crs: CRS | None) -> tuple[CRS, str]:
    """Return the user's own system if it is metric and true to scale, else one that suits the sites and the area."""
    if is_metric(crs) and is_true(crs, xy):
        return crs, f"{crs.name}, the CRS of the table"
    degrees = from_metric(xy, crs, WGS84)
    if shape is not None and shape_crs is not None:
        degrees = from_metric(shapely.get_coordinates(shape), shape_crs, WGS84)
    return metric_crs(degrees[:, 0], degrees[:, 1])


def _require_overlap(xy: Any, table: Table, shape: Any, shape_crs: CRS) -> None:
    """Refuse a table of which nothing lies in the area; say so if it would with its columns swapped."""
    shapely.prepare(shape)
    inside = shapely.intersects_xy(shape, *to_metric(xy, table.crs, shape_crs).T)
    if inside.any():
        return
    if table.crs.is_geographic and bool((np.abs(xy[:, 0]) <= 90).all()):
        swapped = to_metric(xy[:, ::-1], table.crs, shape_crs)
        if shapely.intersects_xy(shape, *swapped.T).mean() > 0.5:
            x, y = table.columns.x, table.columns.y
            raise SurveyError(
                f"{x} and {y} look swapped: only with the two exchanged do the sites lie in the area. Correct the "
                f"header, or pass --x {y} --y {x}."
            )
    raise SurveyError("none of the sites lies in the area: check the CRS of the table (--crs) and of the area.")


def _points(
    path: FilePath | None, columns: Columns, crs: CRS, kind: str, inside: Any, metric: CRS
) -> tuple[gpd.GeoDataFrame | None, list[str]]:
    """Read places inside the area from a table, with their weights or names; return them, and notes about them."""
    if path is None:
        return None, []
    records = read_records(path)
    header = records.header
    if kind == "weight" and kind not in header:
        raise SurveyError(f"{path}: weights need a column 'weight'. Columns: {', '.join(header)}.")
    table = read_table(path, columns.x if kind == "name" else kind, columns.x, columns.y, crs)
    frame = table.frame
    xy = frame[["x", "y"]].to_numpy(dtype=np.float64)
    kept = inside(to_metric(xy, crs, metric))
    if not kept.any():
        raise SurveyError(f"{path}: none of its places lies in the area; check their coordinates and the CRS (--crs).")
    if kind == "weight":
        weight = frame.value.to_numpy()
        if (weight < 0).any() or not weight[kept].sum() > 0:
            raise SurveyError(f"{path}: weights must not be negative, and at least one in the area must be positive.")
        content = {"weight": weight[kept]}
    else:
        place = header.index("name") if "name" in header else None
        names = {} if place is None else {row: cells[place] for row, cells in zip(records.rows, records.cells)}
        content = {"name": [names.get(row) or f"row {row}" for row in frame.row[kept]]}
    left = len(table.refused) + int((~kept).sum())
    what = "Candidate sites" if kind == "name" else "Places with weights"
    notes = [f"{what}: {int(kept.sum()):,}. Rows left out because they are unreadable or outside the area: {left:,}."]
    return gpd.GeoDataFrame(content, geometry=shapely.points(xy[kept]), crs=crs), notes


def _empty(crs: CRS, **columns: type) -> gpd.GeoDataFrame:
    return gpd.GeoDataFrame({name: pd.Series(dtype=kind) for name, kind in columns.items()}, geometry=[], crs=crs)


def _shape_frame(shape: Any, crs: CRS) -> gpd.GeoDataFrame:
    return gpd.GeoDataFrame(geometry=[shape], crs=crs)
