import pytest
import torch
from ax.adapter.registry import Generators
from ax.api.configs import RangeParameterConfig
from ax.generation_strategy.generation_strategy import GenerationNode, GenerationStrategy
from ax.generation_strategy.generator_spec import GeneratorSpec
from ax.generators.torch.botorch_modular.surrogate import SurrogateSpec
from clients import client, loss, models, run, tell
from torch import Tensor

import bo_scale.ax.surrogates.dispatch as dispatch
from bo_scale import WISKI, CaGP
from bo_scale.ax import model_config, streaming
from bo_scale.ax.surrogates.stream import stream_of
from bo_scale.errors import InvalidDataError
from bo_scale.models import softki

pytestmark = pytest.mark.filterwarnings("ignore::botorch.exceptions.warnings.InputDataWarning")


def test_a_strategy_used_again_chooses_anew() -> None:
    first = client("auto")
    run(first, 7)
    five = [RangeParameterConfig(name=f"x{j}", parameter_type="float", bounds=(0.0, 2.0)) for j in range(5)]
    again = client("auto", parameters=five)
    again.set_generation_strategy(first._generation_strategy.clone_reset())
    for _ in range(7):
        for index, point in again.get_next_trials(max_trials=1).items():
            again.complete_trial(index, {"loss": sum((value - 1.2) ** 2 for value in point.values())})
    assert type(models(again)[0]) is CaGP


def test_models_that_compete_do_not_follow_each_other() -> None:
    configs = [model_config("wiski", grid_size=size) for size in (7, 8)]
    for config, size in zip(configs, (7, 8), strict=True):
        config.name = f"grid {size}"
    spec = SurrogateSpec(model_configs=configs, num_folds=3)
    ours = GeneratorSpec(Generators.BOTORCH_MODULAR, generator_kwargs={"surrogate_spec": spec})
    made = client()
    run(made, 6)
    made.set_generation_strategy(GenerationStrategy(nodes=[GenerationNode(name="own", generator_specs=[ours])]))
    run(made, 3)
    found = made._generation_strategy.adapter.generator.surrogate._model_name_to_model["loss"]
    assert {name: model.grid.size for name, model in found.items()} == {"grid 7": (7, 7), "grid 8": (8, 8)}


def test_standard_errors_are_for_all_trials_or_none() -> None:
    made = client()
    run(made, 6)
    ((index, point),) = made.get_next_trials(max_trials=1).items()
    tell(made, index, point, sem=0.1)
    with pytest.raises(InvalidDataError, match=r"loss: trials \[6\] have a .*attach_data\(6, {'loss': value}\)`"):
        made.get_next_trials(max_trials=1)
    made.attach_data(6, {"loss": loss(point)})
    ((index, point),) = made.get_next_trials(max_trials=1).items()
    tell(made, index, point, sem=0.0)
    with pytest.raises(InvalidDataError, match=r"loss: trials \[7\] have a standard error"):
        made.get_next_trials(max_trials=1)


def test_trials_without_a_standard_error_are_named() -> None:
    made = client()
    run(made, 6, sem=0.1)
    ((index, point),) = made.get_next_trials(max_trials=1).items()
    tell(made, index, point)
    with pytest.raises(InvalidDataError, match=r"trials \[6\] have no .*attach_data\(6, {'loss': \(value, sem\)}\)`"):
        made.get_next_trials(max_trials=1)
    made.attach_data(6, {"loss": (loss(point), 0.1)})
    assert made.get_next_trials(max_trials=1)


def test_a_model_that_ax_did_not_make_is_fitted() -> None:
    X = torch.rand(12, 2, dtype=torch.float64)
    model = WISKI(X, X.sum(-1, keepdim=True), grid_size=8)
    dispatch._fit(model, dispatch.ExactMarginalLogLikelihood)
    assert stream_of(model).refitted == 1


def test_points_are_placed_only_for_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    placed: list[int] = []

    def counted(X: Tensor, count: int, seed: int) -> Tensor:
        placed.append(len(X))
        return centres(X, count, seed)

    centres = softki._centres
    monkeypatch.setattr(softki, "_centres", counted)
    made = client("softki", refit_growth=1.5, num_interpolation_points=3)
    run(made, 9)
    ((_, stream),) = streaming(made).items()
    assert stream.streamed >= 2
    assert len(set(placed)) == stream.refitted
