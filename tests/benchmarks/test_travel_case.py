"""Tours beside the best sites visited, in a small survey."""

import numpy as np
import pytest

from benchmarks import travel
from bo_scale.survey import Depot, Travel

HOME = np.zeros(2)
DAY = Travel([Depot(0.0, 0.0)], hours=8.0, speed=1.0, stay=30.0)


def test_sites_are_visited_nearest_first_until_the_day_is_over() -> None:
    sites = 1000 * np.array([[-1.5, 0.0], [1.0, 0.0], [2.0, 0.0], [5.0, 0.0]])
    np.testing.assert_allclose(travel.nearest_first(HOME, sites, DAY), sites[[1, 2]])


def test_the_best_sites_are_visited_on_the_shortest_round_and_others_left_out() -> None:
    sites = 1000 * np.array([[2.0, 0.0], [5.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    found = travel.best_first(HOME, sites, DAY)
    assert sorted(map(tuple, found)) == sorted(map(tuple, sites[[0, 2, 3]]))
    assert travel.length(HOME, found) == pytest.approx(3 + 5**0.5)
    assert travel.length(HOME, np.empty((0, 2))) == 0.0
    assert travel.fits(HOME, found, DAY)


def test_the_case_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(travel, "SITES", 25)
    monkeypatch.setattr(travel, "BATCH", 6)
    monkeypatch.setattr("bo_scale.survey.plan.problem.CANDIDATES", 200)
    monkeypatch.setattr("bo_scale.survey.plan.teams.REACHED", 100)
    unit = travel.measure(None, "malaria", 0)
    assert list(unit["plans"]) == ["tour", "best sites, nearest first", "best sites, best first"]
    assert all(0 < plan["value"] < 1 and plan["sites"] >= 1 for plan in unit["plans"].values())
    result = {"units": {"malaria seed 0": unit}}
    tour, nearest = unit["plans"]["tour"], unit["plans"]["best sites, nearest first"]
    ratio = travel.ratio(result, "malaria", "best sites, nearest first")
    assert ratio == pytest.approx(tour["value"] / tour["km"] / (nearest["value"] / nearest["km"]))
    assert f"{ratio:.2f}" in travel.table(result)
    assert f"malaria: {ratio:.2f} times (best sites, nearest first)" in travel.headline(result)[0][1]
    assert len(travel.units(None)) == 2 * travel.SEEDS
