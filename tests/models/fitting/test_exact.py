"""The exact GP of a fit: a start that fails is given up, and not the fit."""

from typing import Any

import pytest
import torch
from cases import data
from gpytorch.mlls import ExactMarginalLogLikelihood

from bo_scale import CaGP
from bo_scale.errors import FitWarning
from bo_scale.models.errors import FitError
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


@pytest.mark.parametrize("learns", [True, False])
def test_the_value_in_closed_form_is_that_of_the_loss(learns: bool) -> None:
    exact = ExactGP.of(CaGP(*data(40, 4)))
    for parameter in exact.modules.parameters():
        parameter.requires_grad_(learns)
    assert exact.closed_form(slice(None)) is not None
    loss = exact._loss(ExactMarginalLogLikelihood(exact.modules.likelihood, exact.modules).train(), slice(None))
    assert exact.value_at(exact.state()) == pytest.approx(-loss.item(), rel=1e-7)
    exact.fit_from_best_start({})
    assert (exact.value_at(exact.state()) > -loss.item()) == learns
