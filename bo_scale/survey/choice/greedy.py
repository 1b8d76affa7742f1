"""A batch chosen one site after the other, each as if those before were measured already."""

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import torch
from scipy.stats import qmc

from bo_scale.survey.choice.design_state import ClosedDesignState, DesignState
from bo_scale.survey.choice.objectives import Objective
from bo_scale.survey.choice.places import Choice, Places

Array = npt.NDArray[np.float64]
RINGS, AROUND = 3, 16
"""Refinements of a site, each to half the distance, and points in each."""


def choose(
    state: DesignState,
    places: Places,
    batch: int,
    objective: Objective,
    threshold: float | None,
    seed: int,
    price: Callable[[Array], Array] | None = None,
) -> Iterator[Choice]:
    """Choose the batch, one site after the other; fewer where no place is left. O(M (s + N)) a site.

    Args:
        state: Knowledge at the candidates.
        places: The candidates.
        batch: Number of sites.
        objective: The objective.
        threshold: Threshold in the model's units, for objectives that need one.
        seed: Seed of everything random.
        price: Function that returns costs of places, by which scores are divided; None if all cost the same.
    """
    costs = None if price is None else torch.from_numpy(price(places.candidates))
    generator = torch.Generator().manual_seed(seed)
    scorer = objective.scorer(state, threshold, batch, generator)
    angles = qmc.Sobol(2, seed=seed)
    chosen, used = np.empty((0, 2)), places.used()
    for number in range(batch):
        open_ = places.open(used, chosen)
        if not open_.any():
            return
        value = scorer(state, number) if costs is None else scorer(state, number) / costs
        index = int(value.masked_fill(~torch.from_numpy(open_), -torch.inf).argmax())
        found = Choice(places.candidates[index], index, float(value[index]))
        if places.inside is not None and objective.score is not None and isinstance(state, ClosedDesignState):
            found = _refined(state, places, found, chosen, objective, threshold, angles, price)
            state = state.at(places.to_model(found.xy[None])).after(0).at(state.points)
        else:
            state = state.after(index)
        used[index] += 1
        chosen = np.concatenate([chosen, found.xy[None]])
        yield found


def _refined(
    state: ClosedDesignState,
    places: Places,
    found: Choice,
    chosen: Array,
    objective: Objective,
    threshold: float | None,
    angles: qmc.Sobol,
    price: Callable[[Array], Array] | None = None,
) -> Choice:
    """Return the best place nearby, from three rounds of points in discs about the best so far, each half as wide."""
    assert places.inside is not None
    assert objective.score is not None
    for ring in range(RINGS):
        turn, share = angles.random(AROUND).T
        direction = np.stack([np.cos(2 * np.pi * turn), np.sin(2 * np.pi * turn)], -1)
        xy = found.xy + places.reach / 2**ring * np.sqrt(share)[:, None] * direction
        xy = xy[places.inside(xy) & places.far(xy, chosen)]
        if len(xy) == 0:
            continue
        value = objective.score(state.at(places.to_model(xy)), threshold)
        value = value if price is None else value / torch.from_numpy(price(xy))
        best = int(value.argmax())
        if float(value[best]) > found.score:
            found = Choice(xy[best], -1, float(value[best]))
    return found
