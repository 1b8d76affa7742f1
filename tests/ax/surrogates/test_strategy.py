"""Through Ax's client: every model proposes and streams, with one objective, two, constraints, and known noise."""

import logging

import pytest
import torch
from ax.adapter.cross_validation import cross_validate
from ax.adapter.registry import Generators
from ax.api.client import Client
from ax.core.parameter import ParameterType, RangeParameter
from ax.generation_strategy.generation_strategy import GenerationNode, GenerationStrategy
from ax.generation_strategy.generator_spec import GeneratorSpec
from ax.generators.torch.botorch_modular.surrogate import SurrogateSpec
from botorch.exceptions.errors import UnsupportedError
from clients import attach, client, loss, models, run
from gpytorch.mlls import LeaveOneOutPseudoLikelihood

import bo_scale.ax.surrogates.dispatch as dispatch
from bo_scale import WISKI, CaGP
from bo_scale.ax import TRANSFORMS, generation_strategy, model_config, streaming
from bo_scale.models.catalogue import MODELS

pytestmark = [
    pytest.mark.usefixtures("short_fits"),
    pytest.mark.filterwarnings("ignore::botorch.exceptions.warnings.InputDataWarning"),
]

SETTINGS = [
    pytest.param("-loss", None, ("loss",), None, id="one"),
    pytest.param("-loss, gain", None, ("loss", "gain"), None, id="two"),
    pytest.param("-loss", ["cost <= 3"], ("loss", "cost"), None, id="constrained"),
    pytest.param("-loss", None, ("loss",), 0.1, id="known"),
]


@pytest.mark.parametrize(("objective", "constraints", "names", "sem"), SETTINGS)
def test_streamed_equals_scratch(
    objective: str, constraints: list[str] | None, names: tuple[str, ...], sem: float | None
) -> None:
    made = client(objective=objective, constraints=constraints)
    run(made, 9, names, sem)
    assert set(streaming(made)) == set(names)
    for stream in streaming(made).values():
        assert (stream.count, stream.accumulated) == (8, 0)
        assert stream.streamed > 0
        assert stream.refitted + stream.streamed == 4
    surrogate = made._generation_strategy.adapter.generator.surrogate
    X = 2 * torch.rand(20, 2, dtype=torch.float64)
    for dataset, model in zip(surrogate.training_data, models(made), strict=True):
        scratch = WISKI(
            dataset.X,
            dataset.Y,
            dataset.Yvar,
            grid_size=8,
            input_transform=model.input_transform,
            covar_module=model.covar_module,
            likelihood=None if sem is not None else model.likelihood,
        )
        scratch.load_state_dict(model.state_dict())
        one, two = model.posterior(X), scratch.posterior(X)
        torch.testing.assert_close(one.mean, two.mean, rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(one.variance, two.variance, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("name", list(MODELS))
def test_every_model_proposes_and_streams(name: str, caplog: pytest.LogCaptureFixture) -> None:
    made = client(name)
    with caplog.at_level(logging.INFO, logger="bo_scale.ax"):
        run(made, 9)
        stream = streaming(made)["loss"]
    assert type(models(made)[0]) is MODELS[name].model
    assert stream.model == MODELS[name].model.__name__
    assert f"loss: {stream}" in caplog.text
    assert f"model='{stream.model}'" in repr(stream)
    assert (stream.count, stream.refitted, stream.streamed, stream.accumulated) == (8, 2, 2, 0)
    assert "streamed, n = 8" in caplog.text
    point, prediction, index, _ = made.get_best_parameterization()
    assert index in range(9)
    assert loss(point) < loss({"x": 1.0, "y": 1.0})
    assert "loss" in prediction


def test_an_ensemble_with_a_constraint_proposes() -> None:
    made = client("grief_bayes", constraints=["cost <= 3"])
    run(made, 6, ("loss", "cost"))
    assert {stream.count for stream in streaming(made).values()} == {5}


def test_refit_growth_and_options_reach_the_model() -> None:
    made = client("wiski", refit_growth=3.0, grid_size=9)
    run(made, 10)
    assert streaming(made)["loss"].refitted == 1
    assert models(made)[0].grid.size == (9, 9)


def test_the_model_standardises_as_of_its_last_fit() -> None:
    """What is inside stays as it was; only the outcome transform follows Ax's units."""
    made = client(refit_growth=100.0)
    run(made, 7)
    first = models(made)[0]
    inside = first.train_targets.clone()
    run(made, 3)
    second = models(made)[0]
    torch.testing.assert_close(second.train_targets[: len(inside)], inside)
    assert not torch.equal(first.outcome_transform.means, second.outcome_transform.means)


def test_nodes_of_ones_own() -> None:
    """With Ax's own transforms targets count as revised whenever Winsorize moves its cutoffs."""
    spec = SurrogateSpec(model_configs=[model_config("wiski", grid_size=8)])
    ours = GeneratorSpec(Generators.BOTORCH_MODULAR, generator_kwargs={"surrogate_spec": spec})
    node = GenerationNode(name="ours", generator_specs=[ours])
    made = client()
    run(made, 5)
    made.set_generation_strategy(GenerationStrategy(nodes=[node], name="own"))
    run(made, 4)
    stream = streaming(made)["loss"]
    assert stream.count == 8
    assert stream.refitted + stream.streamed + stream.accumulated == 4


def test_nodes_of_ones_own_stream_with_the_exported_transforms() -> None:
    assert "Winsorize" not in {each.__name__ for each in TRANSFORMS}
    spec = SurrogateSpec(model_configs=[model_config("wiski", grid_size=8)])
    options = {"surrogate_spec": spec, "transforms": TRANSFORMS}
    ours = GeneratorSpec(Generators.BOTORCH_MODULAR, generator_kwargs=options)
    made = client()
    run(made, 5)
    made.set_generation_strategy(GenerationStrategy(nodes=[GenerationNode("ours", [ours])], name="own"))
    run(made, 3)
    stream = streaming(made)["loss"]
    assert (stream.count, stream.changed, stream.accumulated) == (7, 0, 0)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match=r"model='gp': choose one of \['cagp', .*, or 'auto'"):
        generation_strategy("gp")
    with pytest.raises(ValueError, match=r"refit_growth=1\.0: must be above 1"):
        model_config("wiski", refit_growth=1.0)
    with pytest.raises(ValueError, match=r"epoch: not an option of WISKI; choose from \['basis', .*'rank'\]"):
        generation_strategy("wiski", epoch=3)
    with pytest.raises(ValueError, match="epoch: not an option of any model"):
        generation_strategy("auto", epoch=3)
    assert streaming(Client()) == {}
    made = client()
    run(made, 6)
    model = models(made)[0]
    with pytest.raises(UnsupportedError, match="mll_class"):
        dispatch._fit(model, LeaveOneOutPseudoLikelihood)
    with pytest.raises(UnsupportedError, match="mll_options"):
        dispatch._fit(model, dispatch.ExactMarginalLogLikelihood, {"a": 1})


def test_a_space_that_changes() -> None:
    """Nothing observed lies in it, or it has more inputs than the model chosen first serves."""
    made = client()
    run(made, 7)
    for parameter in made._experiment.search_space.parameters.values():
        parameter.update_range(1.97, 2.0)
    ((_, point),) = made.get_next_trials(max_trials=1).items()
    assert all(1.97 <= value <= 2.0 for value in point.values())
    made = client("auto")
    run(made, 7)
    more = [RangeParameter(f"z{j}", ParameterType.FLOAT, 0.0, 2.0, backfill_value=1.0) for j in range(3)]
    made._experiment.add_parameters_to_search_space(more)
    for _ in range(2):
        for index, point in made.get_next_trials(max_trials=1).items():
            made.complete_trial(index, {"loss": loss(point)})
    assert streaming(made)["loss"].chosen.startswith("auto: cagp, 5 inputs") or type(models(made)[0]) is CaGP


@pytest.mark.parametrize("name", list(MODELS))
def test_pure_noise_is_not_predicted(name: str) -> None:
    """Neither in closed form, where there is one, nor fold by fold."""
    n, g = 120, torch.Generator().manual_seed(1)
    made = client(name, initialization_budget=1, **({"num_actions": 256} if name == "cagp" else {}))
    attach(made, 2 * torch.rand(n, 2, generator=g, dtype=torch.float64), torch.randn(n, generator=g))
    for _ in range(2):
        made.get_next_trials(max_trials=1)
    assert streaming(made)["loss"].count == n
    for folds in (5,) if name == "decoupled" else (-1, 5):
        results = cross_validate(made._generation_strategy.adapter, folds=folds)
        pairs = torch.tensor([[float(r.observed.data.means[0]), float(r.predicted.means[0])] for r in results])
        assert len(pairs) == n
        assert pairs[:, 1].std() < 1e-9 or torch.corrcoef(pairs.mT)[0, 1] < 0.3  # of noise: sd 0.09
