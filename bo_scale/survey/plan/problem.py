"""What a plan is made of: what was asked for, what is known, where sites may be; and what is found."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, cast

import geopandas as gpd
import numpy as np
import numpy.typing as npt
import shapely
import torch
from jaxtyping import Float
from pyproj import CRS
from torch import Tensor
from tqdm import tqdm

from bo_scale.errors import SurveyError
from bo_scale.gp.weight_space.posterior import WeightSpacePosterior
from bo_scale.models.shell.model import ScalableModel
from bo_scale.survey.choice.design_state import DesignState, design_state
from bo_scale.survey.choice.designs import DESIGNS, Design, laid_out
from bo_scale.survey.choice.greedy import choose
from bo_scale.survey.choice.objectives import OBJECTIVES, Objective, objective_named
from bo_scale.survey.choice.places import Choice, Places
from bo_scale.survey.geography.coordinates import to_metric
from bo_scale.survey.geography.region import Region
from bo_scale.survey.mapping.kernels import FLOOR
from bo_scale.survey.mapping.model import Fit, Sites, coordinates, predict
from bo_scale.survey.mapping.roughness import roughness
from bo_scale.survey.mapping.scales import Scale
from bo_scale.survey.plan.travel import Travel
from bo_scale.survey.routes.orienteering import Tours
from bo_scale.survey.store.geopackage import State

Array = npt.NDArray[np.float64]
Inside = Callable[[Array], npt.NDArray[np.bool_]]
CANDIDATES = 3000
"""Places tried, quasi-random in the area; of a list of more candidate sites, so many at random."""
BATCH = 6
"""Sites a day, where nobody says how many and nobody travels."""
CLOSED_CELLS, CELLS = 20_000, 2000
"""Of the area, over which a plan integrates: where that is in closed form, and else."""


@dataclass(frozen=True)
class Request:
    """The arguments of `Survey.plan`."""

    batch: int | None
    objective: str
    threshold: float | None
    spacing: float
    clearance: float | None
    repeats: int
    seed: int
    add: bool
    weights: str | None = None
    days: int = 1
    travel: Travel | None = None

    @property
    def apart(self) -> float:
        """Least distance from measured sites, metres."""
        return self.spacing if self.clearance is None else self.clearance

    @property
    def sites(self) -> int:
        """How many, if nobody travels."""
        return (self.batch or BATCH) * self.days

    def checked(self, scale: Scale, threshold: float | None) -> "Request":
        """The same with the threshold that counts: its own, or else that of the survey.

        Raises:
            SurveyError: naming the argument at fault.
        """
        name = self.objective if self.objective in DESIGNS else objective_named(self.objective).name
        least = min(self.days, self.repeats, 1 if self.batch is None else self.batch)
        if least < 1 or self.sites > 1000 or not all(value >= 0 for value in (self.spacing, self.apart, self.seed)):
            raise SurveyError(
                "batch: 1 to 1000 sites, with days; days, repeats: at least 1; spacing, clearance, seed: not negative."
            )
        if self.travel is not None and self.repeats > 1:
            raise SurveyError("repeats: a tour stops once at a place; leave it out.")
        if self.travel is not None and self.objective in DESIGNS:
            raise SurveyError(f"objective={self.objective!r}: designs know nothing of ways; leave out travel.")
        threshold = threshold if self.threshold is None else self.threshold
        if name in OBJECTIVES and OBJECTIVES[name].needs_threshold and threshold is None:
            raise SurveyError(f"objective={self.objective!r}: needs a threshold (--threshold).")
        if threshold is not None:
            scale.require(threshold)
        return replace(self, objective=name, threshold=threshold)


@dataclass(frozen=True)
class Proposal:
    """What the planner found.

    Attributes:
        chosen: The sites, in the order in which they are visited, or else chosen.
        names: Of the candidate sites among them; empty strings else.
        visits: Day, team and stop of each; no team, and no stop, are 0.
        sd_before: As in `Plan`.
        sd_after: As in `Plan`.
        notes: What a reader should know.
        tours: Of teams that travel.
        left_out: As in `Plan`.
    """

    chosen: list[Choice]
    names: list[str]
    visits: list[tuple[int, int, int]]
    sd_before: float
    sd_after: float
    notes: list[str]
    tours: Tours | None = None
    left_out: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class PlanningProblem:
    """What a proposal is made of.

    Attributes:
        request: Checked.
        state: Of the survey.
        region: Where sites may be.
        sites: Measured.
        fit: Of the model.
        model: Of the sites.
        scale: Of the model.
        progress: Whether to show a bar; None for only on a terminal.
    """

    request: Request
    state: State
    region: Region
    sites: Sites
    fit: Fit
    model: ScalableModel
    scale: Scale
    progress: bool | None

    @cached_property
    def under_way(self) -> Array:
        """Sites that are planned already, and count as measured."""
        planned = self.state.planned
        return places_of(planned[(planned.status == "planned") & self.request.add], self.region.crs)

    @property
    def taken(self) -> list[tuple[Array, float]]:
        """Sites that are there, or under way, and how far from them others must be."""
        return [(self.sites.xy, self.request.apart), (self.under_way, self.request.spacing)]

    def places(self, candidates: Array, inside: Inside | None = None, reach: float = 0.0) -> Places:
        """As the planner takes them.

        A place that is under way is not proposed again; one that was measured may be worth it, though not to a design.
        """
        request, there = self.request, [self.under_way]
        if self.objective is None:
            there.append(self.sites.xy)
        to_model = partial(coordinates, self.model)
        return Places(
            candidates, self.taken, request.spacing, request.repeats, inside, reach, to_model, np.concatenate(there)
        )

    @property
    def limit(self) -> float | None:
        """The threshold in the model's units."""
        if self.request.threshold is None:
            return None
        return float((self.scale.forward(np.array([self.request.threshold]))[0] - self.fit.offset) / self.fit.unit)

    @property
    def objective(self) -> Objective | None:
        """The objective; None for a design."""
        return OBJECTIVES.get(self.request.objective)

    def state_at(self, places: Places) -> DesignState:
        """At the candidates, before anything of the plan is measured.

        The variance counts as measurements around say that it should, if `adapted`: where these were far from what was
        expected, the quantity is rougher, and errors are larger.
        """
        return self._state_at(places.to_model(places.candidates), adapted=self.adapted)

    @property
    def adapted(self) -> bool:
        """Whether the variance counts for more where the quantity is rough: not for teams that travel.

        Of few sites around a depot s² is uncertain, and a tour that goes for its errors is cheap there.
        """
        objective = self.objective
        return objective is not None and objective.weighs_roughness and self.request.travel is None

    def _state_at(self, points: Float[Tensor, "M 2"], *, adapted: bool) -> DesignState:
        process, (cells, weights) = self.model.processes[0], self._cells
        if adapted:
            weights = weights * self.rough
        to_model = partial(coordinates, self.model)
        noise = self.model.measurement_noise(0)
        if self.sites.variance is not None:  # known ones may be very unequal: their median is a typical next one
            typical = np.median(self.sites.variance) / self.fit.unit**2 + self.fit.nugget
            noise = noise.new_tensor(typical).clamp_min(FLOOR)
        return design_state(
            process,
            points,
            to_model(cells),
            torch.from_numpy(weights),
            noise,
            torch.Generator().manual_seed(self.request.seed),
            to_model(self.under_way) if len(self.under_way) else None,
        )

    @cached_property
    def _cells(self) -> tuple[Array, Array]:
        closed = isinstance(self.model.processes[0], WeightSpacePosterior)
        return _cells(self.state, self.region, closed)

    @cached_property
    def rough(self) -> Array:
        """By how much more the variance counts, at each cell of the area."""
        return roughness(self.model, self.fit, self.sites, self._cells[0])

    def choose(self, places: Places, batch: int, state: DesignState | None = None) -> Iterator[Choice]:
        """Sites, if nobody has to travel; by what is known at the candidates, where that is at hand."""
        request = self.request
        if self.objective is None:
            return laid_out(places, batch, cast(Design, request.objective), request.seed)
        state = self.state_at(places) if state is None else state
        return choose(state, places, batch, self.objective, self.limit, request.seed)

    def sd(self, chosen: Sequence[Choice]) -> tuple[float, float]:
        """Root of the mean variance over the area, in the model's units: now, and once sites are measured."""
        xy = np.stack([one.xy for one in chosen])
        if self.fit.nearest is not None:
            return self._sd_of_map(self.under_way), self._sd_of_map(np.concatenate([self.under_way, xy]))
        state = self._state_at(coordinates(self.model, xy), adapted=False)
        totals = [state.total()]
        for index in range(len(chosen)):
            state = state.after(index)
        totals.append(state.total())
        before, after = (float(self.fit.unit * max(total, 0.0) ** 0.5) for total in totals)
        return before, after

    def _sd_of_map(self, planned: Array) -> float:
        """By the nearest sites, as maps of many are made; planned ones count as measured, whatever their values."""
        sites, (cells, weights) = self.sites, self._cells
        known = sites.variance
        if known is not None:
            known = np.concatenate([known, np.full(len(planned), np.median(known))])
        every = Sites(np.concatenate([sites.xy, planned]), np.concatenate([sites.z, np.zeros(len(planned))]), known)
        _, sd = predict(self.model, self.fit, every, cells, progress=False)
        return float(np.sqrt(np.average(np.square(sd), weights=weights)))

    @property
    def bar(self) -> Any:
        """Of progress."""
        return partial(tqdm, disable=None if self.progress is None else not self.progress)


def places_of(frame: gpd.GeoDataFrame, metric: CRS) -> Array:
    """Points of a table, metres."""
    return to_metric(shapely.get_coordinates(frame.geometry.to_numpy()), CRS(frame.crs), metric)


def places_anywhere(problem: PlanningProblem) -> tuple[Places, list[str], list[str]]:
    """Where the batch may be: anywhere in the area, or at candidate sites, with their names."""
    request, state, region = problem.request, problem.state, problem.region
    if state.candidates is None:
        reach = float((region.area / CANDIDATES) ** 0.5)
        anywhere = region.points(CANDIDATES, request.seed)
        return problem.places(anywhere, region.contains, reach), [], []
    candidates, names = places_of(state.candidates, region.crs), list(state.candidates.name)
    notes = []
    if len(candidates) > CANDIDATES:
        order = np.random.default_rng(request.seed).permutation(len(candidates))
        if request.travel is not None:  # sites that nobody can reach only say what is left out
            near = request.travel.near(candidates, CRS(state.sites.crs), region.crs)
            order = order[np.argsort(~near[order], kind="stable")]
        kept = np.sort(order[:CANDIDATES])
        first = "" if request.travel is None else ", those within reach first"
        notes.append(f"{CANDIDATES:,} of {len(candidates):,} candidate sites were looked at, drawn by the seed{first}.")
        candidates, names = candidates[kept], [names[place] for place in kept]
    return problem.places(candidates), names, notes


def _cells(state: State, region: Region, closed: bool) -> tuple[Array, Array]:
    """What the objectives integrate over: the area, by cells, or places with weights."""
    if state.weights is not None:
        return places_of(state.weights, region.crs), state.weights.weight.to_numpy(dtype=np.float64, copy=True)
    centres = region.cells(CLOSED_CELLS if closed else CELLS).centres
    return centres, np.ones(len(centres))
