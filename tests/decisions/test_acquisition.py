from typing import Any

import pytest
import torch
from botorch.acquisition import LogExpectedImprovement
from botorch.acquisition import qNegIntegratedPosteriorVariance as BoTorchNIPV
from botorch.acquisition.logei import qLogExpectedImprovement
from botorch.acquisition.objective import LinearMCObjective, ScalarizedPosteriorTransform
from botorch.exceptions.errors import UnsupportedError
from botorch.models import ModelListGP, SingleTaskGP
from botorch.models.transforms import Log, Normalize
from botorch.optim import optimize_acqf, optimize_acqf_discrete
from botorch.sampling.normal import SobolQMCNormalSampler
from cases import data
from torch import Tensor

from bo_scale import WISKI, GRIEFBayes, qLogPlugInExpectedImprovement, qNegIntegratedPosteriorVariance
from bo_scale.decisions.acquisition import hypervolume_draws
from bo_scale.errors import InvalidDataError


def model(m: int = 1, **options: object) -> WISKI:
    X, Y = data(15, 2, m)
    return WISKI(X, Y, grid_size=9, **options).eval()


def test_box_integral_is_the_limit_of_many_points() -> None:
    g = (torch.arange(150, dtype=torch.float64) + 0.5) / 150
    points = torch.cartesian_prod(g, g)
    X = torch.rand(3, 2, 2, dtype=torch.float64)
    for options in ({}, {"conservative": True}):
        m = model(**options)
        ours, many = qNegIntegratedPosteriorVariance(m)(X), qNegIntegratedPosteriorVariance(m, points)(X)
        torch.testing.assert_close(ours, many, rtol=1e-3, atol=1e-7)


def test_box_integral_through_an_affine_transform() -> None:
    X, Y = data(15, 2)
    bounds = torch.tensor([[-2.0, 0.0], [6.0, 100.0]], dtype=torch.float64)
    raw = bounds[0] + (bounds[1] - bounds[0]) * X
    transformed = WISKI(raw, Y, grid_size=9, bounds=bounds, input_transform=Normalize(2, bounds=bounds))
    expected = qNegIntegratedPosteriorVariance(WISKI(X, Y, grid_size=9))(X[:2].unsqueeze(0))
    torch.testing.assert_close(qNegIntegratedPosteriorVariance(transformed)(raw[:2].unsqueeze(0)), expected)


def test_weights_equal_repeated_points() -> None:
    m, Z = model(), data(4, 2, seed=1)[0]
    X = torch.rand(2, 2, 2, dtype=torch.float64)
    weighted = qNegIntegratedPosteriorVariance(m, Z, weights=torch.tensor([1.0, 2.0, 0.0, 1.0]))
    repeated = qNegIntegratedPosteriorVariance(m, Z[[0, 1, 1, 3]])
    torch.testing.assert_close(weighted(X), repeated(X))


def test_scalarised_outputs_equal_botorch() -> None:
    m, Z = model(2), data(20, 2, seed=1)[0]
    transform = ScalarizedPosteriorTransform(torch.tensor([0.3, -2.0], dtype=torch.float64))
    X = torch.rand(3, 2, 2, dtype=torch.float64)
    ours = qNegIntegratedPosteriorVariance(m, Z, posterior_transform=transform)
    reference = BoTorchNIPV(m, Z, posterior_transform=transform)
    torch.testing.assert_close(ours(X), reference(X).reshape(-1))


def test_known_variances_equal_botorch() -> None:
    X, Y = data(15, 2)
    m, Z = WISKI(X, Y, 0.05 + 0.1 * X[:, :1], grid_size=9).eval(), data(20, 2, seed=1)[0]
    Xq = torch.rand(3, 2, 2, dtype=torch.float64)
    torch.testing.assert_close(qNegIntegratedPosteriorVariance(m, Z)(Xq), BoTorchNIPV(m, Z)(Xq))


def test_optimisers_of_botorch_use_it() -> None:
    m = model()
    bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    acquisition = qNegIntegratedPosteriorVariance(m)
    _, value = optimize_acqf(acquisition, bounds, q=2, num_restarts=2, raw_samples=16, options={"maxiter": 20})
    assert value >= acquisition(torch.rand(64, 2, 2, dtype=torch.float64)).max() - 1e-6
    choices = torch.rand(20, 2, dtype=torch.float64)
    chosen, _ = optimize_acqf_discrete(acquisition, q=3, choices=choices)
    assert chosen.unique(dim=0).shape == (3, 2)


def test_what_has_no_closed_form_is_refused_by_name() -> None:
    X, Y = data(15, 2)
    Z = X[:4]
    with pytest.raises(UnsupportedError, match="SingleTaskGP"):
        qNegIntegratedPosteriorVariance(SingleTaskGP(X, Y), Z)
    with pytest.raises(UnsupportedError, match="Log"):
        qNegIntegratedPosteriorVariance(model(outcome_transform=None).__class__(X, Y.exp(), outcome_transform=Log()), Z)
    with pytest.raises(UnsupportedError, match="posterior_transform"):
        qNegIntegratedPosteriorVariance(model(2), Z)
    with pytest.raises(InvalidDataError, match="weights"):
        qNegIntegratedPosteriorVariance(model(), Z, weights=torch.tensor([1.0, -1.0, 1.0, 1.0]))


# ---------------------------------------------------------------- expected improvement over the best mean


def plug_in_data() -> tuple[Tensor, Tensor]:
    X, Y = data(30, 2)
    return X, Y + 0.3 * torch.randn_like(Y)


MINIMISED = ScalarizedPosteriorTransform(torch.tensor([-1.0], dtype=torch.float64))


@pytest.mark.parametrize("transform", [None, MINIMISED], ids=["larger", "smaller"])
@pytest.mark.parametrize("kind", [WISKI, SingleTaskGP])
def test_improvement_is_over_the_best_posterior_mean(kind: Any, transform: Any) -> None:
    X, Y = plug_in_data()
    model = kind(X, Y).eval()
    sign = 1.0 if transform is None else -1.0
    best = (sign * model.posterior(X).mean).max()
    Z = torch.rand(5, 1, 2, dtype=torch.float64, requires_grad=True)
    acquisition = qLogPlugInExpectedImprovement(model, X, posterior_transform=transform)
    exact = LogExpectedImprovement(model, best, transform)
    torch.testing.assert_close(acquisition.best_f, best)
    torch.testing.assert_close(acquisition(Z), exact(Z))
    (gradient,) = torch.autograd.grad(acquisition(Z).sum(), Z)
    torch.testing.assert_close(gradient, torch.autograd.grad(exact(Z).sum(), Z)[0])


def test_improvement_of_several_points_and_beside_pending_ones() -> None:
    X, Y = plug_in_data()
    model, pending = WISKI(X, Y).eval(), torch.rand(2, 2, dtype=torch.float64)
    sampler = SobolQMCNormalSampler(torch.Size([512]), seed=1)
    best = model.posterior(X).mean.max()
    Z = torch.rand(4, 3, 2, dtype=torch.float64)
    ours, theirs = (
        make(model, given, sampler, X_pending=pending)
        for make, given in ((qLogPlugInExpectedImprovement, X), (qLogExpectedImprovement, best))
    )
    torch.testing.assert_close(ours(Z), theirs(Z))
    torch.testing.assert_close(ours(Z[:, :1]), theirs(Z[:, :1]))
    ours.set_X_pending(None)
    torch.testing.assert_close(ours(Z[:, :1]), LogExpectedImprovement(model, best)(Z[:, :1]))


@pytest.mark.parametrize("listed", [False, True], ids=["one model", "a list"])
def test_improvement_is_over_the_best_mean_that_is_feasible(listed: bool) -> None:
    X, Y = plug_in_data()
    Y = torch.cat([Y, X[:, :1]], -1)
    if listed:
        model: Any = ModelListGP(*(WISKI(X, Y[:, [j]], grid_size=8) for j in range(2))).eval()
    else:
        model = WISKI(X, Y, grid_size=8).eval()
    means = model.posterior(X).mean
    objective = LinearMCObjective(torch.tensor([1.0, 0.0], dtype=torch.float64))
    acquisition = qLogPlugInExpectedImprovement(
        model, X, objective=objective, constraints=[lambda samples: samples[..., 1] - 0.3]
    )
    torch.testing.assert_close(acquisition.best_f, means[means[:, 1] < 0.3, 0].max())
    assert acquisition(torch.rand(3, 1, 2, dtype=torch.float64)).isfinite().all()


def test_improvement_where_no_mean_is_feasible_is_over_less_than_all() -> None:
    """Without a look beyond the points, where a grid has no features."""
    X, Y = plug_in_data()
    model = WISKI(X, torch.cat([Y, X[:, :1]], -1), grid_size=20).eval()
    objective = LinearMCObjective(torch.tensor([1.0, 0.0], dtype=torch.float64))
    acquisition = qLogPlugInExpectedImprovement(
        model, X, objective=objective, constraints=[lambda samples: samples[..., 1] + 9.0]
    )
    assert acquisition.best_f < model.posterior(X).mean[:, 0].min()
    assert acquisition(torch.rand(3, 1, 2, dtype=torch.float64)).isfinite().all()


def test_improvement_of_an_ensemble_is_averaged() -> None:
    X, Y = plug_in_data()
    model = GRIEFBayes(X, Y, num_eigenfunctions=20, grid_points=5, num_samples=4).eval()
    acquisition = qLogPlugInExpectedImprovement(model, X)
    torch.testing.assert_close(acquisition.best_f, model.posterior(X).mixture_mean.max())
    assert acquisition(torch.rand(3, 1, 2, dtype=torch.float64)).shape == (3,)


def test_members_of_an_ensemble_take_fewer_draws() -> None:
    X, Y = plug_in_data()
    ensemble = GRIEFBayes(X, Y, num_eigenfunctions=20, grid_points=5, num_samples=4)
    assert (hypervolume_draws(ensemble), hypervolume_draws(WISKI(X, Y, grid_size=8))) == (32, 128)


def test_improvement_needs_points_and_a_single_model() -> None:
    X, Y = plug_in_data()
    model = WISKI(X, Y, grid_size=8).eval()
    with pytest.raises(InvalidDataError, match="X_baseline: no points"):
        qLogPlugInExpectedImprovement(model, X[:0])
    fantasies = model.fantasize(X[:2], SobolQMCNormalSampler(torch.Size([3])))
    with pytest.raises(UnsupportedError, match="model: holds fantasies"):
        qLogPlugInExpectedImprovement(fantasies, X)
