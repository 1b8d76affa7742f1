"""Which stations of a network to give up: those whose loss costs the map least."""

import os
from collections import defaultdict
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
import shapely
import torch
from jaxtyping import Float
from pyproj import CRS
from scipy.spatial import cKDTree
from torch import Tensor

from bo_scale.errors import SurveyError
from bo_scale.gp.weight_space.posterior import WeightSpacePosterior
from bo_scale.survey.choice.removal import GroupedRemoval, PartsRemoval, RemovalState, backward_greedy, removal_state
from bo_scale.survey.mapping.forecast import slopes
from bo_scale.survey.mapping.kernels import FLOOR
from bo_scale.survey.mapping.model import coordinates, forecast, model_tensors
from bo_scale.survey.plan.problem import PlanningProblem
from bo_scale.survey.plan.sheet import require_writable, write_table
from bo_scale.survey.store.geopackage import State
from bo_scale.survey.tables.reading import read_records
from bo_scale.survey.tables.records import Dialect

Array = npt.NDArray[np.float64]
Indices = npt.NDArray[np.intp]
CONSIDERED = 2000
"""Stations that are considered, where a model is on grids and there are more."""
AMONG = 3
"""Other stations whose distances tell which are considered."""
ORDER, SD, COST = "order", "sd_without", "increase_percent"
"""Columns of the table beside those of the survey."""


@dataclass(frozen=True)
class Removal:
    """Stations that may be given up, those first that cost least.

    Attributes:
        table: `order`, `site`, the coordinates as in the user's table, the mean value, `measurements`, `file` and `row`
            of the first of these, `sd_without`, the typical sd once the station and those before it are gone, and
            `increase_percent`, by how much it is above the present one.
        sd_before: Root of the mean variance over the area, the candidates or the weights, in the model's units.
        notes: Sentences that a reader should know.
        xy: Places, metres.
        over: Domain of the means: "weights", "candidates" or "area".
        dialect: The way in which text is written: that of the survey's first table.
    """

    table: pd.DataFrame
    sd_before: float
    notes: list[str]
    xy: Array
    over: str = "area"
    dialect: Dialect = field(default_factory=Dialect)

    @property
    def labels(self) -> list[str]:
        """Label of each station: its id, or else its row."""
        return [str(site) or f"row {row}" for site, row in zip(self.table.site, self.table.row, strict=True)]

    @property
    def sd_after(self) -> float:
        """The typical sd once all of them are gone, as the model expects."""
        return float(self.table[SD].iloc[-1])

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the table: a workbook if the file ends in .xlsx, else text.

        Raises:
            SurveyError: for an ending of other workbooks.
        """
        write_table(self.table, path, self.dialect)


def require_replaceable(path: str | os.PathLike[str]) -> None:
    """Refuse to write over a file that holds anything but stations to give up.

    Raises:
        SurveyError: naming the file.
    """
    require_writable(path)
    if Path(path).exists() and not {ORDER, SD, COST} <= set(read_records(path).header):
        raise SurveyError(f"{path}: this file exists and is not a table of stations to give up. Give another name.")


@dataclass(frozen=True)
class _Stations:
    """Places with their measurements.

    Attributes:
        xy: Places, `m × 2`, all different, metres.
        of: Station of each measurement.
        inputs: Places and covariates, a time among them, of visits: a row for each that is different.
        visit: Visit of each measurement.
        station: Station of each visit.
    """

    xy: Array
    of: Indices
    inputs: Array
    visit: Indices
    station: Indices

    @classmethod
    def of_places(cls, xy: Array, covariates: Array | None = None) -> "_Stations":
        places, of = np.unique(xy, axis=0, return_inverse=True)
        whole = xy if covariates is None else np.concatenate([xy, covariates], 1)
        inputs, first, visit = np.unique(whole, axis=0, return_index=True, return_inverse=True)
        of = of.reshape(-1)
        return cls(places, of, inputs, visit.reshape(-1), of[first])

    @property
    def covariates(self) -> Array | None:
        """Covariates of each visit; None without any."""
        return self.inputs[:, 2:] if self.inputs.shape[1] > 2 else None

    def noise(self, problem: PlanningProblem) -> Float[Tensor, " v"]:
        """Return the inverse of the sum of the precisions of the measurements of each visit, in units of the model."""
        _, _, known = model_tensors(problem.sites, problem.fit)
        if known is None:
            noise = problem.model.measurement_noise(0).clamp_min(FLOOR).expand(len(self.of))
        else:
            noise = known.squeeze(-1)
        total = np.bincount(self.visit, weights=1 / noise.detach().numpy(), minlength=len(self.inputs))
        return torch.from_numpy(1 / total)


def remove(problem: PlanningProblem, count: int, xy: Array) -> Removal:
    """Find stations to give up. Hyperparameters stay; all measurements of a place go together.

    Args:
        problem: The survey and its model; of its request only the weights count.
        count: Number of stations.
        xy: Places of all measurements of the survey, `n × 2` metres.

    Raises:
        SurveyError: if so many stations are not there, or nothing would be left.
    """
    whole = problem.sites if problem.presence is None else problem.presence.sites
    stations = _Stations.of_places(xy, whole.covariates)
    if not 1 <= count < len(stations.xy):
        raise SurveyError(
            f"remove={count}: the survey has {len(stations.xy):,} measured places; give 1 to {len(stations.xy) - 1:,}."
        )
    kept, notes = _considered(problem, stations)
    if count > len(kept):
        raise SurveyError(f"remove={count}: of a survey of this size give {len(kept):,} at most.")
    state = _state(problem, stations, kept)
    unit, before = problem.fit.unit if problem.presence is None else 1.0, state.total()
    with torch.no_grad():
        found = list(problem.bar(backward_greedy(state, count), total=count, desc="stations"))
    chosen = kept[[index for index, _ in found]]
    sds = unit * np.sqrt(np.maximum([total for _, total in found], 0.0))
    sd_before = unit * max(before, 0.0) ** 0.5
    if problem.hardly_predictable:
        notes.append("Measurements tell hardly anything of each other, so hardly one can stand for another.")
    table = _table(problem.state, stations, chosen, sds, sd_before)
    return Removal(table, float(sd_before), notes, stations.xy[chosen], problem.over)


def _considered(problem: PlanningProblem, stations: _Stations) -> tuple[Indices, list[str]]:
    """Return the stations that are considered: all, or those with others beside them and those with large errors."""
    count = len(stations.xy)
    model = problem.model if problem.presence is None else problem.presence.model
    if count <= CONSIDERED or not isinstance(model.processes[0], WeightSpacePosterior):
        return np.arange(count), []
    apart = cKDTree(stations.xy).query(stations.xy, AMONG + 1)[0].mean(1)
    ranks = [np.argsort(apart, kind="stable")]
    if problem.sites.variance is not None and len(problem.sites.z) == len(stations.of):
        told = np.bincount(stations.station, weights=1 / stations.noise(problem).numpy(), minlength=count)
        ranks.append(np.argsort(told, kind="stable"))
    some = np.unique(np.concatenate([rank[: CONSIDERED // len(ranks)] for rank in ranks]))
    return some, [f"Only {len(some):,} of {count:,} stations were considered: those nearest to others."]


def _state(problem: PlanningProblem, stations: _Stations, kept: Indices) -> RemovalState:
    """Return the state with all stations: of the variance of the quantity, of counts by the delta method."""
    cells, weights = problem.cells
    if problem.presence is None:
        if problem.sites.counted:
            mean, _ = forecast(problem.model, problem.fit, cells, progress=False)
            weights = weights / np.square(problem.scale.slope(problem.scale.backward(mean)))
        return _of_process(problem, stations, kept, weights)
    absent = replace(
        problem, sites=problem.presence.sites, fit=problem.presence.fit, model=problem.presence.model, presence=None
    )
    amounts = _Stations.of_places(problem.sites.xy, problem.sites.covariates)
    known = [forecast(each.model, each.fit, cells, progress=False)[0] for each in (problem, absent)]
    squares = [weights * np.square(each) for each in slopes(known[0], known[1])]
    row = {tuple(place): k for k, place in enumerate(amounts.xy.tolist())}
    places = np.array([row.get(tuple(place), -1) for place in stations.xy[kept].tolist()], dtype=np.intp)
    there = places[places >= 0]
    own = np.where(places >= 0, np.cumsum(places >= 0) - 1, -1)
    return PartsRemoval(
        (_of_process(problem, amounts, there, squares[0]), _of_process(absent, stations, kept, squares[1])),
        (own if isinstance(problem.model.processes[0], WeightSpacePosterior) else places, np.arange(len(kept))),
        tuple(
            float(each.sum() / weights.sum()) * part.fit.unit**2
            for each, part in zip(squares, (problem, absent), strict=True)
        ),
    )


def _of_process(problem: PlanningProblem, stations: _Stations, kept: Indices, weights: Array) -> RemovalState:
    """Return the state of one process, of all stations of an exact one. Visits of a station go together."""
    cells, noise = problem.cells[0], stations.noise(problem)
    process = problem.model.processes[0]
    visits, some = np.arange(len(stations.inputs)), np.arange(len(stations.xy))
    if isinstance(process, WeightSpacePosterior):
        visits, some = visits[np.isin(stations.station, kept)], kept
    own = None if stations.covariates is None else stations.covariates[visits]
    with torch.no_grad():
        at = coordinates(problem.model, problem.fit, stations.inputs[visits, :2], own)
        over = coordinates(problem.model, problem.fit, cells)
        state = removal_state(process, at, noise[torch.from_numpy(visits)], over, torch.from_numpy(weights))
    rows = defaultdict[int, list[int]](list)
    for row, station in enumerate(stations.station[visits].tolist()):
        rows[station].append(row)
    groups = tuple(tuple(rows[station]) for station in some.tolist())
    if groups == tuple((row,) for row in range(len(visits))):
        return state
    return GroupedRemoval(state, groups, np.ones(len(groups), dtype=np.bool_))


def _table(state: State, stations: _Stations, chosen: Indices, sds: Array, before: float) -> pd.DataFrame:
    """Return the table of stations."""
    sites, columns = state.sites, state.settings["columns"]
    first = np.array([np.flatnonzero(stations.of == station)[0] for station in chosen])
    count = np.bincount(stations.of, minlength=len(stations.xy))[chosen]
    value = sites.value.to_numpy(dtype=np.float64)
    if columns["of"] is not None:
        value = value / sites["of"].to_numpy(dtype=np.float64)
    mean = np.bincount(stations.of, weights=value)[chosen] / count
    places = shapely.get_coordinates(sites.geometry.to_numpy())[first]
    digits = 7 if CRS(sites.crs).is_geographic else 2
    return pd.DataFrame(
        {
            ORDER: np.arange(1, len(chosen) + 1),
            "site": [str(name or "") for name in sites.site.iloc[first]],
            columns["x"]: places[:, 0].round(digits),
            columns["y"]: places[:, 1].round(digits),
            columns["value"]: [float(f"{each:.5g}") for each in mean],
            "measurements": count,
            "file": list(sites.file.iloc[first]),
            "row": list(sites.row.iloc[first]),
            SD: [float(f"{each:.5g}") for each in sds],
            COST: [float(f"{100 * (each / before - 1):.3g}") for each in sds],
        }
    )
