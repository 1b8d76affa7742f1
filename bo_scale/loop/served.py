"""The models that a loop serves by name, and how one is made of data."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from botorch.models.model import Model
from torch import Tensor

from bo_scale.errors import InvalidArgumentError
from bo_scale.models.catalogue import MODELS, options_of, preset, require_dimension, unit_cube
from bo_scale.models.choice.automatic import AutomaticModel
from bo_scale.models.choice.plan import FAMILIES
from bo_scale.spelling import suggestion

ModelFactory = Callable[[Tensor, Tensor, Tensor | None], Model]
"""A function of inputs `n × d` in the unit cube, values `n × 1` (larger is better) and noise variances or None that
returns a model."""


def served() -> list[str]:
    """Return the names of the models that a loop serves: all but ensembles, whose posteriors are several."""
    return sorted(name for name, kind in MODELS.items() if not kind.ensemble)


def model_factory(
    model: str | ModelFactory, options: Mapping[str, Any] | None, dimension: int
) -> ModelFactory | AutomaticModel:
    """Return a factory from a name and options for the constructor, or the factory given.

    Raises:
        InvalidArgumentError: if there is no model of that name, or its constructor has no such option.
        SpaceError: if the named model does not serve so many parameters.
    """
    if not isinstance(model, str):
        if options:
            raise InvalidArgumentError(
                "model_options: they apply to a model given by name. For a factory, put them into the factory."
            )
        return model
    if model == "auto":
        require_automatic_options(options or {})
        return AutomaticModel(dict(options or {}))
    if model not in served():
        raise InvalidArgumentError(
            f"model={model!r}: choose one of {['auto', *served()]}, or pass a factory (X, Y, Yvar) -> Model."
            f"{suggestion([model], ['auto', *served()])}"
        )
    make: Any = MODELS[model].model
    _require_options(make, options or {})
    factory = ", or pass a factory, as in model=lambda X, Y, Yvar: SingleTaskGP(X, Y, Yvar)"
    require_dimension(make, dimension, options, otherwise=factory)
    return lambda X, Y, Yvar: make(X, Y, Yvar, **preset(make, X, Yvar is not None, unit_cube(X), options or {}))


def require_automatic_options(options: Mapping[str, Any]) -> None:
    """Refuse options that some model lacks which "auto" may choose."""
    known = set.intersection(*(options_of(model) for model in FAMILIES.values())) | {"outcome_transform"}
    others = sorted(set(options) - known)
    if others:
        raise InvalidArgumentError(
            f"model_options: {others} are not options of every model that 'auto' may choose. Name the model that they "
            f"are for, as in model='wiski'. 'auto' takes {sorted(known)}.{suggestion(others, known)}"
        )


def _require_options(model: Any, options: Mapping[str, Any]) -> None:
    """Refuse options that the constructor has not, before anything is evaluated for the first model."""
    parameters = inspect.signature(model.__init__).parameters  # a class may have inherited another's signature
    known = sorted(set(parameters) - {"self", "train_X", "train_Y", "train_Yvar"})
    unknown = sorted(set(options) - set(known))
    if unknown and all(each.kind is not each.VAR_KEYWORD for each in parameters.values()):
        raise InvalidArgumentError(
            f"model_options: {unknown} are unknown; choose from {known}.{suggestion(unknown, known)}"
        )
