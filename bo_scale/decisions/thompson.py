"""Thompson sampling at scale: the maximisers of hundreds of posterior functions, all at once."""

from typing import Any

import torch
from botorch.models.model import Model
from botorch.sampling.pathwise import draw_matheron_paths
from botorch.utils.sampling import draw_sobol_samples
from botorch.utils.transforms import is_ensemble
from jaxtyping import Float, Int
from torch import Tensor

from bo_scale.decisions.ascent import Function, ascend, climb
from bo_scale.decisions.candidates import TOLERANCE, Admissible
from bo_scale.errors import InvalidDataError
from bo_scale.models.shell.door import require_device

POOL = 128
"""Points per starting point among which these are chosen: the best ones."""
NEIGHBOURS = 64
"""Points tried about a peak that another function of the batch shares."""


def thompson_batch(
    model: Model,
    bounds: Float[Tensor, "2 d"],
    q: int,
    *,
    num_restarts: int = 4,
    raw_samples: int = 2048,
    max_steps: int = 40,
    distance: float = 1e-3,
    avoid: Float[Tensor, "n d"] | None = None,
    starts: Float[Tensor, "s d"] | None = None,
    admissible: Admissible | None = None,
) -> Float[Tensor, "q d"]:
    """Return a batch of q points, each the maximiser of one function drawn from the posterior.

    Every function is evaluated at the same quasi-random points and climbed from its best ones, all functions at once.
    For weight-space models the draws are exact. A value costs O(4^d) on a grid and O(p) otherwise, so batches of 1000
    take seconds. Randomness comes from torch's global generator.

    Args:
        model: A model of one output, of which larger values are better. BoTorch's `draw_matheron_paths` draws the
            functions; from an ensemble, each from a random member.
        bounds: Corners of the search space.
        q: Number of points.
        num_restarts: Number of starting points per function.
        raw_samples: Number of quasi-random points from which the starting points are chosen.
        max_steps: Maximum number of quasi-Newton steps.
        distance: Minimum distance between points of the batch, in at least one coordinate, as a share of its range. If
            two functions peak at the same place, the second contributes its next best point.
        avoid: Further points to keep this distance from, such as those being evaluated.
        starts: Further points from which starting points may be chosen, such as the best so far.
        admissible: The points that may be proposed; None for all. `bounds` must then be the unit cube. Continuous
            coordinates are climbed within the constraints; the others move to neighbouring values.

    Returns:
        The points, in the order of the draws.

    Raises:
        InvalidDataError: if bounds are no box, if there is no room for so many points, if q is below 1, or for
            several outputs.
    """
    if q < 1 or model.num_outputs != 1:
        raise InvalidDataError(f"q={q}, {model.num_outputs} outputs: Thompson sampling needs q ≥ 1 and one output.")
    _require_box(bounds)
    require_device(next(model.parameters()).device, bounds=bounds)
    lower, extent = bounds[0], bounds[1] - bounds[0]
    raw = _candidates(bounds, raw_samples, starts, admissible)
    every = admissible is not None and admissible.points is not None
    taken = raw.new_empty(0, raw.shape[-1]) if avoid is None else (avoid.to(raw) - lower) / extent
    avoided = len(taken)
    while len(taken) < avoided + q:
        count = avoided + q - len(taken)
        paths = draw_functions(model.eval(), count)
        with torch.no_grad():
            values = paths(raw.unsqueeze(0)).reshape(count, len(raw))
        if every:
            candidates, distance = raw.expand(count, *raw.shape), min(distance, TOLERANCE)
        else:
            start = raw[_starts(values, (raw - lower) / extent, min(num_restarts, len(raw)))]
            candidates, values = _peaks(paths, start, bounds, max_steps, distance, admissible)
        order = values.argsort(-1, descending=True)
        ranked = (candidates.gather(1, order.unsqueeze(-1).expand_as(candidates)) - lower) / extent
        found = _apart(ranked, taken, distance)
        if len(found) == 0:
            raise InvalidDataError(f"distance={distance}: no room for {q} points that far apart. Lower distance or q.")
        taken = torch.cat([taken, found])
    return lower + extent * taken[avoided:]


def _require_box(bounds: Any) -> None:
    box = isinstance(bounds, Tensor) and bounds.ndim == 2 and len(bounds) == 2 and bool(bounds.isfinite().all())
    if not box or not bool((bounds[0] <= bounds[1]).all()):
        raise InvalidDataError("bounds: expected a finite tensor 2 × d, lower corners before upper ones.")


def draw_functions(model: Model, count: int) -> Function:
    """Draw functions from the posterior of a model, or from random members of an ensemble."""
    paths: Function = draw_matheron_paths(model, torch.Size([count]))
    if not is_ensemble(model):
        return paths
    member = torch.randint(model.batch_shape[-1], (count,))
    return lambda X: paths(X)[torch.arange(count), member]


def _candidates(
    bounds: Float[Tensor, "2 d"], count: int, starts: Float[Tensor, "s d"] | None, admissible: Admissible | None
) -> Float[Tensor, "n d"]:
    """Return starting points: quasi-random ones beside those given, or all points if they are few."""
    seed = int(torch.randint(2**31, (1,)).item())
    if admissible is None:
        raw = draw_sobol_samples(bounds, count, 1, seed=seed).squeeze(1)
        return raw if starts is None else torch.cat([raw, starts.to(raw)])
    if admissible.points is not None:
        return admissible.points.to(bounds)
    raw = admissible.sample(count, seed).to(bounds)
    if starts is None:
        return raw
    near = admissible.nearest(starts.to(raw).clamp(0.0, 1.0))
    return torch.cat([raw, near[admissible.feasible(near)]])


def _starts(values: Float[Tensor, "n r"], points: Float[Tensor, "r d"], count: int) -> Int[Tensor, "n count"]:
    """Return, for each function, indices of its best points in different places, so that they climb different peaks.

    Each point keeps the next ones out of a cube of 1/(2 count) of the volume, as long as there are others.
    """
    best = values.topk(min(POOL * count, len(points)), -1)
    pool, left = points[best.indices], best.values.clone()
    rows, half = torch.arange(len(values), device=values.device), 0.5 * (2 * count) ** (-1 / points.shape[-1])
    spread = 1 + left.amax(-1, keepdim=True) - left.amin(-1, keepdim=True)
    chosen = []
    for _ in range(count):
        chosen.append(left.argmax(-1))
        near = (pool - pool[rows, chosen[-1]].unsqueeze(1)).abs().amax(-1) < half
        left = left - spread * near
        left[rows, chosen[-1]] = -torch.inf
    return best.indices.gather(1, torch.stack(chosen, -1))


def _peaks(
    paths: Function,
    start: Float[Tensor, "n r d"],
    bounds: Float[Tensor, "2 d"],
    max_steps: int,
    distance: float,
    admissible: Admissible | None,
) -> tuple[Float[Tensor, "n c d"], Float[Tensor, "n c"]]:
    """Climb functions from their starts; return where they end, points around the highest, and all values."""
    if admissible is None:
        climbed, heights = climb(paths, start, bounds, max_steps)
    else:
        climbed, heights = ascend(paths, start, admissible, max_steps)
    peaks = climbed[torch.arange(len(climbed), device=climbed.device), heights.argmax(-1)].unsqueeze(1)
    around = _around(peaks, bounds, distance)
    if admissible is not None:
        around = admissible.nearest(torch.cat([around, admissible.neighbours(peaks).flatten(1, 2)], 1))
        around = torch.where(admissible.feasible(around).unsqueeze(-1), around, peaks)
    with torch.no_grad():
        lesser = paths(around)
    return torch.cat([climbed, around], 1), torch.cat([heights, lesser], 1)


def _around(peaks: Float[Tensor, "n 1 d"], bounds: Float[Tensor, "2 d"], distance: float) -> Float[Tensor, "n c d"]:
    """Draw points around each peak, near and far, for functions whose peak another one shares."""
    scales = distance * torch.logspace(0, 8, NEIGHBOURS, base=2.0, dtype=peaks.dtype, device=peaks.device)
    offsets = 4 * torch.rand(len(peaks), NEIGHBOURS, peaks.shape[-1], dtype=peaks.dtype, device=peaks.device) - 2
    spread = peaks + (bounds[1] - bounds[0]) * scales.unsqueeze(-1) * offsets
    return torch.minimum(torch.maximum(spread, bounds[0]), bounds[1])


def _apart(ranked: Float[Tensor, "n c d"], taken: Float[Tensor, "t d"], distance: float) -> Float[Tensor, "m d"]:
    """Take from each row the first candidate far enough from all taken before; rows without one give none.

    This is done on the CPU: one row after the other would wait for the GPU at each.
    """
    device = ranked.device
    ranked, taken = ranked.cpu(), taken.cpu()
    seen, count = torch.cat([taken, taken.new_empty(len(ranked), taken.shape[-1])]), len(taken)
    for options in ranked:
        far = ((options.unsqueeze(1) - seen[:count]).abs().amax(-1) >= distance).all(-1)
        if far.any():
            seen[count] = options[far][0]
            count += 1
    return seen[len(taken) : count].to(device)
