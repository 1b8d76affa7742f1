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
from botorch.exceptions.errors import UnsupportedError
from botorch.fit import fit_gpytorch_mll
from botorch.models import ModelListGP
from botorch.models.transforms import Normalize
from botorch.sampling import SobolQMCNormalSampler
from cases import assert_alike, data, end_to_end, rough_and_smooth, stationary
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel, ScaleKernel
from gpytorch.mlls import ExactMarginalLogLikelihood, SumMarginalLogLikelihood
from torch import Tensor
from torch.distributions import MultivariateNormal

from bo_scale import WISKI, load_model, save_model
from bo_scale.errors import GridError, InterpolationWarning, InvalidDataError
from bo_scale.gp.weight_space.features.base import FeatureMap
from bo_scale.gp.weight_space.features.grid.interpolation import Grid
from bo_scale.gp.weight_space.features.projection import LinearProjection
from bo_scale.gp.weight_space.features.sums import SumFeatures
from bo_scale.loop import Optimizer
from bo_scale.models.fitting.strategies import EvidenceFit
from bo_scale.models.wiski import grid_choice as choice
from bo_scale.models.wiski import grid_sizes as grids
from bo_scale.models.wiski.grid_choice import (
    GridChoice,
    corners_of,
    grid_width,
    grids_of,
    mean_error,
    mean_errors,
    mean_missing_variance,
    on_another_box,
    rank_losses,
    ranks,
    removable_share,
    smallest_sizes,
    worth_changing,
)
from bo_scale.models.wiski.grid_sizes import (
    AUTOMATIC_POINTS,
    TOLERATED_SHARE,
    aligned,
    least_size,
    memory_needed,
)

UNIT = Grid((0.0, 0.0), (1.0, 1.0), (8, 7))
COARSE = replace(UNIT, size=(5, 6))


def features(found: GridChoice, exponential: tuple[bool, ...] | None = None, rank: int | None = None) -> FeatureMap:
    """Of kernels with ever longer lengthscales."""
    rough = (False,) * len(found.grids) if exponential is None else exponential
    lengths = [torch.tensor([0.3, 0.4], dtype=torch.float64) * (1 + i) for i in range(len(rough))]
    kernels = [stationary(v, "exponential" if r else "rbf") for v, r in zip(lengths, rough)]
    return found.features(kernels, rough, None, 0.0, rank)


# ---------------------------------------------------------------- a choice, its state and its features


@pytest.mark.parametrize("ancestors", [(), (COARSE,), (COARSE, replace(UNIT, upper=(0.5, 0.25)))], ids=len)
@pytest.mark.parametrize("present", [(UNIT,), (UNIT, COARSE)], ids=len)
def test_a_choice_is_read_from_its_state(present: tuple[Grid, ...], ancestors: tuple[Grid, ...]) -> None:
    found = GridChoice(present, "keys", ancestors)
    state = found.state()
    assert state.shape == (len(present) + len(ancestors), 5, 2)
    assert GridChoice.of_state(state) == found
    for other in (state[0], state[:, :4]):
        with pytest.raises(InvalidDataError, match="another version"):
            GridChoice.of_state(other)


def test_features_are_one_grid_or_a_sum_and_the_largest_rough_one_is_sparse() -> None:
    alone = features(GridChoice((UNIT,), "spline"))
    assert grids_of(alone) == (alone,)
    both = features(GridChoice((COARSE, UNIT), "spline"), (True, True))
    assert isinstance(both, SumFeatures)
    assert grids_of(both) == both.parts
    assert [phi.prior.sparse for phi in grids_of(both)] == [False, True]
    mixed = features(GridChoice((COARSE, UNIT), "keys"), (True, False))
    assert [phi.prior.sparse for phi in grids_of(mixed)] == [True, False]
    assert {phi.basis for phi in grids_of(mixed)} == {"keys"}
    reduced = alone.whitened(alone.prior_root())
    assert grids_of(reduced) == (alone,)
    model = WISKI(*data(20, 4), grid_size=6, projection=LinearProjection(4, 2))
    assert [phi.grid for phi in grids_of(model._feature_map(0))] == [model.grid]


def test_without_rows_the_present_grid_becomes_an_ancestor() -> None:
    found, finer = GridChoice((COARSE,), "spline"), replace(UNIT, size=(14, 15))
    assert found.with_grids((finer,), keeps_rows=True) == GridChoice((finer,), "spline")
    assert found.with_grids((COARSE,), keeps_rows=False) is found
    heir = found.with_grids((finer,), keeps_rows=False)
    assert heir.ancestors == (COARSE,)
    heir.grids[0].positions(torch.cartesian_prod(*COARSE.nodes()))  # refuses points outside
    again = heir.with_grids((UNIT,), keeps_rows=False)
    assert again.ancestors == (*heir.grids, COARSE)
    with pytest.raises(UnsupportedError, match="several grids"):
        GridChoice((UNIT, COARSE), "spline").with_grids((UNIT, UNIT), keeps_rows=False)


# ---------------------------------------------------------------- dimensions and boxes


def test_a_box_is_that_of_transformed_inputs_or_of_a_projection() -> None:
    bounds = torch.tensor([[-5.0, 100.0], [20.0, 300.0]], dtype=torch.float64)
    assert corners_of(None, 2, 2, None, False) == ((0.0, 0.0), (1.0, 1.0))
    assert corners_of(None, 2, 5, None, True) == ((-1.0, -1.0), (1.0, 1.0))
    assert corners_of(bounds, 2, 2, None, False) == ((-5.0, 100.0), (20.0, 300.0))
    wide = bounds + torch.tensor([[0.0], [1.0]]) * (bounds[1] - bounds[0])
    lower, upper = corners_of(wide, 2, 2, Normalize(2, bounds=bounds).eval(), False)
    assert lower + upper == pytest.approx((0.0, 0.0, 2.0, 2.0))
    with pytest.raises(GridError, match=r"shape \(2, 2\), expected \(2, 3\)\.$"):
        corners_of(bounds, 3, 3, None, False)
    with pytest.raises(GridError, match=r"expected \(2, 3\), those of the projection"):
        corners_of(bounds, 3, 5, None, True)


def test_a_grid_has_the_dimensions_of_its_inputs_and_serves_four() -> None:
    X = torch.rand(3, 6, dtype=torch.float64)
    assert grid_width(X[:, :2], None, None) == 2
    assert grid_width(X[:0, :4], None, None) == 4
    assert grid_width(X, None, LinearProjection(6, 3)) == 3
    with pytest.raises(UnsupportedError, match="6 input dimensions; a grid serves 1 to 4"):
        grid_width(X, None, None)


def test_grids_on_another_box_keep_their_spacing_or_take_the_sizes_given() -> None:
    box = ((-0.3, 0.0), (1.0, 1.5))
    kept = on_another_box([UNIT, COARSE], box, None, keeps_rows=True)
    assert {(grid.lower, grid.upper) for grid in kept} == {box}
    for new, old in zip(kept, (UNIT, COARSE), strict=True):
        assert all(0.7 * h < g <= h for g, h in zip(new.spacing, old.spacing))
    given = on_another_box([UNIT, COARSE], box, [(9, 8), (6, 6)], keeps_rows=True)
    assert given == (Grid(*box, (9, 8)), Grid(*box, (6, 6)))
    whole = aligned(UNIT, *box)
    assert on_another_box([UNIT], box, None, keeps_rows=False) == (whole,)
    assert on_another_box([UNIT], box, [(30, 30)], keeps_rows=False) == (replace(whole, size=(30, 30)),)
    with pytest.raises(GridError, match="without rows"):
        on_another_box([UNIT], ((0.1, 0.0), (1.0, 1.0)), None, keeps_rows=False)


# ---------------------------------------------------------------- how well grids resolve a kernel


def test_errors_are_summed_over_grids_and_the_largest_over_ancestors() -> None:
    alone, coarse = features(GridChoice((UNIT,), "spline")), features(GridChoice((COARSE,), "spline"))
    both = features(GridChoice((UNIT, COARSE), "spline"))
    parts = grids_of(both)
    torch.testing.assert_close(mean_error(both), parts[0].error.mean() + parts[1].error.mean())
    missing = [phi.error.mean_missing_variance() for phi in parts]
    torch.testing.assert_close(mean_missing_variance(both), missing[0] + missing[1])
    heir = features(GridChoice((UNIT,), "spline", (COARSE,)))
    assert mean_error(coarse) > mean_error(alone) == mean_error(heir)
    found = mean_errors([alone, heir, both])
    torch.testing.assert_close(found, torch.stack([mean_error(alone), mean_error(coarse), mean_error(both)]))


def test_losses_of_a_rank_are_shares_and_ranks_are_counted() -> None:
    whole, cut = (features(GridChoice((UNIT, COARSE), "spline"), rank=rank) for rank in (None, 6))
    loss = rank_losses([whole, cut])
    torch.testing.assert_close(loss[0], torch.zeros((), dtype=torch.float64), rtol=0, atol=1e-9)
    each = torch.stack([phi.error.rank_loss() for phi in grids_of(cut)])
    torch.testing.assert_close(loss[1], each.mean())  # of equal variances
    assert ranks(cut) == [6, 6]
    assert ranks(features(GridChoice((UNIT,), "keys"), (True,))) == [None]


def test_a_change_is_worth_it_where_grids_are_coarse_or_half_as_many_points_would_do() -> None:
    assert not worth_changing([UNIT], [UNIT.size], 1.0)
    assert worth_changing([UNIT], [(9, 9)], 1.1 * TOLERATED_SHARE)
    assert not worth_changing([UNIT], [(7, 7)], TOLERATED_SHARE)
    assert worth_changing([UNIT], [(5, 5)], 0.0)


def test_the_sizes_found_serve_every_output_within_the_limits() -> None:
    every = [grids_of(features(GridChoice((UNIT,), "spline")))] * 2
    assert removable_share(every, [1e-3, 1e-5]) == pytest.approx(1e5 * removable_share(every, [1.0, 1.0]))
    (easy,), (hard,) = (smallest_sizes(every[:1], [noise], 2000, 2048, 4.0) for noise in (1e-2, 1e-5))
    assert math.prod(hard) > 2 * math.prod(easy)
    assert smallest_sizes(every, [1e-2, 1e-5], 2000, 2048, 4.0) == [hard]
    share = removable_share([(replace(every[0][0], grid=replace(UNIT, size=hard)),)], [1e-5])
    assert share <= TOLERATED_SHARE
    tight = 0.7 * memory_needed([hard], 2048)
    assert memory_needed(smallest_sizes(every, [1e-2, 1e-5], 2000, 2048, tight), 2048) <= tight


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
    assert streamed.chooses_grid


def test_a_rough_kernel_is_served_within_the_limits_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    assert AUTOMATIC_POINTS == 65_536
    X, Y = data(40, 1)
    sizes = []
    for points, memory in ((150, 4.0), (300, memory_needed([(100,)], 2048))):
        monkeypatch.setattr(choice, "AUTOMATIC_POINTS", points)
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
        assert not model.chooses_grid
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
        assert same.chooses_grid
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
    phi = grids_of(model._feature_map(0))[0]
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
    phi, Xt = grids_of(model._feature_map(0))[0], data(6, 2, seed=1)[0]
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
    assert len(source._choice.ancestors) == 1
    target = WISKI(X, Y, grid_size=10)
    target.load_state_dict(source.state_dict())
    assert target.grid == source.grid
    assert target._choice.ancestors == ()
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
        "model": "wiski",
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
