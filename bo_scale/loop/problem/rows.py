"""Read points, in any of the forms that users give, into columns: the values of each parameter."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from bo_scale.errors import InvalidDataError, SpaceError
from bo_scale.loop.problem.parameters import Column, Parameter, When
from bo_scale.spelling import suggestion

_NO_INPUT = torch.empty(1, 0, dtype=torch.float64)


def columns_of(points: Any, parameters: Sequence[Parameter], names: Sequence[str] | None) -> list[Column]:
    """Return the values of each parameter.

    Args:
        points: A tensor, array or nested list `n × k`, or one row of k values; with names also one dictionary, a list
            of them or a DataFrame, from which fixed and conditional parameters may be missing; these are then None.
        parameters: k of them.
        names: Their names, or None.

    Raises:
        InvalidDataError: for a wrong number of columns, or values that are no numbers where they must be.
        SpaceError: for parameters that are missing or unknown.
    """
    points = records_of(points)
    if isinstance(points, Mapping):
        points = [points]
    listed = isinstance(points, Sequence) and not isinstance(points, str) and len(points) > 0
    if listed and isinstance(points[0], Mapping):
        ordered = [_ordered(row, point, parameters, names) for row, point in enumerate(points)]
        return [list(column) for column in zip(*ordered)]
    if listed and not all(parameter.numeric for parameter in parameters):
        return _columns_of_values(points, len(parameters))
    return list(_numbers(points, len(parameters)).unbind(-1))


def records_of(table: Any) -> Any:
    """Return a pandas DataFrame as a list of dictionaries, a Series as an array, and anything else as it is."""
    if hasattr(table, "to_dict") and hasattr(table, "columns"):
        return table.to_dict("records")
    return table.to_numpy() if hasattr(table, "to_numpy") else table


def rows_not_finite(column: Column) -> list[int]:
    """Return the rows of a column with a number that is not finite."""
    if isinstance(column, Tensor):
        return (~torch.isfinite(column)).nonzero().squeeze(-1).tolist()
    return [row for row, value in enumerate(column) if isinstance(value, float) and not math.isfinite(value)]


def some(rows: list[int], shown: int = 5) -> str:
    """Write the first few row numbers for a message."""
    return f"{rows[:shown]}{'…' if len(rows) > shown else ''}"


def mismatch(what: str, missing: Sequence[str], unknown: Sequence[str]) -> str:
    """Return what is wrong with the names in a row: "lacks the parameters ['y']", for example."""
    parts = [f"lacks the {what} {list(missing)}"] if missing else []
    parts += [f"has unknown {what} {list(unknown)}"] if unknown else []
    return " and ".join(parts)


def _ordered(
    row: int, point: Mapping[str, Any], parameters: Sequence[Parameter], names: Sequence[str] | None
) -> list[Any]:
    """Return the values of a dictionary in the order of the parameters."""
    if names is None:
        raise SpaceError(
            "X: got dictionaries, but the space has no names. Give rows of numbers, or name the parameters."
        )
    fixed = {name: each.decode(_NO_INPUT)[0] for name, each in zip(names, parameters) if not each.inputs}
    conditional = {name: None for name, each in zip(names, parameters) if isinstance(each, When)}
    whole = {**conditional, **fixed, **point}
    missing, unknown = sorted(set(names) - set(whole)), sorted(set(point) - set(names))
    if missing or unknown:
        raise SpaceError(f"X: row {row} {mismatch('parameters', missing, unknown)}.{suggestion(unknown, names)}")
    return [whole[name] for name in names]


def _columns_of_values(points: Sequence[Any], k: int) -> list[Column]:
    """Return the columns of rows of values that are not all numbers, or of one row."""
    rows = points if isinstance(points[0], Sequence) and not isinstance(points[0], str) else [points]
    if any(len(row) != k for row in rows):
        raise InvalidDataError(f"X: expected {k} values per row, one for each parameter.")
    return [list(column) for column in zip(*rows)]


def _numbers(points: Any, k: int) -> Float[Tensor, "n k"]:
    """Return rows of k numbers."""
    try:
        raw = torch.as_tensor(points, dtype=torch.float64).detach().cpu()
    except (TypeError, ValueError) as error:
        raise InvalidDataError(f"X: not rows of numbers ({error}). Give n × {k} numbers, one row per point.") from error
    if raw.ndim == 1 and len(raw) == k:
        raw = raw.unsqueeze(0)
    if raw.numel() == 0:
        return raw.reshape(0, k)
    if raw.ndim != 2 or raw.shape[-1] != k:
        raise InvalidDataError(f"X: shape {tuple(raw.shape)}; expected n × {k}, one row per point.")
    return raw
