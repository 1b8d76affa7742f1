"""Models without some of their observations."""

from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from bo_scale.errors import InvalidDataError
from bo_scale.models.errors import UnsupportedError
from bo_scale.models.shell.arguments import require_row_numbers
from bo_scale.models.shell.cloning import clone_module
from bo_scale.models.shell.conditioning import new_inputs
from bo_scale.models.shell.door import require_device, require_finite, require_given, require_noise, require_tensors
from bo_scale.models.shell.row_noise import relative_noise

M = TypeVar("M", bound=Any)
"""A `WeightSpaceModel`."""


def without_rows(model: M, rows: Sequence[int] | Tensor | None, *values: Tensor | None) -> M:
    """Remove rows by index, for models that keep rows."""
    assert model._rows is not None, "called where rows are kept"
    if rows is None or any(given is not None for given in values):
        raise InvalidDataError("rows: this model keeps its data. Give the indices of the rows, without X, Y or noise.")
    numbers = require_row_numbers(rows, model._rows.count).to(model._device)
    inference = None if model.forgetting.forgets else model._inference
    child = clone_module(model)
    child._inference = None
    if inference is not None:
        child._inference = model._seen().without(*(each[numbers] for each in model._transformed_rows()))
    child._take_rows(model._rows.without(numbers))
    return child


def without_values(
    model: M, rows: Sequence[int] | Tensor | None, X: Tensor | None, Y: Tensor | None, noise: Tensor | None
) -> M:
    """Remove observations by value, for models that keep only statistics."""
    if rows is not None or X is None or Y is None:
        raise InvalidDataError("X, Y: this model keeps no rows to select by index. Give both, exactly as observed.")
    if model.forgetting.forgets:
        raise UnsupportedError(
            "decay: the weights of observations depend on their ages, which are lost without rows. Use keep_data=True."
        )
    require_given(X=X, Y=Y)
    require_tensors(noise=noise)
    require_device(model._device, X=X, Y=Y, noise=noise)
    require_finite(X=X, Y=Y)
    if X.ndim != 2 or Y.shape != (len(X), model._num_outputs) or X.shape[-1] != model._num_inputs:
        expected = f"k × {model._num_inputs} and k × {model._num_outputs}"
        raise InvalidDataError(f"X, Y: shapes {tuple(X.shape)} and {tuple(Y.shape)}, expected {expected}.")
    require_noise(noise, Y.shape, "noise", zero=model.knows_noise)
    transformed = new_inputs(model, X)
    if hasattr(model, "outcome_transform"):
        Y, _ = model.outcome_transform(Y=Y, Yvar=None, X=transformed)
    D = relative_noise(Y, noise, model.learned_noise).expand_as(Y)
    child = clone_module(model)
    child._inference = model._seen().without(transformed.to(torch.float64), Y.to(torch.float64), D)
    child._tell_likelihood()
    return child
