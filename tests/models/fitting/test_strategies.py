"""Strategies of fits, on models of this package; what their stages reach is tested with each model."""

from typing import Any

import pytest
import torch
from botorch.exceptions.errors import ModelFittingError
from cases import cagp, data, grief, softki
from gpytorch.mlls import ExactMarginalLogLikelihood

from bo_scale import GRIEF, WISKI, CaGP, SoftKI
from bo_scale.errors import FitWarning, NotPositiveDefiniteError
from bo_scale.models.errors import FitError, UnsupportedError
from bo_scale.models.fitting.report import Recorder
from bo_scale.models.fitting.strategies import EvidenceFit, FitOptions, Fitting, FollowGrid, StagedFit

pytestmark = pytest.mark.filterwarnings("ignore::bo_scale.errors.InterpolationWarning")  # of grids for speed

X, Y = data(20, 2)
FEW = {"options": {"maxiter": 3}}
STAGED = pytest.mark.parametrize("build", [softki, grief, cagp])


def fit(strategy: Fitting, model: Any, record: Recorder | None = None, **options: Any) -> Any:
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    given = FitOptions(**{"optimizer_kwargs": FEW, **options})
    assert strategy.fit(model, mll, given, record or Recorder()) is mll
    assert not model.training
    return model


def loss(model: Any) -> float:
    return model.compute_custom_loss(ExactMarginalLogLikelihood(model.likelihood, model)).item()


def state(model: Any) -> dict[str, Any]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def assert_unchanged(model: Any, before: dict[str, Any]) -> None:
    after = model.state_dict()
    assert after.keys() == before.keys()
    for name, value in before.items():
        assert torch.equal(after[name], value), name


@pytest.mark.parametrize("strategy", [EvidenceFit(), FollowGrid(), StagedFit()])
def test_every_strategy_is_one(strategy: Fitting) -> None:
    assert isinstance(strategy, Fitting)


def test_a_fit_of_the_evidence_is_one_stage_with_the_optimizers_options() -> None:
    model, record = WISKI(X, Y, grid_size=8), Recorder()
    before = loss(model)
    fit(EvidenceFit(), model, record)
    assert [stage.name for stage in record.stages] == ["hyperparameters by L-BFGS on the evidence"]
    assert loss(model) < before
    longer = fit(EvidenceFit(), WISKI(X, Y, grid_size=8), optimizer_kwargs={"options": {"maxiter": 100}})
    assert loss(longer) < loss(model)


# ---------------------------------------------------------------- stages


@STAGED
def test_a_model_in_stages_takes_no_closure_and_says_what_it_takes(build: Any) -> None:
    model = build(X, Y)
    before = state(model)
    for options in ({"closure": lambda: None}, {"closure_kwargs": {"a": 1}}):
        with pytest.raises(UnsupportedError, match=f"closure: {type(model).__name__} is fitted in stages.*optimizer"):
            fit(StagedFit(), model, **options)
    assert_unchanged(model, before)


@STAGED
def test_options_that_stages_do_not_know_are_ignored_by_name(build: Any) -> None:
    with pytest.warns(FitWarning, match=r"fitted in stages of its own, which ignore \['max_attempts', 'timeout'\]"):
        fit(StagedFit(), build(X, Y), others={"timeout": 1, "max_attempts": 2})


def failing(base: type, error: BaseException) -> type:
    """A model whose stages end, and something else with them, after all was changed."""

    def fit_stages(self: Any, *args: Any) -> None:
        base.fit_stages(self, *args)
        with torch.no_grad():
            for p in self.parameters():
                p += 1.0
        raise error

    return type(f"Failing{base.__name__}", (base,), {"fit_stages": fit_stages})


@pytest.mark.parametrize(
    ("base", "options"),
    [
        (SoftKI, {"num_interpolation_points": 8, "epochs": 1, "progress": False}),
        (GRIEF, {"num_eigenfunctions": 12, "grid_points": 5}),
        (CaGP, {"num_actions": 5, "epochs": 2, "progress": False}),
    ],
)
@pytest.mark.parametrize(
    ("error", "caught", "message"),
    [
        (NotPositiveDefiniteError("no factor"), FitError, r"Failing\w+ could not be fitted: no factor"),
        (KeyboardInterrupt("stopped"), KeyboardInterrupt, "stopped"),
    ],
    ids=["no factor", "interrupted"],
)
def test_a_stage_that_fails_leaves_the_model_as_it_was(
    base: type, options: dict[str, Any], error: BaseException, caught: type[BaseException], message: str
) -> None:
    model = failing(base, error)(X, Y, **options).eval()
    before, mean = state(model), model.posterior(X[:3]).mean
    with pytest.raises(caught, match=message):
        fit(StagedFit(), model)
    assert_unchanged(model, before)
    assert torch.equal(model.posterior(X[:3]).mean, mean)


# ---------------------------------------------------------------- grids


def wiggly(**options: Any) -> WISKI:
    Z = data(300, 1)[0]
    return WISKI(Z, (60 * Z).sin(), torch.full_like(Z, 1e-6), **options)


def test_a_grid_follows_as_often_as_allowed_and_no_longer_than_it_is_coarse() -> None:
    once, often = wiggly(), wiggly()
    start = once.grid.size
    records = [Recorder(), Recorder()]
    fit(FollowGrid(attempts=1), once, records[0], optimizer_kwargs=None)
    fit(FollowGrid(attempts=4), often, records[1], optimizer_kwargs=None)
    assert len(records[0].stages) == 1
    assert 1 < len(records[1].stages) <= 4
    assert often.grid.size > start
    notes = records[1].notes
    assert len(notes) >= len(records[1].stages) - 1
    assert str([often.grid.size]) in notes[-1]
    assert loss(often) < loss(wiggly())


class OnlyOnce:
    """A strategy that fits once."""

    def __init__(self) -> None:
        self.fits = 0

    def fit(self, *args: Any) -> Any:
        """Fit by the evidence the first time."""
        self.fits += 1
        if self.fits > 1:
            raise ModelFittingError("All attempts to fit the model have failed.")
        return EvidenceFit().fit(*args)


def test_a_fit_that_fails_on_the_finer_grid_keeps_the_one_before() -> None:
    inner, model, record = OnlyOnce(), wiggly(), Recorder()
    start = model.grid.size
    with pytest.warns(FitWarning, match="finer grid failed, so hyperparameters stay as fitted before: All"):
        fit(FollowGrid(inner, inner), model, record, optimizer_kwargs=None)
    assert inner.fits == 2
    assert model.grid.size > start
    assert model.posterior(X[:2, :1]).mean.isfinite().all()


def test_a_first_fit_that_fails_is_an_error() -> None:
    inner = OnlyOnce()
    inner.fits = 1
    with pytest.raises(ModelFittingError, match="All attempts"):
        fit(FollowGrid(inner), wiggly())
