"""Checks at a model's door: what cannot be used is refused by a message that names the argument and the remedy."""

import operator
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bo_scale.errors import DataWarning, InvalidArgumentError, InvalidDataError, WrongTypeError
from bo_scale.gp.waiting import LARGEST, holds, in_range

FLOATS = (torch.float64, torch.float32)
DIGITS_LEFT = 1e2
"""Number of steps of rounding, at the largest value of a column, below which the others' spread loses its digits."""
HUGE = 1e9
"""Least distance of such a value from the median: a nearer one may be a peak among values that vanish."""


def require_tensors(**given: Any) -> None:
    """Refuse anything but tensors of float32 or float64, and None.

    Raises:
        WrongTypeError: for another type.
        InvalidDataError: for another dtype.
    """
    for name, values in given.items():
        if values is None:
            continue
        if not isinstance(values, Tensor):
            raise WrongTypeError(
                f"{name}: expected a tensor, got {type(values).__name__}. Pass torch.as_tensor(…, dtype=torch.float64)."
            )
        if values.dtype not in FLOATS:
            raise InvalidDataError(f"{name}: {values.dtype} is not supported. Pass float64: {name}.double().")


def require_given(**given: Any) -> None:
    """Refuse None, and what `require_tensors` refuses.

    Raises:
        WrongTypeError: naming the argument.
    """
    for name, values in given.items():
        if values is None:
            raise WrongTypeError(f"{name}: expected a tensor, got None.")
    require_tensors(**given)


def require_device(device: torch.device, **tensors: Tensor | None) -> None:
    """Refuse tensors of another device than the model's, or than that of the inputs.

    Raises:
        InvalidDataError: naming the argument.
    """
    for name, values in tensors.items():
        if values is not None and values.device != device:
            raise InvalidDataError(
                f"{name}: on {values.device}, but the others are on {device}. Pass {name}.to({str(device)!r})."
            )


def require_finite(**tensors: Tensor | None) -> None:
    """Refuse NaN, inf, and values whose squares overflow; the error names the argument and the rows."""
    for name, values in tensors.items():
        if values is not None and not holds(in_range(values)):
            what = f"values beyond ±{LARGEST:g}" if bool(torch.isfinite(values).all()) else "NaN or inf"
            rows = (~in_range(values)).reshape(-1, values.shape[-1]).any(-1).nonzero().squeeze(-1).tolist()
            raise InvalidDataError(f"{name}: {what} in rows {rows[:5]}{'…' if len(rows) > 5 else ''}; drop them.")


def warn_of_dwarfed(**tensors: Tensor) -> None:
    """Warn of columns in which one value is so large that all others lose their digits when they are scaled.

    Args:
        tensors: Tables `n × d` of finite values. O(n) for each column.
    """
    for name, values in tensors.items():
        if values.ndim != 2 or len(values) == 0 or holds(values.amax(0) - values.amin(0) <= HUGE):
            continue  # without medians, which take a second for a million rows of 20 columns
        median, few = values.median(0).values, DIGITS_LEFT * torch.finfo(values.dtype).eps
        away = (values - median).abs()
        spread, (largest, row) = away.median(0).values, away.max(0)
        lost = (spread > few * median.abs()) & (spread < few * largest)  # of digits that are there
        dwarfed = lost & (largest > HUGE)
        if not holds(~dwarfed):
            column = int(dwarfed.nonzero()[0])
            warnings.warn(
                f"{name}: beside {values[row[column], column].item():g} in column {column} all other values are the "
                f"same in {values.dtype}, but for a few digits. If it stands for a missing value, drop its row.",
                DataWarning,
                stacklevel=2,
            )


def require_data(train_X: Any, train_Y: Any, train_Yvar: Any) -> None:
    """Refuse training data that are no matrices, or that do not pair.

    The number of dimensions and shared dtypes are left to BoTorch, which names them.
    """
    require_given(train_X=train_X, train_Y=train_Y)
    require_tensors(train_Yvar=train_Yvar)
    require_device(train_X.device, train_Y=train_Y, train_Yvar=train_Yvar)
    require_finite(train_X=train_X, train_Y=train_Y, train_Yvar=train_Yvar)
    warn_of_dwarfed(train_X=train_X, train_Y=train_Y)
    if train_X.ndim != 2 or train_Y.ndim != 2:
        return
    if len(train_X) != len(train_Y):
        raise InvalidDataError(
            f"train_X, train_Y: {len(train_X)} rows of inputs and {len(train_Y)} of targets. Give one target for each "
            "input."
        )
    for name, values in (("train_X", train_X), ("train_Y", train_Y)):
        if values.shape[-1] == 0:
            raise InvalidDataError(f"{name}: shape {tuple(values.shape)} has no columns. Give at least one.")


def require_inputs(X: Any, dimension: int, name: str = "X", device: torch.device | None = None) -> None:
    """Refuse inputs that are not finite points `… q d` of d columns, or are on another device.

    Args:
        X: Raw inputs.
        dimension: Number d of columns.
        name: Name of the argument, for messages.
        device: Where they must be; None for anywhere.
    """
    require_given(**{name: X})
    if device is not None:
        require_device(device, **{name: X})
    if X.ndim < 2:
        raise InvalidDataError(
            f"{name}: shape {tuple(X.shape)}, expected … × q × {dimension}. For one point, pass "
            f"{name}.reshape(1, {dimension})."
        )
    if X.shape[-1] != dimension:
        raise InvalidDataError(f"{name}: {X.shape[-1]} columns, expected {dimension}, as in train_X.")
    require_finite(**{name: X})


def require_state(own: Mapping[str, Any], state: Mapping[str, Any]) -> None:
    """Refuse a state with anything but tensors where the model has tensors. What is missing is left to PyTorch.

    Raises:
        WrongTypeError: naming the entry.
    """
    for name, value in own.items():
        given = state.get(name)
        if isinstance(value, Tensor) and not isinstance(given, Tensor | None):
            raise WrongTypeError(f"state_dict: {name!r} is of type {type(given).__name__}, expected a tensor.")


def require_whole(value: Any, name: str) -> int:
    """Return a whole number of any type; refuse anything else, truth values among it."""
    try:
        return _whole(value)
    except TypeError:
        raise InvalidArgumentError(f"{name}={value!r}: must be a whole number.") from None


def require_outputs(indices: Any, outputs: int, name: str = "output_indices") -> list[int]:
    """Return indices of outputs, counted from 0; refuse those that are not there.

    Args:
        indices: Whole numbers from −m to m − 1.
        outputs: Number m of outputs.
        name: Name of the argument, for messages.
    """
    try:
        found = [_whole(i) for i in indices]
    except TypeError:
        raise InvalidArgumentError(f"{name}: expected a list of whole numbers, got {indices!r}.") from None
    if not found:
        raise InvalidArgumentError(f"{name}: the list is empty. Name at least one output, or pass None for all.")
    if any(not -outputs <= i < outputs for i in found):
        raise InvalidArgumentError(f"{name}: {found}, but there are {outputs} outputs. Count from 0 to {outputs - 1}.")
    return [i % outputs for i in found]


def _whole(value: Any) -> int:
    if isinstance(value, bool | np.bool_) or (isinstance(value, Tensor) and value.dtype == torch.bool):
        raise TypeError
    return operator.index(value)


def require_noise(noise: Any, shape: Sequence[int], name: str, zero: bool = True) -> None:
    """Refuse noise variances that are not one for each value.

    Args:
        noise: Variances that broadcast to the values; points may share them, outputs may not. None for none.
        shape: Shape `… q m` of the values.
        name: Name of the argument, for messages.
        zero: Whether variances may be 0.
    """
    if noise is None:
        return
    require_tensors(**{name: noise})
    q, m = shape[-2:]
    given = tuple(noise.shape)
    if len(given) < 2 or given[-1] != m or given[-2] not in (1, q) or not broadcasts(given[:-2], shape[:-2]):
        raise InvalidDataError(
            f"{name}: shape {given} for values of shape {tuple(shape)}. Give {q} × {m} variances, or 1 × {m} for all "
            "points."
        )
    require_finite(**{name: noise})
    if not holds(noise >= 0 if zero else noise > 0):
        raise InvalidDataError(f"{name}: variances must be positive.")


def broadcasts(shape: Sequence[int], to: Sequence[int]) -> bool:
    """Return whether a shape can be expanded to another."""
    try:
        return torch.broadcast_shapes(shape, to) == torch.Size(to)
    except RuntimeError:
        return False
