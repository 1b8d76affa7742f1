"""Features of a grid, also in the prior's eigenbasis, and models of either."""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import assert_alike, data, end_to_end, in_the_margin_too, stationary
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel

from bo_scale import WISKI, draw_posterior_functions, load_model, save_model
from bo_scale.errors import GridError
from bo_scale.gp.weight_space.features.grid import features as grid
from bo_scale.gp.weight_space.features.grid.features import GridFeatures, SpectralFeatures
from bo_scale.gp.weight_space.features.grid.interpolation import Basis, Grid
from bo_scale.gp.weight_space.posterior import WeightSpacePosterior
from bo_scale.gp.weight_space.statistics import SufficientStatistics
from bo_scale.models.wiski.grid_choice import grids_of

NOISE, MU = torch.tensor(0.02, dtype=torch.float64), torch.tensor(0.3, dtype=torch.float64)


def features(size: tuple[int, ...], basis: Basis = "spline", name: str = "rbf", **options: Any) -> GridFeatures:
    d = len(size)
    lengthscales = torch.linspace(0.25, 0.45, d, dtype=torch.float64)
    return GridFeatures(Grid((0.0,) * d, (1.0,) * d, size), stationary(lengthscales, name), basis, **options)


def test_box_gram_is_the_mean_outer_product_over_the_box() -> None:
    F = features((7, 6))
    g = torch.linspace(0, 1, 401, dtype=torch.float64)
    mid = (g[1:] + g[:-1]) / 2
    Phi = F(torch.cartesian_prod(mid, mid)).to_dense()
    torch.testing.assert_close(F.box_gram().to_dense(), Phi.mT @ Phi / len(Phi), rtol=1e-3, atol=1e-7)


def test_points_outside_are_refused() -> None:
    F, far = features((8, 8)), torch.tensor([[0.5, 0.5], [0.5, 1.3]], dtype=torch.float64)
    for refusing in (F, F.prior_variance, F.interpolation_variance):
        with pytest.raises(GridError, match=r"rows \[1\].*bounds"):
            refusing(far)


def test_a_sparse_prior_is_for_rough_kernels_on_grids_without_ancestors() -> None:
    F = features((7, 6), name="exponential", exponential=True)
    prior = F.sparse_prior()
    assert prior is not None
    assert prior.grid is F
    assert prior.size == (7, 6)
    assert replace(F, exponential=False).sparse_prior() is None
    assert replace(F, ancestors=(F.grid,)).sparse_prior() is None
    assert replace(F, rank=5).max_rank == 5
    assert F.max_rank == F.num_features == 42


# ---------------------------------------------------------------- the eigenbasis


@pytest.mark.parametrize("rank", [None, 15])
@pytest.mark.parametrize("basis", ["spline", "keys"])
@pytest.mark.parametrize("size", [(12,), (8, 7), (5, 4, 6)], ids=len)
def test_features_in_the_eigenbasis_are_those_of_the_prior(
    size: tuple[int, ...], basis: Basis, rank: int | None
) -> None:
    F = features(size, basis, rank=rank)
    X, R = in_the_margin_too(8, F.grid), F.prior_root()
    psi = SpectralFeatures(F, R)
    dense = F(X).to_dense() @ R.to_dense()
    torch.testing.assert_close(psi(X), dense)
    torch.testing.assert_close(psi(X.unflatten(0, (2, 1, 4))), dense.unflatten(0, (2, 1, 4)))
    torch.testing.assert_close(psi.prior_covariance(X), dense @ dense.mT)
    torch.testing.assert_close(F.prior_covariance(X), dense @ dense.mT, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(F.prior_variance(X), dense.square().sum(-1), rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(psi.prior_variance(X), dense.square().sum(-1))
    torch.testing.assert_close(psi.interpolation_variance(X), F.interpolation_variance(X))
    whole = R.to_dense().mT @ F.box_gram().to_dense() @ R.to_dense()
    torch.testing.assert_close(psi.box_gram().to_dense(), whole)
    assert psi.num_features == psi.max_rank == len(dense.mT) <= F.max_rank
    x = (0.1 + 0.8 * torch.rand(2, len(size), dtype=torch.float64)).requires_grad_()
    assert torch.autograd.gradcheck(psi, (x,))


@pytest.mark.parametrize("rank", [None, 12])
def test_reduced_features_give_the_posterior_of_the_dense_root(
    rank: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    F = features((9, 8), rank=rank)
    X, Y = data(20, 2)
    stats = SufficientStatistics.from_data(F, X[:15], Y[:15])
    Xt = in_the_margin_too(6, F.grid)
    found = []
    for limit in (0, 1 << 24):
        monkeypatch.setattr(grid, "DENSE_ROOT", limit)
        posterior = WeightSpacePosterior.from_statistics(F, stats, NOISE, MU)
        prior = WeightSpacePosterior.prior(F, MU)
        by_rows = prior.update(prior.locate(X[:15]), Y[:15, 0], NOISE.expand(15))
        assert isinstance(posterior.features, SpectralFeatures) == (limit == 0)
        assert posterior.root.shape[0] == (posterior.rank if limit == 0 else 72)
        again = WeightSpacePosterior.restored(F, posterior.state())
        assert type(again.features) is type(posterior.features)
        more = posterior.update(posterior.locate(X[15:]), Y[15:, 0], NOISE.expand(5))
        found.append([f(Xt) for p in (posterior, by_rows, again, more) for f in (p.mean, p.covariance)])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


# ---------------------------------------------------------------- end to end


def model(rank: int | None, m: int = 1) -> WISKI:
    X, Y = data(60, 2, m)
    batch = torch.Size([m] if m > 1 else [])
    kernel = ScaleKernel(RBFKernel(ard_num_dims=2, batch_shape=batch), batch_shape=batch)
    fitted = WISKI(X, Y, grid_size=(9, 8), covar_module=kernel, rank=rank)
    fitted.covar_module.base_kernel.lengthscale = torch.tensor([0.4, 0.6], dtype=torch.float64)
    fitted.likelihood.noise = 0.05
    return fitted.eval()


@pytest.mark.parametrize(("rank", "m"), [(None, 1), (12, 2)])
def test_a_model_of_reduced_features_is_that_of_the_dense_root(
    rank: int | None, m: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    said, draws, X = [], [], data(5, 2, seed=3)[0]
    for limit in (1 << 24, 0):
        monkeypatch.setattr(grid, "DENSE_ROOT", limit)
        each = model(rank, m)
        said.append(end_to_end(each))
        fantasies = each.condition_on_observations(X[:2].unsqueeze(0), torch.ones(1, 2, m, dtype=torch.float64))
        for source in (each, fantasies):
            draw = draw_posterior_functions(source, torch.Size([3]), torch.Generator().manual_seed(0))
            draws.append(draw(X))
    assert_alike(*said)
    torch.testing.assert_close(draws[0], draws[2], rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(draws[1], draws[3], rtol=1e-7, atol=1e-7)
    streamed = each.condition_on_observations(X, torch.ones(5, m, dtype=torch.float64))
    save_model(streamed, tmp_path / "model.pt")
    loaded = load_model(model(rank, m), tmp_path / "model.pt")
    expected = end_to_end(streamed)
    for same in (loaded, copy.deepcopy(streamed)):
        assert_alike(expected, end_to_end(same), 0.0)


def test_a_rank_counts_as_interpolation_error_and_in_the_conservative_option() -> None:
    few, many = model(12), model(None)
    assert (few.interpolation_error > 10 * many.interpolation_error).all()
    assert few.rank_loss.item() == pytest.approx(grids_of(few._feature_map(0))[0].error.rank_loss().item())
    assert many.rank_loss.item() < 1e-6
    X, Y = data(30, 2)
    rough = WISKI(X, Y, grid_size=12, rank=20, covar_module=MaternKernel(1.5), conservative=True)
    plain = WISKI(X, Y, grid_size=12, rank=20, covar_module=MaternKernel(1.5))
    noise, error = plain.inference.noise, plain.interpolation_error
    torch.testing.assert_close(rough.inference.noise.detach(), (noise + error).detach())
    torch.testing.assert_close(
        rough.inference.extra_variance(X, 0), grids_of(plain._feature_map(0))[0].interpolation_variance(X).detach()
    )
