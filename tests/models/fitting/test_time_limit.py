"""A limit to the time of a fit, for all of its stages."""

from typing import Any

import pytest
import torch
from botorch.fit import fit_gpytorch_mll
from cases import data
from gpytorch.mlls import ExactMarginalLogLikelihood

from bo_scale import GRIEF, WISKI, CaGP, DecoupledGP, SoftKI
from bo_scale.errors import InvalidArgumentError
from bo_scale.training.time_limit import is_over, seconds_left, time_limit

FITS: list[tuple[Any, dict[str, Any]]] = [
    (WISKI, {"grid_size": 10}),
    (GRIEF, {"num_eigenfunctions": 20}),
    (SoftKI, {"num_interpolation_points": 12, "epochs": 5, "batch_size": 8}),
    (CaGP, {"num_actions": 10, "epochs": 5}),
    (CaGP, {"num_actions": 10, "epochs": 5, "optimizer": "adam"}),
    (CaGP, {"policy": "cg", "num_actions": 40, "likelihood": "student_t"}),
    (DecoupledGP, {"num_mean_inducing": 12, "num_covar_inducing": 8, "num_steps": 5}),
]


@pytest.mark.parametrize(("kind", "options"), FITS, ids=lambda value: getattr(value, "__name__", ""))
@pytest.mark.filterwarnings("ignore::bo_scale.errors.BoScaleWarning")  # of fits that ended early
def test_every_stage_ends_when_the_time_is_over(kind: Any, options: dict[str, Any]) -> None:
    X, Y = data(40, 2)
    evaluations = []
    for given in ({"timeout_sec": 1e-9}, {"timeout_sec": 1e9}, None):
        torch.manual_seed(0)
        model = kind(X, Y, **options)
        fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model), optimizer_kwargs=given)
        report = model.fit_report
        assert any("time was over" in note for note in report.notes) == (given == {"timeout_sec": 1e-9})
        assert model.posterior(X).mean.isfinite().all()
        evaluations.append((report.evaluations, model.likelihood.noise.sum().item()))
    assert evaluations[0] != evaluations[1] == evaluations[2]


def test_of_two_limits_the_earlier_counts() -> None:
    assert seconds_left() == float("inf")
    with time_limit(1000), time_limit(None):
        assert 900 < seconds_left() <= 1000
        with time_limit(5000):
            assert seconds_left() <= 1000
        with time_limit(1e-9):
            while seconds_left() > 0:
                pass
            assert is_over()
        assert not is_over()
    assert seconds_left() == float("inf")


def test_the_noise_is_fitted_to_rows_held_out_whatever_the_time_is() -> None:
    """It is what points that were not learned leave."""
    X = torch.rand(400, 4, dtype=torch.float64)
    model = SoftKI(X, (9 * X).sin().sum(-1, keepdim=True), num_interpolation_points=40, epochs=3, progress=False)
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    fit_gpytorch_mll(mll, optimizer_kwargs={"timeout_sec": 1e-9})
    *_, prior, noise = model.fit_report.stages
    assert "held out" in noise.name
    assert noise.evaluations > 3 >= prior.evaluations
    Z = torch.rand(300, 4, dtype=torch.float64)
    found = model.posterior(Z, observation_noise=True)
    errors = (9 * Z).sin().sum(-1, keepdim=True) - found.mean
    assert (errors.abs() < 1.96 * found.variance.sqrt()).double().mean() > 0.75


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("seconds", [0, -1.0, "soon", float("nan")])
def test_a_wrong_limit_is_refused(seconds: Any) -> None:
    X, Y = data(8, 2)
    model = CaGP(X, Y, num_actions=4)
    with pytest.raises(InvalidArgumentError, match="timeout_sec="):
        fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model), optimizer_kwargs={"timeout_sec": seconds})
