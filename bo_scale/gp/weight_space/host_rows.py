"""Statistics of more rows than a GPU holds: the rows stay on the host, and chunks of them visit the device."""

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from bo_scale.errors import InvalidDataError
from bo_scale.gp.waiting import reading_once
from bo_scale.gp.weight_space.features.base import FeatureMap
from bo_scale.gp.weight_space.statistics import SufficientStatistics

CHUNK = 1 << 17
"""Number of rows that are copied at once."""


def summed_from_host(
    features: FeatureMap,
    X: Float[Tensor, "n d"],
    Y: Float[Tensor, "n m"],
    D: Float[Tensor, " n"] | None = None,
    *,
    device: torch.device,
    start: SufficientStatistics | None = None,
    rows: int = CHUNK,
) -> SufficientStatistics:
    """Sum rows of the host on a device, and wait once for all of them. Equal to `SufficientStatistics.from_data`.

    Chunks are copied from pinned memory, without waiting: while the device sums one, the host prepares the next. Rows
    that are pinned already (`X.pin_memory()`) are copied as they are; others pass through pinned memory. Give float32
    to copy half as much; sums are float64 in any case.

    Args:
        features: The feature map, on the device.
        X: Inputs in the units of the feature map, on the CPU.
        Y: Targets, on the CPU.
        D: Relative noise variances, on the CPU; None for ones.
        device: Where to sum.
        start: Statistics to add to, on the device; None for none.
        rows: Number of rows that are copied at once.

    Raises:
        InvalidDataError: if the rows are not on the CPU, or not as many of each.
    """
    require_host(X=X, Y=Y, D=D)
    given = (X, Y) if D is None else (X, Y, D)
    empty = SufficientStatistics.empty(features, Y.shape[-1], device) if start is None else start

    def summed() -> SufficientStatistics:
        found = empty
        for x, y, *noise in chunks(given, device, rows):
            found = found.observe(features, x, y, *noise)
        return found

    return reading_once(device, summed)


def require_host(X: Tensor, **others: Tensor | None) -> None:
    """Refuse rows that are not on the CPU, or not as many as there are inputs.

    Raises:
        InvalidDataError: naming the argument.
    """
    for name, values in {"X": X, **others}.items():
        if values is not None and (values.device.type != "cpu" or len(values) != len(X)):
            raise InvalidDataError(f"{name}: {len(values)} rows on {values.device}, expected {len(X)} on the CPU.")


def chunks(given: Sequence[Tensor], device: torch.device, rows: int = CHUNK) -> Iterator[list[Tensor]]:
    """Yield rows of the host on a device, some at a time, by copies from pinned memory for which nobody waits."""
    for first in range(0, len(given[0]), rows):
        yield [_there(values[first : first + rows], device) for values in given]


def _there(values: Tensor, device: torch.device) -> Tensor:
    if device.type == "cpu":
        return values
    pinned = values if values.is_pinned() else values.pin_memory()
    return pinned.to(device, non_blocking=True)
