"""Shards of rows: tensors, Parquet and Arrow files, or functions that make rows where they are called."""

import glob
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from bo_scale.distributed.tables import ENDINGS, Columns, Rows, TableFile
from bo_scale.errors import InvalidArgumentError, WrongTypeError
from bo_scale.models.shell.digest import digest_of


@runtime_checkable
class Shard(Protocol):
    """A part of the rows, which a worker reads some at a time."""

    @property
    def name(self) -> str:
        """Return what messages call it."""

    def identity(self) -> str:
        """Return what tells whether its rows have changed."""

    def batches(self, count: int) -> Iterator[Rows]:
        """Yield its rows, so many at a time."""


@dataclass(frozen=True)
class InMemory:
    """Rows in memory, which are sent to the worker.

    Attributes:
        rows: The rows.
    """

    rows: Rows
    name = "tensors"

    def identity(self) -> str:
        """Return a digest of the rows."""
        return digest_of(self.rows)

    def batches(self, count: int) -> Iterator[Rows]:
        """Yield the rows, so many at a time."""
        X, Y, noise = self.rows
        for start in range(0, len(X), count):
            part = slice(start, start + count)
            yield X[part], Y[part], None if noise is None else noise[part]


@dataclass(frozen=True)
class Made:
    """Rows that a function makes, or yields by parts, where it is called.

    Attributes:
        make: The function. Process pools and clusters need one that can be pickled.
    """

    make: Callable[[], Any]

    @property
    def name(self) -> str:
        """Return the function's name."""
        return str(getattr(self.make, "__qualname__", type(self.make).__name__))

    def identity(self) -> str:
        """Return the name: what the function makes is taken to be always the same."""
        return self.name

    def batches(self, count: int) -> Iterator[Rows]:
        """Yield what the function makes, so many rows at a time."""
        found = self.make()
        for part in [found] if isinstance(found, tuple) else found:
            yield from InMemory(_rows(part, self.name)).batches(count)


def numeric_columns(sources: "Iterable[Any] | str | os.PathLike[str]") -> list[str]:
    """Return the names of the columns of numbers in the first of some Parquet files, in its order.

    Raises:
        InvalidArgumentError: for no files.
        InvalidDataError: for a file that cannot be read.
    """
    first = next(each for each in listed(sources, Columns([], [])) if isinstance(each, TableFile))
    return first.numeric()


def listed(shards: "Iterable[Any] | str | os.PathLike[str]", columns: Columns | None) -> list[Shard]:
    """Return shards in the order that numbers them. Patterns of paths stand for their files, sorted by name.

    Args:
        shards: Tuples `(X, Y)` or `(X, Y, noise)` of tensors or arrays, functions, files, or patterns of these.
        columns: Names of the files' columns.

    Raises:
        InvalidArgumentError: if there are none, or columns of files are not named.
        WrongTypeError: for something else.
    """
    found: list[Shard] = []
    for each in [shards] if isinstance(shards, str | os.PathLike) else shards:
        if isinstance(each, str | os.PathLike):
            found += [TableFile(path, _required(columns)) for path in _paths(os.fspath(each))]
        elif callable(each):
            found.append(Made(each))
        else:
            found.append(InMemory(_rows(each, f"shard {len(found)}")))
    if not found:
        raise InvalidArgumentError("shards: there are none.")
    return found


def _paths(pattern: str) -> list[str]:
    if Path(pattern).is_dir():
        pattern = os.path.join(pattern, "*")
    found = sorted(glob.glob(pattern)) if glob.has_magic(pattern) else [pattern]
    found = [path for path in found if path.endswith(ENDINGS) or path == pattern]
    if not found or not all(map(os.path.isfile, found)):
        raise InvalidArgumentError(f"shards: {pattern!r}: no such Parquet or Arrow file. Check the path.")
    return found


def _required(columns: Columns | None) -> Columns:
    if columns is None:
        raise InvalidArgumentError(
            "columns: name the columns of the files: columns=Columns(inputs=['x1', 'x2'], targets='y')."
        )
    return columns


def _rows(given: Any, name: str) -> Rows:
    """Return rows as tensors.

    Raises:
        WrongTypeError: if they are no tuple of two or three tables of numbers.
    """
    if not isinstance(given, Sequence) or len(given) not in (2, 3):
        raise WrongTypeError(
            f"{name}: expected (X, Y) or (X, Y, noise), a function that returns such, or the path of a Parquet file; "
            f"got {type(given).__name__}."
        )
    X, Y, noise = (*given, None)[:3]
    return _tensor(X, name), _tensor(Y, name), None if noise is None else _tensor(noise, name)


def _tensor(values: Any, name: str) -> Tensor:
    if isinstance(values, Tensor):
        return values
    try:
        return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float64))
    except (TypeError, ValueError) as error:
        raise WrongTypeError(f"{name}: expected tensors or arrays of numbers, got {type(values).__name__}.") from error
