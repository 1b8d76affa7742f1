"""A planning problem: the request, the knowledge so far, the candidate places; and the proposal that solves it."""

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
from scipy.special import expit
from torch import Tensor
from tqdm import tqdm

from bo_scale.errors import SurveyError
from bo_scale.gp.weight_space.posterior import WeightSpacePosterior
from bo_scale.models.shell.model import ScalableModel
from bo_scale.survey.choice.design_state import ClosedDesignState, DesignState, JointDesignState, design_state
from bo_scale.survey.choice.designs import DESIGNS, Design, laid_out
from bo_scale.survey.choice.greedy import choose
from bo_scale.survey.choice.objectives import OBJECTIVES, Objective, objective_named
from bo_scale.survey.choice.places import Choice, Places
from bo_scale.survey.choice.two_parts import TwoPartDesignState
from bo_scale.survey.geography.coordinates import to_metric
from bo_scale.survey.geography.region import Region
from bo_scale.survey.geography.thinning import gathered
from bo_scale.survey.mapping.fit import Fit
from bo_scale.survey.mapping.forecast import slopes
from bo_scale.survey.mapping.kernels import FLOOR
from bo_scale.survey.mapping.model import coordinates, forecast, predict
from bo_scale.survey.mapping.roughness import predicted_share, roughness
from bo_scale.survey.mapping.scales import Amounts, Scale
from bo_scale.survey.mapping.sites import Sites
from bo_scale.survey.mapping.surface import Surface
from bo_scale.survey.plan.limits import Costs, Screen
from bo_scale.survey.plan.numbers import BATCH, require_plan_numbers
from bo_scale.survey.plan.travel import Travel
from bo_scale.survey.routes.orienteering import Tours
from bo_scale.survey.store.geopackage import State

Array = npt.NDArray[np.float64]
Inside = Callable[[Array], npt.NDArray[np.bool_]]
CANDIDATES = 3000
"""Places tried, quasi-random in the area; of a list of more candidate sites, so many at random."""
CLOSED_CELLS, CELLS = 20_000, 2000
"""Cells, or candidates, that a plan integrates over: if the integral has a closed form, and otherwise."""


OF_TWO_PARTS = ("variance", "uncertainty")
"""Objectives that are offered where presence and amount are modelled apart."""
FEWEST, HARDLY = 10, 0.1
"""Measurements from which it is told if the others predict a smaller share of their variance than this."""


@dataclass(frozen=True)
class Request:
    """The arguments of `Survey.plan`; `screens` are its `exclude`, `when` is the time of its `date`."""

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
    screens: tuple[Screen, ...] = ()
    cost: Costs | None = None
    when: float | None = None

    @property
    def apart(self) -> float:
        """Least distance from measured sites, metres."""
        return self.spacing if self.clearance is None else self.clearance

    @property
    def sites(self) -> int:
        """Number of sites, if nobody travels."""
        return (self.batch or BATCH) * self.days

    def checked(self, scale: Scale, threshold: float | None) -> "Request":
        """Return the request with the current name of its objective, and with its threshold or else that of the survey.

        Raises:
            SurveyError: naming the argument at fault.
        """
        name = self.objective if self.objective in DESIGNS else objective_named(self.objective).name
        if isinstance(scale, Amounts) and name not in (*DESIGNS, *OF_TWO_PARTS):
            raise SurveyError(
                f"objective={self.objective!r}: of presence and amount choose one of {', '.join(OF_TWO_PARTS)}, or a "
                f"design: {', '.join(DESIGNS)}."
            )
        require_plan_numbers(self.batch, self.days, self.repeats, self.spacing, self.clearance, self.seed)
        if self.travel is not None and self.repeats > 1:
            raise SurveyError("repeats: a tour visits each place only once; leave repeats out.")
        if self.travel is not None and self.objective in DESIGNS:
            raise SurveyError(
                f"objective={self.objective!r}: designs cannot plan tours; choose another one, or leave out travel."
            )
        threshold = threshold if self.threshold is None else self.threshold
        if name in OBJECTIVES and OBJECTIVES[name].needs_threshold and threshold is None:
            raise SurveyError(
                f"objective={self.objective!r}: this objective needs a threshold; give one (--threshold)."
            )
        if threshold is not None:
            scale.require(threshold)
        if self.cost is not None and (name in DESIGNS or not OBJECTIVES[name].additive or self.travel is not None):
            additive = ", ".join(each.name for each in OBJECTIVES.values() if each.additive)
            raise SurveyError(f"cost: only plans without travel weigh it, for the objectives {additive}.")
        return replace(self, objective=name, threshold=threshold)


@dataclass(frozen=True)
class Proposal:
    """The solution of a planning problem.

    Attributes:
        chosen: The sites, in the order in which they are visited, or else chosen.
        names: Names of candidate sites; empty strings for other places.
        visits: Day, team and stop of each; no team, and no stop, are 0.
        sd_before: The same as in `Plan`.
        sd_after: The same as in `Plan`.
        notes: Sentences that a reader should know.
        tours: Tours of teams that travel.
        left_out: The same as in `Plan`.
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
    """A request, the survey and its model.

    Attributes:
        request: The request, checked.
        state: State of the survey.
        region: The area where sites may be.
        sites: Measurements.
        fit: Hyperparameters of the model.
        model: Model of the sites.
        scale: Scale of the model.
        progress: Whether to show a bar; None for only on a terminal.
        presence: Where the quantity is present, if that is modelled apart from its amount.
    """

    request: Request
    state: State
    region: Region
    sites: Sites
    fit: Fit
    model: ScalableModel
    scale: Scale
    progress: bool | None
    presence: Surface | None = None

    @cached_property
    def pending(self) -> Array:
        """Pending sites of earlier plans, which count as measured."""
        planned = self.state.planned
        return places_of(planned[(planned.status == "planned") & self.request.add], self.region.crs)

    @cached_property
    def expected(self) -> Array:
        """Pending sites whose measurements the model can expect: those that have all covariates."""
        return self.pending[self.fit.known(self.pending)]

    @property
    def taken(self) -> list[tuple[Array, float]]:
        """Measured and pending sites, and the least distance from each."""
        return [(self.sites.xy, self.request.apart), (self.pending, self.request.spacing)]

    def places(self, candidates: Array, inside: Inside | None = None, reach: float = 0.0) -> Places:
        """Return candidates with the rules of the request.

        A pending site is not proposed again. A measured one may be worth it, though not for a design.
        """
        request, there = self.request, [self.pending]
        if self.objective is None:
            there.append(self.sites.xy)
        to_model = partial(coordinates, self.model, self.fit)
        return Places(
            candidates,
            self.taken,
            request.spacing,
            request.repeats,
            inside,
            reach,
            to_model,
            np.concatenate(there),
            self.region.crs,
        )

    def allowed(self, xy: Array) -> npt.NDArray[np.bool_]:
        """Return which places may be sites: those that have all covariates, a cost, and are not excluded."""
        kept = self.fit.known(xy)
        cost = self.request.cost
        for screen in (*self.request.screens, *(() if cost is None else (cost,))):
            kept[kept] = screen.allows(xy[kept], self.region.crs)
        return kept

    def inside(self, xy: Array) -> npt.NDArray[np.bool_]:
        """Return which places lie in the area and may be sites."""
        found = self.region.contains(xy)
        found[found] = self.allowed(xy[found])
        return found

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
        """Return the design state at the candidates, before anything of the plan is measured.

        If `adapted`, the variance counts for more where measurements were far from their expectations: the quantity is
        rougher there, and errors are larger. Of counts the variance is that of the share or rate, by the delta method.
        """
        weights = self.cells[1] * self.rough if self.adapted else self.cells[1]
        if self.presence is not None:
            return self._of_two_parts(self.presence, places, weights)
        if self.sites.counted:
            mean, _ = forecast(self.model, self.fit, self.cells[0], progress=False)
            weights = weights / np.square(self.scale.slope(self.scale.backward(mean)))
        return self.weighted(places.to_model(places.candidates), weights)

    def _of_two_parts(self, presence: Surface, places: Places, weights: Array) -> TwoPartDesignState:
        """Return the design state of presence times amount: weights of both parts contain squared slopes."""
        absent = replace(self, sites=presence.sites, fit=presence.fit, model=presence.model, presence=None)
        known = [
            (forecast(self.model, self.fit, xy, progress=False)[0], presence.forecast(xy, False)[0])
            for xy in (self.cells[0], places.candidates)
        ]
        squares = [weights * np.square(each) for each in slopes(*known[0])]
        amount = self.weighted(places.to_model(places.candidates), squares[0])
        there = absent.weighted(coordinates(presence.model, presence.fit, places.candidates), squares[1])
        units = (self.fit.unit, presence.fit.unit)
        return TwoPartDesignState(
            amount.points,
            amount.noise,
            amount,
            there,
            torch.from_numpy(expit(known[1][1])),
            tuple(torch.from_numpy(each * unit) for each, unit in zip(slopes(*known[1]), units, strict=True)),
            tuple(float(each.sum() / weights.sum()) * unit**2 for each, unit in zip(squares, units, strict=True)),
        )

    @property
    def adapted(self) -> bool:
        """Whether the variance counts for more where the quantity is rough: not for teams that travel.

        With few sites around a depot s² is uncertain, and tours that follow its errors are cheap there.
        """
        objective = self.objective
        return objective is not None and objective.weighs_roughness and self.request.travel is None

    def weighted(self, points: Float[Tensor, "M d"], weights: Array) -> ClosedDesignState | JointDesignState:
        """Return the design state of the model at points, with weights of the cells."""
        process, cells = self.model.processes[0], self.cells[0]
        to_model = partial(coordinates, self.model, self.fit)
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
            to_model(self.expected) if len(self.expected) else None,
        )

    @cached_property
    def cells(self) -> tuple[Array, Array]:
        """Places that are integrated over, `N × 2` metres, and their weights."""
        closed = isinstance(self.model.processes[0], WeightSpacePosterior)
        cells, weights = _cells(self.state, self.region, closed)
        if not (known := self.fit.known(cells)).any():
            raise SurveyError(
                "covariates: no place has all of them. Give rasters that cover the area, or candidate sites that have "
                "the columns (init --candidates)."
            )
        return cells[known], weights[known]

    @property
    def over(self) -> str:
        """What means of the variance are over: weights if there are some, else candidates, else the area."""
        if self.state.weights is not None:
            return "weights"
        return "area" if self.state.candidates is None else "candidates"

    @property
    def hardly_predictable(self) -> bool:
        """Whether measurements predict next to nothing of one another. Counts vary by chance, and are not looked at."""
        values = self.sites.z
        if self.sites.counted or len(values) < FEWEST or np.ptp(values) == 0:
            return False
        return predicted_share(self.model, self.fit, self.sites) < HARDLY

    @cached_property
    def rough(self) -> Array:
        """Factor by which the variance counts for more, at each cell of the area."""
        return roughness(self.model, self.fit, self.sites, self.cells[0])

    def choose(self, places: Places, batch: int, state: DesignState | None = None) -> Iterator[Choice]:
        """Choose sites as if nobody had to travel; from the design state at the candidates, if it is at hand."""
        request = self.request
        if self.objective is None:
            return laid_out(places, batch, cast(Design, request.objective), request.seed)
        state = self.state_at(places) if state is None else state
        return choose(state, places, batch, self.objective, self.limit, request.seed, self._price)

    @property
    def _price(self) -> Callable[[Array], Array] | None:
        """Function that returns costs of places; None if all cost the same."""
        cost = self.request.cost
        return None if cost is None else lambda xy: cost.at(xy, self.region.crs)

    def sd(self, chosen: Sequence[Choice]) -> tuple[float, float]:
        """Return the root of the mean variance over the area, in the model's units: now, and with sites measured."""
        xy = np.stack([one.xy for one in chosen])
        if self.fit.nearest is not None:
            return self._sd_of_map(self.expected), self._sd_of_map(np.concatenate([self.expected, xy]))
        state = self.weighted(coordinates(self.model, self.fit, xy), self.cells[1])
        totals = [state.total()]
        for index in range(len(chosen)):
            state = state.after(index)
        totals.append(state.total())
        before, after = (float(self.fit.unit * max(total, 0.0) ** 0.5) for total in totals)
        return before, after

    def _sd_of_map(self, planned: Array) -> float:
        """Return the sd of maps from the nearest sites; planned ones count as measured, with the values predicted."""
        sites, (cells, weights) = self.sites, self.cells
        known = sites.variance
        if known is not None:
            known = np.concatenate([known, np.full(len(planned), np.median(known))])
        values = predict(self.model, self.fit, sites, planned, progress=False)[0] if len(planned) else self.sites.z[:0]
        beside = sites.covariates
        if beside is not None and self.fit.beside is not None:
            beside = np.concatenate([beside, self.fit.beside(planned)])
        every = Sites(np.concatenate([sites.xy, planned]), np.concatenate([sites.z, values]), known, covariates=beside)
        _, sd = predict(self.model, self.fit, every, cells, progress=False)
        return float(np.sqrt(np.average(np.square(sd), weights=weights)))

    @property
    def bar(self) -> Any:
        """Bar of progress."""
        return partial(tqdm, disable=None if self.progress is None else not self.progress)


def places_of(frame: gpd.GeoDataFrame, metric: CRS) -> Array:
    """Return the points of a table, metres."""
    return to_metric(shapely.get_coordinates(frame.geometry.to_numpy()), CRS(frame.crs), metric)


def places_anywhere(problem: PlanningProblem) -> tuple[Places, list[str], list[str]]:
    """Return candidates of the batch: places anywhere in the area, or candidate sites with their names; and notes."""
    request, state, region = problem.request, problem.state, problem.region
    if state.candidates is None:
        reach = float((region.area / CANDIDATES) ** 0.5)
        anywhere = region.points(CANDIDATES, request.seed)
        return problem.places(anywhere[problem.allowed(anywhere)], problem.inside, reach), [], []
    candidates, names = places_of(state.candidates, region.crs), list(state.candidates.name)
    notes = []
    if not (kept := problem.allowed(candidates)).all():
        if not kept.any():
            raise SurveyError("candidates: none has all covariates, or none is allowed (--exclude, --cost).")
        notes.append(f"Candidate sites left out, without covariates or not allowed: {int((~kept).sum()):,}.")
        candidates, names = candidates[kept], [names[place] for place in np.flatnonzero(kept)]
    if len(candidates) > CANDIDATES:
        order = np.random.default_rng(request.seed).permutation(len(candidates))
        if request.travel is not None:  # sites that nobody can reach only say what is left out
            near = request.travel.near(candidates, CRS(state.sites.crs), region.crs)
            order = order[np.argsort(~near[order], kind="stable")]
        kept = np.sort(order[:CANDIDATES])
        first = "" if request.travel is None else ", those within reach first"
        notes.append(
            f"Only {CANDIDATES:,} of {len(candidates):,} candidate sites were considered, drawn with the seed{first}."
        )
        candidates, names = candidates[kept], [names[place] for place in kept]
    return problem.places(candidates), names, notes


def _cells(state: State, region: Region, closed: bool) -> tuple[Array, Array]:
    """Return what objectives integrate over, with weights: places with weights, candidates, or cells of the area."""
    if state.weights is not None:
        return places_of(state.weights, region.crs), state.weights.weight.to_numpy(dtype=np.float64, copy=True)
    count = CLOSED_CELLS if closed else CELLS
    if state.candidates is not None:
        candidates = places_of(state.candidates, region.crs)
        return gathered(candidates, count) if len(candidates) > count else (candidates, np.ones(len(candidates)))
    centres = region.cells(count).centres
    return centres, np.ones(len(centres))
