"""Sizes of grids: those asked for, what they need, and the smallest that meet an error."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from cases import data
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel, ScaleKernel

from bo_scale import WISKI
from bo_scale.errors import GridError
from bo_scale.gp.weight_space.features.grid.features import GridFeatures
from bo_scale.gp.weight_space.features.grid.interpolation import Grid
from bo_scale.models.shell.kernels import KernelProduct, as_product_kernel
from bo_scale.models.wiski import grid_sizes as grids
from bo_scale.models.wiski.grid_sizes import (
    HEADROOM,
    Resolution,
    aligned,
    around,
    corners,
    default_grid_size,
    is_nested,
    memory_needed,
    require_memory,
    sizes_of,
)

# ---------------------------------------------------------------- sizes, memory, boxes


def test_sizes_are_one_for_all_one_each_or_those_of_every_summand() -> None:
    assert sizes_of(9, 1, 2, 10) == [(9, 9)]
    assert sizes_of((9, 8), 1, 2, 10) == [(9, 8)]
    assert sizes_of(9, 2, 2, 10) == [(9, 9)] * 2
    assert sizes_of((9, 8), 2, 2, 10) == [(9, 8)] * 2
    assert sizes_of([(9, 8), 6], 2, 2, 10) == [(9, 8), (6, 6)]
    assert sizes_of([None, [5, 6]], 2, 2, 10) == [(default_grid_size(2, 10),) * 2, (5, 6)]
    for d in range(1, 5):
        few, many = sizes_of(None, 1, d, 10)[0], sizes_of(None, 1, d, 10_000)[0]
        assert few == (default_grid_size(d, 10),) * d
        assert math.prod(few) < math.prod(many)
    assert [is_nested(v) for v in (None, 9, (9, 8), [9], [(9,)], [None, 9], [9, (8, 7)])] == [False] * 4 + [True] * 3


@pytest.mark.parametrize(
    ("given", "count", "d", "said"),
    [
        ((9, 8, 7), 1, 2, "3 numbers for 2 dimensions"),
        ([(9, 8), 7], 3, 2, "2 sizes for a kernel of 3 summands"),
        ([(9, 8), (7,)], 2, 2, "1 numbers for 2 dimensions"),
        ([(9, 8), 7], 1, 2, "2 sizes for a kernel of 1 summands"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(given: Any, count: int, d: int, said: str) -> None:
    with pytest.raises(GridError, match=said):
        sizes_of(given, count, d, 10)


def test_memory_grows_with_points_rank_and_what_couples_grids() -> None:
    one, larger = memory_needed([(40, 40)], 2048), memory_needed([(80, 80)], 2048)
    assert one < larger
    assert memory_needed([(80, 80)], 100) < larger
    both, statistics = memory_needed([(40, 40), (30, 30)], 2048), 8e-9 * 1600 * 900
    assert both > one + memory_needed([(30, 30)], 2048) + statistics
    X, Y = data(20, 2)
    for size in ((12, 12), (20, 9)):  # at least what the statistics hold
        held = WISKI(X, Y, grid_size=size).statistics[0].gram.values.numel()
        assert memory_needed([size], 2048) > 8e-9 * held
    require_memory([(40, 40)], 2048, 1.01 * one)
    with pytest.raises(GridError, match=r"grid_size=\(40, 40\): 1600 points may need .* max_memory"):
        require_memory([(40, 40)], 2048, 0.9 * one)
    with pytest.raises(GridError, match=r"grid_size=\[\(40, 40\), \(30, 30\)\]: 2500 points"):
        require_memory([(40, 40), (30, 30)], 2048, 0.01)


def test_an_aligned_grid_has_the_old_nodes_and_covers_the_larger_box() -> None:
    grid = Grid((0.0, -1.0), (1.0, 1.0), (8, 7))
    assert aligned(grid, (0.0, -1.0), (1.0, 1.0)) == grid
    assert aligned(grid, (0.3, 0.0), (0.7, 0.5)) == grid
    grown = aligned(grid, (-0.3, -1.0), (1.0, 4.0))
    assert grown.size == (10, 13)
    assert grown.spacing == pytest.approx(grid.spacing)
    assert all(lo <= new for lo, new in zip(grown.lower, (-0.3, -1.0)))
    assert all(hi >= new - 1e-12 for hi, new in zip(grown.upper, (1.0, 4.0)))
    for old, new in zip(grid.nodes(), grown.nodes()):
        assert ((old.unsqueeze(-1) - new).abs().amin(-1) < 1e-12).all()
    assert aligned(grid, (-0.2, -1.0), (1.2, 1.0)).size == (10, 7)  # whole cells are not rounded up


def test_a_grid_around_another_interpolates_at_all_its_nodes() -> None:
    other, grid = Grid((0.0, -1.0), (1.0, 1.0), (8, 7)), Grid((0.0, -1.0), (1.0, 1.0), (20, 30))
    wide = around(grid, other)
    assert wide.spacing == pytest.approx(grid.spacing)
    wide.positions(torch.cartesian_prod(*other.nodes()))  # refuses points outside
    with pytest.raises(GridError, match="outside the grid"):
        grid.positions(torch.cartesian_prod(*other.nodes()))


def test_corners_of_bounds_are_sorted() -> None:
    assert corners(torch.tensor([[1.0, 2.0], [0.0, 3.0]])) == ((0.0, 2.0), (1.0, 3.0))


# ---------------------------------------------------------------- the smallest grid


def interpolation(kernel: Kernel, lengthscales: tuple[float, ...]) -> GridFeatures:
    d = len(lengthscales)
    kernel = as_product_kernel(kernel, d)
    for part in kernel.modules():
        if getattr(part, "has_lengthscale", False):
            part.lengthscale = torch.tensor(lengthscales, dtype=torch.float64)
    factors = KernelProduct(kernel.double().requires_grad_(False))
    return GridFeatures(Grid((0.0,) * d, (1.0,) * d, (4,) * d), factors)


@pytest.mark.parametrize("lengthscales", [(0.1,), (0.15, 0.9), (0.4, 0.8, 2.0)], ids=str)
@pytest.mark.parametrize(("nu", "error"), [(None, 1e-2), (None, 1e-4), (2.5, 1e-4)], ids=str)
def test_the_smallest_size_meets_the_error_and_no_smaller_one_does(
    lengthscales: tuple[float, ...], nu: float | None, error: float
) -> None:
    d = len(lengthscales)
    base = RBFKernel(ard_num_dims=d) if nu is None else MaternKernel(nu, ard_num_dims=d)
    phi = interpolation(ScaleKernel(base), lengthscales)
    size = Resolution.of(phi, error).smallest_size()
    if math.prod(size) < 5000:
        found = replace(phi, grid=replace(phi.grid, size=size))
        assert found.error.mean() <= 1.02 * error
        half = interpolation(ScaleKernel(type(base)(**({} if nu is None else {"nu": nu}), ard_num_dims=d)), tuple(
            v / HEADROOM for v in lengthscales
        ))  # fmt: skip
        found = replace(half, grid=found.grid)  # the reserve that it has
        assert found.error.mean() <= 1.1 * error
        needed = tuple((m - 3) // HEADROOM + 3 for m in size)
        if min(needed) > 6:
            less = tuple(round(0.85 * m) for m in needed)
            assert replace(phi, grid=replace(phi.grid, size=less)).error.mean() > 0.8 * error
    assert list(size) == sorted(size, reverse=True)  # the longer a lengthscale, the fewer points


def test_a_limit_of_points_or_work_is_kept_and_shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    phi = interpolation(MaternKernel(1.5, ard_num_dims=2), (0.05, 0.5))
    limits = (100, 400, 1600)
    sizes = [Resolution.of(phi, 1e-4).smallest_size(points) for points in limits]
    assert all(points >= math.prod(size) >= 0.4 * points for size, points in zip(sizes[1:], limits[1:]))
    assert [math.prod(size) for size in sizes] == sorted(math.prod(size) for size in sizes)
    assert all(a > 2 * b for a, b in sizes[1:])
    monkeypatch.setattr(grids, "CHOSEN_WORK", 1e6)
    rough = replace(interpolation(MaternKernel(0.5, ard_num_dims=2), (0.1, 0.1)), exponential=True)
    a, b = Resolution.of(rough, 1e-3).smallest_size(1600)
    assert a * b * (3 * b) ** 2 <= 1e6 < (1.3 * a) ** 2 * (3.9 * a) ** 2
    assert a * b < math.prod(Resolution.of(replace(rough, exponential=False), 1e-3).smallest_size(1600)) <= 1600
