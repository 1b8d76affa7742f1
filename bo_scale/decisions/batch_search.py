"""Maximise an acquisition function over the admissible points of the unit cube."""

from typing import Any

import torch
from botorch.acquisition.acquisition import AcquisitionFunction, OneShotAcquisitionFunction
from jaxtyping import Float
from torch import Tensor

from bo_scale.decisions.ascent import ascend
from bo_scale.decisions.candidates import Admissible, already
from bo_scale.errors import InvalidDataError

NEAREST, FARTHEST = 0.01, 0.3
"""Standard deviations of steps from good points to further starts, as shares of the range."""
APART = 1e-4
"""Least distance, as a share of the range, between points of a batch with continuous inputs: nearer ones are copies."""
EVALUATED_AT_ONCE = 256
"""Points at which an acquisition function is evaluated in one call."""


def search(
    acquisition: AcquisitionFunction,
    admissible: Admissible,
    q: int,
    seed: int,
    taken: Float[Tensor, "t d"],
    starts: Float[Tensor, "s d"],
    num_restarts: int = 4,
    raw_samples: int = 128,
    max_steps: int = 60,
    rise: float = 1e-5,
    unlike: Float[Tensor, " d"] | None = None,
) -> Float[Tensor, "q d"]:
    """Find admissible points of high acquisition value, one by one, each pending for the next.

    If there are few points all are evaluated. Else climbs over continuous inputs and exchanges of discrete values take
    turns, from the best of quasi-random points.

    Args:
        acquisition: A function of points in the unit cube.
        admissible: Which points may be chosen.
        q: The number of points.
        seed: The seed of the starting points.
        taken: Points that are not chosen, if there are others.
        starts: More points to start from.
        num_restarts: The number of points that are improved.
        raw_samples: The number of points of which they are the best.
        max_steps: The most steps of a climb.
        rise: A climb ends where two steps raise the value by less.
        unlike: A point. Points are chosen that take other choices than it does, if any is found that is not taken.

    Raises:
        InvalidDataError: for an acquisition function of more than the points themselves.
    """
    if isinstance(acquisition, OneShotAcquisitionFunction):
        raise InvalidDataError(
            f"acquisition: {type(acquisition).__name__} is optimised along with its fantasies. Spaces with integers or "
            f"choices do not allow this; use 'qLogEI', 'qLogNEI', 'qUCB', 'qNIPV' or 'Thompson'."
        )
    pending = acquisition.X_pending if q > 1 else None  # an analytic function has none
    chosen = taken.new_empty(0, admissible.dimension)
    for number in range(q):
        candidates = _candidates(admissible, raw_samples, seed + number, torch.cat([starts, chosen.to(starts)]))
        candidates = _unlike(unlike, candidates, taken, admissible)
        values = _evaluated(acquisition, candidates)
        if admissible.points is None:
            best = values.topk(min(num_restarts, len(values))).indices
            improved = _improved(acquisition, candidates[best], admissible, max_steps, rise, unlike)
            around = admissible.repair(admissible.neighbours(improved)).flatten(0, 1)
            around = torch.cat([improved, around[admissible.feasible(around)]])
            candidates = torch.cat([around, candidates])
            values = torch.cat([_evaluated(acquisition, around), values])
        ranked = _unlike(unlike, candidates[values.argsort(descending=True, stable=True)], taken, admissible)
        others = torch.cat([taken, chosen])
        apart = _distances(ranked, others) > APART
        spaced = bool(admissible.free.any()) and bool(apart.any())
        one = ranked[apart.long().argmax()].unsqueeze(0) if spaced else first_free(ranked, others)
        chosen = torch.cat([chosen, one])
        if number + 1 < q:
            acquisition.set_X_pending(chosen if pending is None else torch.cat([pending, chosen]))
    if q > 1:
        acquisition.set_X_pending(pending)
    return chosen


def _unlike(
    unlike: Float[Tensor, " d"] | None,
    points: Float[Tensor, "n d"],
    taken: Float[Tensor, "t d"],
    admissible: Admissible,
) -> Float[Tensor, "k d"]:
    """Return the points that take other choices than one does and are not taken; all if there are none."""
    if unlike is None:
        return points
    others = admissible.take_other_choices(points, unlike) & ~already(points, taken)
    return points[others] if bool(others.any()) else points


def _distances(points: Float[Tensor, "n d"], others: Float[Tensor, "t d"]) -> Float[Tensor, " n"]:
    """Return the largest difference of an input to the nearest of the others; inf if there are none."""
    if len(others) == 0:
        return points.new_full(points.shape[:1], torch.inf)
    return torch.cdist(points, others.to(points), p=torch.inf).amin(-1)


def first_free(ranked: Float[Tensor, "n d"], taken: Float[Tensor, "t d"]) -> Float[Tensor, "1 d"]:
    """Return the first point that is not taken; the first of all if every one is."""
    free = (~already(ranked, taken)).long()
    return ranked[free.argmax()].unsqueeze(0)


def _candidates(admissible: Admissible, count: int, seed: int, starts: Float[Tensor, "s d"]) -> Float[Tensor, "n d"]:
    """Return all points if they are few; else quasi-random ones, and the given ones with their neighbours."""
    if admissible.points is not None:
        return admissible.points.to(starts)
    given = admissible.nearest(starts.clamp(0.0, 1.0))
    exchanged = admissible.nearest(admissible.neighbours(given).flatten(0, 1))
    near = torch.cat([given, exchanged, _around(given, admissible, count, seed)])
    return torch.cat([admissible.sample(count, seed).to(starts), near[admissible.feasible(near)]])


def _around(points: Float[Tensor, "s d"], admissible: Admissible, count: int, seed: int) -> Float[Tensor, "n d"]:
    """Return points at random distances from given ones, in continuous inputs: up to a third of the range, or tiny.

    A second point of a batch adds little except at some distance from the first, on the same hill. Few points of the
    whole space lie there.
    """
    if len(points) == 0 or not bool(admissible.free.any()):
        return points[:0]
    g = torch.Generator().manual_seed(seed)
    scale = FARTHEST * (NEAREST / FARTHEST) ** torch.rand(count, 1, generator=g, dtype=torch.float64)
    steps = scale * torch.randn(count, admissible.dimension, generator=g, dtype=torch.float64) * admissible.free
    places = points[torch.arange(count, device=points.device) % len(points)]
    return admissible.repair(admissible.settle((places + steps.to(places)).clamp(0.0, 1.0)))


def _evaluated(acquisition: AcquisitionFunction, points: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
    with torch.no_grad():
        return torch.cat([acquisition(part.unsqueeze(-2)) for part in points.split(EVALUATED_AT_ONCE)])


def _improved(
    acquisition: AcquisitionFunction,
    start: Float[Tensor, "r d"],
    admissible: Admissible,
    max_steps: int,
    rise: float,
    unlike: Float[Tensor, " d"] | None,
) -> Float[Tensor, "r d"]:
    """Return where climbs from some points end, none of which goes to the choices of the point `unlike`."""

    def function(points: Tensor) -> Any:
        flat = points.reshape(-1, points.shape[-1])
        values = torch.cat([acquisition(part.unsqueeze(-2)) for part in flat.split(EVALUATED_AT_ONCE)])
        values = values.reshape(points.shape[:-1])
        return values if unlike is None else values.where(admissible.take_other_choices(points, unlike), -torch.inf)

    return ascend(function, start, admissible, max_steps, rise)[0]
