"""The names that Ax may change without notice."""

from ax.core.experiment import Experiment
from clients import client

from bo_scale.ax.internals import (
    experiment_of,
    last_generator_arguments,
    properties_of,
    save_trials,
    submodels_of,
    surrogate_of,
    training_data_of,
)


def test_parts_of_a_client_are_found() -> None:
    made = client("wiski")
    experiment = experiment_of(made)
    assert isinstance(experiment, Experiment)
    properties_of(experiment)["key"] = "value"
    assert properties_of(experiment)["key"] == "value"
    assert surrogate_of(made) is None
    assert "transforms" in last_generator_arguments(made._generation_strategy)
    save_trials(made, [])  # without a database it does nothing


def test_models_and_their_data_are_found_once_there_are_any() -> None:
    made = client("wiski", initialization_budget=2)
    for value in range(3):
        ((index, _),) = made.get_next_trials(max_trials=1).items()
        made.complete_trial(index, {"loss": float(value)})
    made.get_next_trials(max_trials=1)
    surrogate = surrogate_of(made)
    assert surrogate is not None
    assert list(submodels_of(surrogate)) == [("loss",)]
    assert [len(each.X) for each in training_data_of(surrogate)] == [3]
