import itertools
import math

import numpy as np
import pytest
from tours import RNG, between, length

from bo_scale.survey.routes.distances import Given
from bo_scale.survey.routes.orienteering import Network, Tours, Vehicle
from bo_scale.survey.routes.solver import shorten


@pytest.mark.parametrize("seed", range(4))
def test_one_route_is_the_shortest_of_all_orders(seed: int) -> None:
    costs = between(RNG(seed).random((8, 2))) * 50
    (route,) = shorten(costs, [(0, 0)], [range(1, 8)], 1000.0, 10)
    best = min(length(costs, 0, 0, order) for order in itertools.permutations(range(1, 8)))
    assert length(costs, 0, 0, route) == pytest.approx(best)
    assert shorten(costs, [(0, 0)], [range(1, 8)], 1000.0, 10) == [route]


@pytest.mark.parametrize(("budget", "most"), [(1e3, 9), (1e3, 3), (150.0, 9)])
def test_two_routes_are_the_shortest_that_keep_the_budget_and_the_number_of_stops(budget: float, most: int) -> None:
    costs = between(RNG(5).random((7, 2))) * 80
    costs += RNG(6).random((7, 7))  # one-way streets
    np.fill_diagonal(costs, 0.0)
    given = [[2, 3, 4], [5, 6]] if budget > 500 else [[6, 4], [2, 5, 3]]
    ends = [(0, 0), (1, 1)]

    def whole(routes: list[list[int]]) -> float:
        each = [length(costs, *pair, route) if route else 0.0 for pair, route in zip(ends, routes, strict=True)]
        return sum(each) if max(each) <= budget and max(map(len, routes)) <= most else math.inf

    every = (
        [list(order[:cut]), list(order[cut:])] for order in itertools.permutations(range(2, 7)) for cut in range(6)
    )
    best = min(map(whole, every))
    if math.isinf(best):
        pytest.skip("no routes keep this budget with this seed")
    found = shorten(costs, ends, given, budget, most)
    assert sorted(itertools.chain(*found)) == [2, 3, 4, 5, 6]
    assert whole(found) <= whole(given)
    net = Network(Given(RNG(5).random((7, 2)), costs), 1.0, "km", 0.0, budget, most)
    tours = Tours(net, [Vehicle(1, 1, 0, 0), Vehicle(1, 2, 1, 1)], given).shortened(20)
    assert whole(tours.stops) == pytest.approx(best)


def test_routes_that_break_the_budget_stay_as_they_are() -> None:
    costs = between(np.array([[0.0, 0.0], [9.0, 0.0], [0.0, 9.0]]))
    assert shorten(costs, [(0, 0)], [[2, 1]], 5.0, 9) == [[2, 1]]
