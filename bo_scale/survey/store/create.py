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
    STRETCH,
    WGS84,
    from_metric,
    is_metric,
    metric_crs,
    project_shape,
    reach,
    stretch,
    to_metric,
)
from bo_scale.survey.geography.land import note_at_sea, note_on_area
from bo_scale.survey.geography.region import Region, buffered_hull, make_region
from bo_scale.survey.geography.shapes import read_shape
from bo_scale.survey.geography.world import earth, is_world
from bo_scale.survey.mapping.kernels import KERNELS
from bo_scale.survey.mapping.scales import scale_of
from bo_scale.survey.plan.sheet import require_unreserved
from bo_scale.survey.store.arrivals import Arrival, arrive
from bo_scale.survey.store.far import far_set_aside
from bo_scale.survey.store.geopackage import State
from bo_scale.survey.tables.columns import SITE
from bo_scale.survey.tables.reading import read_records
from bo_scale.survey.tables.table import Columns, Table, read_table

FilePath = str | os.PathLike[str]
LOOKED_AT = 1000
"""Cells of an area by which the share of sea in it is found."""
NO_AREA = "No area was given"
"""The beginning of a note; surveys of those who gave an area do not have it."""
OUTLINE = 1000
"""Steps along the outline of an area by which its extent is measured."""


def create_state(
    table: FilePath,
    value: str,
    *,
    x: str | None,
    y: str | None,
    crs: str | None,
    error: str | None,
    of: str | None,
    exposure: str | None,
    area: FilePath | None,
    forbidden: Iterable[FilePath],
    candidates: FilePath | None,
    weights: FilePath | None,
    transform: str | None,
    lower: float,
    upper: float,
    offset: float,
    threshold: float | None,
    kernel: str,
    keep_outside: bool,
    site: str | None,
    sheet: str | None,
    decimal: str | None,
    time: str | None = None,
) -> State:
    """Begin a survey from a table of measurements; arguments are those of `Survey.create`.

    Raises:
        SurveyError: saying what cannot be used, and what to do.
    """
    if kernel not in KERNELS:
        raise SurveyError(f"kernel={kernel!r}: choose one of {', '.join(KERNELS)}.")
    own = "logit" if of is not None else "log" if exposure is not None else None
    _require_counts(of, exposure, own, transform, error, (lower, upper))
    scale = scale_of(own or transform or "none", lower, upper, offset)
    if threshold is not None:
        scale.require(threshold)
    examined = of if exposure is None else exposure
    how: dict[str, Any] = {"site": site, "sheet": sheet, "decimal": decimal}
    read = read_table(table, value, x, y, crs, error, examined, exposure is not None, **how)
    require_unreserved(read.columns)
    if twice := [name for name in read.columns.used if read.columns.used.count(name) > 1]:
        raise SurveyError(f"the column {twice[0]} cannot be two things at once; give another column for one of them.")
    if area is None and not keep_outside:
        read = far_set_aside(read)
    named = None if crs is None else read.crs
    state, region = begin(read, area, list(forbidden), candidates, weights, decimal, named)
    state.settings |= {
        "transform": {"name": scale.name, "lower": lower, "upper": upper} | ({"offset": offset} if offset else {}),
        "threshold": threshold,
        "kernel": kernel,
        "keep_outside": keep_outside,
        "dialect": read.dialect.settings,
        "dates": read.dates,
        "fit": None,
        "plans": [],
    }
    arrival = arrive(state, read, Path(table).name, region, scale, keep_outside, repeats=True, time=time)
    _require_usable(arrival, table)
    arrival.state.settings["said"] += [*arrival.notes, *_notes_at_sea(arrival.state, region, area is None)]
    return arrival.state


def _notes_at_sea(state: State, region: Region, no_area: bool) -> list[str]:
    """Return notes on candidate sites, and on an area that nobody gave, that reach into the sea."""
    sites, notes = _metres(state.sites, region.crs), list[str]()
    if state.candidates is not None:
        at, names = _metres(state.candidates, region.crs), list(state.candidates.name)
        remedy = "Check their coordinates, or take them out if they cannot be reached."
        notes += note_at_sea("Candidate sites at sea", names, at, sites, region.crs, remedy)
    elif no_area:
        left, bottom, right, top = region.bounds
        cells = region.cells(LOOKED_AT).centres
        notes += note_on_area(cells, sites, region.crs, max(right - left, top - bottom))
    return notes


def _metres(frame: gpd.GeoDataFrame, crs: CRS) -> Any:
    return to_metric(shapely.get_coordinates(frame.geometry.to_numpy()), CRS(frame.crs), crs)


def _require_counts(
    of: str | None,
    exposure: str | None,
    own: str | None,
    transform: str | None,
    error: str | None,
    bounds: tuple[float, float],
) -> None:
    """Refuse options that counts, which have a scale of their own, leave no choice about."""
    if own is None:
        return
    name = "of" if of is not None else "exposure"
    if of is not None and exposure is not None:
        raise SurveyError("of, exposure: positives are of a number examined, cases have an exposure; give one of them.")
    if transform not in (None, own) or error is not None:
        raise SurveyError(
            f"{name}: counts have a scale ({own}) and errors of their own; leave out transform and error."
        )
    if bounds != (0.0, 1.0):
        raise SurveyError(f"{name}: counts have bounds of their own; leave out lower and upper.")


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
    decimal: str | None = None,
    named_crs: CRS | None = None,
) -> tuple[State, Region]:
    """Return a survey of the area of some measurements, still without these, and its region.

    Args:
        table: The measurements.
        area: File of polygons where sampling is allowed; None for the hull of the measurements.
        forbidden: Files of polygons that are cut out of it.
        candidates: File of the only places to choose from.
        weights: File of places with weights.
        decimal: Decimal mark of tables with cells that may be read in two ways.
        named_crs: Coordinate system that the user named, which files of polygons have that say none.

    Raises:
        SurveyError: saying what cannot be used.
    """
    if not len(table.frame):
        some = "; ".join(f"row {one.row}: {one.reason}" for one in table.refused[:5])
        raise SurveyError(f"no row of the table can be used ({some}). Correct the rows.")
    notes = list(table.notes)
    xy = table.frame[["x", "y"]].to_numpy(dtype=np.float64)
    shape, shape_crs = (None, None) if area is None else read_shape(area, named_crs)
    metric, said = _metric_of(xy, table.crs, shape, shape_crs)
    notes += said
    if table.crs.is_geographic:
        (west, south), (east, north) = xy.min(0), xy.max(0)
        notes.append(
            f"Sites lie between longitudes {west:.5g} and {east:.5g} and between latitudes {south:.5g} and {north:.5g}."
        )
    if shape is None or shape_crs is None:
        # in degrees it would be torn apart at the antimeridian
        (shape, note), shape_crs = _around(to_metric(xy, table.crs, metric), metric), metric
        notes.append(note)
    else:
        _require_overlap(xy, table, shape, shape_crs)
    cuts = [read_shape(each, named_crs) for each in forbidden]
    moved = [project_shape(cut, crs, metric) for cut, crs in cuts]
    within = project_shape(shape, shape_crs, metric)
    notes += [
        f"{path}: none of its polygons meets the area, so it forbids nothing. Check its coordinates."
        for path, cut in zip(forbidden, moved, strict=True)
        if not shapely.intersects(within, cut)
    ]
    region = make_region(within, moved, metric)
    columns, crs = table.columns, table.crs
    places, more = _points(candidates, columns, crs, "name", region.contains, metric, decimal)
    counted, further = _points(weights, columns, crs, "weight", region.contains, metric, decimal)
    kept = {name: getattr(columns, name) for name in ("x", "y", "value", "error", "of", "exposed")}
    if columns.site is not None and columns.site.lower() != SITE:
        kept["site"] = columns.site
    settings = {
        "columns": kept,
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
            table.crs,
            number=int,
            value=float,
            error=float,
            of=float,
            below=int,
            site=str,
            other=str,
            file=str,
            row=int,
            text=str,
            batch=int,
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


def _metric_of(xy: Any, crs: CRS, shape: Any, shape_crs: CRS | None) -> tuple[CRS, list[str]]:
    """Return the user's own system if it is metric and true to scale, else one that suits the sites and the area.

    With it come notes on what it is and why.
    """
    degrees = from_metric(xy, crs, WGS84)
    if shape is not None and shape_crs is not None:
        outline = shapely.segmentize(shape, shape.length / OUTLINE)
        degrees = from_metric(shapely.get_coordinates(outline), shape_crs, WGS84)
    notes = []
    if is_metric(crs):
        off = np.nanmax([stretch(crs, from_metric(xy, crs, WGS84)), stretch(crs, degrees)])
        if not (off > STRETCH or is_world(crs)):
            return crs, [f"Distances are computed in {crs.name}, the CRS of the table."]
        notes = [
            f"Distances in {crs.name}, the CRS of the table, are off by {100 * off:.0f} % here, so it is not used."
        ]
    metric, name = metric_crs(degrees[:, 0], degrees[:, 1])
    if not is_world(metric):
        return metric, [*notes, f"Distances are computed in {name}."]
    far = reach(degrees[:, 0], degrees[:, 1])
    return metric, [
        *notes,
        f"{'The sites reach' if shape is None else 'The area reaches'} {far:.0f}° from the middle, so the survey is "
        f"global: distances are those along great circles. Maps are in {name}, where areas are right.",
    ]


def _around(xy: Any, metric: CRS) -> tuple[Any, str]:
    """Return the area of sites, metres, where none is given, and a note about it."""
    if is_world(metric):  # places that lie in no hemisphere have no other convex hull
        return earth(metric), f"{NO_AREA}, so it is the whole globe."
    return (
        buffered_hull(xy),
        f"{NO_AREA}, so it is the hull of the sites, widened on all sides by 5 % of its diagonal.",
    )


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
    path: FilePath | None,
    columns: Columns,
    crs: CRS,
    kind: str,
    inside: Any,
    metric: CRS,
    decimal: str | None = None,
) -> tuple[gpd.GeoDataFrame | None, list[str]]:
    """Read places inside the area from a table, with their weights or names; return them, and notes about them."""
    if path is None:
        return None, []
    records = read_records(path)
    header = records.header
    if kind == "weight" and kind not in header:
        raise SurveyError(f"{path}: weights need a column 'weight'. Columns: {', '.join(header)}.")
    table = read_table(path, columns.x if kind == "name" else kind, columns.x, columns.y, crs, decimal=decimal)
    frame = table.frame
    xy = frame[["x", "y"]].to_numpy(dtype=np.float64)
    kept = inside(to_metric(xy, crs, metric))
    if not kept.any():
        raise SurveyError(f"{path}: none of its places lies in the area; check their coordinates and the CRS (--crs).")
    if kind == "weight":
        weight = frame.value.to_numpy()
        if (weight < 0).any() or not weight[kept].sum() > 0:
            raise SurveyError(f"{path}: weights must not be negative, and at least one in the area must be positive.")
        content: dict[str, Any] = {"weight": weight[kept]}
    else:
        place = header.index("name") if "name" in header else None
        names = {} if place is None else {row: cells[place] for row, cells in zip(records.rows, records.cells)}
        content = {"name": [names.get(row) or f"row {row}" for row in frame.row[kept]]}
    content["other"] = frame.other.to_numpy()[kept]
    left = len(table.refused) + int((~kept).sum())
    what = "Candidate sites" if kind == "name" else "Places with weights"
    notes = [f"{Path(path).name}: {note}" for note in table.notes]
    notes += [f"{what}: {int(kept.sum()):,}. Rows left out because they are unreadable or outside the area: {left:,}."]
    return gpd.GeoDataFrame(content, geometry=shapely.points(xy[kept]), crs=crs), notes


def _empty(crs: CRS, **columns: type) -> gpd.GeoDataFrame:
    return gpd.GeoDataFrame({name: pd.Series(dtype=kind) for name, kind in columns.items()}, geometry=[], crs=crs)


def _shape_frame(shape: Any, crs: CRS) -> gpd.GeoDataFrame:
    return gpd.GeoDataFrame(geometry=[shape], crs=crs)
