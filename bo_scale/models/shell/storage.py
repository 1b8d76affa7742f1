"""Storage of whole models: hyperparameters, grids, data and statistics, in a file of tensors only."""

import os
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from bo_scale.errors import InvalidDataError, WrongTypeError
from bo_scale.files import replacing
from bo_scale.models.shell.cloning import unchanged_on_failure
from bo_scale.models.shell.model import ScalableModel
from bo_scale.models.shell.rows import Rows

FORMAT = 3


def save_model(model: ScalableModel, path: str | os.PathLike[str]) -> None:
    """Write a model to a file that `torch.load(weights_only=True)` reads. The write is atomic.

    Args:
        model: A model without fantasies.
        path: The file to write.

    Raises:
        WrongTypeError: if `model` is not a model of this package.
        InvalidDataError: if the model holds fantasies.
    """
    _require_model(model)
    if model._fantasies is not None:
        raise InvalidDataError("model: it holds fantasies. Save the model that they were made from.")
    write_atomically(model_content(model), path)


def load_model(model: ScalableModel, path: str | os.PathLike[str]) -> ScalableModel:
    """Restore a saved model into one constructed with the same options, on any data, and return it.

    The restored model continues as the saved one would have, to the last bit.

    The file holds hyperparameters, transforms, data, statistics and posterior. A WISKI's grid and its basis, and the
    points of a SoftKI, come from the file too. Give all other options to the constructor again: `decay`,
    `conservative`, the kernel, and so on. The file names those on which its content depends, and another value is
    refused. A Matérn kernel's nu is not in the file and cannot be checked. Older files name no options: only their
    sizes are checked.

    Args:
        model: A model of the class that was saved. It is changed in place.
        path: The file to read.

    Raises:
        WrongTypeError: if `model` is not a model of this package.
        InvalidDataError: if the file is of another class or format, or of a model with other options or sizes. The
            model is then unchanged.
    """
    _require_model(model)
    return restore_model(model, torch.load(path, weights_only=True, map_location=model._device), str(path))


def model_content(model: ScalableModel) -> dict[str, Any]:
    """Return a model as plain tensors: hyperparameters, rows, and what was derived from them."""
    derived = model._saved_inference()  # first: what is inferred lazily may set parameters
    return {
        "format": FORMAT,
        "class": type(model).__name__,
        "options": model._saved_options(),
        "state": {name: value.clone() for name, value in model.state_dict().items()},
        "rows": None if model._rows is None else [model._rows.X.clone(), model._rows.Y.clone(), model._rows.D.clone()],
        **derived,
    }


def restore_model(model: Any, content: dict[str, Any], source: str = "content") -> ScalableModel:
    """Restore a model from its `model_content`, and return it.

    Raises:
        InvalidDataError: if the content is of another class or format, or of a model with other options or sizes.
    """
    if not isinstance(content, dict) or not {"format", "class"} <= content.keys():
        raise InvalidDataError(f"{source}: holds no model that save_model wrote.")
    if content["format"] != FORMAT or content["class"] != type(model).__name__:
        found = f"{content['class']}, format {content['format']}"
        raise InvalidDataError(
            f"{source}: holds {found}; expected {type(model).__name__}, format {FORMAT}. Construct a model of the "
            f"saved class; if the format differs, fit the model anew from its data."
        )
    _require_same_options(model._saved_options(), content.get("options", {}), source)
    restored: ScalableModel = model
    with unchanged_on_failure(restored):
        _restore(restored, content, source)
    return restored.eval()


def _restore(model: ScalableModel, content: dict[str, Any], source: str) -> None:
    state: dict[str, Tensor] = content["state"]
    rows: list[Tensor] | None = content["rows"]
    if "rows_digest" in state:  # what was made for the rows in the state comes with them
        model.rows_digest = state["rows_digest"].clone()
    model._take_rows(None if rows is None else Rows.of(*rows))
    try:
        torch.nn.Module.load_state_dict(model, state)
    except RuntimeError as error:
        raise InvalidDataError(
            f"{source}: the saved model has other hyperparameters than this one. Construct this model with the kernel, "
            f"the transforms and the sizes of the saved one. {error}"
        ) from error
    with torch.no_grad():
        try:
            model._inference = model._restored_inference(content)
        except InvalidDataError as error:
            raise InvalidDataError(f"{source}: {error}") from error


def _require_model(model: Any) -> None:
    """Refuse whatever is not a model, a class of models above all."""
    if isinstance(model, type):
        raise WrongTypeError(
            f"model: expected a model, got the class {model.__name__}. Construct one, with the options of the saved "
            f"model and any data."
        )
    if not isinstance(model, ScalableModel):
        inner = " Pass its `model`." if isinstance(getattr(model, "model", None), ScalableModel) else ""
        raise WrongTypeError(f"model: expected a model of bo_scale, got {type(model).__name__}.{inner}")


def _require_same_options(own: Mapping[str, Any], saved: Mapping[str, Any], source: str) -> None:
    """Refuse content of a model with other options. Options that either side does not name are not compared."""
    for name, value in own.items():
        if name in saved and saved[name] != value:
            raise InvalidDataError(
                f"{source}: {name} is {saved[name]!r} in the saved model and {value!r} in this one. Construct this "
                f"model with the saved value."
            )


def write_atomically(content: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """Write tensors to a file atomically: it holds the old content or the new, never half."""
    with replacing(path) as unfinished, unfinished.open("wb") as file:
        torch.save(content, file)
