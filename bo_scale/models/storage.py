"""Saving whole models: hyperparameters, grids, data and statistics, in a file of tensors only."""

import os
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bo_scale.errors import InvalidDataError
from bo_scale.models.rows import Rows
from bo_scale.models.weight_space import WeightSpaceModel

FORMAT = 1


def save_model(model: WeightSpaceModel, path: str | os.PathLike[str]) -> None:
    """Write a model to a file that `torch.load(weights_only=True)` reads. Atomic: the old file or the new, never half.

    Args:
        model: A model without fantasies.
        path: The file.
    """
    if model._fantasies is not None:
        raise InvalidDataError("save_model: the model holds fantasies; save the model it was made from.")
    content: dict[str, Any] = {
        "format": FORMAT,
        "class": type(model).__name__,
        "state": dict(model.state_dict()),
        "rows": None if model._rows is None else [model._rows.X.clone(), model._rows.Y.clone(), model._rows.D.clone()],
        "statistics": [stats.state() for stats in model.statistics],
    }
    target = Path(path)
    with tempfile.NamedTemporaryFile(dir=target.parent, prefix=target.name, delete=False) as file:
        try:
            torch.save(content, file)
            file.flush()
            os.fsync(file.fileno())
            os.replace(file.name, target)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise


def load_model(model: WeightSpaceModel, path: str | os.PathLike[str]) -> WeightSpaceModel:
    """Restore a saved model into one that was constructed with the same options (on any data), and return it.

    Raises:
        InvalidDataError: if the file is of another class of model or another format.
    """
    content = torch.load(path, weights_only=True, map_location=model._device)
    if content.get("format") != FORMAT or content.get("class") != type(model).__name__:
        found, wanted = (
            f"{content.get('class')}, format {content.get('format')}",
            f"{type(model).__name__}, format {FORMAT}",
        )
        raise InvalidDataError(f"{path}: holds {found}; expected {wanted}.")
    rows: list[Tensor] | None = content["rows"]
    model._restore(content["state"], None if rows is None else Rows.of(*rows), content["statistics"])
    return model.eval()
