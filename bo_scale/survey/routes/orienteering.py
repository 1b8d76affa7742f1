"""Sites for teams that travel: a site's value is weighed against the detour it costs.

To gain most within a budget of ways is a submodular orienteering problem. Sites are inserted one after the other where
the value gained is largest for the cost added (the cost-benefit greedy algorithm of Zhang and Vorobeychik, 2016).
Routes are shortened meanwhile. Several exponents of the cost are tried, and the plan that is worth most is kept.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float
from torch import Tensor

from bo_scale.survey.choice.design_state import DesignState
from bo_scale.survey.choice.objectives import Objective
from bo_scale.survey.choice.places import Choice, Places
from bo_scale.survey.routes.distances import Ways
from bo_scale.survey.routes.solver import shorten

Array = npt.NDArray[np.float64]
EXPONENTS = (0.0, 0.5, 0.75, 1.0)
"""Exponents of the cost, by which the value is divided."""
LEAST = 0.01
"""Least cost of a stop, as a share of the budget: else stops on the way would win whatever their value."""
RESTARTS = 8
"""Other routes to try once nothing more can be added."""
LESS = 1e-6
"""Share of a cost by which another must be below it to count as less."""
DRAWS = 100
"""Functions drawn from the posterior for Thompson sampling; after so many sites they begin again."""


@dataclass(frozen=True)
class Network:
    """Places, the ways between them, and what a vehicle may spend.

    Attributes:
        ways: Ways between candidates, which come first, and starts and ends of vehicles.
        unit: Budget that a unit of the ways' lengths costs.
        unit_name: Unit of the budget.
        stay: Budget that a stop costs.
        budget: Budget of a vehicle.
        most: Stops of a vehicle, at most.
    """

    ways: Ways
    unit: float
    unit_name: str
    stay: float
    budget: float
    most: int

    def after(self, place: int) -> Array:
        """Return costs of the legs from a place to all places, and of the stop there."""
        return self.unit * self.ways.starting(place) + self.stay

    def before(self, place: int) -> Array:
        """Return costs of the legs from all places to a place."""
        return self.unit * self.ways.ending(place)


@dataclass(frozen=True)
class Vehicle:
    """A team's day.

    Attributes:
        day: Day, from 1.
        team: Team, from 1.
        start: Its start, a place of the network.
        end: Its end, a place of the network; None to end at its last stop.
    """

    day: int
    team: int
    start: int
    end: int | None


@dataclass(frozen=True)
class Tours:
    """Routes of all vehicles.

    Attributes:
        network: Network of places.
        vehicles: Vehicles, one a route.
        stops: Stops of each vehicle, candidates in their order.
    """

    network: Network
    vehicles: Sequence[Vehicle]
    stops: list[list[int]] = field(default_factory=list)

    @classmethod
    def empty(cls, network: Network, vehicles: Sequence[Vehicle]) -> "Tours":
        """Return tours without stops."""
        return cls(network, vehicles, [[] for _ in vehicles])

    def places(self, number: int) -> list[int]:
        """Return places of a vehicle's route, from its start to its end."""
        vehicle = self.vehicles[number]
        return [vehicle.start, *self.stops[number], *([] if vehicle.end is None else [vehicle.end])]

    def cost(self, number: int) -> float:
        """Return the cost of a vehicle's route; 0 if it stays at home."""
        if not self.stops[number]:
            return 0.0
        places = self.places(number)
        ways = sum(self.network.ways.starting(a)[b] for a, b in pairwise(places))
        return float(self.network.unit * ways + self.network.stay * len(self.stops[number]))

    def additions(self, number: int, count: int) -> tuple[Array, npt.NDArray[np.int64]]:
        """Return the least cost of adding each candidate to a route, and before which stop; O(stops · count)."""
        places, network = self.places(number), self.network
        if len(self.stops[number]) >= network.most:
            return np.full(count, np.inf), np.zeros(count, dtype=np.int64)
        rows = []
        for k in range(len(self.stops[number]) + 1):
            row = network.after(places[k])[:count]
            if k + 1 < len(places):
                whole = network.before(places[k + 1])
                row = row + whole[:count] - (whole[places[k]] if self.stops[number] else 0.0)
            rows.append(row)
        added = np.stack(rows)
        least = added.min(0)
        within = least <= self.network.budget * (1 + 1e-9) - self.cost(number)
        return np.where(within, least, np.inf), added.argmin(0)

    def shortened(self, restarts: int = 0) -> "Tours":
        """Return shorter routes past the same stops if OR-tools finds some, from these or from others; else these."""
        stops = [stop for route in self.stops for stop in route]
        random = np.random.default_rng(0)
        starts = [self, *(self.rebuilt(random.permutation(stops).tolist()) for _ in range(restarts))]
        best = min((each.descended() for each in starts if each is not None), key=Tours.total)
        return best if best.total() < self.total() * (1 - LESS) else self

    def total(self) -> float:
        """Return the cost of all routes."""
        return sum(map(self.cost, range(len(self.vehicles))))

    def rebuilt(self, order: Iterable[int]) -> "Tours | None":
        """Insert the same stops in another order, each where it costs least; None if the budget is spent."""
        made, count = Tours.empty(self.network, self.vehicles), max(map(max, filter(None, self.stops)), default=-1) + 1
        for stop in order:
            added, where = zip(*(made.additions(number, count) for number in range(len(self.vehicles))), strict=True)
            number = int(np.stack(added)[:, stop].argmin())
            if not np.isfinite(added[number][stop]):
                return None
            made = made.with_stop(number, stop, int(where[number][stop]))
        return made

    def shortened_one(self, number: int) -> "Tours":
        """Return a shorter route past the same stops of a vehicle, if OR-tools finds one from here."""
        one = Tours(self.network, [self.vehicles[number]], [self.stops[number]]).shortened()
        return replace(self, stops=[*self.stops[:number], *one.stops, *self.stops[number + 1 :]])

    def descended(self) -> "Tours":
        """Return what OR-tools finds from here; the tours themselves if rounding breaks the budget."""
        used = sorted({stop for route in self.stops for stop in route})
        if len(used) < 2:
            return self
        ends = [place for vehicle in self.vehicles for place in (vehicle.start, vehicle.end) if place is not None]
        places = [*used, *dict.fromkeys(ends)]
        number = {place: row for row, place in enumerate(places)}
        nowhere = len(places)
        pairs = [(number[each.start], nowhere if each.end is None else number[each.end]) for each in self.vehicles]
        costs = np.zeros((len(places), len(places)))
        for row, place in enumerate(places):
            costs[row] = self.network.unit * self.network.ways.starting(place)[places]
        if any(each.end is None for each in self.vehicles):
            costs = np.pad(costs, (0, 1))  # a place that is nowhere, and near to all
        costs[: len(used)] += self.network.stay
        routes = [[number[stop] for stop in route] for route in self.stops]
        found = shorten(costs, pairs, routes, self.network.budget, self.network.most)
        shorter = replace(self, stops=[[places[stop] for stop in route] for route in found])
        kept = all(shorter.cost(each) <= self.network.budget * (1 + 1e-9) for each in range(len(self.vehicles)))
        return shorter if kept else self

    def with_stop(self, number: int, place: int, position: int) -> "Tours":
        """Return the tours with one more stop on a route."""
        stops = [list(route) for route in self.stops]
        stops[number].insert(position, place)
        return replace(self, stops=stops)


@dataclass(frozen=True)
class Found:
    """A plan of tours.

    Attributes:
        choices: Sites, in the order in which they were chosen.
        tours: Tours of all vehicles.
        value: Sum of the scores of all choices when they were chosen.
    """

    choices: list[Choice]
    tours: Tours
    value: float


def travel(
    state: DesignState,
    places: Places,
    tours: Tours,
    objective: Objective,
    threshold: float | None,
    seed: int,
    told: Callable[[], object],
) -> Found:
    """Return the sites and routes that are worth most, of those found for each of `EXPONENTS`.

    Args:
        state: Knowledge at the candidates.
        places: The candidates.
        tours: Tours without any stop.
        objective: The objective.
        threshold: Threshold in the model's units, for objectives that need one.
        seed: Seed of everything random.
        told: Called after each of `EXPONENTS`.
    """
    scorer = objective.scorer(state, threshold, DRAWS, torch.Generator().manual_seed(seed))

    def gain(current: DesignState, number: int) -> Float[Tensor, " M"]:
        value = scorer(current, number)
        return (value if objective.additive else value - value.median()).clamp_min(0.0)

    best: Found | None = None
    for exponent in EXPONENTS:
        found = _greedy(state, places, tours, gain, exponent)
        if best is None or found.value > best.value:
            best = found
        told()
    assert best is not None
    return best


def _greedy(
    state: DesignState,
    places: Places,
    tours: Tours,
    gain: Callable[[DesignState, int], Float[Tensor, " M"]],
    exponent: float,
) -> Found:
    count, tight = len(places.candidates), False
    choices: list[Choice] = []
    used, value = places.used(), 0.0
    while True:
        chosen = np.array([one.xy for one in choices]).reshape(-1, 2)
        open_ = places.open(used, chosen)
        added, where = zip(*(tours.additions(number, count) for number in range(len(tours.vehicles))), strict=True)
        cost = np.where(open_, np.stack(added).min(0), np.inf)
        if not np.isfinite(cost).any():
            shorter = tours if tight else tours.shortened(RESTARTS)
            if shorter is tours:
                return Found(choices, tours, value)
            tours, tight = shorter, True
            continue
        worth = gain(state, len(choices)).numpy()
        merit = worth / np.maximum(cost, LEAST * tours.network.budget) ** exponent
        index = int(np.where(np.isfinite(cost), merit, -np.inf).argmax())
        number = int(np.stack(added)[:, index].argmin())
        tours = tours.with_stop(number, index, int(where[number][index])).shortened_one(number)
        state = state.after(index)
        choices.append(Choice(places.candidates[index], index, float(worth[index])))
        used[index], value, tight = used[index] + 1, value + float(worth[index]), False
