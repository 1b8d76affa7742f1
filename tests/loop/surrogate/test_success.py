"""Models beside those of the outcomes: of success, of costs."""

import logging

import pytest
import torch
from botorch.exceptions.errors import ModelFittingError

from bo_scale.loop.surrogate import side_fit
from bo_scale.loop.surrogate.costs import log_cost_model
from bo_scale.loop.surrogate.success import LEVEL, ROWS, success_model


def points(n: int, d: int = 2, seed: int = 0) -> torch.Tensor:
    return torch.rand(n, d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("d", [1, 2, 6])
def test_the_border_is_learned(d: int) -> None:
    X, new = points(80, d), points(400, d, 1)
    failing = X[:, 0] > 0.6
    model = success_model(X[~failing], X[failing], 0)
    right = (model.posterior(new).mean[:, 0] > LEVEL) == (new[:, 0] <= 0.6)
    assert right.double().mean() > 0.9


@pytest.mark.parametrize(("n", "f"), [(1, 1), (1, 3), (3, 1), (40, 1)])
def test_few_or_repeated_points_are_served(n: int, f: int) -> None:
    X = points(n).clone()
    model = success_model(X, X[:1].expand(f, 2), 0)
    assert model.posterior(points(5)).variance.isfinite().all()


def test_many_rows_are_thinned() -> None:
    X = points(3000)
    failing = X[:, 0] > 0.9
    model = success_model(X[~failing], X[failing], 0)
    assert len(model.train_inputs[0]) <= ROWS
    assert ((model.posterior(points(400, seed=1)).mean[:, 0] > LEVEL) == (points(400, seed=1)[:, 0] <= 0.9)).sum() > 380


def test_costs_are_predicted_on_their_logarithm() -> None:
    X = points(40)
    costs = 2.0 * 50 ** X[:, 1]
    costs[::5] = float("nan")
    model = log_cost_model(X, costs, 0)
    assert model is not None
    new = points(20, seed=1)
    torch.testing.assert_close(model.posterior(new).mean[:, 0], (2.0 * 50 ** new[:, 1]).log(), atol=0.05, rtol=0)
    assert log_cost_model(X[:6], costs[:6].where(torch.arange(6) < 4, float("nan")), 0) is None
    assert log_cost_model(X, torch.ones(40, dtype=torch.float64), 0) is not None


def test_a_fit_that_fails_is_said(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def fail(mll: object) -> None:
        raise ModelFittingError("no")

    monkeypatch.setattr(side_fit, "fit_gpytorch_mll", fail)
    with caplog.at_level(logging.WARNING, "bo_scale.loop"):
        model = success_model(points(5), points(2, seed=3), 0)
    assert "the model of success was not fitted" in caplog.text
    assert model.posterior(points(3)).mean.isfinite().all()
