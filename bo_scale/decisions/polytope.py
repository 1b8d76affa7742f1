"""Points drawn uniformly within linear inequalities that leave little of the unit cube."""

import torch
from botorch.utils.sampling import find_interior_point
from jaxtyping import Float
from torch import Tensor

from bo_scale.errors import SpaceError

STEPS, STEPS_PER_INPUT = 128, 8
"""Moves of each point, and as many more for each input."""
FLAT = 1e-9
"""Less room than this, as a distance, is none."""


def uniform_within(
    weights: Float[Tensor, "c d"], limits: Float[Tensor, " c"], n: int, seed: int
) -> Float[Tensor, "n d"]:
    """Draw points of the unit cube that satisfy W u ≤ w, by hit-and-run from a point inside. O(n d² (c + d)).

    All points move at once, each along a random line to a uniform place between its ends. Every other line lies along
    the difference of two points of the other half, so that thin and oblique rooms are filled as fast as round ones.

    R. Smith. Efficient Monte Carlo procedures for generating points uniformly distributed over bounded regions.
    Operations Research, 1984.

    Args:
        weights: W.
        limits: w.
        n: The number of points.
        seed: The seed of the moves.

    Raises:
        ValueError: if there is no room, or the constraints contradict each other.
    """
    d = weights.shape[-1]
    cube = torch.eye(d, dtype=weights.dtype)
    A, b = torch.cat([weights, cube, -cube]), torch.cat([limits, torch.ones(d), torch.zeros(d)]).to(weights)
    centre = torch.from_numpy(find_interior_point(A.numpy(), b.numpy())).to(weights)
    if bool(((b - A @ centre) / A.norm(dim=-1) < FLAT).any()):
        raise SpaceError("parameter_constraints: there is no room within them. Loosen them.")
    g = torch.Generator().manual_seed(seed)
    half = (n + 1) // 2 + 1
    halves = [centre.repeat(half, 1), centre.repeat(half, 1)]
    for step in range(2 * (STEPS + STEPS_PER_INPUT * d)):
        moving, others = halves[step % 2], halves[1 - step % 2]
        lines = torch.randn(half, d, generator=g, dtype=weights.dtype)
        if step % 4 >= 2 and step >= 4:
            a, c = torch.randint(half, (2, half), generator=g)
            lines = others[a] - others[c]
        halves[step % 2] = _moved(moving, lines, A, b, torch.rand(half, 1, generator=g, dtype=weights.dtype))
    return torch.cat(halves)[torch.randperm(2 * half, generator=g)[:n]].clamp(0.0, 1.0)


def _moved(
    points: Float[Tensor, "n d"],
    lines: Float[Tensor, "n d"],
    A: Float[Tensor, "c d"],
    b: Float[Tensor, " c"],
    share: Float[Tensor, "n 1"],
) -> Float[Tensor, "n d"]:
    """Move points along lines, to a share of the way between the ends of these within A u ≤ b."""
    rise, room = lines @ A.mT, (b - points @ A.mT).clamp_min(0.0)
    reach = room / torch.where(rise == 0, 1.0, rise)
    ahead = torch.where(rise > 0, reach, torch.inf).amin(-1, keepdim=True)
    behind = torch.where(rise < 0, reach, -torch.inf).amax(-1, keepdim=True)
    still = ~(ahead - behind).isfinite()  # a line of no length
    return points + torch.where(still, 0.0, behind + share * (ahead - behind)) * lines
