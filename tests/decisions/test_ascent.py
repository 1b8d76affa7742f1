"""Climbs within what is admissible; `climb` itself is tested with Thompson sampling."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bo_scale.decisions.ascent import ascend, climb_within
from bo_scale.decisions.candidates import Admissible, Lattice
from bo_scale.decisions.thompson import climb

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


UNIT = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)


# ---------------------------------------------------------------- climbing


def waves(seed: int, d: int) -> Callable[[Tensor], Tensor]:
    """A smooth function with several peaks."""
    g = torch.Generator().manual_seed(seed)
    w, phase, height = (torch.randn(5, k, generator=g, dtype=torch.float64) for k in (d, 1, 1))
    return lambda x: (height.squeeze(-1) * torch.sin(4 * x @ w.mT + phase.squeeze(-1))).sum(-1)


def projected_gradient(function: Callable[[Tensor], Tensor], x: Tensor, bounds: Tensor) -> Tensor:
    """What is left of the gradient where no bound holds it, per range."""
    x = x.detach().requires_grad_()
    (g,) = torch.autograd.grad(function(x).sum(), x)
    g = g * (bounds[1] - bounds[0])
    held = ((x <= bounds[0]) & (g < 0)) | ((x >= bounds[1]) & (g > 0))
    return g.masked_fill(held, 0.0).abs().amax(-1)


@given(seed=st.integers(0, 10**6), d=st.integers(1, 3), steps=st.integers(0, 30), edge=st.booleans())
@settings(max_examples=25, deadline=None)
def test_a_climb_stays_in_the_box_and_ends_no_lower_than_it_began(seed: int, d: int, steps: int, edge: bool) -> None:
    bounds = torch.stack([torch.full((d,), -1.0), torch.linspace(0.5, 2, d)]).double()
    g = torch.Generator().manual_seed(seed)
    u = torch.rand(4, 3, d, generator=g, dtype=torch.float64)
    start = bounds[0] + (bounds[1] - bounds[0]) * (u.round() if edge else u)
    function = waves(seed, d)
    end, value = climb(function, start, bounds, steps)
    assert end.shape == start.shape
    assert ((end >= bounds[0] - 1e-15) & (end <= bounds[1] + 1e-15)).all()
    assert (value >= function(start) - 1e-12).all()
    torch.testing.assert_close(value, function(end), rtol=0, atol=1e-12)


@pytest.mark.parametrize("d", [1, 2, 3])
def test_nearly_all_climbs_end_where_no_step_leads_up(d: int) -> None:
    bounds = torch.stack([torch.zeros(d), torch.linspace(1, 3, d)]).double()
    ended = []
    for seed in range(8):
        start = bounds[1] * torch.rand(20, d, dtype=torch.float64)
        end, _ = climb(waves(seed, d), start, bounds, 120)
        ended.append(projected_gradient(waves(seed, d), end, bounds) < 1e-4)
    # d = 3: on 4 functions of 150 a tenth of the climbs or more take over 60 steps, on one of these a quarter over 120
    assert torch.stack(ended).double().mean() >= 0.9


SLOPE = torch.tensor([1.0, -2.0], dtype=torch.float64)
HILLS: list[Any] = [
    pytest.param(lambda x: -(x - 0.3).square().sum(-1), (0.3, 0.3), id="inside"),
    pytest.param(lambda x: -(x - 2.0).square().sum(-1), (1.0, 1.0), id="corner"),
    pytest.param(lambda x: -(x[..., 0] - 2).square() - (x[..., 1] - 0.4).square(), (1.0, 0.4), id="edge"),
    pytest.param(lambda x: x @ SLOPE, (1.0, 0.0), id="plane"),
    pytest.param(
        lambda x: -(1e4 * (x[..., 0] + x[..., 1] - 1).square() + (x[..., 0] - 0.7).square()), (0.7, 0.3), id="ridge"
    ),
    pytest.param(
        lambda x: -((0.9 - x[..., 0]).square() + 100 * (x[..., 1] - x[..., 0].square()).square()),
        (0.9, 0.81),
        id="banana",
    ),
]


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize(("function", "top"), HILLS)
def test_climbs_reach_the_top_of_a_hill_from_everywhere_in_any_unit(
    function: Callable[[Tensor], Tensor], top: tuple[float, float], scale: float
) -> None:
    axis = torch.tensor([0.0, 0.2, 0.55, 1.0], dtype=torch.float64)
    end, _ = climb(lambda x: scale * function(x), torch.cartesian_prod(axis, axis), UNIT, 200)
    expected = torch.tensor(top, dtype=torch.float64).expand_as(end)
    torch.testing.assert_close(end, expected, rtol=0, atol=1e-3)


def test_starts_outside_the_box_are_moved_in_and_a_flat_function_left_alone() -> None:
    start = torch.tensor([[-0.5, 0.5], [0.5, 7.0]], dtype=torch.float64)
    end, value = climb(lambda x: 0 * x.sum(-1), start, UNIT, 10)
    assert torch.equal(end, start.clamp(0, 1))
    assert torch.equal(value, torch.zeros(2, dtype=torch.float64))
