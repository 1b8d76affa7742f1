"""Networks of places, and lengths of routes, for tests."""

import itertools

import numpy as np

from bo_scale.survey.routes.distances import Straight
from bo_scale.survey.routes.orienteering import Network

RNG = np.random.default_rng


def between(xy: np.ndarray) -> np.ndarray:
    return np.linalg.norm(xy[:, None] - xy, axis=-1)


def length(costs: np.ndarray, start: int, end: int, route: tuple[int, ...] | list[int]) -> float:
    return float(sum(costs[a, b] for a, b in itertools.pairwise([start, *route, end])))


def network(xy: np.ndarray, budget: float, **options: float) -> Network:
    given = {"unit": 1.0, "stay": 0.0, "most": 100, **options}
    return Network(Straight(xy), given["unit"], "km", given["stay"], budget, int(given["most"]))
