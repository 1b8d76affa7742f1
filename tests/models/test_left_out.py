"""Rows as one Gaussian vector: what models of the other rows predict, for single rows and whole folds."""

from typing import Any

import pytest
import torch
from botorch.cross_validation import loo_cv
from botorch.models import SingleTaskGP
from botorch.models.transforms import Log
from torch import Tensor

from bo_scale import GRIEF, WISKI, CaGP, DecoupledGP, GRIEFBayes, SoftKI
from bo_scale.models.errors import UnsupportedError
from bo_scale.models.left_out import gaussian_rows


def rows(n: int = 30, seed: int = 0) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    X = torch.rand(n, 2, generator=g).double()
    return X, 5 * (4 * X.sum(-1, keepdim=True)).sin() + 3 + 0.3 * torch.randn(n, 1, generator=g).double()


BUILDS = [
    pytest.param(SingleTaskGP, {}, id="SingleTaskGP"),
    pytest.param(CaGP, {}, id="CaGP"),
    pytest.param(WISKI, {"grid_size": 8}, id="WISKI"),
    pytest.param(GRIEF, {"num_eigenfunctions": 40}, id="GRIEF"),
    pytest.param(SoftKI, {"progress": False, "epochs": 2}, id="SoftKI"),
]


@pytest.mark.parametrize("known", [False, True], ids=["learned", "known"])
@pytest.mark.parametrize(("kind", "options"), BUILDS)
def test_single_rows_are_as_botorch_leaves_them_out(kind: Any, options: dict[str, Any], known: bool) -> None:
    X, Y = rows()
    model = kind(X, Y, 0.1 + 0.2 * Y.abs() if known else None, **options).eval()
    errors, variances = gaussian_rows(model).left_out()
    said = loo_cv(model, observation_noise=True).posterior
    torch.testing.assert_close(Y[:, 0] - errors, said.mean.detach().reshape(-1), rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(variances, said.variance.detach().reshape(-1), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(("kind", "options"), BUILDS)
def test_folds_are_as_a_model_of_the_other_rows_predicts(kind: Any, options: dict[str, Any]) -> None:
    X, Y = rows()
    model = kind(X, Y, outcome_transform=None, **options).eval()
    errors, variances = gaussian_rows(model).left_out([torch.arange(7), torch.arange(7, 30)])
    if kind is SingleTaskGP:
        less = kind(X[7:], Y[7:], outcome_transform=None)
        less.load_state_dict(model.state_dict())
    elif hasattr(model, "remove_observations"):
        less = model.remove_observations([*range(7)])
    else:
        less = kind(X[7:], Y[7:], outcome_transform=None, **options)
    posterior = less.eval().posterior(X[:7], observation_noise=True)
    torch.testing.assert_close(Y[:7, 0] - errors[:7], posterior.mean.detach()[:, 0], rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(variances[:7], posterior.variance.detach()[:, 0], rtol=1e-6, atol=1e-7)


def test_a_model_of_fewer_actions_is_taken_for_the_exact_one() -> None:
    X, Y = rows()
    few = gaussian_rows(CaGP(X, Y, num_actions=5).eval()).left_out()
    for a, b in zip(few, gaussian_rows(CaGP(X, Y).eval()).left_out(), strict=True):
        torch.testing.assert_close(a, b)
    assert gaussian_rows(DecoupledGP(X, Y, progress=False).eval()).left_out()[0].shape == (30,)


def test_a_large_grid_has_no_root() -> None:
    """Its posterior is by a sparse precision matrix."""
    X, Y = rows()
    large = WISKI(X, Y, grid_size=40, rank=60).eval()
    errors, variances = gaussian_rows(large).left_out()
    said = loo_cv(large, observation_noise=True).posterior
    torch.testing.assert_close(Y[:, 0] - errors, said.mean.detach().reshape(-1), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(variances, said.variance.detach().reshape(-1), rtol=1e-5, atol=1e-6)


def test_predictions_without_an_outlier_do_not_know_its_weight() -> None:
    """Under Student-t noise all rows are predicted with the same noise, though the outlier's own variance is large."""
    from botorch.fit import fit_gpytorch_mll
    from gpytorch.mlls import ExactMarginalLogLikelihood

    X, Y = rows(40)
    Y[3] = 60.0
    model = CaGP(X, Y, likelihood="student_t")
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    found = gaussian_rows(model)
    assert found.regular is not None
    errors, variances = found.left_out(noise=found.regular)
    z = errors.abs() / variances.sqrt()
    assert z.argmax() == 3
    assert z[3] > 20


def test_models_without_a_closed_form_say_why() -> None:
    X, Y = rows(20)
    with pytest.raises(UnsupportedError, match="ensemble"):
        gaussian_rows(GRIEFBayes(X, Y, num_eigenfunctions=9, num_samples=2).eval())
    with pytest.raises(UnsupportedError, match="Log"):
        gaussian_rows(SingleTaskGP(X, Y.exp(), outcome_transform=Log()))
    with pytest.raises(UnsupportedError, match="decay"):
        gaussian_rows(WISKI(X, Y, grid_size=8, decay=0.9).eval())
    with pytest.raises(UnsupportedError, match="keep_data"):
        gaussian_rows(WISKI(X, Y, grid_size=8, keep_data=False).eval())
    with pytest.raises(UnsupportedError, match="several outputs"):
        gaussian_rows(WISKI(X, Y.expand(-1, 2), grid_size=8).eval())
