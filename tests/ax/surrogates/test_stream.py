"""Models that follow an experiment: streamed equals made anew, whatever order, units and noise the rows come in."""

from typing import Any

import pytest
import torch
from botorch.exceptions.errors import ModelFittingError
from botorch.models.transforms.input import Normalize
from botorch.models.transforms.outcome import Standardize
from clients import CHEAP
from torch import Tensor

from bo_scale import WISKI
from bo_scale.ax.surrogates.stream import Stream, compare, conditioned, follow, positions, stream_of, units_of
from bo_scale.models.catalogue import MODELS, preset
from bo_scale.models.refit import Refit
from bo_scale.models.shell.model import ScalableModel
from bo_scale.models.shell.rows import Rows

ALL = pytest.mark.parametrize("name", list(MODELS))
BOUNDS = torch.tensor([[0.0, 0.0], [2.0, 2.0]], dtype=torch.float64)


def rows(n: int, outputs: int = 1) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(1)
    X = 2 * torch.rand(n, 2, generator=g, dtype=torch.float64)
    Y = torch.stack([(3 * X[:, 0] + j).sin() + X[:, 1] for j in range(outputs)], -1)
    return X, Y + 0.1 * torch.randn(n, outputs, generator=g, dtype=torch.float64)


def standardised(Y: Tensor, Yvar: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
    """As Ax gives them: by their own mean and standard deviation."""
    sd = Y.std(0)
    return (Y - Y.mean(0)) / sd, None if Yvar is None else Yvar / sd.square()


def fresh(name: str, X: Tensor, Y: Tensor, Yvar: Tensor | None = None, **options: Any) -> ScalableModel:
    """As Ax's dispatcher makes it."""
    kind: Any = MODELS[name].model
    given = preset(kind, X, Yvar is not None, BOUNDS, {**CHEAP[name], **options})
    transforms = {"input_transform": Normalize(2, bounds=BOUNDS), "outcome_transform": Standardize(Y.shape[-1])}
    made: ScalableModel = kind(X, Y, Yvar, **given, **transforms)
    return made


def anew(name: str, model: ScalableModel, X: Tensor, Y: Tensor, Yvar: Tensor | None = None, **options: Any) -> Any:
    """A model of all rows with the hyperparameters, grids and units of another."""
    made = fresh(name, X, Y, Yvar, **options)
    made.load_state_dict(model.state_dict())
    return made.eval()


def assert_same(model: Any, other: Any, tolerance: float = 1e-8) -> None:
    X = 2 * torch.rand(30, 2, dtype=torch.float64)
    one, two = model.posterior(X), other.posterior(X)
    torch.testing.assert_close(one.mean, two.mean, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(one.variance, two.variance, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(model.train_inputs[0], other.train_inputs[0])
    torch.testing.assert_close(model.train_targets, other.train_targets)


@pytest.mark.parametrize("order", ["behind", "between"])
@pytest.mark.parametrize("known", [False, True], ids=["learned", "known"])
@pytest.mark.parametrize("name", ["wiski", "softki", "grief", "cagp"])
def test_streamed_equals_made_anew(name: str, known: bool, order: str) -> None:
    X, Y = rows(26)
    V = 0.01 + 0.02 * torch.rand_like(Y) if known else None
    old = torch.arange(20) if order == "behind" else torch.cat([torch.arange(0, 15), torch.arange(18, 23)])
    y, v = standardised(Y[old], None if V is None else V[old])
    before = fresh(name, X[old], y, v)
    follow(before, None, Refit(10.0))
    y, v = standardised(Y, V)
    model = fresh(name, X, y, v)
    follow(model, before, Refit(10.0))
    accumulated = name == "cagp" and order == "between"
    assert stream_of(model) == Stream(26, 20, 0, 1, int(not accumulated), int(accumulated))
    assert_same(model, anew(name, model, X, y, v))
    torch.testing.assert_close(model.train_inputs[0], before.input_transform(X))


@pytest.mark.parametrize("name", ["grief_bayes", "decoupled"])
def test_those_that_approximate_their_rows_are_near_it(name: str) -> None:
    """New rows condition the samples, or the variational posterior, that the earlier ones gave."""
    X, Y = rows(26)
    before = fresh(name, X[:20], standardised(Y[:20])[0])
    follow(before, None, Refit(10.0))
    model = fresh(name, X, standardised(Y)[0])
    follow(model, before, Refit(10.0))
    assert stream_of(model).streamed == 1
    other = fresh(name, X, standardised(Y)[0])
    exact = conditioned(before, other, compare(before, other))
    assert exact is not None
    Z = 2 * torch.rand(5, 2, dtype=torch.float64)
    torch.testing.assert_close(model.posterior(Z).mean, exact.posterior(Z).mean)
    units = Y.mean() + Y.std() * model.posterior_mean(Z)
    told = before.condition_on_observations(X[20:], (Y[20:] - Y[:20].mean()) / Y[:20].std())
    torch.testing.assert_close(units, Y[:20].mean() + Y[:20].std() * told.posterior_mean(Z))


@ALL
def test_no_new_rows_in_other_units(name: str) -> None:
    X, Y = rows(20)
    before = fresh(name, X, Y)
    follow(before, None, Refit(10.0))
    model = fresh(name, X, 3 - 0.0 + 5 * Y)
    follow(model, before, Refit(10.0))
    Z = 2 * torch.rand(5, 2, dtype=torch.float64)
    torch.testing.assert_close(model.posterior_mean(Z), 3 + 5 * before.posterior_mean(Z))
    torch.testing.assert_close(model.posterior(Z).variance, 25 * before.posterior(Z).variance)


@ALL
@pytest.mark.parametrize("change", ["revised", "removed"])
def test_changed_steps_of_curves_are_accumulated_anew(name: str, change: str) -> None:
    X, Y = rows(21)
    before = fresh(name, X[:20], standardised(Y[:20])[0])
    follow(before, None, Refit(10.0))
    kept = torch.arange(21) if change == "revised" else torch.arange(1, 21)
    Y[3] += 0.7 if change == "revised" else 0.0
    y = standardised(Y[kept])[0]
    model = fresh(name, X[kept], y)
    follow(model, before, Refit(10.0), curves=True)
    assert stream_of(model) == Stream(len(kept), 20, 1, 1, 0, 1)
    hyper = {k: v for k, v in before.named_parameters() if v.shape == dict(model.named_parameters())[k].shape}
    assert hyper
    for key, value in hyper.items():
        if "raw" in key:
            torch.testing.assert_close(dict(model.named_parameters())[key], value)
    if name not in ("grief_bayes", "decoupled"):
        assert_same(model, anew(name, model, X[kept], y))


def test_growth_refits_and_keeps_the_better_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    X, Y = rows(30)
    before = fresh("wiski", X[:20], Y[:20])
    follow(before, None, Refit(1.25))
    for n, event in ((24, "streamed"), (25, "refitted")):
        model = fresh("wiski", X[:n], Y[:n])
        follow(model, before, Refit(1.25))
        assert getattr(stream_of(model), event) == (1 if event == "streamed" else 2)
    assert stream_of(model).fitted == 25
    assert stream_of(before) == Stream(20, 20, refitted=1)


def test_a_fit_that_fails_leaves_the_hyperparameters(monkeypatch: pytest.MonkeyPatch) -> None:
    X, Y = rows(30)
    before = fresh("wiski", X[:20], Y[:20])
    follow(before, None, Refit(1.25))
    monkeypatch.setattr("bo_scale.models.refit.best_fit", lambda starts, n: None)
    model = fresh("wiski", X, Y)
    follow(model, before, Refit(1.25))
    assert_same(model, anew("wiski", model, X, Y))
    torch.testing.assert_close(model.covar_module.outputscale, before.covar_module.outputscale)
    assert stream_of(model) == Stream(30, 20, refitted=1, accumulated=1)  # no fit is counted, and the next trial tries


def test_a_first_fit_that_fails_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    X, Y = rows(10)
    monkeypatch.setattr("bo_scale.models.refit.best_fit", lambda starts, n: None)
    with pytest.raises(ModelFittingError, match="the first fit failed"):
        follow(fresh("wiski", X, Y), None, Refit(1.25))


def test_a_model_of_another_class_is_fitted_from_nothing() -> None:
    X, Y = rows(20)
    before = fresh("wiski", X[:19], Y[:19])
    follow(before, None, Refit(10.0))
    model = fresh("grief", X, Y)
    follow(model, before, Refit(10.0), "auto: grief")
    assert stream_of(model) == Stream(20, 20, refitted=1, chosen="auto: grief")


def test_rows_that_lose_weight_with_age_stay_in_order() -> None:
    X, Y = rows(24)
    before = fresh("wiski", X[4:], Y[4:], decay=0.9)
    follow(before, None, Refit(10.0))
    model = fresh("wiski", X, Y, decay=0.9)
    follow(model, before, Refit(10.0))
    assert stream_of(model).accumulated == 1
    assert_same(model, anew("wiski", model, X, Y, decay=0.9))


def test_several_outputs() -> None:
    X, Y = rows(24, outputs=2)
    before = fresh("wiski", X[:20], standardised(Y[:20])[0])
    follow(before, None, Refit(10.0))
    y = standardised(Y)[0]
    model = fresh("wiski", X, y)
    follow(model, before, Refit(10.0))
    assert stream_of(model).streamed == 1
    assert_same(model, anew("wiski", model, X, y))


def test_another_outcome_transform_is_fitted() -> None:
    X, Y = rows(24)
    before = WISKI(X[:20], Y[:20], grid_size=8, input_transform=Normalize(2, bounds=BOUNDS), outcome_transform=None)
    model = WISKI(X, Y, grid_size=8, input_transform=Normalize(2, bounds=BOUNDS), outcome_transform=None)
    follow(before, None, Refit(10.0))
    follow(model, before, Refit(10.0))
    assert stream_of(model) == Stream(24, 24, refitted=1)


def test_places_of_rows() -> None:
    X = torch.tensor([[0.0, 1.0], [2.0, 3.0], [0.0, 1.0], [4.0, 5.0]])
    assert positions(X[:2], X).tolist() == [0, 1]
    assert positions(X[[3, 0, 2]], X).tolist() == [3, 0, 2]
    assert positions(X[[0, 2]], X[[3, 0, 2]]).tolist() == [1, 2]
    assert positions(X[[0, 0, 0]], X).tolist() == [0, 2, -1]
    assert positions(X, X[:3]).tolist() == [0, 1, 2, -1]


def test_units() -> None:
    X, Y = rows(10)
    old = Rows.of(X, Y, torch.ones_like(Y))

    def found(rows: Rows, values: Tensor, variances: Tensor | None = None) -> tuple[float, float]:
        units, changed = units_of(rows, values, variances)
        assert units is not None
        assert changed == 0
        return units[0].item(), units[1].item()

    assert found(old, 2.0 + 7.0 * Y) == pytest.approx((2.0, 7.0), rel=1e-14)
    assert units_of(old, 2.0 - 7.0 * Y, None)[0] is None
    assert units_of(Rows.of(X[:2], Y[:2], Y[:2]), Y[:2], None) == (None, 0)
    revised = 2.0 + 7.0 * Y
    revised[[2, 5, 6]] += 1e-6
    assert units_of(old, revised, None) == (None, 3)
    known = Rows.of(X, Y, 0.1 * torch.ones_like(Y))
    assert found(known, 7.0 * Y, 4.9 * torch.ones_like(Y)) == pytest.approx((0.0, 7.0), abs=1e-14)
    other = torch.where(torch.arange(10).unsqueeze(-1) < 4, 5.0, 4.9)
    assert units_of(known, 7.0 * Y, other.double()) == (None, 4)
    constant = Rows.of(X, torch.full_like(Y, 0.3), 0.1 * torch.ones_like(Y))
    there = found(constant, torch.full_like(Y, 5.0), 0.4 * torch.ones_like(Y))
    assert there == pytest.approx((5.0 - 0.6, 2.0))


def test_revisions_beside_an_outlier_are_seen() -> None:
    X, Y = rows(22)
    Y[5] = 1e9
    before = fresh("wiski", X[:20], standardised(Y[:20])[0])
    follow(before, None, Refit(10.0))
    Y[7] += 1.0
    model = fresh("wiski", X, standardised(Y)[0])
    follow(model, before, Refit(10.0))
    assert stream_of(model) == Stream(22, 22, refitted=2)


@pytest.mark.parametrize("change", ["revised", "removed"])
def test_corrections_are_fitted_and_new_rows_are_not(change: str) -> None:
    """A wrong value's hyperparameters do not stay."""
    X, Y = rows(22)
    wrong = Y.clone()
    wrong[3] = 1e4
    before = fresh("cagp", X[:20], standardised(wrong[:20])[0])
    follow(before, None, Refit(10.0))
    more = fresh("cagp", X[:21], standardised(wrong[:21])[0])
    follow(more, before, Refit(10.0))
    assert stream_of(more) == Stream(21, 20, refitted=1, streamed=1)
    kept = torch.arange(22) if change == "revised" else torch.arange(22)[torch.arange(22) != 3]
    model, first = (fresh("cagp", X[kept], standardised(Y[kept])[0]) for _ in range(2))
    follow(model, more, Refit(10.0))
    follow(first, None, Refit(10.0))
    assert stream_of(model) == Stream(len(kept), len(kept), refitted=2, streamed=1)
    torch.testing.assert_close(model.posterior_mean(X), first.posterior_mean(X), rtol=0.01, atol=0.01)


def test_a_fit_to_corrections_that_fails_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    X, Y = rows(21)
    before = fresh("wiski", X[:20], Y[:20])
    follow(before, None, Refit(10.0))
    Y[3] += 0.7
    model, again = fresh("wiski", X[:20], Y[:20]), fresh("wiski", X, Y)
    with monkeypatch.context() as failing:
        failing.setattr("bo_scale.models.refit.best_fit", lambda starts, n: None)
        follow(model, before, Refit(10.0))
    assert stream_of(model) == Stream(20, 20, changed=1, refitted=1, accumulated=1)
    follow(again, model, Refit(10.0))
    assert stream_of(again) == Stream(21, 21, refitted=2, accumulated=1)


def test_many_changed_steps_of_curves_are_fitted() -> None:
    """New and changed rows together make data grow; then the count of changes begins anew."""
    X, Y = rows(24)
    model = fresh("wiski", X[:20], Y[:20])
    follow(model, None, Refit(1.25))
    for n, revised, event, changed in ((21, 2, "accumulated", 2), (21, 1, "accumulated", 3), (22, 0, "refitted", 0)):
        before, Y = model, Y.clone()
        Y[:revised] += 0.5
        model = fresh("wiski", X[:n], Y[:n])
        follow(model, before, Refit(1.25), curves=True)
        assert getattr(stream_of(model), event) == getattr(stream_of(before), event) + 1
        assert stream_of(model).changed == changed


@pytest.mark.parametrize("gained", [True, False])
def test_noise_that_becomes_known_or_unknown_is_fitted(gained: bool) -> None:
    X, Y = rows(20)
    V = 0.1 * torch.ones_like(Y)
    before = fresh("wiski", X[:19], Y[:19], None if gained else V[:19])
    follow(before, None, Refit(10.0))
    model = fresh("wiski", X, Y, V if gained else None)
    follow(model, before, Refit(10.0))
    assert stream_of(model) == Stream(20, 20, refitted=1)
