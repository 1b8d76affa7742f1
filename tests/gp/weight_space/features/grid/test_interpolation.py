"""Grids, weights of local cubic interpolation, quadrature between the nodes, precisions of exponential kernels."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bo_scale.errors import GridError
from bo_scale.gp.weight_space.features.grid.interpolation import (
    Basis,
    Grid,
    axis_weights,
    cell_points,
    cubic_weights,
    exponential_precision,
    gauss_points,
    prefilter,
)

BASES: list[Basis] = ["spline", "keys"]


def interpolated(grid: Grid, basis: Basis, u: Tensor, f: Tensor) -> Tensor:
    """Values at u of the interpolation of values f at the nodes."""
    return axis_weights(grid, basis, u, 0).to_dense() @ (prefilter(grid.size[0], basis, None) @ f)


@pytest.mark.parametrize("basis", BASES)
@given(u=st.floats(-0.1, 1.1))
@settings(max_examples=30, deadline=None)
def test_weights_reproduce_low_degree_polynomials(basis: Basis, u: float) -> None:
    """Keys' convolution interpolates quadratics exactly between the bounds, prefiltered splines cubics everywhere."""
    grid = Grid((0.0,), (1.0,), (13,))
    nodes = grid.nodes()[0]
    inside = 0.0 <= u <= 1.0
    x = torch.tensor([u], dtype=torch.float64)
    for degree in range(4 if basis == "spline" else (3 if inside else 2)):
        value = interpolated(grid, basis, x, nodes**degree)
        torch.testing.assert_close(value, x**degree, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("basis", BASES)
def test_a_function_is_met_at_the_nodes_between_the_bounds(basis: Basis) -> None:
    grid = Grid((-1.0,), (2.0,), (9,))
    nodes = grid.nodes()[0][1:-1]
    f = torch.randn(9, dtype=torch.float64)
    torch.testing.assert_close(interpolated(grid, basis, nodes, f), f[1:-1])


@pytest.mark.parametrize(("basis", "order"), [("spline", 2), ("keys", 1)])
def test_weights_are_as_smooth_as_their_name_says(basis: Basis, order: int) -> None:
    """C² for splines, C¹ for Keys: one-sided derivatives agree at the knots."""
    knot, step = 0.25, 1e-9
    sides = []
    for side in (-step, step):
        u = torch.tensor([knot + side], dtype=torch.float64, requires_grad=True)
        weights, first = cubic_weights(8 * u + 1, 9.0, basis)
        value = torch.zeros(12, dtype=torch.float64).index_add(0, first[0].long() + torch.arange(4), weights[0])
        derivative = (value * torch.arange(12.0).double().sin()).sum()
        for _ in range(order):
            (derivative,) = torch.autograd.grad(derivative, u, create_graph=True)
        sides.append(derivative.item())
    assert sides[0] == pytest.approx(sides[1], rel=1e-5, abs=1e-5)


def test_points_a_cell_outside_are_served_and_farther_ones_refused() -> None:
    grid = Grid((0.0, 0.0), (1.0, 1.0), (8, 8))
    grid.positions(torch.tensor([[-0.19, 1.19]], dtype=torch.float64))
    for bad in ([-0.21, 0.5], [0.5, 1.21], [float("nan"), 0.5]):
        with pytest.raises(GridError, match=r"rows \[1\].*bounds"):
            grid.positions(torch.tensor([[0.5, 0.5], bad], dtype=torch.float64))


@pytest.mark.parametrize(("lower", "upper", "size"), [(0.0, 1.0, 3), (1.0, 1.0, 8), (0.0, float("inf"), 8)])
def test_impossible_grids_are_refused(lower: float, upper: float, size: int) -> None:
    with pytest.raises(GridError):
        Grid((lower,), (upper,), (size,))


def test_positions_count_nodes_from_the_margin_and_need_the_grids_dimensions() -> None:
    grid = Grid((0.0, -1.0), (1.0, 1.0), (8, 7))
    assert grid.num_points == 56
    assert grid.spacing == pytest.approx((0.2, 0.5))
    nodes = torch.cartesian_prod(*grid.nodes())
    whole = torch.cartesian_prod(torch.arange(8).double(), torch.arange(7).double())
    torch.testing.assert_close(grid.positions(nodes), whole)
    with pytest.raises(GridError, match="X has 3 columns, the grid 2 dimensions"):
        grid.positions(torch.rand(4, 3, dtype=torch.float64))


def test_gauss_points_integrate_products_of_two_cubics_exactly() -> None:
    knots = torch.tensor([-0.5, 0.1, 0.4, 1.5], dtype=torch.float64)
    points, weights = gauss_points(knots)
    for degree in range(8):
        exact = (knots[-1] ** (degree + 1) - knots[0] ** (degree + 1)) / (degree + 1)
        torch.testing.assert_close(weights @ points**degree, exact)
    with pytest.raises(AssertionError):
        torch.testing.assert_close(weights @ points**8, (knots[-1] ** 9 - knots[0] ** 9) / 9)


def test_points_of_the_cells_lie_between_the_bounds_and_have_weights_of_a_mean() -> None:
    grid = Grid((0.0, -1.0), (1.0, 2.0), (8, 7))
    for axis, (lower, upper, m) in enumerate(zip(grid.lower, grid.upper, grid.size)):
        points, weights = cell_points(grid, axis)
        assert len(points) == len(weights) == 4 * (m - 3)
        assert lower < points.min() < points.max() < upper
        assert weights.sum().item() == pytest.approx(1.0)
        assert (weights @ points).item() == pytest.approx((lower + upper) / 2)


@pytest.mark.parametrize("correlation", [1e-3, 0.5, 0.99])
@pytest.mark.parametrize("m", [4, 5, 9])
@pytest.mark.parametrize("basis", ["spline", "keys"])
def test_the_precision_of_an_exponential_kernel_is_the_inverse_of_its_matrix(
    basis: Basis, m: int, correlation: float
) -> None:
    k0, rho = (torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in (1.7, correlation))
    gaps = (torch.arange(m).unsqueeze(-1) - torch.arange(m)).abs()
    T = prefilter(m, basis, None)
    inverse = torch.linalg.inv(T @ (k0 * rho**gaps) @ T.mT)
    stencil, logdet = exponential_precision(k0, rho, m, basis)
    dense = torch.zeros(m, m, dtype=torch.float64)
    for i, delta in itertools.product(range(m), range(4)):
        if i + delta < m:
            dense[i, i + delta] = dense[i + delta, i] = stencil[i, delta]
        else:
            assert stencil[i, delta] == 0
    torch.testing.assert_close(dense, inverse, rtol=1e-9, atol=1e-9 * inverse.abs().max().item())
    torch.testing.assert_close(logdet, torch.linalg.slogdet(inverse).logabsdet, rtol=1e-9, atol=1e-9)
    gradients = [torch.autograd.grad(v, [k0, rho], retain_graph=True) for v in (logdet, inverse.logdet())]
    torch.testing.assert_close(*gradients, rtol=1e-7, atol=1e-7)
