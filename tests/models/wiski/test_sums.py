"""Models whose kernel is a sum with a grid for every summand."""

import copy
import pickle
from pathlib import Path

import pytest
import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from cases import assert_alike, data, end_to_end, rough_and_smooth, wiski_sum
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel, ScaleKernel
from gpytorch.mlls import ExactMarginalLogLikelihood

from bo_scale import WISKI, draw_posterior_functions, load_model, qNegIntegratedPosteriorVariance, save_model
from bo_scale.errors import GridError, UnsupportedKernelError
from bo_scale.gp.weight_space.features.grid import features as grid
from bo_scale.gp.weight_space.features.grid.features import GridFeatures
from bo_scale.gp.weight_space.features.sums import SumFeatures
from bo_scale.models.wiski.grid_choice import grids_of


def two_scales() -> Kernel:
    kernel = ScaleKernel(RBFKernel()) + ScaleKernel(MaternKernel(2.5))
    kernel.kernels[0].base_kernel.lengthscale, kernel.kernels[1].base_kernel.lengthscale = 0.8, 0.5
    kernel.kernels[1].outputscale = 0.4
    return kernel


@pytest.mark.parametrize(("d", "sizes"), [(1, [(20,), (60,)]), (2, [12, (26, 24)]), (3, [(8, 8, 8), 11])])
def test_a_sum_on_fine_grids_is_the_exact_gp_of_the_sum(d: int, sizes: list) -> None:
    (X, Y), Xt = data(30, d), data(10, d, seed=1)[0]
    model = WISKI(X, Y, grid_size=sizes, covar_module=two_scales(), outcome_transform=None).eval()
    model.likelihood.noise = 0.05
    assert isinstance(model._feature_map(0), SumFeatures)
    exact = SingleTaskGP(
        X, Y, covar_module=model.covar_module, mean_module=model.mean_module, likelihood=model.likelihood,
        outcome_transform=None,
    ).eval()  # fmt: skip
    ours, theirs = model.posterior(Xt), exact.posterior(Xt)
    torch.testing.assert_close(ours.mean, theirs.mean, rtol=0, atol=1e-2)
    torch.testing.assert_close(ours.variance, theirs.variance, rtol=0.05, atol=2e-3)


def test_sizes_say_whose_grid_is_whose() -> None:
    X, Y = data(20, 2)
    model = WISKI(X, Y, grid_size=[(9, 8), 6], covar_module=rough_and_smooth(1))
    assert [each.size for each in model.grids] == [(9, 8), (6, 6)]
    assert model.grid.size == (9, 8)
    first, second = grids_of(model._feature_map(0))
    assert (first.exponential, second.exponential) == (True, False)
    assert [each.size for each in WISKI(X, Y, grid_size=7, covar_module=rough_and_smooth(1)).grids] == [(7, 7)] * 2
    assert [each.size for each in WISKI(X, Y, grid_size=[None, 6], covar_module=rough_and_smooth(1)).grids][1] == (6, 6)
    X, Y = data(20, 1)
    assert len(WISKI(X, Y, grid_size=12, covar_module=rough_and_smooth(1)).grids) == 1
    assert [each.size for each in wiski_sum(X, Y).grids] == [(14,), (9,)]


def test_what_is_no_sum_of_products_or_not_as_many_sizes_is_refused() -> None:
    X, Y = data(20, 2)
    with pytest.raises(GridError, match="3 sizes for a kernel of 2 summands"):
        WISKI(X, Y, grid_size=[(6, 6), 7, 8], covar_module=rough_and_smooth(1))
    with pytest.raises(GridError, match="3 numbers for 2 dimensions"):
        WISKI(X, Y, grid_size=[(6, 6, 6), 7], covar_module=rough_and_smooth(1))
    with pytest.raises(GridError, match="sizes for a kernel of 1 summands"):
        WISKI(X, Y, grid_size=[(6, 6), 7], covar_module=RBFKernel())
    for kernel in (ScaleKernel(RBFKernel() + MaternKernel(0.5)), RBFKernel() * (RBFKernel() + MaternKernel(0.5))):
        with pytest.raises(UnsupportedKernelError, match="AdditiveKernel"):
            WISKI(X, Y, grid_size=6, covar_module=kernel)
    with pytest.raises(GridError, match=r"grid_size=\[\(60, 60\), \(60, 60\)\].*max_memory"):
        WISKI(X, Y, grid_size=60, covar_module=rough_and_smooth(1), max_memory=0.1)


def through_pickle(model: WISKI) -> WISKI:
    return pickle.loads(pickle.dumps(model))


@pytest.mark.parametrize(("d", "m"), [(1, 2), (2, 1)])
def test_a_sum_by_reduced_features_is_that_by_the_dense_root(
    d: int, m: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    said, draws = [], []
    (X, Y), Xt = data(30, d, m), data(4, d, seed=3)[0]
    for limit in (1 << 24, 0):
        monkeypatch.setattr(grid, "DENSE_ROOT", limit)
        model = wiski_sum(X, Y).eval()
        said.append(end_to_end(model))
        draws.append(draw_posterior_functions(model, torch.Size([3]), torch.Generator().manual_seed(0))(Xt))
    assert_alike(*said)
    torch.testing.assert_close(*draws, rtol=1e-7, atol=1e-7)
    streamed = model.condition_on_observations(Xt, torch.ones(4, m, dtype=torch.float64))
    save_model(streamed, tmp_path / "model.pt")
    expected, copied = end_to_end(streamed), copy.deepcopy if m == 1 else through_pickle
    for same in (load_model(wiski_sum(X, Y), tmp_path / "model.pt"), copied(streamed)):
        assert_alike(expected, end_to_end(same), 0.0)


def test_a_state_brings_all_grids_along() -> None:
    X, Y = data(30, 2)
    source, target = (wiski_sum(X, Y, grid_size=sizes, basis=b) for sizes, b in (([8, (5, 6)], "keys"), (6, "spline")))
    target.load_state_dict(source.state_dict())
    assert target.grids == source.grids
    assert_alike(end_to_end(target.eval()), end_to_end(source.eval()))


@pytest.mark.parametrize("option", ["missing_variance", "conservative"])
def test_errors_and_missing_variance_are_summed_over_the_parts(option: str) -> None:
    X, Y = data(30, 2)
    model = wiski_sum(X, Y, outcome_transform=None, **{option: True}).eval()
    parts = grids_of(model._feature_map(0))
    Xt = data(6, 2, seed=1)[0]
    each = [p.missing_variance(Xt) if option == "missing_variance" else p.interpolation_variance(Xt) for p in parts]
    found = model.inference.extra_variance(Xt, 0)
    torch.testing.assert_close(found, sum(each).detach(), rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(model.interpolation_error.squeeze(), sum(p.error.mean() for p in parts).detach())
    side = (torch.arange(100, dtype=torch.float64) + 0.5) / 100
    over = qNegIntegratedPosteriorVariance(model)(Xt.unsqueeze(1))
    sampled = qNegIntegratedPosteriorVariance(model, torch.cartesian_prod(side, side))(Xt.unsqueeze(1))
    torch.testing.assert_close(over, sampled, rtol=2e-3, atol=1e-8)


def test_a_fit_of_a_sum_on_two_grids_finds_both_parts() -> None:
    X, g = data(150, 1)[0], torch.Generator().manual_seed(3)
    Y = (3 * X).sin() + 0.5 * (40 * X).sin() + 0.05 * torch.randn(150, 1, generator=g, dtype=torch.float64)
    kernel = ScaleKernel(RBFKernel()) + ScaleKernel(RBFKernel())
    kernel.kernels[0].base_kernel.lengthscale, kernel.kernels[1].base_kernel.lengthscale = 0.8, 0.05
    model = WISKI(X, Y, grid_size=[(20,), (150,)], covar_module=kernel)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    assert model.interpolation_share < 0.01
    Xt = torch.linspace(0.05, 0.95, 50, dtype=torch.float64).unsqueeze(-1)
    truth = (3 * Xt).sin() + 0.5 * (40 * Xt).sin()
    assert (model.posterior(Xt).mean - truth).square().mean().sqrt() < 0.05


def test_known_variances_and_decay_go_with_sums() -> None:
    X, Y = data(30, 2)
    Yvar = 0.01 + 0.05 * X[:, :1]
    options = {"train_Yvar": Yvar, "decay": 0.9}
    whole = wiski_sum(X, Y, outcome_transform=None, **options)
    kept = wiski_sum(X, Y, outcome_transform=None, keep_data=False, **options).eval()
    phi = whole._feature_map(0)
    K, weights = phi.prior_covariance(X), 0.9 ** torch.arange(29, -1, -1, dtype=torch.float64)
    noise = torch.diag(Yvar[:, 0] / weights)
    Xt = data(4, 2, seed=1)[0]
    both = phi.prior_covariance(torch.cat([X, Xt]))
    mean = both[30:, :30] @ torch.linalg.solve(K + noise, Y[:, 0] - whole._constants()[0]) + whole._constants()[0]
    for model in (whole, kept):
        torch.testing.assert_close(model.posterior(Xt).mean.squeeze(-1), mean.detach(), rtol=1e-5, atol=1e-5)


def sparse_parts(model: WISKI) -> list[bool]:
    return [phi.prior.sparse for phi in grids_of(model._feature_map(0)) if isinstance(phi, GridFeatures)]


def test_only_the_largest_rough_part_is_by_its_precision() -> None:
    def both() -> Kernel:
        return ScaleKernel(MaternKernel(0.5)) + ScaleKernel(MaternKernel(0.5))

    X, Y = data(20, 2)
    for sizes, expected in (([6, 8], [False, True]), ([8, 6], [True, False]), ([7, 7], [True, False])):
        assert sparse_parts(WISKI(X, Y, grid_size=[(s, s) for s in sizes], covar_module=both())) == expected
