from collections.abc import Iterator
from typing import ClassVar

import pytest
import torch
from botorch.models import SingleTaskGP
from gpytorch.likelihoods import GaussianLikelihood
from torch import Tensor

from bo_scale import GRIEF, WISKI
from bo_scale.errors import InvalidArgumentError, SpaceError
from bo_scale.loop import ModelKind, Optimizer, register_model
from bo_scale.models.catalogue import MODELS, kind_of, options_of, preset, require_dimension, unit_cube

X = torch.rand(12, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = dict(MODELS)
    yield
    MODELS.clear()
    MODELS.update(before)


class Mine(SingleTaskGP):
    """A model of somebody's own."""

    seen: ClassVar[list[int]] = []

    def __init__(self, train_X: Tensor, train_Y: Tensor, train_Yvar: Tensor | None = None, shift: float = 0.0) -> None:
        super().__init__(train_X, train_Y + shift, train_Yvar)
        self.seen.append(len(train_X))


def test_a_model_of_ones_own_is_served_after_one_call() -> None:
    register_model(ModelKind("mine", Mine, "An exact GP."))
    optimizer = Optimizer({"x": (0.0, 1.0)}, model="mine", model_options={"shift": 1.0}, num_initial=3)
    for _ in range(2):
        points = optimizer.ask(3)
        optimizer.tell(points, [-((p["x"] - 0.3) ** 2) for p in points])
    optimizer.ask()
    assert type(optimizer.model) is Mine
    assert Mine.seen[-1] in (3, 6)


def test_a_name_is_one_model() -> None:
    kind = ModelKind("mine", Mine)
    register_model(kind)
    register_model(kind)
    with pytest.raises(InvalidArgumentError, match="'mine': already taken by another model"):
        register_model(ModelKind("mine", GRIEF))


def test_a_class_is_known_by_the_nearest_that_is_named() -> None:
    class Derived(WISKI):
        pass

    assert kind_of(Derived) is MODELS["wiski"]
    assert kind_of(SingleTaskGP).preset(X, unit_cube(X), {"a": 1}) == {"a": 1}


@pytest.mark.parametrize("name", list(MODELS))
def test_every_model_says_what_it_can_do(name: str) -> None:
    kind = MODELS[name]
    assert kind.name == name
    assert kind.help.endswith(".")
    given = preset(kind.model, X, False, unit_cube(X), {})
    assert set(given) <= options_of(kind.model)
    assert isinstance(given.get("likelihood"), GaussianLikelihood) == kind.wide_noise
    assert "likelihood" not in preset(kind.model, X, True, unit_cube(X), {})
    Y = X.sum(-1, keepdim=True)
    made = kind.model(X, torch.cat([Y, -Y], -1), **given) if kind.several_outputs else kind.model(X, Y, **given)
    assert made.num_outputs == (2 if kind.several_outputs else 1)


def test_the_noise_of_a_search_reaches_down_to_none_only_without_an_error_of_approximation() -> None:
    """Otherwise an exact GP expects noise where there is none, and a search repeats its best point."""
    for kind in MODELS.values():
        given = preset(kind.model, X, False, unit_cube(X), {})
        if "likelihood" in given:
            likelihood = given["likelihood"]
            odds = likelihood.noise_covar.noise_prior.log_prob(torch.tensor([1e-4, 0.3]))
            assert (odds[0] > odds[1]) == kind.small_noise
            assert likelihood.noise_covar.raw_noise_constraint.lower_bound <= (1e-6 if kind.small_noise else 1e-4)
    assert MODELS["cagp"].small_noise


def test_too_many_inputs_are_refused_with_what_serves_them() -> None:
    require_dimension(GRIEF, 40)
    require_dimension(WISKI, 4)
    require_dimension(WISKI, 9, {"projection": object()})
    with pytest.raises(SpaceError, match=r"'wiski': 9 parameters.*serves 1 to 4.*'cagp' or 'softki'.*projection="):
        require_dimension(WISKI, 9)
