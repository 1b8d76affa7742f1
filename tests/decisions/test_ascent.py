"""Climbs within what is admissible; `climb` itself is tested with Thompson sampling."""

import torch
from torch import Tensor

from bo_scale.decisions.ascent import ascend, climb_within
from bo_scale.decisions.candidates import Admissible, Lattice

HALF = torch.tensor([0.5**0.5], dtype=torch.float64)
SUM = torch.tensor([[0.5**0.5, 0.5**0.5, 0.0]], dtype=torch.float64)
"""u₀ + u₁ ≤ 1."""


def slope(u: Tensor) -> Tensor:
    return 2 * u[..., 0] + u[..., 1] - (u[..., 2] - 0.3).square()


def starts(*rows: list[float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def test_exchanges_stay_within_constraints_that_no_continuous_input_can_mend() -> None:
    """From (½, ¼) one place up to (¾, ¼), the edge; from (1, 0) nowhere."""
    admissible = Admissible(3, {0: Lattice(5), 1: Lattice(5)}, (), SUM, HALF)
    points, values = ascend(slope, starts([0.5, 0.25, 0.9], [1.0, 0.0, 0.3]), admissible, 20)
    torch.testing.assert_close(points, starts([0.75, 0.25, 0.3], [1.0, 0.0, 0.3]), atol=1e-4, rtol=0)
    torch.testing.assert_close(values, slope(points))
    assert admissible.feasible(points).all()


def test_exchanges_take_continuous_inputs_along_where_constraints_ask_for_it() -> None:
    """u₁ gives way when u₀ moves up."""
    admissible = Admissible(3, {0: Lattice(5)}, (), SUM, HALF)
    points, _ = ascend(slope, starts([0.5, 0.5, 0.9]), admissible, 20)
    torch.testing.assert_close(points, starts([1.0, 0.0, 0.3]), atol=1e-4, rtol=0)


def test_what_is_discrete_stays_where_a_climb_began() -> None:
    admissible = Admissible(3, {0: Lattice(5)}, (), SUM, HALF)
    points, values = climb_within(slope, starts([0.25, 0.1, 0.9]), admissible, 20)
    torch.testing.assert_close(points, starts([0.25, 0.75, 0.3]), atol=1e-4, rtol=0)
    torch.testing.assert_close(values, slope(points))


def test_without_continuous_inputs_a_climb_is_an_evaluation() -> None:
    admissible = Admissible(3, {0: Lattice(5), 1: Lattice(5), 2: Lattice(11)})
    start = starts([0.25, 0.5, 0.9])
    points, values = climb_within(slope, start, admissible, 20)
    assert torch.equal(points, start)
    assert torch.equal(values, slope(start))
    points, _ = ascend(slope, start, admissible, 20)
    torch.testing.assert_close(points, starts([1.0, 1.0, 0.3]))
