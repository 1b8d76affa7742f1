"""Generation strategies for Ax's client."""

import logging
from collections.abc import Sequence
from typing import Any

from ax.adapter.registry import MBM_X_trans
from ax.adapter.transforms.bilog_y import BilogY
from ax.adapter.transforms.derelativize import Derelativize
from ax.adapter.transforms.standardize_y import StandardizeY
from ax.api.client import Client
from ax.api.utils.generation_strategy_dispatch import choose_generation_strategy
from ax.api.utils.structs import GenerationStrategyDispatchStruct
from ax.generation_strategy.generation_strategy import GenerationStrategy
from ax.generators.torch.botorch_modular.utils import ModelConfig
from ax.storage.botorch_modular_registry import register_model
from botorch.acquisition.acquisition import AcquisitionFunction
from botorch.models.model import Model

from bo_scale.ax.internals import last_generator_arguments, submodels_of, surrogate_of
from bo_scale.ax.surrogates.acquisition import PLUG_IN, StreamingAcquisition
from bo_scale.ax.surrogates.automatic import Automatic
from bo_scale.ax.surrogates.stream import Stream, stream_of
from bo_scale.errors import InvalidArgumentError
from bo_scale.models.catalogue import MODELS, options_of
from bo_scale.models.refit import GROWTH
from bo_scale.models.shell.model import ScalableModel

logger = logging.getLogger("bo_scale.ax")
TRANSFORMS = [*MBM_X_trans, Derelativize, BilogY, StandardizeY]
"""Transforms for a generation node with one of our models: Ax's own without Winsorize.

Winsorize clips outliers at cutoffs that depend on the data. Whenever the cutoffs move, old targets change and count as
revised, so the model would not stream.
"""


def generation_strategy(
    model: str = "auto",
    acquisition: type[AcquisitionFunction] | None = None,
    initialization_budget: int | None = None,
    device: str | None = None,
    refit_growth: float = GROWTH,
    seed: int | None = None,
    **model_options: Any,
) -> GenerationStrategy:
    """Make a strategy for `Client.set_generation_strategy`: Sobol points, then optimisation with one of our models.

    It uses Ax's `BOTORCH_MODULAR` generator with a surrogate that streams: between two fits, new trials condition the
    existing model. `streaming` reports what the surrogate did.

    Args:
        model: "wiski", "softki", "grief", "grief_bayes", "cagp", "decoupled", or "auto", which takes the model that
            `choose` names. "wiski" serves up to 4 inputs after Ax's transforms. An unordered choice of more than two
            values has an input for each value. The step of a trial is an input too if trials are at different steps.
        acquisition: Class of a BoTorch acquisition function that Ax knows. None means expected improvement over the
            best posterior mean; for several objectives, Ax's choice (qLogNEHVI).
        initialization_budget: Number of Sobol trials, including the centre of the space; 5 by default.
        device: Device of the models and of the search for candidates, for example "cuda".
        refit_growth: Factor by which the number of observations grows between two fits of the hyperparameters.
        seed: Seed of the Sobol points.
        **model_options: Options for the model's constructor. "auto" passes on those that the chosen model has. An
            experiment can be stored if they are numbers, strings or tensors.

    Raises:
        InvalidArgumentError: for an unknown model, an unknown option, or a growth that is not above 1.

    Examples:
        >>> from ax.api.client import Client
        >>> from ax.api.configs import RangeParameterConfig
        >>> client = Client()
        >>> client.configure_experiment([RangeParameterConfig(name="x", parameter_type="float", bounds=(0, 1))])
        >>> client.configure_optimization("-loss")
        >>> client.set_generation_strategy(generation_strategy("wiski"))
        >>> sorted(client.get_next_trials(max_trials=1))
        [0]
    """
    struct = GenerationStrategyDispatchStruct(
        method="custom",
        initialization_budget=initialization_budget,
        initialization_random_seed=seed,
        torch_device=device,
    )
    config = model_config(model, refit_growth, **model_options)
    strategy = choose_generation_strategy(struct, model_config=config, botorch_acqf_class=acquisition)
    arguments = last_generator_arguments(strategy)
    arguments["transforms"] = [*TRANSFORMS]
    arguments["torch_device"] = device  # by name: Ax's storage forgets which GPU a torch.device is
    arguments["acquisition_class"] = StreamingAcquisition
    arguments["acquisition_options"][PLUG_IN] = acquisition is None
    return strategy


def model_config(model: str = "auto", refit_growth: float = GROWTH, **model_options: Any) -> ModelConfig:
    """Make a surrogate for generation nodes of your own: `SurrogateSpec(model_configs=[model_config("softki")])`.

    Give the node the transforms `TRANSFORMS`.

    Args:
        model: See `generation_strategy`.
        refit_growth: See `generation_strategy`.
        **model_options: See `generation_strategy`.

    Raises:
        InvalidArgumentError: for an unknown model, an unknown option, or a growth that is not above 1.
    """
    if model != "auto" and model not in MODELS:
        raise InvalidArgumentError(f"model={model!r}: choose one of {sorted(MODELS)}, or 'auto'.")
    if not refit_growth > 1:
        raise InvalidArgumentError(f"refit_growth={refit_growth}: must be above 1.")
    model_class: type[ScalableModel] = Automatic if model == "auto" else _class_of(model)
    _require_known(model_options, [kind.model for kind in MODELS.values()] if model == "auto" else [model_class])
    options = {"refit_growth": float(refit_growth), **model_options}
    return ModelConfig(botorch_model_class=model_class, model_options=options, name=f"bo_scale {model}")


def _class_of(name: str) -> type[ScalableModel]:
    """Return the class of a model by name, known to Ax's storage from here on.

    Raises:
        InvalidArgumentError: for a class that does not stream in Ax.
    """
    model = MODELS[name].model
    if not issubclass(model, ScalableModel):
        raise InvalidArgumentError(
            f"model={name!r}: {model.__name__} is not a model of bo_scale. Give it to Ax as a `botorch_model_class`."
        )
    register_model(model)
    return model


def _require_known(options: dict[str, Any], models: Sequence[type[Model]]) -> None:
    known = sorted({name for model in models for name in options_of(model)} - {"keep_data"})  # Ax hands over all data
    for name in options:
        if name not in known:
            whose = models[0].__name__ if len(models) == 1 else "any model"
            raise InvalidArgumentError(f"{name}: not an option of {whose}; choose from {known}.")


def streaming(client: Client) -> dict[str, Stream]:
    """Report, for each outcome, its model, and how often it was fitted, streamed or accumulated. The log says it too.

    Args:
        client: The client of the experiment.

    Returns:
        A `Stream` by the name of the outcome; none before the first model.
    """
    surrogate = surrogate_of(client)
    if surrogate is None:
        return {}
    streams = {}
    for names, model in submodels_of(surrogate).items():
        if isinstance(model, ScalableModel):
            streams[", ".join(names)] = stream_of(model)
            logger.info("%s: %s", ", ".join(names), stream_of(model))
        else:
            logger.info("%s: %s, which is not a model of bo_scale.", ", ".join(names), type(model).__name__)
    return streams
