"""The exact GP of a fit: a start that fails is given up, and not the fit."""

import math
from typing import Any

import pytest
import torch
from cases import data, rand
from gpytorch.mlls import ExactMarginalLogLikelihood

from bo_scale import CaGP
from bo_scale.errors import FitWarning
from bo_scale.models.choice.plan import Plan
from bo_scale.models.errors import FitError
from bo_scale.models.fitting import exact as module
from bo_scale.models.fitting.exact import ExactGP


def failing(calls: set[int], monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let some of the fits, counted from 0, fail; returns the numbers of those that were tried."""
    tried, fit = list[int](), ExactGP.fit

    def counted(self: ExactGP, rows: slice, given: dict[str, Any]) -> None:
        tried.append(len(tried))
        if tried[-1] in calls:
            raise FitError("no luck")
        fit(self, rows, given)

    monkeypatch.setattr(ExactGP, "fit", counted)
    return tried


@pytest.mark.parametrize(("n", "calls"), [(40, {0}), (40, {1}), (300, {2}), (300, {0, 2})])
def test_a_start_that_fails_is_given_up(n: int, calls: set[int], monkeypatch: pytest.MonkeyPatch) -> None:
    X, Y = data(n, 4)
    exact = ExactGP.of(CaGP(X, Y))
    before = exact.value_at(exact.state())
    tried = failing(calls, monkeypatch)
    with pytest.warns(FitWarning, match="given up: no luck"):
        exact.fit_from_best_start({})
    assert len(tried) == 2 + (n > 256)
    assert exact.value_at(exact.state()) > before


def test_if_all_rows_can_be_fitted_nothing_is_said(monkeypatch: pytest.MonkeyPatch, recwarn: Any) -> None:
    exact = ExactGP.of(CaGP(*data(300, 4)))
    failing({0, 1}, monkeypatch)
    exact.fit_from_best_start({})
    assert not [each for each in recwarn if issubclass(each.category, FitWarning)]


@pytest.mark.parametrize("n", [40, 300])
def test_if_every_fit_fails_it_is_an_error(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    exact = ExactGP.of(CaGP(*data(n, 4)))
    failing({0, 1, 2}, monkeypatch)
    with pytest.raises(FitError, match="no luck"):
        exact.fit_from_best_start({})


def test_left_out_rows_are_those_of_every_output() -> None:
    errors, variances = ExactGP.of(CaGP(*data(20, 2, 2))).left_out()
    assert errors.shape == variances.shape == (20, 2)
    assert bool((variances > 0).all())
    assert torch.isfinite(errors).all()


@pytest.mark.parametrize("n", [40, 300])
def test_fitted_hyperparameters_are_the_only_start(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    exact = ExactGP.of(CaGP(*data(n, 4)))
    exact.fit_from_best_start({})
    best = exact.value_at(exact.state())
    tried = failing(set(), monkeypatch)
    exact.fit_from_best_start({}, fitted=True)
    assert tried == [0]
    assert exact.value_at(exact.state()) >= best - 1e-6


def test_at_the_same_hyperparameters_nothing_is_computed_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    times: list[int] = []
    computed = module.leave_one_out

    def counted(*given: Any) -> Any:
        times.append(1)
        return computed(*given)

    monkeypatch.setattr(module, "leave_one_out", counted)
    exact = ExactGP.of(CaGP(*data(30, 2)))
    first, state = exact.left_out()[1], exact.state()
    value = exact.value_at(state)
    exact.modules.likelihood.noise = 0.3
    assert not torch.allclose(exact.left_out()[1], first)
    assert exact.value_at(exact.state()) != value
    assert exact.value_at(state) == value
    assert torch.equal(exact.left_out()[1], first)
    assert len(times) == 2


@pytest.mark.parametrize("learns", [True, False])
def test_the_value_in_closed_form_is_that_of_the_loss(learns: bool) -> None:
    exact = ExactGP.of(CaGP(*data(40, 4)))
    for parameter in exact.modules.parameters():
        parameter.requires_grad_(learns)
    assert exact.closed_form(slice(None)) is not None
    loss = exact.loss(ExactMarginalLogLikelihood(exact.modules.likelihood, exact.modules).train(), slice(None))
    assert exact.value_at(exact.state()) == pytest.approx(-loss.item(), rel=1e-7)
    exact.fit_from_best_start({})
    assert (exact.value_at(exact.state()) > -loss.item()) == learns


def waves(n: int, d: int, periods: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of a function that goes up and down many times along its first input, with some noise."""
    X, noise = rand(n, d), 0.05 * (rand(n, 1, seed=1) - 0.5)
    return X, (2 * math.pi * periods * X[:, :1]).sin() + X.sum(-1, keepdim=True) + noise


@pytest.mark.parametrize(("n", "d", "periods"), [(250, 1, 40), (600, 1, 100), (600, 2, 12)])
def test_many_periods_are_no_noise(n: int, d: int, periods: float) -> None:
    X, Y = waves(n, d, periods)
    exact = ExactGP.of(Plan("exact").build(X, Y))
    exact.fit_from_best_start({})
    assert exact.modules.likelihood.noise.item() < 0.01


def test_an_input_of_many_periods_among_others_is_not_missed() -> None:
    n, d = 200, 6
    X = rand(n, d)
    X[:, 0] = (20 * X[:, 0]).round() / 20  # 21 values, each with a target of its own
    Y = 2 * rand(21, 1, seed=3)[(20 * X[:, 0]).round().long()] + X[:, 1:3].sum(-1, keepdim=True)
    exact = ExactGP.of(Plan("exact").build(X, Y))
    exact.modules.covar_module.base_kernel.lengthscale = torch.full((1, d), 2.0)
    exact.modules.likelihood.noise = 0.5
    missed = exact.value_at(exact.state())
    exact._fit_missed_inputs(slice(None), {})
    assert n * (exact.value_at(exact.state()) - missed) > 100
    assert exact.left_out()[0].square().mean() < 0.05


def test_errors_that_do_not_go_together_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    X, Y = rand(200, 3), rand(200, 1, seed=1)
    X[:, 2] = 0.5
    exact = ExactGP.of(CaGP(X, Y))
    tried = failing(set(), monkeypatch)
    exact.fit_from_best_start({}, fitted=True)
    assert tried == [0]
    exact.modules.covar_module.base_kernel.raw_lengthscale.requires_grad_(False)
    assert not exact._shorten_missed_input()
    assert not ExactGP.of(CaGP(X[:10], Y[:10]))._shorten_missed_input()


def test_a_shorter_lengthscale_that_is_no_better_or_fails_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = ExactGP.of(CaGP(*data(40, 2)))
    exact.fit(slice(None), {})
    best = exact.state()

    def worse(self: ExactGP) -> bool:
        self.modules.likelihood.noise = 1.0
        return True

    monkeypatch.setattr(ExactGP, "_shorten_missed_input", worse)
    for effect in (None, FitError("no luck")):

        def fit(self: ExactGP, rows: slice, given: dict[str, Any], effect: FitError | None = effect) -> None:
            if effect is not None:
                raise effect

        monkeypatch.setattr(ExactGP, "fit", fit)
        exact._fit_missed_inputs(slice(None), {})
        torch.testing.assert_close(exact.state(), best, rtol=0, atol=0)
