"""How a loop's model follows its data."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from botorch.exceptions.errors import ModelFittingError
from botorch.models import SingleTaskGP, SingleTaskVariationalGP
from botorch.models.model import Model
from cases import data
from loops import single_task
from pairwise import pairwise
from torch import Tensor

from bo_scale import WISKI
from bo_scale.errors import FitWarning
from bo_scale.loop.served import ModelFactory, model_factory
from bo_scale.loop.surrogate.builder import Surrogate, SurrogateBuilder
from bo_scale.loop.surrogate.per_outcome import SeveralBuilder
from bo_scale.loop.surrogate.surprise import far_off
from bo_scale.models import refit as module
from bo_scale.models.choice.automatic import AutomaticModel
from bo_scale.models.choice.plan import Plan
from bo_scale.models.choice.report import ChoiceReport
from bo_scale.models.errors import FitError
from bo_scale.models.refit import Refit, fit
from bo_scale.models.shell.model import ScalableModel

CPU = torch.device("cpu")
XT = data(7, 2, seed=9)[0]


def wiski(X: Tensor, Y: Tensor, Yvar: Tensor | None) -> Model:
    return WISKI(X, Y, Yvar, grid_size=9)


def builder(factory: ModelFactory | AutomaticModel = wiski, growth: float = 1.25) -> SurrogateBuilder:
    return SurrogateBuilder(factory, Refit(growth), 0, CPU)


def observations(n: int, known: bool = False) -> tuple[Tensor, Tensor, Tensor | None]:
    X, Y = data(n, 2)
    return X, 5 + 3 * Y, 0.01 + 0.1 * X[:, :1] if known else None


def assert_same(a: Any, b: Any, tolerance: float = 0.0) -> None:
    """Equal posteriors in raw units."""
    torch.testing.assert_close(a.posterior(XT).mean, b.posterior(XT).mean, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(a.posterior(XT).variance, b.posterior(XT).variance, rtol=tolerance, atol=tolerance)


FACTORIES = [
    pytest.param(wiski, id="WISKI"),
    pytest.param(model_factory("softki", {"num_interpolation_points": 6, "epochs": 2}, 2), id="SoftKI"),
    pytest.param(model_factory("grief", {"num_eigenfunctions": 20, "grid_points": 6}, 2), id="GRIEF"),
    pytest.param(model_factory("cagp", {"num_actions": 16, "epochs": 5}, 2), id="CaGP"),
    pytest.param(model_factory("decoupled", {"num_steps": 3}, 2), id="Decoupled"),
    pytest.param(single_task, id="SingleTaskGP"),
]


def stored(factory: Any, known: Any) -> bool:
    """Known noise for one factory of each way to be stored: laws of models look at the others' files."""
    return known.id == "learned" or factory.id in ("WISKI", "Decoupled", "SingleTaskGP")


KNOWN = pytest.mark.parametrize("known", [False, True], ids=["learned", "known"])


# ---------------------------------------------------------------- following the data


@pytest.mark.parametrize("factory", FACTORIES)
def test_a_fit_is_due_when_n_has_grown_by_the_factor_and_a_conditioning_otherwise(factory: ModelFactory) -> None:
    follow, X_Y_V, surrogate, fits = builder(factory, 1.5), observations(10), None, []
    for ask, n in enumerate([4, 4, 5, 6, 8, 9, 10]):
        surrogate = follow.advance(surrogate, *(v if v is None else v[:n] for v in X_Y_V), ask)
        assert surrogate.count == n
        fits.append(surrogate.fitted)
    assert fits == [4, 4, 4, 6, 6, 9, 9]


@pytest.mark.parametrize(
    ("factory", "known"),
    pairwise(FACTORIES, [pytest.param(False, id="learned"), pytest.param(True, id="known")], allowed=stored),
)
def test_a_value_far_off_calls_for_a_fit(factory: ModelFactory, known: bool) -> None:
    X, Y, Yvar = observations(18, known)
    Y[17] = 1e4
    follow, surrogate, fits = builder(factory), None, []
    for ask, n in enumerate(range(16, 19)):
        surrogate = follow.advance(surrogate, X[:n], Y[:n], None if Yvar is None else Yvar[:n], ask)
        fits.append(surrogate.fitted)
    assert fits == [16, 16, 18]


def test_the_first_value_of_unknown_variance_among_known_ones_is_no_error() -> None:
    X, Y, Yvar = observations(18, known=True)
    assert Yvar is not None
    Y[17], Yvar[17] = 1e4, math.nan
    before = builder(single_task).advance(None, X[:17], Y[:17], Yvar[:17], 0)
    after = builder(single_task).advance(before, X, Y, Yvar, 1)
    assert after.fitted == 17
    assert after.noise is not None


def test_a_value_far_off_calls_for_a_fit_of_its_outcome() -> None:
    X, Y, _ = observations(18)
    several, values = SeveralBuilder(builder()), torch.cat([Y, Y.square()], -1)
    values[17, 1] = 1e4
    before = several.advance(None, X[:17], values[:17], None, 0)
    after = several.advance(before, X, values, None, 1)
    assert [part.fitted for part in after.parts] == [17, 18]
    assert after.fitted == 18
    assert several.advance(after, X, values, None, 2) is after


@pytest.mark.parametrize("error", [0.05, 2.0])
def test_a_value_is_far_off_only_among_the_others(error: float) -> None:
    """An error of a twentieth of the spread does little harm, however sure the model is."""
    X, Y, _ = observations(17)
    before = builder(single_task).advance(None, X[:16], Y[:16], torch.full_like(Y[:16], 1e-8), 0)
    foretold = before.model.posterior(X[:1]).mean.detach()
    wrong = foretold + error * Y[:16].std()
    assert far_off(before.model, X[:1], wrong, torch.full_like(wrong, 1e-8), Y[:16]) == (error > 1)


@KNOWN
@pytest.mark.parametrize("factory", FACTORIES)
def test_conditioning_keeps_hyperparameters_and_is_exact(factory: ModelFactory, known: bool) -> None:
    X, Y, Yvar = observations(16, known)
    follow = builder(factory)
    before = follow.advance(None, X[:12], Y[:12], None if Yvar is None else Yvar[:12], 0)
    after = follow.conditioned(before, X, Y, Yvar)
    assert (after.count, after.fitted) == (16, 12)
    fresh: Any = factory(X, Y, Yvar)
    for (_, p), (_, q) in zip(fresh.named_parameters(), before.model.named_parameters(), strict=True):
        p.data.copy_(q)
    if isinstance(fresh, ScalableModel):  # which conditions in the units of its last fit
        model: Any = before.model
        fresh = fresh.restandardised(model.outcome_transform.means, model.outcome_transform.stdvs)
    assert_same(after.model, fresh.eval(), 1e-8)


@pytest.mark.parametrize(
    ("factory", "known"),
    pairwise(FACTORIES, [pytest.param(False, id="learned"), pytest.param(True, id="known")], allowed=stored),
)
def test_a_snapshot_restores_the_very_surrogate_and_its_future(factory: ModelFactory, known: bool) -> None:
    X, Y, Yvar = observations(24, known)
    follow = builder(factory)

    def at(n: int) -> tuple[Tensor, Tensor, Tensor | None]:
        return X[:n], Y[:n], None if Yvar is None else Yvar[:n]

    surrogate = follow.conditioned(follow.advance(None, *at(12), 0), *at(14))
    twin = follow.restored(follow.snapshot(surrogate), X, Y, Yvar)
    assert (twin.count, twin.fitted) == (surrogate.count, surrogate.fitted)
    for ask, n in enumerate((14, 15, 24), start=1):
        surrogate, twin = follow.advance(surrogate, *at(n), ask), follow.advance(twin, *at(n), ask)
        assert_same(twin.model, surrogate.model)


@pytest.mark.parametrize("factory", FACTORIES)
def test_a_surrogate_does_not_depend_on_who_looked_at_it_before(factory: ModelFactory) -> None:
    X, Y, _ = observations(14)
    futures = []
    for looked in (False, True):
        follow = builder(factory)
        before = follow.advance(None, X[:12], Y[:12], None, 0)
        if looked:
            before.model.posterior(XT).mean.sum()
            follow.conditioned(before, X[:13], Y[:13], None).model.posterior(XT)
        futures.append(follow.conditioned(before, X, Y, None).model)
    assert_same(*futures)


@pytest.mark.usefixtures("whole_fits")
@pytest.mark.parametrize("factory", FACTORIES)
def test_a_refit_is_no_worse_than_a_fit_from_the_start(factory: ModelFactory) -> None:
    X, Y, _ = observations(30)
    follow = builder(factory)
    surrogate: Surrogate | None = None
    for ask, n in enumerate((4, 10, 30)):
        surrogate = follow.advance(surrogate, X[:n], Y[:n], None, ask)
    assert surrogate is not None
    _, cold = fit(factory(X, Y, None), len(X))
    _, ours = fit(surrogate.model, len(X))
    assert ours <= cold + 1e-3


@pytest.mark.parametrize("factory", FACTORIES)
def test_a_refit_leaves_the_surrogate_before_as_it_was(factory: ModelFactory) -> None:
    X, Y, _ = observations(20)
    follow = builder(factory)
    before = follow.advance(None, X[:8], Y[:8], None, 0)
    mean = before.model.posterior(XT).mean.clone()
    follow.advance(before, X, Y, None, 1)
    assert torch.equal(before.model.posterior(XT).mean, mean)


@pytest.mark.parametrize("failures", [1, 2])
@pytest.mark.parametrize("factory", FACTORIES)
def test_a_fit_that_fails_is_given_up_with_a_warning(
    factory: ModelFactory, failures: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, Y, _ = observations(16)
    follow, real, left = builder(factory), module.fit_gpytorch_mll, [failures]
    before = follow.advance(None, X[:8], Y[:8], None, 0)

    def fit(mll: Any) -> Any:
        left[0] -= 1
        if left[0] >= 0:
            raise ModelFittingError("All attempts to fit the model have failed.")
        return real(mll)

    monkeypatch.setattr(module, "fit_gpytorch_mll", fit)
    with pytest.warns(FitWarning, match="a fit at n = 16 failed") as found:
        after = follow.advance(before, X, Y, None, 1)
    assert len(found) == failures
    assert after.count == 16
    if failures == 2:  # the hyperparameters there were
        assert_same(after.model, follow.conditioned(before, X, Y, None).model, 1e-9)


def random_features(X: Tensor, Y: Tensor, Yvar: Tensor | None) -> Model:
    """A model whose construction draws random numbers."""
    model = SingleTaskGP(X, Y, Yvar)
    model.covar_module.lengthscale = 0.2 + torch.rand(1, X.shape[-1]).to(X)
    model.register_buffer("drawn", torch.rand(2))
    return model


@pytest.mark.parametrize("factory", [random_features, wiski])
@pytest.mark.parametrize("step", ["advance", "conditioned", "restored"])
def test_no_step_reads_or_moves_the_global_randomness(factory: ModelFactory, step: str) -> None:
    X, Y, _ = observations(14)
    follow = builder(factory)
    before = follow.advance(None, X[:10], Y[:10], None, 0)
    steps: dict[str, Callable[[], Surrogate]] = {
        "advance": lambda: follow.advance(before, X, Y, None, 1),
        "conditioned": lambda: follow.conditioned(before, X, Y, None),
        "restored": lambda: follow.restored(follow.snapshot(before), X, Y, None),
    }
    states = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        state = torch.random.get_rng_state()
        states.append(steps[step]().model.state_dict())
        assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_a_variational_model_is_fitted_and_conditioned() -> None:
    X, Y, _ = observations(14)
    follow = builder(lambda X, Y, Yvar: SingleTaskVariationalGP(X, Y, inducing_points=2))
    before = follow.advance(None, X[:6], Y[:6], None, 0)
    after = follow.conditioned(before, X, Y, None)
    assert torch.isfinite(after.model.posterior(XT).mean).all()


def test_an_automatic_model_is_chosen_anew_when_the_data_have_doubled(monkeypatch: pytest.MonkeyPatch) -> None:
    X, Y, _ = observations(40, False)
    automatic = AutomaticModel()
    follow, seen = builder(automatic), []
    choose = AutomaticModel.choose

    def counted(self: AutomaticModel, X: Tensor, Y: Tensor, Yvar: Tensor | None) -> Any:
        seen.append(len(X))
        return choose(self, X, Y, Yvar)

    monkeypatch.setattr(AutomaticModel, "choose", counted)
    surrogate = None
    for n in (6, 9, 12, 20, 24, 25, 40):
        surrogate = follow.advance(surrogate, X[:n], Y[:n], None, n)
        assert surrogate.count == n
        assert surrogate.model.num_observations == n
    assert seen == [6, 12, 25]  # at a fit
    assert surrogate is not None
    assert surrogate.choice is not None
    assert surrogate.chosen == 25
    assert surrogate.choice.plan.rows is None
    restored = follow.restored(follow.snapshot(surrogate), X, Y, None)
    assert restored.choice is not None
    assert restored.choice.plan == surrogate.choice.plan
    assert (restored.count, restored.fitted, restored.chosen) == (40, surrogate.fitted, 25)
    assert_same(restored.model, surrogate.model, 1e-10)


def test_another_plan_starts_a_new_model(monkeypatch: pytest.MonkeyPatch) -> None:
    X, Y, _ = observations(30, False)
    plans = iter([Plan("softki", "rbf"), Plan("exact", "matern52")])
    monkeypatch.setattr(AutomaticModel, "choose", lambda *_: ChoiceReport(next(plans), "as the test says"))
    follow = builder(AutomaticModel())
    first = follow.advance(None, X[:12], Y[:12], None, 0)
    second = follow.advance(first, X, Y, None, 1)
    assert [type(each.model).__name__ for each in (first, second)] == ["SoftKI", "CaGP"]
    assert second.model.covar_module.base_kernel.nu == 2.5


def test_several_outcomes_have_a_choice_each() -> None:
    X, Y, _ = observations(20, False)
    several = SeveralBuilder(builder(AutomaticModel()))
    made = several.advance(None, X, torch.cat([Y, Y.square()], -1), None, 0)
    assert [part.chosen for part in made.parts] == [20, 20]
    again = several.restored(several.snapshot(made), X, torch.cat([Y, Y.square()], -1), None)
    assert [part.choice.plan for part in again.parts] == [part.choice.plan for part in made.parts]


def test_a_choice_that_fails_keeps_the_model_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    X, Y, _ = observations(30)
    follow = builder(AutomaticModel())
    first = follow.advance(None, X[:12], Y[:12], None, 0)

    def fails(*_: Any) -> Any:
        raise FitError("no luck")

    monkeypatch.setattr(AutomaticModel, "choose", fails)
    with pytest.warns(FitWarning, match="stays as chosen at n = 12: no luck"):
        second = follow.advance(first, X, Y, None, 1)
    assert second.choice is first.choice
    assert (second.count, second.fitted, second.chosen) == (30, 30, 12)
    with pytest.raises(FitError):
        follow.advance(None, X, Y, None, 0)
