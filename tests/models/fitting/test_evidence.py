"""L-BFGS over some of a model's hyperparameters."""

from typing import Any

import pytest
import torch
from botorch.exceptions.errors import ModelFittingError
from botorch.exceptions.warnings import OptimizationWarning
from botorch.optim.core import OptimizationResult, OptimizationStatus
from cases import data, softki
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor
from torch.nn import Parameter

from bo_scale import SoftKI
from bo_scale.models.fitting import evidence as module
from bo_scale.models.fitting.evidence import fit_evidence, only_these_learn


def problem(m: int = 1) -> tuple[SoftKI, ExactMarginalLogLikelihood]:
    model = softki(*data(30, 2, m))
    return model, ExactMarginalLogLikelihood(model.likelihood, model).train()


def named(mll: ExactMarginalLogLikelihood, part: str) -> dict[str, Parameter]:
    return {name: p for name, p in mll.named_parameters() if p.requires_grad and part in name}


def values(mll: ExactMarginalLogLikelihood) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in mll.named_parameters()}


@pytest.mark.parametrize("part", ["noise", "covar_module", "interpolation_points", ""])
@pytest.mark.parametrize("m", [1, 2])
def test_only_the_parameters_given_move_and_the_evidence_rises(m: int, part: str) -> None:
    model, mll = problem(m)
    before, parameters = values(mll), named(mll, part)
    loss = model.compute_custom_loss(mll).item()
    fit_evidence(mll, parameters, {"options": {"maxiter": 4}})
    assert model.compute_custom_loss(mll).item() < loss - 1e-3
    for name, value in values(mll).items():
        assert torch.equal(value, before[name]) == (name not in parameters), name


def test_at_the_end_the_gradient_is_zero() -> None:
    model, mll = problem()
    parameters = {**named(mll, "noise"), **named(mll, "mean_module")}
    fit_evidence(mll, parameters)
    for gradient in torch.autograd.grad(model.compute_custom_loss(mll), list(parameters.values())):
        assert gradient.abs().max() < 1e-4


def test_what_requires_a_gradient_does_so_again_and_nothing_else() -> None:
    model, mll = problem()
    model.mean_module.raw_constant.requires_grad_(False)
    before = {name: p.requires_grad for name, p in mll.named_parameters()}
    noise, seen = named(mll, "noise"), []

    def evidence() -> Tensor:
        seen.append({name for name, p in mll.named_parameters() if p.requires_grad})
        return model._log_evidence()

    fit_evidence(mll, noise, {"options": {"maxiter": 2}}, evidence)
    assert seen
    assert all(names == set(noise) for names in seen)
    assert {name: p.requires_grad for name, p in mll.named_parameters()} == before
    with pytest.raises(ZeroDivisionError), only_these_learn(mll, noise):
        raise ZeroDivisionError
    assert {name: p.requires_grad for name, p in mll.named_parameters()} == before


def test_without_parameters_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    _, mll = problem()
    before = values(mll)
    monkeypatch.setattr(module, "fit_gpytorch_mll_scipy", lambda *a, **k: pytest.fail("was called"))
    fit_evidence(mll, {})
    assert all(torch.equal(value, before[name]) for name, value in values(mll).items())


@pytest.mark.parametrize("m", [1, 2])
def test_another_evidence_is_maximised_with_the_priors(m: int) -> None:
    """Of every output's noise, whose optimum a fine grid shows: −50 (log σ² − log 0.3)² + the log prior."""
    model, mll = problem(m)

    def wanted(noise: Tensor) -> Tensor:
        return -50 * (noise.log() - torch.tensor(0.3).double().log()).square()

    fit_evidence(mll, named(mll, "noise"), None, lambda: wanted(model.likelihood.noise.reshape(-1)))
    grid = torch.linspace(0.2, 0.4, 200_001, dtype=torch.float64)
    best = grid[(wanted(grid) + model.likelihood.noise_covar.noise_prior.log_prob(grid)).argmax()]
    assert best < 0.298  # the prior wants less
    torch.testing.assert_close(model.likelihood.noise.detach().reshape(-1), best.expand(m), rtol=0, atol=1e-4)


def failing(status: OptimizationStatus, message: str) -> Any:
    def fit(mll: Any, parameters: dict[str, Tensor], *args: Any, **kwargs: Any) -> OptimizationResult:
        with torch.no_grad():
            for p in parameters.values():
                p.add_(1.0)
        return OptimizationResult(fval=0.0, step=1, status=status, message=message)

    return fit


def test_an_optimiser_that_fails_is_an_error_and_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    _, mll = problem()
    before = values(mll)
    monkeypatch.setattr(module, "fit_gpytorch_mll_scipy", failing(OptimizationStatus.FAILURE, "no luck"))
    with pytest.raises(ModelFittingError, match=r"noise_covar.*no luck"):
        fit_evidence(mll, named(mll, "noise"))
    assert all(torch.equal(value, before[name]) for name, value in values(mll).items())
    assert all(p.requires_grad for name, p in mll.named_parameters() if "temperature" not in name)


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (OptimizationStatus.STOPPED, "iterations"),
        (OptimizationStatus.FAILURE, "ABNORMAL: "),
        (OptimizationStatus.SUCCESS, ""),
    ],
)
def test_a_line_search_that_finds_no_better_point_is_no_failure(
    status: OptimizationStatus, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, mll = problem()
    before = values(mll)
    monkeypatch.setattr(module, "fit_gpytorch_mll_scipy", failing(status, message))
    fit_evidence(mll, named(mll, "noise"))
    assert any(not torch.equal(value, before[name]) for name, value in values(mll).items())


def test_a_search_that_meets_nan_is_an_error_and_changes_nothing() -> None:
    model, mll = problem()
    before, calls = values(mll), []

    def evidence() -> Tensor:
        calls.append(None)
        value = -(model.mean_module.constant.reshape(-1) - 3).square()
        return value if len(calls) <= 2 else value * torch.nan

    with pytest.raises(ModelFittingError, match="raw_constant"), pytest.warns(OptimizationWarning):
        fit_evidence(mll, named(mll, "mean_module"), {"method": "BFGS"}, evidence)
    assert len(calls) > 2
    assert all(torch.equal(value, before[name]) for name, value in values(mll).items())


def test_an_evidence_that_is_nan_leaves_the_parameters_as_they_were() -> None:
    model, mll = problem()
    before = values(mll)
    with pytest.raises(ModelFittingError, match="noise_covar"):
        fit_evidence(mll, named(mll, "noise"), None, lambda: model._log_evidence() * torch.nan)
    assert all(torch.equal(value, before[name]) for name, value in values(mll).items())


@pytest.mark.filterwarnings("ignore::botorch.exceptions.warnings.OptimizationWarning")
@pytest.mark.parametrize("gradient", [1.0, torch.nan])
def test_an_evidence_that_is_nan_everywhere_is_no_success(gradient: float) -> None:
    model, mll = problem()
    with pytest.raises(ModelFittingError, match="raw_constant"):
        fit_evidence(
            mll,
            named(mll, "mean_module"),
            {"options": {"maxiter": 5}},
            lambda: gradient * model.mean_module.constant.reshape(-1) + torch.nan,
        )


def test_positive_parameters_are_searched_on_a_logarithmic_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    _, mll = problem()
    original, seen = module.fit_gpytorch_mll_scipy, {}

    def recorded(mll: Any, parameters: dict[str, Tensor], bounds: Any, *args: Any, **kwargs: Any) -> OptimizationResult:
        seen.update({name: (value.clone(), bounds.get(name)) for name, value in parameters.items()})
        return original(mll, parameters, bounds, *args, **kwargs)

    before = values(mll)
    monkeypatch.setattr(module, "fit_gpytorch_mll_scipy", recorded)
    fit_evidence(mll, {**named(mll, "noise"), **named(mll, "mean_module")}, {"options": {"maxiter": 2}})
    for name, (value, limits) in seen.items():
        if "noise" in name:
            torch.testing.assert_close(value, before[name].log())
            lower = mll.likelihood.noise_covar.raw_noise_constraint.lower_bound
            assert limits[0].item() == pytest.approx(lower.double().log().item())
        else:
            assert torch.equal(value, before[name])


@pytest.mark.parametrize("start", [1e-3, 1.0, 40.0])
def test_it_ends_where_botorchs_own_optimiser_ends(start: float) -> None:
    found = []
    for optimiser in (module.lbfgs, module.fit_gpytorch_mll_scipy):
        _, mll = problem()
        mll.likelihood.noise = max(start, 1e-3)
        mll.model.covar_module.base_kernel.lengthscale = max(start, 0.05)
        parameters = {**named(mll, "noise"), **named(mll, "covar_module")}
        found.append(optimiser(mll, parameters).fval)
    assert found[0] < found[1] + 1e-5
