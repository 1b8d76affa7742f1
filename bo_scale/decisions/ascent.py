"""Climb from many points at once: over a box, and over the admissible points of the unit cube."""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from bo_scale.decisions.candidates import Admissible

FIRST_STEP, LONGEST_STEP = 0.05, 0.5
"""The first and the longest step of a climb, as shares of the range."""
FORGET = 12
"""Number of steps after which H starts anew, for points that still climb."""
TINY = 1e-300
ROUNDING = 1e-12
"""A step that promises a smaller rise, as a share of the largest value, is not tried: rounding would decide."""
EXCHANGES = 6
"""Maximum number of exchanges of one discrete coordinate; a climb follows each."""

Function = Callable[[Tensor], Tensor]
"""Values `… k` of points `… k d`, every point on its own."""


def climb(
    function: Function, start: Float[Tensor, "*b d"], bounds: Float[Tensor, "2 d"], max_steps: int, rise: float = 0.0
) -> tuple[Float[Tensor, "*b d"], Float[Tensor, "*b"]]:
    """Maximise from many points at once within a box: projected BFGS, every point with its own inverse Hessian.

    A step is H g over the coordinates that are not held by a bound, shortened until it rises by Armijo's rule; where H
    knows of no positive curvature (at first, on slopes, in valleys, after a search that failed) it is along g, and
    twice as long as the last. A few evaluations of all points a step.

    Args:
        function: The function to maximise.
        start: The starting points.
        bounds: The corners of the box.
        max_steps: The most steps.
        rise: The end, if above 0, is also where no point has risen by more in two steps.

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
    flat = 0
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
        flat = flat + 1 if bool((risen - value <= rise).all()) else 0
        curved, u, value, g = bent, moved, risen, gradient
        if rise > 0 and flat == 2:
            break
        if step % FORGET == FORGET - 1:  # what H knows may be of where the point was
            going = (uphill.abs().amax(-1) > 1e-6) & (length > 0)
            curved, reach = curved & ~going, torch.where(going, reach.clamp_min(1e-3), reach)
        if (reach < 1e-9).all():
            break
    return lower + extent * u, value


def ascend(
    function: Function, start: Float[Tensor, "*b d"], admissible: Admissible, max_steps: int, rise: float = 0.0
) -> tuple[Float[Tensor, "*b d"], Float[Tensor, "*b"]]:
    """Maximise from many admissible points at once: climbs over continuous inputs, exchanges of discrete ones.

    Args:
        function: See `climb`.
        start: Admissible points of the unit cube.
        admissible: Which points are.
        max_steps: The most steps of a climb.
        rise: See `climb`.

    Returns:
        Admissible points, and the function there: nowhere lower than at the start.
    """
    points, values = climb_within(function, start, admissible, max_steps, rise)
    for _ in range(EXCHANGES):
        exchanged, heights = best_exchange(function, points, admissible)
        better = heights > values + rise
        if not better.any():
            break
        points = torch.where(better.unsqueeze(-1), exchanged, points)
        points, values = climb_within(function, points, admissible, max_steps, rise)
    return points, values


def climb_within(
    function: Function, start: Float[Tensor, "*b d"], admissible: Admissible, max_steps: int, rise: float = 0.0
) -> tuple[Float[Tensor, "*b d"], Float[Tensor, "*b"]]:
    """Climb over continuous inputs within the constraints; discrete ones stay as they are at the starts."""
    if not bool(admissible.free.any()):
        with torch.no_grad():
            return start, function(start)
    bounds = start.new_tensor([[0.0], [1.0]]).expand(2, start.shape[-1])
    climbed, heights = climb(lambda x: function(admissible.retract(x, start)), start, bounds, max_steps, rise)
    return admissible.retract(climbed, start), heights


def best_exchange(
    function: Function, points: Float[Tensor, "*b d"], admissible: Admissible
) -> tuple[Float[Tensor, "*b d"], Float[Tensor, "*b"]]:
    """Return every point's best neighbour in one discrete coordinate, and the function there; −inf without one."""
    others = admissible.repair(admissible.neighbours(points))
    if others.shape[-2] == 0:
        return points, torch.full_like(points[..., 0], -torch.inf)
    with torch.no_grad():
        heights = function(others.flatten(-3, -2)).reshape(others.shape[:-1])
    height, index = torch.where(admissible.feasible(others), heights, -torch.inf).max(-1)
    best = others.gather(-2, index[..., None, None].expand(*index.shape, 1, points.shape[-1])).squeeze(-2)
    return best, height


def _search(
    evaluate: Callable[[Tensor], tuple[Tensor, Tensor]],
    u: Float[Tensor, "*b d"],
    value: Float[Tensor, "*b"],
    g: Float[Tensor, "*b d"],
    ascent: Float[Tensor, "*b d"],
) -> tuple[Float[Tensor, "*b d"], Float[Tensor, "*b"], Float[Tensor, "*b d"]]:
    """Backtrack by Armijo's rule, f(u') ≥ f(u) + 10⁻⁴ gᵀ(u' − u), for every point on its own.

    Returns:
        Points, values and gradients; a point without a rise in twelve trials stays.
    """
    moved, risen, gradient = u, value, g
    length = torch.ones_like(value)
    slope = (g * ((u + ascent).clamp(0.0, 1.0) - u)).sum(-1)
    waiting = slope > ROUNDING * value.abs().amax()
    for _ in range(12):
        if not waiting.any():
            break
        trial = (u + length.unsqueeze(-1) * ascent).clamp(0.0, 1.0)
        v, h = evaluate(trial)
        good = waiting & (v >= value + 1e-4 * (g * (trial - u)).sum(-1)) & (v >= value)
        moved = torch.where(good.unsqueeze(-1), trial, moved)
        gradient = torch.where(good.unsqueeze(-1), h, gradient)
        risen = torch.where(good, v, risen)
        waiting = waiting & ~good
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
