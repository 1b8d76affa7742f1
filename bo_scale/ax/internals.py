"""The parts of Ax that have no public name, read in one place."""

from collections.abc import Mapping, Sequence
from typing import Any

from ax.api.client import Client
from ax.core.base_trial import BaseTrial
from ax.core.experiment import Experiment
from ax.generation_strategy.generation_strategy import GenerationStrategy
from ax.generators.torch.botorch_modular.generator import BoTorchGenerator
from ax.generators.torch.botorch_modular.surrogate import Surrogate
from botorch.models.model import Model
from botorch.utils.datasets import SupervisedDataset

# ruff: noqa: SLF001


def experiment_of(client: Client) -> Experiment:
    """Return the experiment of a client."""
    return client._experiment


def save_trials(client: Client, trials: Sequence[BaseTrial]) -> None:
    """Write trials to the client's database, if it has one."""
    client._save_or_update_trials_in_db_if_possible(experiment=client._experiment, trials=list(trials))


def properties_of(experiment: Experiment) -> dict[str, Any]:
    """Return the properties that Ax stores with an experiment, to be read and changed."""
    return experiment._properties


def last_generator_arguments(strategy: GenerationStrategy) -> dict[str, Any]:
    """Return the arguments of the generator in the last node of a strategy, to be changed."""
    return strategy._nodes[-1].generator_specs[0].generator_kwargs


def submodels_of(surrogate: Surrogate) -> Mapping[Any, Model]:
    """Return the models of a surrogate by the outcomes that they predict."""
    return surrogate._submodels


def training_data_of(surrogate: Surrogate) -> list[SupervisedDataset]:
    """Return the data sets that a surrogate was last fitted to."""
    return surrogate._training_data or []


def surrogate_of(client: Client) -> Surrogate | None:
    """Return the surrogate with which a client generated trials last; None before the first."""
    strategy = client._maybe_generation_strategy
    adapter = None if strategy is None else strategy.adapter
    generator = None if adapter is None else adapter.generator
    return generator._surrogate if isinstance(generator, BoTorchGenerator) else None
