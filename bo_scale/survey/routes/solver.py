"""The shortest routes of several vehicles past given stops, by OR-tools."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from ortools.constraint_solver import pywrapcp

Array = npt.NDArray[np.float64]
STEPS = 1_000_000
"""Steps of the budget: OR-tools takes whole numbers."""
ELSEWHERE = 10
"""Cost of a leg where there is no way, in budgets."""


def shorten(
    costs: Array,
    ends: Sequence[tuple[int, int]],
    routes: Sequence[Sequence[int]],
    budget: float,
    most: int,
) -> list[list[int]]:
    """Return routes past the same stops that cost less in all, each within the budget, or those given.

    The search descends from the routes given, without a limit on time: the same arguments give the same routes.

    Args:
        costs: Costs of the legs from every place to every place; infinite where there is no way. Every place is a stop
            of one route, or an end.
        ends: Start and end of each vehicle.
        routes: Stops of each vehicle, in their order.
        budget: Budget of a vehicle, in the unit of the costs.
        most: Stops of a vehicle, at most.
    """
    manager = pywrapcp.RoutingIndexManager(len(costs), len(ends), *[list(each) for each in zip(*ends, strict=True)])
    model = pywrapcp.RoutingModel(manager)
    whole = np.ceil(np.minimum(costs, ELSEWHERE * budget) * (STEPS / budget)).astype(np.int64)
    legs = model.RegisterTransitMatrix(whole.tolist())
    model.SetArcCostEvaluatorOfAllVehicles(legs)
    model.AddDimension(legs, 0, STEPS + len(costs), True, "cost")  # a little more, for what is rounded up
    at_ends = {place for pair in ends for place in pair}
    one = model.RegisterUnaryTransitVector([int(place not in at_ends) for place in range(len(costs))])
    model.AddDimension(one, 0, most, True, "stops")
    options = pywrapcp.DefaultRoutingSearchParameters()
    model.CloseModelWithParameters(options)
    given = model.ReadAssignmentFromRoutes([list(route) for route in routes], True)
    found = None if given is None else model.SolveFromAssignmentWithParameters(given, options)
    if found is None:
        return [list(route) for route in routes]
    return [_stops(model, manager, found, vehicle) for vehicle in range(len(ends))]


def _stops(
    model: pywrapcp.RoutingModel, manager: pywrapcp.RoutingIndexManager, found: pywrapcp.Assignment, vehicle: int
) -> list[int]:
    index, stops = found.Value(model.NextVar(model.Start(vehicle))), []
    while not model.IsEnd(index):
        stops.append(manager.IndexToNode(index))
        index = found.Value(model.NextVar(index))
    return stops
