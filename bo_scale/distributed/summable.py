"""Models whose rows are summed in parts, and the sums."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from bo_scale.distributed.tables import Rows
from bo_scale.models import decoupled_sums
from bo_scale.models.decoupled import DecoupledGP
from bo_scale.models.decoupled_sums import DecoupledStatistics
from bo_scale.models.errors import UnsupportedError
from bo_scale.models.shell.partial_statistics import PartialStatistics, restored, without_rows
from bo_scale.models.shell.weight_space import WeightSpaceModel


@runtime_checkable
class Sums(Protocol):
    """Sums over some rows. Those of other rows may be added."""

    @property
    def content(self) -> dict[str, Any]:
        """Return the sums as plain tensors and numbers."""

    def save(self, path: str | os.PathLike[str], **beside: Any) -> None:
        """Write a file, with plain values beside."""


@runtime_checkable
class Summable(Protocol):
    """A model without rows, which says what is summed of some, and becomes the model of these."""

    def summed(self, batches: Iterator[Rows], rows: int) -> Sums:
        """Return the sums of raw rows, of which so many are summed at once."""

    def restored(self, content: Any, source: str) -> Any:
        """Return sums from their content; refuse those of another model, naming the source."""


@dataclass(frozen=True)
class OfWeights:
    """A model of weights without rows.

    Attributes:
        model: The model.
    """

    model: WeightSpaceModel

    def summed(self, batches: Iterator[Rows], rows: int) -> PartialStatistics:
        """Return the statistics of rows."""
        model = self.model
        for X, Y, noise in batches:
            model = model.observe_from_host(X, Y, noise, rows)
        return PartialStatistics.of(model)

    def restored(self, content: Any, source: str) -> PartialStatistics:
        """Return statistics from their content."""
        return restored(content, self.model, source)


@dataclass(frozen=True)
class OfBases:
    """A decoupled GP without rows.

    Attributes:
        model: The model.
    """

    model: DecoupledGP

    def summed(self, batches: Iterator[Rows], rows: int) -> DecoupledStatistics:
        """Return the sums over rows."""
        return decoupled_sums.summed(self.model, batches)

    def restored(self, content: Any, source: str) -> DecoupledStatistics:
        """Return sums from their content."""
        return decoupled_sums.restored(content, self.model, source)


def blank_of(model: Any) -> Any:
    """Return a copy of a model without its rows.

    Raises:
        UnsupportedError: if no sums over parts of the rows make the model, with the reason.
    """
    if isinstance(model, DecoupledGP):
        return decoupled_sums.without_rows(model)
    if not isinstance(model, WeightSpaceModel):
        raise UnsupportedError(
            f"model: {type(model).__name__} keeps its rows, and no sums of them determine its posterior. Use WISKI, "
            "SoftKI, GRIEF or DecoupledGP, whose sums add up."
        )
    return without_rows(model)


def summable(blank: Any) -> Summable:
    """Return what is sent to workers of a model without rows, on the CPU."""
    return OfBases(blank.cpu()) if isinstance(blank, DecoupledGP) else OfWeights(blank.cpu())
