"""Cross-validation: measures, tables, and models fitted anew or not."""

import math

import pytest
import torch
from botorch.models import SingleTaskGP
from insights import MAXIMISED, MINIMISED, TWO, data, fitted, two

from bo_scale import CaGP, GRIEFBayes
from bo_scale.errors import InvalidArgumentError, InvalidDataError
from bo_scale.loop.insight.cross_validation import Fit, cross_validate
from bo_scale.loop.insight.leave_one_out import at_hyperparameters, leave_one_out
from bo_scale.models.errors import UnsupportedError


def test_measures_are_those_of_their_definitions() -> None:
    g = torch.Generator().manual_seed(0)
    y = torch.randn(4000, generator=g).double()
    m = y + 0.5 * torch.randn(4000, generator=g).double()
    fit = Fit.of("y", y, m, torch.full_like(y, 0.5))
    assert fit.rmse == pytest.approx(0.5, rel=0.05)
    assert fit.r2 == pytest.approx(0.75, abs=0.05)
    assert fit.correlation == pytest.approx(1 / math.sqrt(1.25), abs=0.04)
    assert fit.nll == pytest.approx(math.log(0.5), abs=0.1)
    assert fit.coverage == {p: pytest.approx(p, abs=0.03) for p in (0.5, 0.8, 0.95)}
    mean = Fit.of(None, y, torch.zeros_like(y) + y.mean(), torch.full_like(y, float(y.std(unbiased=False))))
    assert (mean.r2, mean.nll) == pytest.approx((0, 0), abs=1e-9)


def test_folds_of_one_row_are_leave_one_out() -> None:
    X, Y = data(25)
    model = SingleTaskGP(X, Y)
    (fit,) = cross_validate(MINIMISED, model, X, Y, folds=100).outcomes
    left = leave_one_out(MINIMISED, model, X, Y)
    torch.testing.assert_close(fit.predicted, left.means[:, 0])
    torch.testing.assert_close(fit.sds, left.sds[:, 0])
    torch.testing.assert_close(fit.observed, -Y[:, 0])


def test_a_good_model_predicts_and_says_so_in_a_table() -> None:
    X, Y = data(60)
    Y = torch.cat([Y, 3 * Y], -1)
    report = cross_validate(TWO, two(lambda *rows: fitted(CaGP, *rows), X, Y), X, Y)
    assert [each.outcome for each in report.outcomes] == ["loss", "gain"]
    for fit in report.outcomes:
        assert fit.r2 > 0.9
        assert fit.nll < -1
        assert fit.coverage[0.95] > 0.85
    lines = str(report).splitlines()
    assert len(lines) == 4
    assert lines[1].startswith("loss")
    assert lines[3] == "10 folds, 60 observations"


def test_models_may_be_fitted_anew_or_made_where_there_is_no_closed_form() -> None:
    X, Y = data(30)
    Yvar = torch.full_like(Y, 0.01)
    model = fitted(SingleTaskGP, X, Y, Yvar)
    calls = []

    def anew(*rows: torch.Tensor) -> SingleTaskGP:
        calls.append(len(rows[0]))
        return fitted(SingleTaskGP, *rows)

    fixed = cross_validate(MAXIMISED, model, X, Y, Yvar, folds=3).outcomes[0]
    refitted = cross_validate(MAXIMISED, model, X, Y, Yvar, folds=3, fitted=anew).outcomes[0]
    assert calls == [20, 20, 20]
    assert min(fixed.r2, refitted.r2) > 0.8
    assert (refitted.sds >= 0.1).all()

    def bayes(X: torch.Tensor, Y: torch.Tensor, Yvar: torch.Tensor | None = None) -> GRIEFBayes:
        return GRIEFBayes(X, Y, Yvar, num_eigenfunctions=16, num_samples=2)

    ensemble = bayes(X, Y).eval()
    with pytest.raises(UnsupportedError):
        cross_validate(MAXIMISED, ensemble, X, Y)
    made = cross_validate(MAXIMISED, ensemble, X, Y, folds=3, fitted=at_hyperparameters(ensemble, bayes))
    assert made.outcomes[0].r2 > 0.5


def test_constant_values_have_no_shares_but_errors() -> None:
    X, Y = data(10)
    fit = cross_validate(MAXIMISED, CaGP(X, torch.ones_like(Y)), X, torch.ones_like(Y)).outcomes[0]
    assert fit.rmse == pytest.approx(0, abs=1e-9)
    assert math.isnan(fit.r2)
    assert math.isnan(fit.correlation)


def test_too_few_observations_or_folds_are_refused() -> None:
    X, Y = data(10)
    with pytest.raises(InvalidArgumentError, match="folds=1"):
        cross_validate(MAXIMISED, CaGP(X, Y), X, Y, folds=1)
    with pytest.raises(InvalidDataError, match="at least 3"):
        cross_validate(MAXIMISED, CaGP(X[:2], Y[:2]), X[:2], Y[:2])
