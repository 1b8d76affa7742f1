"""Models of all rows from statistics of shards, which workers make apart.

stats(A) + stats(B) = stats(A ∪ B), so shards may be summed anywhere. They are added in a tree that is fixed by their
numbers, and each is summed by one thread: the result is the same to the last bit for any executor, any number of
workers and any order, and after any number of interruptions.
"""

import logging
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models.transforms.outcome import Standardize
from gpytorch.mlls import ExactMarginalLogLikelihood

from bo_scale.distributed.parquet import Columns, require_finite
from bo_scale.distributed.scheduling import Submits, finished, one_thread
from bo_scale.distributed.shards import Shard, listed
from bo_scale.distributed.tree import Tree
from bo_scale.errors import BoScaleError, InvalidDataError
from bo_scale.models.errors import UnsupportedError
from bo_scale.models.shell.partial_statistics import PartialStatistics, read, restored, without_rows
from bo_scale.models.shell.weight_space import WeightSpaceModel

logger = logging.getLogger(__name__)
ROWS = 1 << 15
"""Rows that a worker sums at once: a quarter of those of one process, at equal cost, for 130 MB less."""


@dataclass(frozen=True)
class _Task:
    """Summing of a shard, as it is sent to a worker.

    Attributes:
        model: The model without rows.
        rows: Rows that are summed at once.
        folder: Folder of the statistics of shards; None for none.
    """

    model: WeightSpaceModel
    rows: int
    folder: Path | None

    def __call__(self, number: int, shard: Shard) -> dict[str, Any]:
        """Return the statistics of a shard as plain tensors; from its file if that is of the same rows."""
        try:
            identity = f"{shard.identity()}, {self.rows} rows at once"
            kept = self._kept(number, identity)
            if kept is not None:
                return kept
            with one_thread():
                found = self._summed(shard)
        except (BoScaleError, OSError) as error:
            raise InvalidDataError(f"shards: number {number} ({shard.name}): {error}") from error
        if self.folder is not None:
            found.save(self.path(number), shard=identity)
        return found.content

    def path(self, number: int) -> Path:
        """Return the file of a shard's statistics."""
        assert self.folder is not None, "there is a folder"
        return self.folder / f"{number:08d}.pt"

    def _kept(self, number: int, identity: str) -> dict[str, Any] | None:
        """Return what the file of a shard holds; None if it is not there, damaged, or of other rows or features."""
        if self.folder is None or not self.path(number).exists():
            return None
        try:
            found = read(self.path(number), torch.device("cpu"))
            restored(found, self.model, "")
        except InvalidDataError as error:
            logger.info("%s: not gone on from, its shard is summed anew: %s", self.path(number), error)
            return None
        return found if found.get("shard") == identity else None

    def _summed(self, shard: Shard) -> PartialStatistics:
        model, start = self.model, 0
        for X, Y, noise in shard.batches(self.rows):
            require_finite(start, X=X, Y=Y, noise=noise)
            model = model.observe_from_host(X, Y, noise, self.rows)
            start += len(X)
        return PartialStatistics.of(model)


def accumulate(
    model: Any,
    shards: "Iterable[Any] | str | os.PathLike[str]",
    *,
    columns: Columns | None = None,
    executor: "Submits | int | None" = None,
    folder: str | os.PathLike[str] | None = None,
    refit: bool = False,
    rows: int = ROWS,
    progress: bool | None = None,
) -> WeightSpaceModel:
    """Return the model of all rows of the shards. The given one is unchanged, and its own rows have no part in it.

    Fit a model to a sample first: hyperparameters, grid or points, and the units of the targets are its. The result
    keeps statistics alone. It is the same to the last bit for any executor, and up to rounding that of one model which
    has observed all rows.

    Args:
        model: A WISKI, SoftKI, GRIEF or another model of weights. With decay, rows lose weight in the order of the
            shards.
        shards: Parts of the rows, in an order that stays: `(X, Y)` or `(X, Y, noise)` of tensors or arrays on the CPU,
            functions without arguments that return or yield such, paths of Parquet files, patterns of these, folders.
            Several thousand rows or more each, so that sending a model and sums costs little.
        columns: Names of the files' columns.
        executor: Where shards are summed: whatever has the `submit` of `concurrent.futures`, such as Dask's
            `client.get_executor()`; a number of processes on this machine; None for this process. What is sent must be
            picklable: pools need functions of a module.
        folder: Folder for the statistics of each shard, which workers must see too. A second call goes on from what
            is there: shards whose file, size, time or tensors have changed, and those of another model or `rows`, are
            summed anew.
        refit: Whether to fit the hyperparameters to all rows, by the evidence, which needs the statistics alone; before
            it targets are standardised anew, by the moments of all. Not for models that learn features.
        rows: Rows that are summed at once.
        progress: Whether to show a bar; None for only on a terminal.

    Raises:
        UnsupportedError: for a model whose statistics do not add up, or a refit of one that learns features.
        InvalidArgumentError: if there are no shards, or columns of files are not named.
        InvalidDataError: for a shard with rows that do not fit, that are not finite or cannot be read, with its number.
            What other shards have in the folder stays.
    """
    blank = _blank(model)
    if refit and blank.learns_features:
        raise UnsupportedError(
            f"refit: {type(model).__name__} learns its features, which needs rows. Fit it to a sample, and accumulate "
            "with refit=False."
        )
    every = listed(shards, columns)
    where = None if folder is None else Path(folder)
    if where is not None:
        where.mkdir(parents=True, exist_ok=True)
    task, tree = _Task(_blank(model).cpu(), rows, where), Tree(len(every))
    for number, content in finished(task, every, executor, progress, "shards"):
        tree.add(number, restored(content, task.model, f"shard {number}"))
    found = blank.with_statistics(tree.total)
    return _refitted(found) if refit else found


def _blank(model: Any) -> WeightSpaceModel:
    if not isinstance(model, WeightSpaceModel):
        raise UnsupportedError(
            f"model: {type(model).__name__} keeps its rows, and no sums of them determine its posterior. Use WISKI, "
            "SoftKI or GRIEF, whose statistics add up."
        )
    return without_rows(model)


def _refitted(model: WeightSpaceModel) -> WeightSpaceModel:
    """Return the model with hyperparameters fitted to its statistics, targets standardised by the moments of all."""
    transform = getattr(model, "outcome_transform", None)
    if type(transform) is Standardize and model.num_observations > 1:
        mean, sd = PartialStatistics.of(model).moments()
        stdvs = transform.stdvs * sd.to(transform.stdvs)
        means = transform.means + transform.stdvs * mean.to(transform.means)
        model = model.restandardised(means, stdvs)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    return model
