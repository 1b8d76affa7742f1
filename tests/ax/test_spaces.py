"""Parameters of every kind: proposals stay in the space, and models stream."""

import math
from typing import Any

import pytest
from ax.api.client import Client
from ax.api.configs import ChoiceParameterConfig, RangeParameterConfig
from clients import CHEAP

from bo_scale.ax import generation_strategy, streaming
from bo_scale.errors import SpaceError

pytestmark = pytest.mark.usefixtures("short_fits", "short_walks")


def real(name: str) -> RangeParameterConfig:
    return RangeParameterConfig(name=name, parameter_type="float", bounds=(0.0, 2.0))


def choice(name: str, kind: Any, values: list[Any], ordered: bool | None = None) -> ChoiceParameterConfig:
    return ChoiceParameterConfig(name=name, parameter_type=kind, values=values, is_ordered=ordered)


RATE = RangeParameterConfig(name="rate", parameter_type="float", bounds=(1e-4, 1.0), scaling="log")
LAYERS = RangeParameterConfig(name="layers", parameter_type="int", bounds=(1, 4))
WIDTH = RangeParameterConfig(name="width", parameter_type="int", bounds=(1, 40))
BATCH = choice("batch", "int", [16, 32, 64], ordered=True)
METHOD = choice("method", "str", ["adam", "sgd"])
COLOUR = choice("colour", "str", ["red", "green", "blue"])
FIXED = choice("fixed", "float", [3.0])
KINDS = [RATE, LAYERS, WIDTH, BATCH, METHOD, COLOUR, FIXED]
BUDGET = "x + y <= 1.5"
COSTS = {"red": 0.6, "green": 0.0, "blue": 0.3, "adam": 0.0, "sgd": 0.2}


def objective(point: Any) -> float:
    """Something of every parameter there is."""
    total = (point.get("x", 1.0) - 1.0) ** 2 + 0.3 * point.get("y", 0.0)
    total += 0.1 * abs(math.log10(point.get("rate", 1e-2)) + 2.0) + 0.02 * point.get("width", 0)
    total += 0.1 * point.get("layers", 0) + point.get("batch", 0) / 100
    return total + sum(COSTS.get(point.get(name), 0.0) for name in ("method", "colour"))


def made(
    model: str, parameters: list[Any], constraints: list[str] | None = None, quick: bool = False, **options: Any
) -> Client:
    """An experiment whose acquisition functions are maximised as everybody's are, unless quick."""
    client = Client()
    client.configure_experiment(parameters=parameters, parameter_constraints=constraints)
    client.configure_optimization("-loss")
    strategy = generation_strategy(model, seed=0, **{**CHEAP.get(model, {}), **options})
    if quick:
        few = {"num_restarts": 2, "raw_samples": 16, "options": {"maxiter_alternating": 2}}
        strategy._nodes[-1].generator_specs[0].generator_gen_kwargs["model_gen_options"] = {"optimizer_kwargs": few}
    client.set_generation_strategy(strategy)
    return client


def search(client: Client, trials: int) -> list[dict[str, Any]]:
    """Points proposed, all of them evaluated."""
    points = []
    for _ in range(trials):
        for index, point in client.get_next_trials(max_trials=1).items():
            client.complete_trial(index, {"loss": objective(point)})
            points.append(point)
    return points


def assert_in_space(parameters: list[Any], points: list[dict[str, Any]], budget: bool = False) -> None:
    assert len({tuple(point.items()) for point in points}) == len(points)
    for point in points:
        assert set(point) == {parameter.name for parameter in parameters}
        assert not budget or point["x"] + point["y"] <= 1.5 + 1e-8
        for parameter in parameters:
            value = point[parameter.name]
            assert type(value).__name__ == parameter.parameter_type
            if isinstance(parameter, RangeParameterConfig):
                assert parameter.bounds[0] <= value <= parameter.bounds[1]
            else:
                assert value in parameter.values


@pytest.mark.parametrize("model", ["softki", "auto"])
def test_all_kinds_at_once(model: str) -> None:
    parameters = [real("x"), real("y"), *KINDS]
    client = made(model, parameters, [BUDGET], quick=True)
    points = search(client, 7)
    assert_in_space(parameters, points, budget=True)
    stream = streaming(client)["loss"]
    assert stream.count == 6
    assert stream.streamed > 0
    assert stream.accumulated == 0
    assert model != "auto" or "exact GP" in stream.chosen


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_one_kind_beside_a_float(kind: Any) -> None:
    """With the strategy's own options: Ax has another optimiser for few combinations, for many and for none."""
    client = made("wiski", [real("x"), kind], grid_size=5)
    assert_in_space([real("x"), kind], search(client, 7))
    assert streaming(client)["loss"].streamed > 0


def test_a_constraint_among_floats() -> None:
    parameters = [real("x"), real("y")]
    client = made("wiski", parameters, [BUDGET])
    assert_in_space(parameters, search(client, 7), budget=True)
    assert streaming(client)["loss"].streamed > 0


@pytest.mark.parametrize("second", [BATCH, METHOD], ids=lambda kind: kind.name)
def test_no_floats(second: Any) -> None:
    client = made("wiski", [LAYERS, second], grid_size=5)
    assert_in_space([LAYERS, second], search(client, 7))
    assert streaming(client)["loss"].streamed > 0


@pytest.mark.parametrize(
    ("parameters", "inputs"),
    [([real(name) for name in "vwxyz"], 5), ([*[real(name) for name in "xyz"], COLOUR], 6)],
    ids=["floats", "one-hot"],
)
def test_more_than_a_grid_serves(parameters: list[Any], inputs: int) -> None:
    client = made("wiski", parameters)
    search(client, 5)
    with pytest.raises(SpaceError, match=rf"{inputs} parameters after Ax's transforms.*'cagp' or 'softki'"):
        client.get_next_trials(max_trials=1)
