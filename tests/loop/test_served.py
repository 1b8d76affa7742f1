from typing import Any

import pytest
import torch
from botorch.models.model import Model
from cases import data
from gpytorch.kernels import MaternKernel
from loops import single_task
from torch import Tensor

from bo_scale import WISKI
from bo_scale.errors import SpaceError
from bo_scale.loop.served import model_factory
from bo_scale.models.catalogue import MODELS, ModelKind


def wiski(X: Tensor, Y: Tensor, Yvar: Tensor | None) -> Model:
    return WISKI(X, Y, Yvar, grid_size=9)


def observations(n: int, known: bool = False) -> tuple[Tensor, Tensor, Tensor | None]:
    X, Y = data(n, 2)
    return X, 5 + 3 * Y, 0.01 + 0.1 * X[:, :1] if known else None


# ---------------------------------------------------------------- factories


def test_models_are_found_by_name_and_options_are_theirs() -> None:
    model = model_factory("wiski", {"grid_size": (8, 9)}, 2)(*observations(6))
    assert isinstance(model, WISKI)
    assert model.grid.size == (8, 9)
    assert model_factory(single_task, None, 9) is single_task


def test_unknown_models_and_options_of_a_factory_are_refused() -> None:
    with pytest.raises(
        ValueError,
        match=r"model='gp': choose one of .'auto', 'cagp', 'decoupled', 'grief', 'softki', 'wiski'.",
    ):
        model_factory("gp", None, 2)
    with pytest.raises(ValueError, match="put them into the factory"):
        model_factory(single_task, {"grid_size": 8}, 2)
    with pytest.raises(ValueError, match=r"model_options: \['gridsize'\] are unknown; choose from .*'grid_size'"):
        model_factory("wiski", {"gridsize": 8}, 2)
    with pytest.raises(SpaceError, match=r"5 parameters.*1 to 4\. Take model="):
        model_factory("wiski", None, 5)


def test_a_constructor_that_takes_any_options_gets_them(monkeypatch: pytest.MonkeyPatch) -> None:
    class Liberal(WISKI):
        def __init__(self, *data: Tensor, **options: Any) -> None:
            super().__init__(*data, grid_size=options["nodes"])

    monkeypatch.setitem(MODELS, "liberal", ModelKind("liberal", Liberal))
    model = model_factory("liberal", {"nodes": 9}, 2)(*observations(6))
    assert isinstance(model, Liberal)
    assert model.grid.size == (9, 9)


def test_a_grid_of_the_loop_stays_unless_it_is_to_follow() -> None:
    fixed, following = (model_factory("wiski", options, 2)(*observations(6)) for options in (None, {"grid_size": None}))
    assert fixed.grid == following.grid
    assert not fixed.chooses_grid
    assert following.chooses_grid


def test_models_of_a_name_share_no_modules_with_each_other_or_with_the_options() -> None:
    kernel = MaternKernel(2.5, ard_num_dims=2)
    factory = model_factory("wiski", {"grid_size": 8, "covar_module": kernel}, 2)
    first, second = factory(*observations(6)), factory(*observations(6))
    before = [p.clone() for p in (*second.parameters(), *kernel.parameters())]
    for p in first.parameters():
        p.data += 1
    assert all(torch.equal(a, b) for a, b in zip(before, (*second.parameters(), *kernel.parameters())))
