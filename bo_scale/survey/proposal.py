"""A batch of sites: what was asked for, what is proposed, and how the survey and the user keep it."""

import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import count, islice
from typing import Any, cast

import geopandas as gpd
import numpy as np
import numpy.typing as npt
import pandas as pd
import shapely
import torch
from pyproj import CRS
from tqdm import tqdm

from bo_scale.atomic import replacing
from bo_scale.errors import SurveyError
from bo_scale.models.base import ScalableModel
from bo_scale.posterior import WeightSpacePosterior
from bo_scale.survey.coordinates import from_metric, to_metric
from bo_scale.survey.geography import Region
from bo_scale.survey.geopackage import State
from bo_scale.survey.model import FLOOR, Fit, Sites, coordinates
from bo_scale.survey.planner import OBJECTIVES, THRESHOLDED, Choice, Objective, Places, choose, outlook
from bo_scale.survey.transforms import Scale

Array = npt.NDArray[np.float64]
CANDIDATES = 3000
"""Places tried, quasi-random in the area; of a list of more candidate sites, so many at random."""
PREDICTED = ("predicted", "predicted_sd")
"""Columns of a plan's table, by which it is told from others."""
CLOSED_CELLS, CELLS = 20_000, 2000
"""Of the area, over which a plan integrates: where that is in closed form, and else."""


@dataclass(frozen=True)
class Plan:
    """A batch of sites.

    Attributes:
        table: `site`, the coordinates as in the user's table, an empty column for the value (and its error, or how many
            were examined), and `predicted`, `predicted_sd` in the user's units; `name` where candidate sites have one.
        objective: By name.
        sd_before: Root of the mean variance over the area, in the model's units.
        sd_after: The same once the batch is measured, as the model expects.
        said: What a reader should know.
    """

    table: pd.DataFrame
    objective: str
    sd_before: float
    sd_after: float
    said: list[str]

    def write(self, path: str | os.PathLike[str]) -> None:
        """To fill in and to give to `update`."""
        write_table(self.table, path)


def write_table(table: pd.DataFrame, path: str | os.PathLike[str]) -> None:
    """As CSV, whole or not at all."""
    with replacing(path) as unfinished:
        table.to_csv(unfinished, index=False)


@dataclass(frozen=True)
class Request:
    """The arguments of `Survey.plan`."""

    batch: int
    objective: str
    threshold: float | None
    spacing: float
    clearance: float | None
    repeats: int
    seed: int
    add: bool

    @property
    def apart(self) -> float:
        """Least distance from measured sites, metres."""
        return self.spacing if self.clearance is None else self.clearance

    def checked(self, scale: Scale, threshold: float | None) -> "Request":
        """The same with the threshold that counts: its own, or else that of the survey.

        Raises:
            SurveyError: naming the argument at fault.
        """
        if self.objective not in OBJECTIVES:
            raise SurveyError(f"objective={self.objective!r}: choose one of {', '.join(OBJECTIVES)}.")
        positive = 1 <= self.batch <= 1000 and self.repeats >= 1
        if not (positive and all(value >= 0 for value in (self.spacing, self.apart, self.seed))):
            raise SurveyError("batch: 1 to 1000; repeats: at least 1; spacing, clearance, seed: not negative.")
        threshold = threshold if self.threshold is None else self.threshold
        if self.objective in THRESHOLDED and threshold is None:
            raise SurveyError(f"objective={self.objective!r}: needs a threshold (--threshold).")
        if threshold is not None:
            scale.require(threshold)
        return replace(self, threshold=threshold)


@dataclass(frozen=True)
class Proposal:
    """What the planner found.

    Attributes:
        chosen: The sites, in their order.
        names: Of the candidate sites among them; empty strings else.
        sd_before: As in `Plan`.
        sd_after: As in `Plan`.
        said: What a reader should know.
    """

    chosen: list[Choice]
    names: list[str]
    sd_before: float
    sd_after: float
    said: list[str]


def propose(
    request: Request,
    state: State,
    region: Region,
    sites: Sites,
    fit: Fit,
    model: ScalableModel,
    scale: Scale,
    progress: bool | None,
) -> Proposal:
    """Choose the sites.

    Raises:
        SurveyError: if no place keeps the distance.
    """
    pending = state.planned[(state.planned.status == "planned") & request.add]
    under_way = places_of(pending, region.crs)
    places, names, said = _places(
        request, state, region, [(sites.xy, request.apart), (under_way, request.spacing)], model
    )
    dropped = [] if request.add else list(state.planned.site[state.planned.status == "planned"])
    if dropped:
        said.append(f"Not measured, and dropped: {', '.join(dropped)} (--add keeps such sites).")
    process = model._current_processes()[0]
    cells, weights = _cells(state, region, closed=isinstance(process, WeightSpacePosterior))
    noise = model._measurement_noise(0)
    if sites.variance is not None:  # known ones may be very unequal: their median is a typical next one
        noise = noise.new_tensor(np.median(sites.variance) / fit.unit**2 + fit.nugget).clamp_min(FLOOR)
    look = outlook(
        process,
        places.to_model(places.candidates),
        places.to_model(cells),
        torch.from_numpy(weights),
        noise,
        torch.Generator().manual_seed(request.seed),
        places.to_model(under_way) if len(pending) else None,
    )
    limit = None
    if request.threshold is not None:
        limit = float((scale.forward(np.array([request.threshold]))[0] - fit.offset) / fit.unit)
    found = choose(look, places, request.batch, cast(Objective, request.objective), limit, request.seed)
    disable = None if progress is None else not progress
    chosen = list(tqdm(found, total=request.batch, desc="sites", disable=disable))
    if not chosen:
        raise SurveyError(
            f"spacing={request.spacing:g}, clearance={request.apart:g}: no place in the area is so far from all "
            f"sites; choose less. Clearance is the distance from measured ones."
        )
    if len(chosen) < request.batch:
        kept = "places keep the distances" if max(request.spacing, request.apart) > 0 else "candidate sites are left"
        said.append(f"Only {len(chosen)} {kept}, of {request.batch} wanted.")
    sd = [fit.unit * max(total, 0.0) ** 0.5 for total in (look.total(), chosen[-1].total)]
    return Proposal(chosen, [names[one.candidate] if names else "" for one in chosen], sd[0], sd[1], said)


def places_of(frame: gpd.GeoDataFrame, metric: CRS) -> Array:
    """Points of a table, metres."""
    return to_metric(shapely.get_coordinates(frame.geometry.to_numpy()), CRS(frame.crs), metric)


def _places(
    request: Request, state: State, region: Region, taken: list[tuple[Array, float]], model: ScalableModel
) -> tuple[Places, list[str], list[str]]:
    """Where the batch may be: anywhere in the area, or at candidate sites, with their names."""
    to_model = partial(coordinates, model)
    if state.candidates is None:
        reach = float((region.area / CANDIDATES) ** 0.5)
        anywhere = region.points(CANDIDATES, request.seed)
        return Places(anywhere, taken, request.spacing, request.repeats, region.contains, reach, to_model), [], []
    candidates, names = places_of(state.candidates, region.crs), list(state.candidates.name)
    said = []
    if len(candidates) > CANDIDATES:
        kept = np.sort(np.random.default_rng(request.seed).permutation(len(candidates))[:CANDIDATES])
        said.append(f"{CANDIDATES:,} of {len(candidates):,} candidate sites were looked at, drawn by the seed.")
        candidates, names = candidates[kept], [names[place] for place in kept]
    return Places(candidates, taken, request.spacing, request.repeats, None, 0.0, to_model), names, said


def _cells(state: State, region: Region, closed: bool) -> tuple[Array, Array]:
    """What the objectives integrate over: the area, by cells, or places with weights."""
    if state.weights is not None:
        return places_of(state.weights, region.crs), state.weights.weight.to_numpy(dtype=np.float64, copy=True)
    centres = region.cells(CLOSED_CELLS if closed else CELLS).centres
    return centres, np.ones(len(centres))


def recorded(state: State, request: Request, proposal: Proposal, region: Region) -> State:
    """The survey with the batch; what was planned before and not measured is dropped, unless it was to be added to."""
    crs, earlier = CRS(state.sites.crs), state.planned.copy()
    if not request.add:
        earlier.loc[earlier.status == "planned", "status"] = "dropped"
    number = len(state.settings["plans"]) + 1
    made = {**asdict(request), "batch": number, "sites": len(proposal.chosen), "measurements": len(state.sites)}
    xy = np.stack([one.xy for one in proposal.chosen])
    content = {
        "site": list(islice(_ids(state), len(xy))),
        "name": proposal.names,
        "batch": number,
        "status": "planned",
        "score": [one.score for one in proposal.chosen],
    }
    new = gpd.GeoDataFrame(content, geometry=shapely.points(from_metric(xy, region.crs, crs)), crs=crs)
    whole = gpd.GeoDataFrame(pd.concat([earlier, new], ignore_index=True), crs=crs) if len(earlier) else new
    return replace(state, planned=whole, settings={**state.settings, "plans": [*state.settings["plans"], made]})


def _ids(state: State) -> Iterator[str]:
    """P1, P2, …: those that neither a planned site nor one of the user's has had."""
    taken = {*state.planned.site, *state.sites.site}
    return (name for name in map("P{}".format, count(len(state.planned) + 1)) if name not in taken)


def to_fill_in(planned: gpd.GeoDataFrame, columns: dict[str, Any], mean: Array, sd: Array) -> pd.DataFrame:
    """The table of planned sites for the user: columns as in the first table, values to be measured left blank."""
    places = shapely.get_coordinates(planned.geometry.to_numpy())
    asked = [columns[name] for name in ("value", "error", "of") if columns[name] is not None]
    digits = 7 if CRS(planned.crs).is_geographic else 2
    names = {"name": list(planned.name)} if (planned.name != "").any() else {}
    return pd.DataFrame(
        {
            "site": list(planned.site),
            **names,
            columns["x"]: places[:, 0].round(digits),
            columns["y"]: places[:, 1].round(digits),
            **dict.fromkeys(asked, ""),
            PREDICTED[0]: [float(f"{value:.5g}") for value in mean],
            PREDICTED[1]: [float(f"{value:.3g}") for value in sd],
        }
    )
