import math
from typing import Any

import pytest
import torch
from botorch.models import SingleTaskGP
from cases import data
from gpytorch.mlls import ExactMarginalLogLikelihood

from bo_scale import WISKI
from bo_scale.errors import FitWarning, InterpolationWarning, InvalidArgumentError
from bo_scale.models.errors import FitError
from bo_scale.models.refit import GROWTH, Refit, best_fit, fit, with_hyperparameters

X, Y = data(20, 2)
FEW = {"options": {"maxiter": 3}}


def model(**options: Any) -> WISKI:
    return WISKI(X, Y, **{"grid_size": 8, **options})


def loss(of: Any) -> float:
    return of.compute_custom_loss(ExactMarginalLogLikelihood(of.likelihood, of)).item()


class Hopeless(WISKI):
    """A model whose fits all fail."""

    def custom_fit(self, *args: Any, **kwargs: Any) -> Any:
        raise FitError("no fit")


def hyperparameters(of: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in of.named_parameters()}


@pytest.mark.parametrize(("n", "due"), [(4, True), (12, False), (13, True), (12.5, True), (100, True)])
def test_a_fit_is_due_when_observations_have_grown_by_the_factor(n: float, due: bool) -> None:
    fitted = 0 if n == 4 else 10
    assert Refit().due(n, fitted) == due
    assert Refit().growth == GROWTH == 1.25


def test_a_growth_of_one_fits_every_time_and_a_smaller_one_is_refused() -> None:
    assert Refit(1.0).due(10, 10)
    for growth in (0.99, -1.0, math.nan):
        with pytest.raises(InvalidArgumentError, match="refit_growth="):
            Refit(growth)


@pytest.mark.filterwarnings("ignore::bo_scale.errors.InterpolationWarning")  # of a grid for speed
def test_a_fit_is_in_place_and_says_its_loss() -> None:
    start = model()
    before = loss(start)
    fitted, found = fit(start, 20, FEW)
    assert fitted is start
    assert not fitted.training
    assert found == pytest.approx(loss(start))
    assert found < before


def test_a_model_of_botorch_is_fitted_too() -> None:
    start = SingleTaskGP(X, Y)
    before = hyperparameters(start)
    fitted = Refit().first(start, 20)
    assert fitted is start
    assert any(not torch.equal(value, before[name]) for name, value in hyperparameters(fitted).items())


@pytest.mark.filterwarnings("ignore::bo_scale.errors.InterpolationWarning")
def test_of_several_starts_the_one_of_the_largest_evidence_is_kept() -> None:
    near, far = model(), model()
    fit(near, 20)
    far.covar_module.lengthscale = 30.0
    far.likelihood.noise = 20.0
    none = {"options": {"maxiter": 1}}
    for starts in ([near, far], [far, near]):
        found = best_fit(starts, 20, none)
        losses = [loss(start) for start in starts]
        assert found is starts[losses.index(min(losses))]
        odds = [-20 * 1e3 * (loss == min(losses)) for loss in losses]
        assert best_fit(starts, 20, none, odds) is starts[losses.index(max(losses))]
    assert loss(near) < loss(far)


def test_fits_that_fail_are_given_up_with_a_warning_and_none_is_left() -> None:
    hopeless = [Hopeless(X, Y, grid_size=8) for _ in range(2)]
    good = SingleTaskGP(X, Y)
    with pytest.warns(FitWarning, match="a fit at n = 20 failed and was given up: no fit"):
        assert Refit().better([hopeless[0], good, hopeless[1]], 20) is good
    with pytest.warns(FitWarning, match="given up"):
        assert Refit().better(hopeless, 20) is None
    assert Refit().better([], 20) is None


def test_of_coarse_grids_others_report() -> None:
    wiggly = WISKI(X[:, :1], (40 * X[:, :1]).sin(), torch.full_like(Y, 1e-4), grid_size=8)
    with pytest.warns(InterpolationWarning):
        fit(wiggly, 20, FEW)
    Refit().first(wiggly, 20)  # a warning would be an error


def test_hyperparameters_are_carried_over_where_names_and_shapes_agree() -> None:
    source, target = model(), model()
    source.likelihood.noise = 0.3
    source.covar_module.lengthscale = torch.tensor([[0.7, 0.2]]).double()
    values = {**hyperparameters(source), "nowhere": torch.ones(3)}
    lengthscale = next(name for name in values if name.endswith("raw_lengthscale"))
    before = hyperparameters(target)[lengthscale]
    values[lengthscale] = torch.zeros(1, 3).double()
    assert with_hyperparameters(target, values) is target
    found = hyperparameters(target)
    assert torch.equal(found.pop(lengthscale), before)
    for name, value in found.items():
        assert torch.equal(value, values[name])
    target.likelihood.noise = 5.0
    assert source.likelihood.noise.item() == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("n", "fitted", "due"),
    [
        (5, 4, True),
        (4, 4, False),
        (65, 64, True),
        (68, 67, True),
        (71, 70, False),
        (72, 70, True),
        (83, 80, False),
        (84, 80, True),
        (1233, 1000, False),
        (1234, 1000, True),
    ],
)
def test_the_first_observations_do_not_count_towards_the_growth(n: int, fitted: int, due: bool) -> None:
    assert Refit(few=64).due(n, fitted) == due
