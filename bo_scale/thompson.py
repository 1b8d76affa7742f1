"""Thompson sampling at scale: the maximisers of hundreds of posterior functions, all at once."""

from collections.abc import Callable

import torch
from botorch.models.model import Model
from botorch.sampling.pathwise import draw_matheron_paths
from botorch.utils.sampling import draw_sobol_samples
from jaxtyping import Bool, Float
from torch import Tensor

from bo_scale.errors import InvalidDataError

NEIGHBOURS = 64
"""Points tried about a peak that another function of the batch shares."""

FIRST_STEP, LONGEST_STEP = 0.05, 0.5
"""Of a climb, as shares of the range."""
FORGET = 12
"""After so many steps H starts anew, for points that still climb."""
TINY = 1e-300

Function = Callable[[Tensor], Tensor]
"""Values `… k` of points `… k d`, every point on its own."""


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
) -> Float[Tensor, "q d"]:
    """A batch of q points, each the maximiser of one function drawn from the posterior.

    Every function is evaluated on the same quasi-random points and climbed from its best ones, all functions at once.
    For weight-space models the draws are exact and a value costs O(4^d) on a grid, O(p) else: batches of 1000 take
    seconds. Randomness is torch's global one.

    Args:
        model: Of one output, larger is better. Drawn from by BoTorch's `draw_matheron_paths`, exactly for models of
            this package.
        bounds: Of the search.
        q: How many.
        num_restarts: Starting points a function.
        raw_samples: Points of which the starting points are the best.
        max_steps: Quasi-Newton steps at most.
        distance: Points of the batch are at least so far apart, in some coordinate, as a share of the range. Where two
            functions peak at one place the second gives its next best.
        avoid: Points to keep that distance from too, those being evaluated say.
        starts: More starting points to choose from: the best seen so far, say.

    Returns:
        The points, in the order of the draws.
    """
    if q < 1 or model.num_outputs != 1:
        raise InvalidDataError(f"q={q}, {model.num_outputs} outputs: Thompson sampling needs q ≥ 1 and one output.")
    lower, extent = bounds[0], bounds[1] - bounds[0]
    raw = draw_sobol_samples(bounds, raw_samples, 1, seed=int(torch.randint(2**31, (1,)).item())).squeeze(1)
    raw = raw if starts is None else torch.cat([raw, starts.to(raw)])
    taken = raw.new_empty(0, raw.shape[-1]) if avoid is None else (avoid.to(raw) - lower) / extent
    avoided = len(taken)
    while len(taken) < avoided + q:
        count = avoided + q - len(taken)
        paths = draw_matheron_paths(model.eval(), torch.Size([count]))
        with torch.no_grad():
            values = paths(raw.unsqueeze(0)).reshape(count, len(raw))
        best = values.topk(min(num_restarts, len(raw)), -1)
        climbed, heights = climb(paths, raw[best.indices], bounds, max_steps)
        peaks = climbed[torch.arange(count, device=raw.device), heights.argmax(-1)].unsqueeze(1)
        around = _around(peaks, bounds, distance)
        with torch.no_grad():
            lesser = paths(around)
        candidates = torch.cat([climbed, around], 1)
        order = torch.cat([heights, lesser], 1).argsort(-1, descending=True)
        ranked = (candidates.gather(1, order.unsqueeze(-1).expand_as(candidates)) - lower) / extent
        found = _apart(ranked, taken, distance)
        if len(found) == 0:
            raise InvalidDataError(f"distance={distance}: no room for {q} points so far apart; lower it, or q.")
        taken = torch.cat([taken, found])
    return lower + extent * taken[avoided:]


def _around(peaks: Float[Tensor, "n 1 d"], bounds: Float[Tensor, "2 d"], distance: float) -> Float[Tensor, "n c d"]:
    """Points about each peak, from a distance or two off to a good part of the box: where another holds the peak."""
    scales = distance * torch.logspace(0, 8, NEIGHBOURS, base=2.0, dtype=peaks.dtype, device=peaks.device)
    offsets = 4 * torch.rand(len(peaks), NEIGHBOURS, peaks.shape[-1], dtype=peaks.dtype, device=peaks.device) - 2
    spread = peaks + (bounds[1] - bounds[0]) * scales.unsqueeze(-1) * offsets
    return torch.minimum(torch.maximum(spread, bounds[0]), bounds[1])


def _apart(ranked: Float[Tensor, "n c d"], taken: Float[Tensor, "t d"], distance: float) -> Float[Tensor, "m d"]:
    """Of every row's candidates the first that keeps its distance from all taken before; rows without one give none."""
    seen, count = torch.cat([taken, taken.new_empty(len(ranked), taken.shape[-1])]), len(taken)
    for options in ranked:
        far = ((options.unsqueeze(1) - seen[:count]).abs().amax(-1) >= distance).all(-1)
        if far.any():
            seen[count] = options[far][0]
            count += 1
    return seen[len(taken) : count]


def climb(
    function: Function, start: Float[Tensor, "*b d"], bounds: Float[Tensor, "2 d"], max_steps: int
) -> tuple[Float[Tensor, "*b d"], Float[Tensor, "*b"]]:
    """Maximise from many points at once within a box: projected BFGS, every point with its own inverse Hessian.

    A step is H g over the coordinates that are not held by a bound, shortened until it rises by Armijo's rule; where H
    knows of no positive curvature (at first, on slopes, in valleys, after a search that failed) it is along g, and
    twice as long as the last. A few evaluations of all points a step.

    Returns:
        Where each point ended, and the function there: nowhere lower than at its start.
    """
    lower, extent = bounds[0], bounds[1] - bounds[0]

    def evaluate(u: Float[Tensor, "*b d"]) -> tuple[Float[Tensor, "*b"], Float[Tensor, "*b d"]]:
        with torch.enable_grad():
            u = u.detach().requires_grad_()
            value = function(lower + extent * u)
            (gradient,) = torch.autograd.grad(value.sum(), u)
        return value.detach(), gradient

    u = ((start - lower) / extent).clamp(0.0, 1.0)
    identity = torch.eye(u.shape[-1], dtype=u.dtype, device=u.device)
    inverse = identity.expand(*u.shape, u.shape[-1])
    curved = torch.zeros(u.shape[:-1], dtype=torch.bool, device=u.device)  # whether H knows of a curvature
    reach = torch.full_like(u[..., 0], FIRST_STEP)
    value, g = evaluate(u)
    for step in range(max_steps):
        free = ~(((u <= 0) & (g < 0)) | ((u >= 1) & (g > 0)))
        uphill = g * free
        newton = _product(inverse, uphill) * free
        ahead = curved & ((newton * g).sum(-1) > 0)
        steepest = uphill * (reach / uphill.abs().amax(-1).clamp_min(TINY)).unsqueeze(-1)
        newton = newton * (LONGEST_STEP / newton.abs().amax(-1, keepdim=True).clamp_min(TINY)).clamp_max(1.0)
        moved, risen, gradient = _search(evaluate, u, value, g, torch.where(ahead.unsqueeze(-1), newton, steepest))
        s, y = moved - u, g - gradient
        length, curvature = s.abs().amax(-1), (s * y).sum(-1)
        bent = curvature > 1e-10 * s.norm(dim=-1) * y.norm(dim=-1)
        scale = (curvature / y.square().sum(-1).clamp_min(TINY))[..., None, None] * identity
        inverse = _updated(torch.where((curved | ~bent)[..., None, None], inverse, scale), s, y, curvature, bent)
        reach = torch.where(length > 0, (2 * length).clamp_max(LONGEST_STEP), 0.1 * reach)
        curved, u, value, g = bent, moved, risen, gradient
        if step % FORGET == FORGET - 1:  # what H knows may be of where the point was
            going = (uphill.abs().amax(-1) > 1e-6) & (length > 0)
            curved, reach = curved & ~going, torch.where(going, reach.clamp_min(1e-3), reach)
        if (reach < 1e-9).all():
            break
    return lower + extent * u, value


def _search(
    evaluate: Callable[[Tensor], tuple[Tensor, Tensor]],
    u: Float[Tensor, "*b d"],
    value: Float[Tensor, "*b"],
    g: Float[Tensor, "*b d"],
    ascent: Float[Tensor, "*b d"],
) -> tuple[Float[Tensor, "*b d"], Float[Tensor, "*b"], Float[Tensor, "*b d"]]:
    """Backtracking by Armijo's rule, f(u') ≥ f(u) + 10⁻⁴ gᵀ(u' − u), for every point on its own.

    Returns:
        Points, values and gradients; a point without a rise in twelve trials stays.
    """
    moved, risen, gradient = u, value, g
    length = torch.ones_like(value)
    waiting = torch.ones_like(value, dtype=torch.bool)
    for _ in range(12):
        trial = (u + length.unsqueeze(-1) * ascent).clamp(0.0, 1.0)
        v, h = evaluate(trial)
        good = waiting & (v >= value + 1e-4 * (g * (trial - u)).sum(-1)) & (v >= value)
        moved = torch.where(good.unsqueeze(-1), trial, moved)
        gradient = torch.where(good.unsqueeze(-1), h, gradient)
        risen = torch.where(good, v, risen)
        waiting = waiting & ~good
        if not waiting.any():
            break
        length = torch.where(waiting, 0.35 * length, length)
    return moved, risen, gradient


def _updated(
    inverse: Float[Tensor, "*b d d"],
    s: Float[Tensor, "*b d"],
    y: Float[Tensor, "*b d"],
    curvature: Float[Tensor, "*b"],
    bent: Bool[Tensor, "*b"],
) -> Float[Tensor, "*b d d"]:
    """H ← (I − ρ s yᵀ) H (I − ρ y sᵀ) + ρ s sᵀ, ρ = 1/sᵀy: the inverse Hessian of −f by BFGS, for bent points.

    J. Nocedal, S. Wright. Numerical optimization, 2nd edition, 2006: eq. 6.17.
    """
    rho = 1 / torch.where(bent, curvature, torch.ones_like(curvature))[..., None, None]
    left = torch.eye(s.shape[-1], dtype=s.dtype, device=s.device) - rho * s.unsqueeze(-1) * y.unsqueeze(-2)
    updated = left @ inverse @ left.mT + rho * s.unsqueeze(-1) * s.unsqueeze(-2)
    return torch.where(bent[..., None, None], updated, inverse)


def _product(A: Float[Tensor, "*b d d"], x: Float[Tensor, "*b d"]) -> Float[Tensor, "*b d"]:
    return (A @ x.unsqueeze(-1)).squeeze(-1)
