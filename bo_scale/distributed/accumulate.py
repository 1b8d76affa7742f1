"""Models of all rows from statistics of shards, which workers make apart.

stats(A) + stats(B) = stats(A ∪ B), so shards may be summed anywhere. They are added in a tree that is fixed by their
numbers, and each is summed by one thread: the result is the same to the last bit for any executor, any number of
workers and any order, and after any number of interruptions.
"""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from bo_scale.distributed.passes import Passes
from bo_scale.distributed.refit import refitted
from bo_scale.distributed.scheduling import Submits, kept_open
from bo_scale.distributed.shards import listed
from bo_scale.distributed.summable import blank_of, summable
from bo_scale.distributed.tables import Columns
from bo_scale.models.errors import UnsupportedError
from bo_scale.models.shell.weight_space import WeightSpaceModel

ROWS = 1 << 15
"""Rows that a worker sums at once: a quarter of those of one process, at equal cost, for 130 MB less."""


def accumulate(
    model: Any,
    shards: "Iterable[Any] | str | os.PathLike[str]",
    *,
    columns: Columns | None = None,
    executor: "Submits | int | None" = None,
    folder: str | os.PathLike[str] | None = None,
    refit: bool = False,
    optimizer_kwargs: Mapping[str, Any] | None = None,
    rows: int = ROWS,
    progress: bool | None = None,
) -> Any:
    """Return the model of all rows of the shards. The given one is unchanged, and its own rows have no part in it.

    Fit a model to a sample first: hyperparameters, grid or points, and the units of the targets are its. The result
    keeps statistics alone. It is the same to the last bit for any executor, and up to rounding that of one model which
    has observed all rows.

    Args:
        model: A WISKI, SoftKI, GRIEF or another model of weights; or a DecoupledGP with `polish`, whose variational
            parameters are then optimal for all rows. With decay, rows lose weight in the order of the shards.
        shards: Parts of the rows, in an order that stays: `(X, Y)` or `(X, Y, noise)` of tensors or arrays on the CPU,
            functions without arguments that return or yield such, paths of Parquet or Arrow files, patterns of these,
            folders. Several thousand rows or more each, so that sending a model and sums costs little.
        columns: Names of the files' columns.
        executor: Where shards are summed: whatever has the `submit` of `concurrent.futures`, such as Dask's
            `client.get_executor()`; a number of processes on this machine; None for this process. What is sent must be
            picklable: pools need functions of a module.
        folder: Folder for the statistics of each shard, which workers must see too. A second call goes on from what
            is there: shards whose file, size, time or tensors have changed, and those of another model or `rows`, are
            summed anew. So does a refit, from the evaluations that it has made.
        refit: Whether to fit the hyperparameters to all rows, by the evidence; before it targets are standardised anew,
            by the moments of all. This needs the statistics alone, whatever the number of rows, except where the model
            learns its features from all rows: a GRIEF with `learn_kernel`, a WISKI with a learned projection, a SoftKI
            with `joint_steps`. Each evaluation is then two passes over the shards.
        optimizer_kwargs: Options of that fit, as of `fit_gpytorch_mll`: `{"options": {"maxiter": 20}}`.
        rows: Rows that are summed at once.
        progress: Whether to show a bar; None for only on a terminal.

    Raises:
        UnsupportedError: for a model whose statistics do not add up, or a refit with decay of learned features.
        InvalidArgumentError: if there are no shards, or columns of files are not named.
        InvalidDataError: for a shard with rows that do not fit, that are not finite or cannot be read, with its number.
            What other shards have in the folder stays.
    """
    blank = blank_of(model)
    if refit and not isinstance(blank, WeightSpaceModel):
        raise UnsupportedError(
            f"refit: the sums of a {type(model).__name__} are those of its kernel. Fit it to a sample, and pass "
            "refit=False."
        )
    every = listed(shards, columns)
    where = None if folder is None else Path(folder)
    if where is not None:
        where.mkdir(parents=True, exist_ok=True)
    with kept_open(executor) as opened:
        passes = Passes(every, rows, opened, progress)
        found = blank.with_statistics(passes.sums(summable(blank_of(model)), where))
        return refitted(found, passes, where, optimizer_kwargs) if refit else found
