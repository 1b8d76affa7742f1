"""Small experiments, and what an Ax client holds."""

import math
from typing import Any

import pandas as pd
from ax.api.client import Client
from ax.api.configs import RangeParameterConfig
from ax.core.data import Data
from torch import Tensor

from bo_scale.ax import generation_strategy
from bo_scale.models.shell.model import ScalableModel

CHEAP: dict[str, dict[str, Any]] = {
    "wiski": {"grid_size": 8},
    "softki": {"num_interpolation_points": 16, "epochs": 2},
    "grief": {"num_eigenfunctions": 30, "grid_points": 6},
    "grief_bayes": {"num_eigenfunctions": 20, "grid_points": 5, "num_samples": 8},
    "cagp": {"num_actions": 64},
    "decoupled": {"num_mean_inducing": 32, "num_covar_inducing": 16, "num_steps": 0},
}


def client(
    model: str = "wiski",
    objective: str = "-loss",
    constraints: list[str] | None = None,
    parameters: list[Any] | None = None,
    parameter_constraints: list[str] | None = None,
    **options: Any,
) -> Client:
    """An experiment over two floats unless told otherwise, with a cheap model of ours."""
    made = Client()
    floats = [RangeParameterConfig(name=name, parameter_type="float", bounds=(0.0, 2.0)) for name in ("x", "y")]
    made.configure_experiment(parameters=parameters or floats, parameter_constraints=parameter_constraints)
    made.configure_optimization(objective=objective, outcome_constraints=constraints)
    strategy = generation_strategy(model, seed=0, **{**CHEAP.get(model, {}), **options})
    quick = {"optimizer_kwargs": {"num_restarts": 2, "raw_samples": 16}}
    strategy._nodes[-1].generator_specs[0].generator_gen_kwargs["model_gen_options"] = quick
    made.set_generation_strategy(strategy)
    return made


def loss(point: Any) -> float:
    return (point["x"] - 1.2) ** 2 + 0.5 * math.sin(3 * point["y"])


def outcomes(point: Any) -> dict[str, float]:
    """Of every name that the tests use."""
    return {"loss": loss(point), "cost": point["x"] + point["y"] ** 2, "gain": math.cos(point["x"]) * point["y"]}


def run(made: Client, trials: int, names: tuple[str, ...] = ("loss",), sem: float | None = None) -> None:
    """Ask for trials one by one, and tell of them."""
    for _ in range(trials):
        for index, point in made.get_next_trials(max_trials=1).items():
            tell(made, index, point, names, sem)


def tell(made: Client, index: int, point: Any, names: tuple[str, ...] = ("loss",), sem: float | None = None) -> None:
    """Complete a trial."""
    values = outcomes(point)
    made.complete_trial(index, {name: values[name] if sem is None else (values[name], sem) for name in names})


def attach(made: Client, points: Tensor, values: Tensor) -> None:
    """Complete trials at points `n × 2` with values of the loss, all at once: one by one each copies those before."""
    indices = [made.attach_trial(dict(zip("xy", row, strict=True))) for row in points.tolist()]
    arms = [made._experiment.trials[index].arm.name for index in indices]
    metric = {"metric_name": "loss", "metric_signature": "loss", "sem": math.nan, "step": math.nan}
    frame = pd.DataFrame({"trial_index": indices, "arm_name": arms, "mean": values.tolist()}).assign(**metric)
    made._experiment.attach_data(Data(df=frame))
    for index in indices:
        made.complete_trial(index)


def models(made: Client) -> list[ScalableModel]:
    """Those of the surrogate now, one an outcome."""
    surrogate = made._generation_strategy.adapter.generator.surrogate
    return [model for model in surrogate._submodels.values() if isinstance(model, ScalableModel)]
