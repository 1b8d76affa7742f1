"""Storage of whole models: hyperparameters, grids, data and statistics, in a file of tensors only."""

import os
from typing import Any

import torch
from torch import Tensor

from bo_scale.errors import InvalidDataError
from bo_scale.files import replacing
from bo_scale.models.shell.model import ScalableModel
from bo_scale.models.shell.rows import Rows

FORMAT = 3


def save_model(model: ScalableModel, path: str | os.PathLike[str]) -> None:
    """Write a model to a file that `torch.load(weights_only=True)` reads. The write is atomic.

    Args:
        model: A model without fantasies.
        path: The file to write.
    """
    if model._fantasies is not None:
        raise InvalidDataError("save_model: the model holds fantasies; save the model it was made from.")
    write_atomically(model_content(model), path)


def load_model(model: ScalableModel, path: str | os.PathLike[str]) -> ScalableModel:
    """Restore a saved model into one constructed with the same options (on any data), and return it.

    It continues exactly as the saved model would have, to the last bit.

    Raises:
        InvalidDataError: if the file is of another class of model or another format.
    """
    return restore_model(model, torch.load(path, weights_only=True, map_location=model._device), str(path))


def model_content(model: ScalableModel) -> dict[str, Any]:
    """Return a model as plain tensors: hyperparameters, rows, and what was derived from them."""
    derived = model._saved_inference()  # first: what is inferred lazily may set parameters
    return {
        "format": FORMAT,
        "class": type(model).__name__,
        "state": {name: value.clone() for name, value in model.state_dict().items()},
        "rows": None if model._rows is None else [model._rows.X.clone(), model._rows.Y.clone(), model._rows.D.clone()],
        **derived,
    }


def restore_model(model: Any, content: dict[str, Any], source: str = "content") -> ScalableModel:
    """Restore a model from its `model_content`, and return it.

    Raises:
        InvalidDataError: if the content is of another class of model or another format.
    """
    if content.get("format") != FORMAT or content.get("class") != type(model).__name__:
        found = f"{content.get('class')}, format {content.get('format')}"
        raise InvalidDataError(
            f"{source}: holds {found}; expected {type(model).__name__}, format {FORMAT}. Build "
            f"and fit it anew from its data."
        )
    rows: list[Tensor] | None = content["rows"]
    restored: ScalableModel = model
    state = content["state"]
    if "rows_digest" in state:  # what was made for the rows in the state comes with them
        restored.rows_digest = state["rows_digest"].clone()
    restored._take_rows(None if rows is None else Rows.of(*rows))
    torch.nn.Module.load_state_dict(restored, state)
    with torch.no_grad():
        restored._inference = restored._restored_inference(content)
    return restored.eval()


def write_atomically(content: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """Write tensors to a file atomically: it holds the old content or the new, never half."""
    with replacing(path) as unfinished, unfinished.open("wb") as file:
        torch.save(content, file)
