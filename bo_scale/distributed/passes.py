"""Passes over shards that workers make apart: sums of all rows, and derivatives with respect to features."""

import logging
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bo_scale.distributed.scheduling import Processes, Submits, Task, finished
from bo_scale.distributed.shards import Shard
from bo_scale.distributed.summable import Summable, Sums
from bo_scale.distributed.tables import Rows, require_finite
from bo_scale.distributed.tree import Tree
from bo_scale.errors import BoScaleError, InvalidDataError
from bo_scale.gp.weight_space.feature_gradients import Gradients
from bo_scale.models.shell.merging import in_model_units
from bo_scale.models.shell.partial_statistics import read
from bo_scale.models.shell.weight_space import WeightSpaceModel, learned_features, pulled_back_through
from bo_scale.threads import one_thread

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Passes:
    """Shards, and who makes passes over them.

    Attributes:
        shards: The shards; their numbers fix the order of all sums.
        rows: Rows that are summed at once.
        executor: Where shards are worked on.
        progress: Whether to show a bar; None for only on a terminal.
    """

    shards: Sequence[Shard]
    rows: int
    executor: "Submits | Processes | None"
    progress: bool | None

    def sums(self, blank: Summable, folder: Path | None = None, called: str = "shards") -> Any:
        """Return the sums of all rows.

        Args:
            blank: The model without rows, on the CPU.
            folder: Folder of the sums of each shard, from which a second pass goes on; None for none.
            called: What the bar calls the shards.
        """
        tree = Tree(len(self.shards))
        sent = deepcopy(blank)  # while a thread of a pool pickles it, restoring would fill its caches
        for number, content in self._each(_Summing(sent, self.rows, folder), called):
            tree.add(number, blank.restored(content, f"shard {number}"))
        return tree.total

    def pulled_back(
        self, blank: WeightSpaceModel, centers: list[Tensor], grads: list[Gradients], called: str
    ) -> list[Tensor]:
        """Return derivatives with respect to the learned features, given those with respect to the sums.

        Args:
            blank: The model without rows, on the CPU.
            centers: Center of the targets in each group of statistics.
            grads: Derivatives with respect to the sums of each group.
            called: What the bar calls the shards.
        """
        tree = Tree(len(self.shards))
        for number, found in self._each(_PullingBack(blank, self.rows, centers, grads), called):
            tree.add(number, found)
        sizes = [p.shape for p in learned_features(blank)]
        parts = tree.total.split([size.numel() for size in sizes])
        return [part.reshape(size) for part, size in zip(parts, sizes, strict=True)]

    def _each(self, task: Task, called: str) -> Any:
        return finished(_Named(task), self.shards, self.executor, self.progress, called)


@dataclass(frozen=True)
class _Named:
    """A task whose errors name the shard; one thread, for the same bits anywhere.

    Attributes:
        task: The task.
    """

    task: Task

    def __call__(self, number: int, shard: Shard) -> Any:
        """Return what the task does."""
        try:
            with one_thread():
                return self.task(number, shard)
        except (BoScaleError, OSError) as error:
            raise InvalidDataError(f"shards: number {number} ({shard.name}): {error}") from error


@dataclass(frozen=True)
class _Summing:
    """Summing of a shard, as it is sent to a worker.

    Attributes:
        blank: The model without rows.
        rows: Rows that are summed at once.
        folder: Folder of the statistics of shards; None for none.
    """

    blank: Summable
    rows: int
    folder: Path | None

    def __call__(self, number: int, shard: Shard) -> dict[str, Any]:
        """Return the statistics of a shard as plain tensors; from its file if that is of the same rows."""
        identity = f"{shard.identity()}, {self.rows} rows at once"
        path = None if self.folder is None else self.folder / f"{number:08d}.pt"
        kept = self._kept(path, identity)
        if kept is not None:
            return kept
        found: Sums = self.blank.summed(_checked(shard, self.rows), self.rows)
        if path is not None:
            found.save(path, shard=identity)
        return found.content

    def _kept(self, path: Path | None, identity: str) -> dict[str, Any] | None:
        """Return what the file of a shard holds; None if it is not there, damaged, or of other rows or features."""
        if path is None or not path.exists():
            return None
        try:
            found = read(path, torch.device("cpu"))
            self.blank.restored(found, "")
        except InvalidDataError as error:
            logger.info("%s: not gone on from, its shard is summed anew: %s", path, error)
            return None
        return found if found.get("shard") == identity else None


@dataclass(frozen=True)
class _PullingBack:
    """Derivatives of a shard's sums with respect to the features, as they are sent to a worker.

    Attributes:
        model: The model without rows.
        rows: Rows that are read at once.
        centers: Center of the targets in each group of statistics.
        grads: Derivatives with respect to the sums of each group.
    """

    model: WeightSpaceModel
    rows: int
    centers: list[Tensor]
    grads: list[Gradients]

    def __call__(self, number: int, shard: Shard) -> Tensor:
        """Return the derivatives in a row."""
        total = torch.cat([torch.zeros_like(p).reshape(-1) for p in learned_features(self.model)])
        for X, Y, noise in _checked(shard, self.rows):
            with torch.no_grad():
                seen = in_model_units(self.model, X, Y, noise)
            found = pulled_back_through(self.model, self.centers, seen, self.grads)
            total = total + torch.cat([each.reshape(-1) for each in found])
        return total


def _checked(shard: Shard, rows: int) -> Any:
    """Yield the rows of a shard, so many at a time, all of which are finite."""
    start = 0
    found: Rows
    for found in shard.batches(rows):
        X, Y, noise = found
        require_finite(start, X=X, Y=Y, noise=noise)
        yield found
        start += len(X)
