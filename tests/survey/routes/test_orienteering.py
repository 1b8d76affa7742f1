"""Routes and their sites: against every order and every choice, where these are few."""

import itertools

import numpy as np
import pytest
import torch
from tours import RNG, between, length, network

from bo_scale.survey.choice.design_state import JointDesignState
from bo_scale.survey.choice.objectives import OBJECTIVES
from bo_scale.survey.choice.places import Places
from bo_scale.survey.routes.distances import Given
from bo_scale.survey.routes.orienteering import EXPONENTS, Network, Tours, Vehicle, travel


@pytest.mark.parametrize("one_way", [False, True])
def test_additions_are_what_the_cheapest_place_on_a_route_costs(one_way: bool) -> None:
    rng = RNG(1)
    lengths = rng.random((9, 9)) * 4 + 1
    lengths[3] = lengths[:, 3] = np.inf
    net = Network(Given(rng.random((9, 2)), lengths), 0.5, "h", 0.25, 100.0, 5)
    tours = Tours(net, [Vehicle(1, 1, 8, None if one_way else 8)], [[4, 0, 6]])
    added, where = tours.additions(0, 8)
    for place in (1, 2, 5, 7):
        costs = [tours.with_stop(0, place, position).cost(0) for position in range(4)]
        assert added[place] == pytest.approx(min(costs) - tours.cost(0))
        assert where[place] == np.argmin(costs)
    assert added[3] == np.inf
    route = [8, 4, 0, 6] if one_way else [8, 4, 0, 6, 8]
    assert tours.cost(0) == pytest.approx(0.5 * sum(lengths[a, b] for a, b in itertools.pairwise(route)) + 3 * 0.25)
    idle = Tours.empty(net, tours.vehicles)
    assert idle.cost(0) == 0.0
    assert idle.additions(0, 8)[0][1] == pytest.approx(0.25 + 0.5 * (lengths[8, 1] + (0 if one_way else lengths[1, 8])))


def test_what_is_beyond_the_budget_or_too_many_cannot_be_added() -> None:
    xy = np.array([[1.0, 0.0], [3.0, 0.0], [5.0, 0.0], [0.0, 0.0]])
    idle = Tours.empty(network(xy, 6.0), [Vehicle(1, 1, 3, 3)])
    assert idle.additions(0, 3)[0].tolist() == [2.0, 6.0, np.inf]
    full = Tours.empty(network(xy, 60.0, most=1), [Vehicle(1, 1, 3, 3)]).with_stop(0, 0, 0)
    assert np.isinf(full.additions(0, 3)[0]).all()


def test_shortened_tours_visit_the_same_and_cost_less() -> None:
    xy = RNG(2).random((14, 2))
    vehicles = [Vehicle(1, 1, 12, 12), Vehicle(1, 2, 13, None)]
    tours = Tours(network(xy, 50.0, stay=0.1), vehicles, [[0, 5, 2, 7, 4, 9], [1, 6, 3, 8, 10, 11]])
    shorter = tours.shortened(8)
    assert sorted(itertools.chain(*shorter.stops)) == list(range(12))
    assert sum(map(shorter.cost, (0, 1))) < 0.8 * sum(map(tours.cost, (0, 1)))
    assert shorter.shortened(8) is shorter
    one = tours.shortened_one(0)
    assert sorted(one.stops[0]) == sorted(tours.stops[0])
    assert one.stops[1] == tours.stops[1]
    assert one.cost(0) < tours.cost(0)


def look(xy: np.ndarray, scale: float = 0.3) -> JointDesignState:
    """A Gaussian process without data, over a mesh of the unit square."""
    cells = np.stack(np.meshgrid(*[np.linspace(0, 1, 12)] * 2), -1).reshape(-1, 2)

    def k(a: np.ndarray, b: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.exp(-((a[:, None] - b) ** 2).sum(-1) / (2 * scale**2)))

    points = torch.from_numpy(xy)
    weights = torch.full((len(cells),), 1 / len(cells), dtype=torch.float64)
    zero = torch.zeros(len(xy), dtype=torch.float64)
    return JointDesignState(
        points, torch.tensor(0.01, dtype=torch.float64), weights, zero, k(xy, xy), k(xy, cells),
        torch.zeros(len(cells), dtype=torch.float64), torch.ones(len(cells), dtype=torch.float64),
    )  # fmt: skip


def places(xy: np.ndarray, spacing: float = 0.0) -> Places:
    return Places(xy, [], spacing, 1, None, 0.0, torch.from_numpy)


def value(xy: np.ndarray, stops: list[int]) -> float:
    """By how much the variance falls, from the joint covariance."""
    state = look(xy)
    K = state.own[stops][:, stops] + 0.01 * torch.eye(len(stops))
    cross = state.cross[stops]
    return float((state.weights * (cross * torch.linalg.solve(K, cross)).sum(0)).sum())


@pytest.mark.parametrize("seed", range(3))
def test_tours_are_nearly_worth_the_best_of_all_choices(seed: int) -> None:
    """The greedy algorithm has a guarantee of a constant factor; in fact it is within a tenth."""
    xy, budget = RNG(seed).random((7, 2)), 1.6
    net = network(np.concatenate([xy, [[0.5, 0.5]]]), budget)
    found = travel(
        look(xy), places(xy), Tours.empty(net, [Vehicle(1, 1, 7, 7)]), OBJECTIVES["variance"], None, 0, lambda: None
    )
    stops = found.tours.stops[0]
    assert found.tours.cost(0) <= budget
    assert found.value == pytest.approx(value(xy, [one.candidate for one in found.choices]))
    assert sorted(stops) == sorted(one.candidate for one in found.choices)
    costs = between(net.ways.points)
    best = max(
        value(xy, list(some))
        for size in range(1, 8)
        for some in itertools.combinations(range(7), size)
        if min(length(costs, 7, 7, order) for order in itertools.permutations(some)) <= budget
    )
    assert 2 <= len(stops) <= 6
    assert found.value > 0.9 * best


def test_each_vehicle_keeps_its_budget_and_nothing_more_fits() -> None:
    xy = RNG(7).random((60, 2))
    ends = np.array([[0.1, 0.1], [0.9, 0.9]])
    net = network(np.concatenate([xy, ends]), 1.2, stay=0.05)
    vehicles = [Vehicle(1, 1, 60, 60), Vehicle(1, 2, 61, None)]
    counted: list[int] = []
    found = travel(
        look(xy),
        places(xy, 0.1),
        Tours.empty(net, vehicles),
        OBJECTIVES["variance"],
        None,
        0,
        lambda: counted.append(1),
    )
    assert len(counted) == len(EXPONENTS)
    chosen = np.stack([one.xy for one in found.choices])
    assert between(chosen)[~np.eye(len(chosen), dtype=bool)].min() >= 0.1
    for number in (0, 1):
        assert len(found.tours.stops[number]) >= 2
        assert found.tours.cost(number) <= 1.2
        open_ = (between(np.concatenate([xy, chosen]))[:60, 60:].min(1) >= 0.1).nonzero()[0]
        assert np.isinf(found.tours.additions(number, 60)[0][open_]).all()
    again = travel(look(xy), places(xy, 0.1), Tours.empty(net, vehicles), OBJECTIVES["variance"], None, 0, lambda: None)
    assert again.tours.stops == found.tours.stops


@pytest.mark.parametrize("objective", ["uncertainty", "straddle", "misclassification", "thompson"])
def test_every_objective_travels(objective: str) -> None:
    xy = RNG(8).random((40, 2))
    net = network(np.concatenate([xy, [[0.5, 0.5]]]), 1.5)
    idle = Tours.empty(net, [Vehicle(1, 1, 40, 40)])
    found = travel(look(xy), places(xy), idle, OBJECTIVES[objective], 0.5, 3, lambda: None)
    assert len(found.choices) >= 3
    assert found.value > 0
    assert found.tours.cost(0) <= 1.5
