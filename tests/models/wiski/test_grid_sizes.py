"""Grids that are chosen, and that follow the problem."""

import copy
import math
import pickle
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from botorch.exceptions.errors import ModelFittingError, UnsupportedError
from botorch.fit import fit_gpytorch_mll
from botorch.models import ModelListGP
from botorch.models.transforms import Normalize
from botorch.sampling import SobolQMCNormalSampler
from cases import assert_alike, data, end_to_end, rough_and_smooth
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel, ScaleKernel
from gpytorch.mlls import ExactMarginalLogLikelihood, SumMarginalLogLikelihood
from torch import Tensor
from torch.distributions import MultivariateNormal

from bo_scale import WISKI, load_model, save_model
from bo_scale.errors import FitWarning, GridError, InterpolationWarning
from bo_scale.gp.weight_space.features.grid.features import GridFeatures
from bo_scale.gp.weight_space.features.grid.interpolation import Grid
from bo_scale.loop import Optimizer
from bo_scale.models.fitting.strategies import EvidenceFit, FollowGrid
from bo_scale.models.shell.kernels import KernelProduct, as_product_kernel
from bo_scale.models.wiski import grid_sizes as grids
from bo_scale.models.wiski import model as wiski
from bo_scale.models.wiski.grid_sizes import (
    AUTOMATIC_POINTS,
    HEADROOM,
    TOLERATED_SHARE,
    Resolution,
    aligned,
    default_grid_size,
    is_nested,
    least_size,
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


# ---------------------------------------------------------------- grids that follow a fit


@pytest.fixture
def fits(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The sizes of the grids that BoTorch's own fit has seen."""
    seen: list[tuple[int, ...]] = []

    inner = EvidenceFit.fit

    def counted(self: EvidenceFit, model: Any, *rest: Any) -> Any:
        seen.append(model.grid.size)
        return inner(self, model, *rest)

    monkeypatch.setattr(EvidenceFit, "fit", counted)
    return seen


@pytest.fixture
def many(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dozen observations are enough to believe in long lengthscales."""
    monkeypatch.setattr(grids, "MANY", 12)


def fit(model: Any, **options: Any) -> Any:
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    options = {"optimizer_kwargs": {"options": {"maxiter": 20}}, **options}
    assert fit_gpytorch_mll(mll, **options) is mll
    return model


def fixed(model: WISKI, lengthscale: Any, noise: float) -> WISKI:
    """At hyperparameters that a fit leaves alone; the mean is learned."""
    for part in model.covar_module.modules():
        if getattr(part, "has_lengthscale", False):
            part.lengthscale = torch.as_tensor(lengthscale, dtype=torch.float64)
    model.likelihood.noise = noise
    model.covar_module.requires_grad_(False)
    model.likelihood.requires_grad_(False)
    return model


KERNELS: list[Any] = [
    pytest.param(lambda: RBFKernel(ard_num_dims=2), [0.2, 1.0], id="RBF"),
    pytest.param(lambda: MaternKernel(2.5, ard_num_dims=2), [1.0, 0.25], id="Matérn-5/2"),
]


@pytest.mark.parametrize(("kernel", "lengths"), KERNELS)
def test_the_grid_chosen_meets_the_rule_and_follows_the_lengthscales(
    kernel: Callable[[], Kernel], lengths: list[float], fits: list[tuple[int, ...]], many: None
) -> None:
    X, Y = data(40, 2)
    model = fixed(WISKI(X, Y, covar_module=kernel()), lengths, 1e-2)
    with warnings.catch_warnings():
        warnings.simplefilter("error", InterpolationWarning)
        fit(model)
    assert model.interpolation_share <= TOLERATED_SHARE
    size = model.grid.size
    assert (size[0] > 1.3 * size[1]) == (lengths[0] < lengths[1])
    assert (size[1] > 1.3 * size[0]) == (lengths[1] < lengths[0])
    assert math.prod(size) < 30 * 30
    assert fits == [(40, 40)]  # fine enough for the fit: what follows it is free
    assert fit(model).grid.size == size
    assert fits == [(40, 40), size]


def test_few_observations_of_a_long_lengthscale_do_not_make_a_grid_coarse(fits: list[tuple[int, ...]]) -> None:
    X, Y = data(40, 2)
    model = fit(fixed(WISKI(X, Y, covar_module=RBFKernel()), 1.0, 1e-2))
    assert model.grid.size == (30, 30) == (least_size(2, 999),) * 2
    assert fits == [(30, 30)]
    assert [least_size(d, 1000) for d in (1, 2, 3, 4)] == [32, 15, 7, 4]


def test_a_grid_that_is_too_coarse_is_refined_and_the_fit_made_again(fits: list[tuple[int, ...]]) -> None:
    X, Y = data(60, 1)
    model = fixed(WISKI(X, Y, covar_module=RBFKernel()), 0.02, 1e-3)
    assert model.interpolation_share > TOLERATED_SHARE
    fit(model)
    assert model.interpolation_share <= TOLERATED_SHARE
    assert fits == [(64,), model.grid.size]
    assert model.grid.size[0] > 64
    modules = {name: getattr(model, name) for name in ("covar_module", "likelihood", "mean_module")}
    again = WISKI(X, Y, grid_size=model.grid.size, **modules)
    assert_alike(end_to_end(model), end_to_end(again), 1e-4)  # a chosen grid leaves more eigenpairs out


def test_a_fit_from_data_finds_lengthscales_and_grid_together(many: None) -> None:
    X, _ = data(150, 2)
    g = torch.Generator().manual_seed(0)
    Y = (12 * X[:, :1]).sin() + 0.05 * torch.randn(150, 1, generator=g, dtype=torch.float64)
    model = fit(WISKI(X, Y))
    assert model.interpolation_share <= TOLERATED_SHARE
    assert model.grid.size[0] > model.grid.size[1]
    assert model.train_inputs[0].shape == (150, 2)
    streamed = model.condition_on_observations(X[:3], Y[:3])
    assert streamed.grid == model.grid
    assert streamed._automatic


def test_a_rough_kernel_is_served_within_the_limits_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    assert AUTOMATIC_POINTS == 65_536
    X, Y = data(40, 1)
    sizes = []
    for points, memory in ((150, 4.0), (300, memory_needed([(100,)], 2048))):
        monkeypatch.setattr(wiski, "AUTOMATIC_POINTS", points)
        model = fixed(WISKI(X, Y, covar_module=MaternKernel(0.5)), 0.1, 1e-4)
        model._max_memory = memory
        with pytest.warns(InterpolationWarning, match="% of the noise variance"):
            fit(model)
        sizes.append(math.prod(model.grid.size))
        assert memory_needed([model.grid.size], model._rank) <= memory
    assert 64 < sizes[0] <= 150
    assert sizes[1] <= 100


def test_a_given_grid_never_changes(fits: list[tuple[int, ...]]) -> None:
    X, Y = data(40, 1)
    for size, length in ((10, 0.05), (200, 0.5)):
        model = fixed(WISKI(X, Y, covar_module=MaternKernel(1.5), grid_size=size), length, 1e-2)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", InterpolationWarning)
            fit(model)
        assert model.grid.size == (size,)
        assert not isinstance(model._fitting, FollowGrid)
    assert fits == [(10,), (200,)]  # one fit each


def test_a_grid_given_to_regridded_never_changes_either(many: None) -> None:
    X, Y = data(40, 2)
    model = WISKI(X, Y).regridded(grid_size=(38, 37))
    assert fit(model).grid.size == (38, 37)


def test_an_automatic_model_is_copied_pickled_and_saved_with_its_grid(tmp_path: Path, many: None) -> None:
    X, Y = data(40, 2)
    model = fit(WISKI(X, Y))
    assert model.grid.size != WISKI(X, Y).grid.size
    save_model(model, tmp_path / "model.pt")
    loaded = load_model(WISKI(X[:2], Y[:2]), tmp_path / "model.pt")
    said = end_to_end(model)
    for same in (loaded, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert same.grids == model.grids
        assert isinstance(same._fitting, FollowGrid)
        assert_alike(said, end_to_end(same), 0.0)


def test_a_list_of_automatic_models_has_a_grid_for_each(many: None) -> None:
    X, Y = data(40, 2)
    rough = fixed(WISKI(X, Y, covar_module=RBFKernel()), 0.2, 1e-3)
    smooth = fixed(WISKI(X, Y, covar_module=RBFKernel()), 1.0, 1e-2)
    both = ModelListGP(rough, smooth)
    mll = SumMarginalLogLikelihood(both.likelihood, both)
    fit_gpytorch_mll(mll)
    assert math.prod(rough.grid.size) > 2 * math.prod(smooth.grid.size)
    assert max(rough.interpolation_share, smooth.interpolation_share) <= TOLERATED_SHARE
    Xt = data(4, 2, seed=1)[0]
    joint = both.posterior(Xt)
    torch.testing.assert_close(joint.mean[:, 1:], smooth.posterior(Xt).mean)


def test_several_outputs_have_the_grid_of_the_most_demanding_one() -> None:
    X, Y = data(40, 2, 2)
    kernel = RBFKernel(ard_num_dims=2, batch_shape=torch.Size([2]))
    lengths = torch.tensor([[[0.25, 1.0]], [[1.0, 0.25]]], dtype=torch.float64)
    model = fit(fixed(WISKI(X, Y, covar_module=kernel), lengths, 1e-3))
    assert model.interpolation_share <= TOLERATED_SHARE
    assert min(model.grid.size) > 12


def test_sums_choose_a_grid_for_every_summand(many: None) -> None:
    X, Y = data(40, 2)
    kernel = ScaleKernel(RBFKernel()) + ScaleKernel(RBFKernel())
    model = WISKI(X, Y, covar_module=kernel)
    kernel.kernels[0].base_kernel.lengthscale, kernel.kernels[1].base_kernel.lengthscale = 0.2, 1.0
    model.likelihood.noise = 1e-2
    model.covar_module.requires_grad_(False)
    model.likelihood.requires_grad_(False)
    fit(model)
    fine, coarse = (each.num_points for each in model.grids)
    assert fine > 1.5 * coarse
    assert model.interpolation_share <= TOLERATED_SHARE


# ---------------------------------------------------------------- automatic grids without rows


def test_an_automatic_grid_without_rows_is_refined_by_a_fit() -> None:
    X, Y = data(60, 1)
    model = fixed(WISKI(X, Y, covar_module=RBFKernel(), keep_data=False), 0.02, 1e-3)
    assert model.interpolation_share > TOLERATED_SHARE
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InterpolationWarning)  # the old grid's error stays
        fit(model)
    assert model.grid.size[0] > 64
    assert model.num_observations == 60


def test_automatic_grids_of_a_sum_without_rows_are_fitted_as_they_are() -> None:
    X, Y = data(40, 2)
    model = fixed(WISKI(X, Y, covar_module=rough_and_smooth(1), keep_data=False), 1.0, 0.1)
    sizes = [each.size for each in model.grids]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InterpolationWarning)
        fit(model, optimizer_kwargs={"options": {"maxiter": 2}})
    assert [each.size for each in model.grids] == sizes


# ---------------------------------------------------------------- another grid


def unit(d: int) -> Tensor:
    return torch.tensor([[0.0] * d, [1.0] * d], dtype=torch.float64)


@pytest.mark.parametrize("kind", ["bounds", "smaller bounds", "finer", "coarser", "both", "nothing"])
@pytest.mark.parametrize("basis", ["spline", "keys"])
def test_with_rows_another_grid_is_the_model_built_on_it(basis: Any, kind: str) -> None:
    X, Y = data(30, 2)
    X = 0.2 + 0.6 * X
    wide, narrow = torch.tensor([[-0.5, 0.0], [1.0, 1.3]]).double(), torch.tensor([[0.1, 0.1], [0.9, 0.85]]).double()
    arguments: dict[str, Any] = {
        "bounds": {"bounds": wide},
        "smaller bounds": {"bounds": narrow},
        "finer": {"grid_size": (14, 13)},
        "coarser": {"grid_size": 7},
        "both": {"bounds": wide, "grid_size": 11},
        "nothing": {},
    }[kind]
    model = WISKI(X, Y, basis=basis, grid_size=(9, 8), bounds=unit(2)).eval()
    model.posterior(X[:1])
    before = end_to_end(model) if kind == "nothing" else None
    other = model.regridded(**arguments)
    assert model.grid.size == (9, 8)
    assert (
        all(new <= 1.001 * old for new, old in zip(other.grid.spacing, model.grid.spacing)) or "grid_size" in arguments
    )
    bounds = arguments.get("bounds", unit(2))
    built = WISKI(X, Y, basis=basis, grid_size=other.grid.size, bounds=bounds)
    assert other.grid.lower == pytest.approx(built.grid.lower)
    assert other.grid.upper == pytest.approx(built.grid.upper)
    Xt = 0.2 + 0.6 * data(5, 2, seed=1)[0]
    for a, b in (
        (other, built),
        (other.condition_on_observations(Xt, Y[:5]), built.condition_on_observations(Xt, Y[:5])),
    ):
        torch.testing.assert_close(a.posterior(Xt).mean, b.posterior(Xt).mean, rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(a.posterior(Xt).variance, b.posterior(Xt).variance, rtol=1e-8, atol=1e-8)
    if before is not None:
        assert_alike(before, end_to_end(other))


@pytest.mark.parametrize(("basis", "cells"), [("keys", 0), ("spline", 16)])
def test_without_rows_grown_bounds_leave_the_posterior_inside_the_old_ones(basis: Any, cells: int) -> None:
    """Keys': everywhere. A spline's ends are felt with 0.27 of their size a cell farther in: 1e-8 from 14 cells on."""
    X, Y = data(60, 1)
    kernel = MaternKernel(1.5)
    model = WISKI(X, Y, basis=basis, grid_size=64, keep_data=False, covar_module=kernel, outcome_transform=None).eval()
    model.covar_module.lengthscale = 0.3
    grown = model.regridded(bounds=torch.tensor([[-0.5], [1.21]], dtype=torch.float64))
    h = model.grid.spacing[0]
    assert grown.grid.lower[0] <= -0.5
    assert grown.grid.upper[0] >= 1.21
    assert grown.num_observations == 60
    Xt = torch.linspace(cells * h, 1 - cells * h, 25, dtype=torch.float64).unsqueeze(-1)
    a, b = model.posterior(Xt), grown.posterior(Xt)
    torch.testing.assert_close(b.mean, a.mean, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(b.distribution.covariance_matrix, a.distribution.covariance_matrix, rtol=0, atol=1e-8)
    torch.testing.assert_close(grown._log_evidence(), model._log_evidence(), rtol=1e-7, atol=1e-7)
    with torch.no_grad():
        for each in (model, grown):  # hyperparameters stay free
            each.covar_module.lengthscale = 0.2
            each.likelihood.noise = 0.02
    torch.testing.assert_close(grown._log_evidence(), model._log_evidence(), rtol=1e-7, atol=1e-7)
    outside = grown.posterior(torch.tensor([[-0.45], [1.15]], dtype=torch.float64))
    assert (outside.variance > 0.1).all()


def pseudo_rows(model: WISKI, line: list[Grid], X: Tensor) -> Tensor:
    """Rows that the last grid of a line saw, as rows on its first."""
    phi = model._grid_features(0)[0]
    old = replace(phi, grid=line[-1], ancestors=())
    rows = old(X).to_dense()
    for after in reversed(line[:-1]):
        nodes = old.grid.nodes()
        new = replace(phi, grid=after, ancestors=())
        Z = torch.cartesian_prod(*nodes).reshape(-1, len(nodes))
        whole = old.prior.prefilter[0] if len(nodes) == 1 else torch.kron(*old.prior.prefilter)
        rows, old = rows @ whole @ new(Z).to_dense(), new
    return rows


CHAINS: list[Any] = [
    pytest.param([{"bounds": torch.tensor([[-0.4, 0.0], [1.0, 1.6]]).double()}], id="grown"),
    pytest.param([{"grid_size": (10, 9)}], id="refined"),
    pytest.param([{"grid_size": 6}], id="coarsened"),
    pytest.param(
        [{"bounds": torch.tensor([[-0.4, 0.0], [1.0, 1.6]]).double()}, {"grid_size": (13, 14)}], id="grown, refined"
    ),
    pytest.param(
        [{"grid_size": 6}, {"bounds": torch.tensor([[-0.4, 0.0], [1.0, 1.6]]).double()}], id="coarsened, grown"
    ),
]


@pytest.mark.parametrize("known", [False, True], ids=["learned", "known"])
@pytest.mark.parametrize("steps", CHAINS)
def test_without_rows_what_was_seen_stays_as_it_was_seen(
    steps: list[dict[str, Any]], known: bool, tmp_path: Path
) -> None:
    """The dense GP whose old rows are those of the old grids, with more data told after every change."""
    X, Y = data(40, 2)
    Yvar = 0.01 + 0.05 * X[:, :1] if known else None

    def noise(rows: slice) -> Tensor | None:
        return None if Yvar is None else Yvar[rows]

    options = {"keep_data": False, "outcome_transform": None, "grid_size": (8, 7)}
    model: Any = WISKI(X[:20], Y[:20], noise(slice(0, 20)), **options).eval()
    seen, line = [(X[:20], [model.grid])], [model.grid]
    for i, step in enumerate(steps):
        model.posterior(X[:2])
        model = model.regridded(**step)
        assert model.grid != line[0]
        line = [model.grid, *line]
        new = slice(20 + 5 * i, 25 + 5 * i)
        model = model.condition_on_observations(X[new], Y[new], noise=noise(new))
        seen.append((X[new], [model.grid]))
    n = 20 + 5 * len(steps)
    assert model.num_observations == n
    rows = [pseudo_rows(model, line[: len(line) - i], part) for i, (part, _) in enumerate(seen)]
    phi, Xt = model._grid_features(0)[0], data(6, 2, seed=1)[0]
    R = phi.prior_root().to_dense().detach()
    F, Ft = torch.cat(rows) @ R, phi(Xt).to_dense() @ R
    variances = model.likelihood.noise.detach().expand(n) if Yvar is None else Yvar[:n, 0]
    A, mu = F @ F.mT + torch.diag(variances), model._constants()[0].detach()
    G = torch.linalg.solve(A, F @ Ft.mT)
    posterior = model.posterior(Xt)
    torch.testing.assert_close(posterior.mean.squeeze(-1), mu + G.mT @ (Y[:n, 0] - mu), rtol=1e-6, atol=1e-6)
    covariance = Ft @ Ft.mT - Ft @ F.mT @ G
    torch.testing.assert_close(posterior.distribution.covariance_matrix, covariance, rtol=1e-6, atol=1e-6)
    reference = MultivariateNormal(mu.expand(n), A).log_prob(Y[:n, 0])
    torch.testing.assert_close(model._log_evidence()[0].detach(), reference, rtol=1e-6, atol=1e-6)
    errors = [replace(phi, grid=each, ancestors=()).error.mean() for each in line]
    torch.testing.assert_close(model.interpolation_error.squeeze(), torch.stack(errors).max().detach())
    save_model(model, tmp_path / "model.pt")
    given = {} if Yvar is None else {"train_Yvar": Yvar[:3]}
    loaded: Any = load_model(WISKI(X[:3], Y[:3], **given, **options), tmp_path / "model.pt")
    for same in (loaded, copy.deepcopy(model)):
        again = [
            x.condition_on_observations(X[:2], Y[:2], noise=noise(slice(0, 2))).posterior(Xt) for x in (model, same)
        ]
        assert torch.equal(again[0].mean, again[1].mean)
        assert torch.equal(again[0].variance, again[1].variance)
        assert torch.equal(*[x._log_evidence().detach() for x in (model, same)])


def test_a_state_with_ancestors_goes_into_models_with_and_without_rows() -> None:
    X, Y = data(30, 2)
    source = WISKI(X, Y, grid_size=8, keep_data=False)
    source = source.regridded(bounds=torch.tensor([[-0.5, 0.0], [1.0, 1.0]]).double())
    assert len(source._ancestors) == 1
    target = WISKI(X, Y, grid_size=10)
    target.load_state_dict(source.state_dict())
    assert target.grid == source.grid
    assert target._ancestors == ()
    whole = WISKI(
        X, Y, grid_size=source.grid.size, bounds=torch.tensor([source.grid.lower, source.grid.upper]).double()
    )
    whole.load_state_dict(source.state_dict())
    Xt = data(4, 2, seed=1)[0]
    torch.testing.assert_close(target.posterior(Xt).mean, whole.posterior(Xt).mean)
    again = source.regridded()
    assert again.grid == source.grid
    torch.testing.assert_close(again.posterior(Xt).variance, source.posterior(Xt).variance)


def test_removal_and_other_units_follow_a_change_of_grids() -> None:
    X, Y = data(30, 2)
    wide = torch.tensor([[-0.5, 0.0], [1.0, 1.0]]).double()
    model: Any = WISKI(X, 3 * Y + 5, grid_size=8, keep_data=False).regridded(bounds=wide)
    model = model.condition_on_observations(X[:4], 3 * Y[:4])
    less = model.remove_observations(X=X[:4], Y=3 * Y[:4])
    alone: Any = WISKI(X, 3 * Y + 5, grid_size=8, keep_data=False).regridded(bounds=wide)
    Xt = data(4, 2, seed=1)[0]
    torch.testing.assert_close(less.posterior(Xt).mean, alone.posterior(Xt).mean, rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(less.posterior(Xt).variance, alone.posterior(Xt).variance, rtol=1e-7, atol=1e-7)
    one = torch.ones(1, 1, dtype=torch.float64)
    early = WISKI(X, 3 * Y + 5, grid_size=8, keep_data=False).restandardised(4 * one, 2 * one).regridded(bounds=wide)
    late = alone.restandardised(4 * one, 2 * one)
    torch.testing.assert_close(early.posterior(Xt).mean, late.posterior(Xt).mean, rtol=1e-7, atol=1e-7)


def test_bounds_are_raw_units_and_outputs_share_a_change_of_grids() -> None:
    (X, Y), raw = data(30, 2, 2), torch.tensor([[-5.0, 100.0], [20.0, 300.0]], dtype=torch.float64)
    Xr = raw[0] + (raw[1] - raw[0]) * X
    model = WISKI(Xr, Y, bounds=raw, grid_size=9, input_transform=Normalize(2, bounds=raw), keep_data=False)
    wide = torch.tensor([[-30.0, 100.0], [20.0, 300.0]], dtype=torch.float64)
    grown = model.regridded(bounds=wide)
    assert grown.grid.lower == pytest.approx((-1.0, 0.0))
    assert grown.grid.upper == pytest.approx((1.0, 1.0))
    grown.condition_on_observations(torch.tensor([[-29.0, 250.0]]).double(), Y[:1])
    single = model.subset_output([1]).regridded(bounds=wide)
    torch.testing.assert_close(grown.subset_output([1]).posterior(Xr[:3]).mean, single.posterior(Xr[:3]).mean)


def test_changes_that_would_lose_data_are_refused() -> None:
    X, Y = data(30, 2)
    narrow = torch.tensor([[0.2, 0.2], [0.8, 0.8]]).double()
    kept, alone = (WISKI(X, Y, grid_size=9, keep_data=keep) for keep in (True, False))
    with pytest.raises(GridError, match="outside the grid"):
        kept.regridded(bounds=narrow)
    with pytest.raises(GridError, match=r"without rows .* keep_data=True"):
        alone.regridded(bounds=narrow)
    with pytest.raises(GridError, match="max_memory"):
        WISKI(X, Y, grid_size=9, max_memory=0.01).regridded(grid_size=60)
    with pytest.raises(GridError, match="shape"):
        kept.regridded(bounds=narrow[:, :1])
    with pytest.raises(UnsupportedError, match="several grids"):
        WISKI(X, Y, grid_size=6, covar_module=rough_and_smooth(1), keep_data=False).regridded(grid_size=7)
    with pytest.raises(UnsupportedError, match="fantasies"):
        kept.eval().fantasize(X[:1], SobolQMCNormalSampler(torch.Size([2]))).regridded(grid_size=10)
    sums = WISKI(X, Y, grid_size=6, covar_module=rough_and_smooth(1))
    assert [each.size for each in sums.regridded(grid_size=[7, (8, 9)]).grids] == [(7, 7), (8, 9)]


# ---------------------------------------------------------------- in the loop


def test_a_run_with_chosen_grids_goes_on_as_if_never_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grids, "MANY", 4)
    options: dict[str, Any] = {
        "model_options": {"grid_size": None},
        "num_initial": 5,
        "acquisition": "qUCB",
        "refit_growth": 1.3,
        "acquisition_options": {"num_restarts": 2, "raw_samples": 16, "max_steps": 5, "mc_samples": 16},
    }

    def value(X: Tensor) -> Tensor:
        return torch.sin(5 * X[:, 0]) + 0.7 * torch.cos(X[:, -1])

    def go(path: Path, stops: set[int]) -> tuple[list[Tensor], Any]:
        optimizer, asked = Optimizer([(0.0, 1.0), (-2.0, 3.0)], path=path, **options), []
        for i in range(5):
            if i in stops:
                optimizer.close()
                optimizer = Optimizer([(0.0, 1.0), (-2.0, 3.0)], path=path, **options)
            points = optimizer.ask(2)
            rows = optimizer.space.rows(points)
            asked.append(rows)
            optimizer.tell(points, value(rows))
        model = optimizer.model
        optimizer.close()
        return asked, model

    whole, model = go(tmp_path / "whole", set())
    parts, again = go(tmp_path / "parts", {3, 4})
    for a, b in zip(whole, parts, strict=True):
        assert torch.equal(a, b)
    assert model.grid == again.grid
    assert max(model.grid.size) < 30


def test_a_fit_that_fails_on_the_finer_grid_keeps_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    tried, fit = [], EvidenceFit.fit

    def flaky(self: EvidenceFit, model: Any, *rest: Any) -> Any:
        tried.append(model.grid.size)
        if len(tried) == 2:
            raise ModelFittingError("All attempts to fit the model have failed.")
        return fit(self, model, *rest)

    monkeypatch.setattr(EvidenceFit, "fit", flaky)
    X = torch.rand(300, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    model = WISKI(X, (60 * X).sin(), torch.full_like(X, 1e-6))
    with pytest.warns(FitWarning, match="stay as fitted before"):
        fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    assert len(tried) == 2
    assert tried[1] > tried[0]
    assert not model.training
    assert model.posterior(X[:2]).mean.isfinite().all()
