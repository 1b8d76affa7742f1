"""Covariances that are made when they are wanted."""

import pickle
from typing import Any

import pytest
import torch
from botorch.acquisition.objective import ScalarizedPosteriorTransform
from botorch.models.transforms import Standardize
from cases import MODELS, data

from bo_scale import CaGP, DecoupledGP, GRIEFBayes, choose
from bo_scale.gp.function_space.process import FunctionLocated
from bo_scale.gp.weight_space.mixture import MixtureLocated
from bo_scale.models.shell.distributions import MANY, DiagonalFirst

SMALL: dict[Any, dict[str, Any]] = {
    GRIEFBayes: {"num_eigenfunctions": 20, "grid_points": 5, "num_samples": 4},
    CaGP: {"num_actions": 16},
    DecoupledGP: {"num_covar_inducing": 10, "num_steps": 0},
}


@pytest.mark.parametrize("kind", SMALL, ids=lambda kind: kind.__name__)
def test_variances_of_many_points_need_no_covariance(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    X, Y = data(30, 2)
    model = kind(X, Y, **SMALL[kind]).eval()
    Z = torch.rand(MANY + 1, 2, dtype=torch.float64)
    few, noisy = model.posterior(Z[:9]), model.posterior(Z[:9], observation_noise=True)
    covariance = model.posterior(Z).distribution.covariance_matrix
    torch.testing.assert_close(covariance[..., :9, :9], few.distribution.covariance_matrix)
    for located in (FunctionLocated, MixtureLocated):
        monkeypatch.setattr(located, "covariance", None)
    torch.testing.assert_close(model.posterior(Z).variance[..., :9, :], few.variance)
    torch.testing.assert_close(model.posterior(Z, observation_noise=True).variance[..., :9, :], noisy.variance)


@pytest.mark.parametrize("kind", SMALL, ids=lambda kind: kind.__name__)
def test_many_points_are_drawn_jointly(kind: Any) -> None:
    X, Y = data(30, 2)
    model = kind(X, Y, **SMALL[kind]).eval()
    Z = torch.rand(MANY + 1, 2, dtype=torch.float64)
    Z[-1] = Z[0]
    drawn = model.posterior(Z).rsample(torch.Size([3]))
    assert drawn.shape[-2] == MANY + 1
    assert (drawn[..., -1, :] - drawn[..., 0, :]).abs().max() < 0.05


def test_a_covariance_in_waiting_is_like_any_other() -> None:
    X, Y = data(30, 2)
    model = CaGP(X, Y, **SMALL[CaGP]).eval()
    Z = torch.rand(MANY + 1, 2, dtype=torch.float64, requires_grad=True)
    with torch.no_grad():
        lazy = model.posterior(Z).distribution.lazy_covariance_matrix
    assert type(lazy) is DiagonalFirst
    dense = lazy.to_dense()
    assert lazy.float().to_dense().dtype == torch.float32
    assert lazy.unsqueeze(0).to_dense().shape == (1, MANY + 1, MANY + 1)
    torch.testing.assert_close(pickle.loads(pickle.dumps(lazy)).to_dense(), dense)
    torch.testing.assert_close(lazy.expand(2, MANY + 1, MANY + 1).to_dense()[1], dense)
    torch.testing.assert_close(lazy @ dense[:, :2], dense @ dense[:, :2])
    with_graph = model.posterior(Z).distribution.lazy_covariance_matrix
    assert type(with_graph) is not DiagonalFirst
    assert torch.autograd.grad(with_graph.diagonal().sum(), Z)[0].abs().sum() > 0


@pytest.mark.parametrize(("m", "dtype"), [(1, torch.float64), (2, torch.float32)])
@pytest.mark.parametrize(("d", "build"), MODELS)
@pytest.mark.filterwarnings("ignore::botorch.exceptions.warnings.InputDataWarning")  # of float32
def test_targets_in_other_units_have_the_same_model(d: int, build: Any, m: int, dtype: torch.dtype) -> None:
    """GPyTorch raises variances to 1e-10, and in float32 to 1e-6."""
    X, Y = (each.to(dtype) for each in data(14, d, m))
    Z, unit = data(MANY + 1, d, seed=1)[0].to(dtype), 2.0**-20
    one, small = (build(X, scale * Y, outcome_transform=Standardize(m)).eval() for scale in (1.0, unit))
    for noisy in (False, True):
        for points in (Z[:4], Z, X[:1].expand(3, d)):
            p, q = (model.posterior(points, observation_noise=noisy) for model in (one, small))
            torch.testing.assert_close(q.mean / unit, p.mean)
            torch.testing.assert_close(q.variance / unit / unit, p.variance)
    weights = torch.ones(m, dtype=dtype) / unit
    scaled = small.posterior(Z[:4], posterior_transform=ScalarizedPosteriorTransform(weights))
    assert (scaled.variance >= (1 - 1e-6) * small.posterior(Z[:4]).variance[..., :1] / unit / unit).all()
    torch.testing.assert_close(
        small.posterior(Z[:4], posterior_transform=ScalarizedPosteriorTransform(unit * weights)).variance / unit / unit,
        scaled.variance,
    )


def test_several_outputs_in_small_units_have_narrow_intervals() -> None:
    X = torch.rand(40, 2, dtype=torch.float64)
    Y = torch.cat([X.sum(-1, keepdim=True).sin(), 1e-6 * X.prod(-1, keepdim=True)], -1)
    deviations = choose(X, Y).posterior(torch.rand(50, 2, dtype=torch.float64)).stddev
    assert (deviations < 0.02 * Y.std(0)).all()


def test_variances_are_positive_where_rounding_leaves_none() -> None:
    """Noise of 1e-6, at the observations."""
    X, Y = data(30, 2)
    model = CaGP(X, Y, num_actions=30, outcome_transform=Standardize(1)).eval()
    model.likelihood.noise = 1e-6
    variance = model.posterior(X).variance
    assert (variance > 0).all()
    assert (variance < 1e-5 * Y.var()).all()
