"""Shards of rows: tensors, Parquet files, or functions that make rows where they are called."""

import glob
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from bo_scale.errors import InvalidArgumentError, InvalidDataError, MissingDependencyError, WrongTypeError
from bo_scale.models.shell.digest import digest_of

Rows = tuple[Tensor, Tensor, Tensor | None]
"""Raw inputs `n × d`, values `n × m`, and noise variances `n × m` or None."""
ENDINGS = (".parquet", ".pq")
BATCH = 1 << 16
"""Rows that are read at once to find their range."""


@dataclass(frozen=True)
class Columns:
    """Names of the columns of Parquet files.

    Attributes:
        inputs: Columns of the inputs, in the model's order.
        targets: Column of the target, or one for each output.
        noise: Columns of noise variances, one for each target; none if noise is learned.
    """

    inputs: Sequence[str]
    targets: "str | Sequence[str]"
    noise: "str | Sequence[str]" = ()

    @property
    def groups(self) -> tuple[list[str], list[str], list[str]]:
        """The columns of inputs, targets and noise."""
        targets, noise = ([each] if isinstance(each, str) else list(each) for each in (self.targets, self.noise))
        return list(self.inputs), targets, noise


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


@dataclass(frozen=True)
class ParquetFile:
    """A Parquet file.

    Attributes:
        path: The file.
        columns: Names of its columns.
    """

    path: str
    columns: Columns

    @property
    def name(self) -> str:
        """Return the path."""
        return self.path

    def identity(self) -> str:
        """Return name, size and time of the file, and the columns."""
        found = os.stat(self.path)
        return repr((Path(self.path).name, found.st_size, found.st_mtime_ns, self.columns.groups))

    def batches(self, count: int) -> Iterator[Rows]:
        """Yield the rows, so many at a time.

        Raises:
            InvalidDataError: if the file is damaged, or lacks a column, or a column has no numbers.
        """
        inputs, targets, noise = self.columns.groups
        for batch in self._read(count, [*inputs, *targets, *noise], all_columns=False):
            X, Y, D = (_numbers(batch, names) for names in (inputs, targets, noise))
            yield X, Y, D if noise else None

    def inputs(self, count: int) -> Iterator[tuple[Any, Tensor]]:
        """Yield all columns and the inputs of rows, so many at a time.

        Raises:
            InvalidDataError: as for `batches`, and for NaN or inf in inputs, with the numbers of the rows.
        """
        names, start = self.columns.groups[0], 0
        for batch in self._read(count, names, all_columns=True):
            X = _numbers(batch, names)
            require_finite(start, X=X)
            yield batch, X
            start += len(X)

    def numeric(self) -> list[str]:
        """Return the names of the columns of numbers, in the file's order."""
        types = arrow()[0].types
        with self._opened([]) as file:
            return [
                each.name for each in file.schema_arrow if types.is_integer(each.type) or types.is_floating(each.type)
            ]

    def groups(self) -> list[int]:
        """Return the number of rows of each row group."""
        with self._opened([]) as file:
            return [file.metadata.row_group(k).num_rows for k in range(file.num_row_groups)]

    def drawn(self, group: int, places: Any) -> Rows:
        """Return rows of a row group by their places in it, with NaN where there is no number."""
        inputs, targets, noise = self.columns.groups
        with self._opened([*inputs, *targets, *noise]) as file:
            table = file.read_row_group(group, columns=[*inputs, *targets, *noise]).take(places).combine_chunks()
        X, Y, D = (_numbers(table, names) for names in (inputs, targets, noise))
        return X, Y, D if noise else None

    def bounds(self) -> tuple[Tensor, Tensor]:
        """Return the lowest and the highest value of each input, by the file's statistics, or from all rows."""
        inputs = self.columns.groups[0]
        with self._opened(inputs) as file:
            groups = [file.metadata.row_group(k) for k in range(file.num_row_groups)]
            places = {group.column(j).path_in_schema: j for group in groups[:1] for j in range(group.num_columns)}
            told = [[group.column(places[name]).statistics for group in groups] for name in inputs]
        plain = set(inputs) <= set(self.numeric())
        if plain and groups and all(each is not None and each.has_min_max for column in told for each in column):
            lowest = [min(float(each.min) for each in column) for column in told]
            highest = [max(float(each.max) for each in column) for column in told]
            return torch.tensor(lowest, dtype=torch.float64), torch.tensor(highest, dtype=torch.float64)
        low, up = torch.full((2, len(inputs)), math.inf, dtype=torch.float64)
        up = -up
        for batch in self._read(BATCH, inputs, all_columns=False):
            X = _numbers(batch, inputs)
            low = torch.minimum(low, X.nan_to_num(math.inf).amin(0))
            up = torch.maximum(up, X.nan_to_num(-math.inf).amax(0))
        return low, up

    @contextmanager
    def _opened(self, names: Sequence[str]) -> Iterator[Any]:
        pyarrow, parquet = arrow()
        try:
            with parquet.ParquetFile(self.path) as file:
                missing = [name for name in names if name not in file.schema_arrow.names]
                if missing:
                    raise InvalidDataError(
                        f"no column {', '.join(missing)}; there are {', '.join(file.schema_arrow.names)}."
                    )
                yield file
        except (pyarrow.ArrowException, OSError) as error:
            raise InvalidDataError(f"cannot be read as Parquet: {error}") from error

    def _read(self, count: int, names: list[str], all_columns: bool) -> Iterator[Any]:
        with self._opened(names) as file:
            yield from file.iter_batches(batch_size=count, columns=None if all_columns else names)


def numeric_columns(sources: "Iterable[Any] | str | os.PathLike[str]") -> list[str]:
    """Return the names of the columns of numbers in the first of some Parquet files, in its order.

    Raises:
        InvalidArgumentError: for no files.
        InvalidDataError: for a file that cannot be read.
    """
    first = next(each for each in listed(sources, Columns([], [])) if isinstance(each, ParquetFile))
    return first.numeric()


def listed(shards: "Iterable[Any] | str | os.PathLike[str]", columns: Columns | None) -> list[Shard]:
    """Return shards in the order that numbers them. Patterns of paths stand for their files, sorted by name.

    Args:
        shards: Tuples `(X, Y)` or `(X, Y, noise)` of tensors or arrays, functions, Parquet files, or patterns of these.
        columns: Names of the files' columns.

    Raises:
        InvalidArgumentError: if there are none, or columns of files are not named.
        WrongTypeError: for something else.
    """
    found: list[Shard] = []
    for each in [shards] if isinstance(shards, str | os.PathLike) else shards:
        if isinstance(each, str | os.PathLike):
            found += [ParquetFile(path, _required(columns)) for path in _paths(os.fspath(each))]
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
        raise InvalidArgumentError(f"shards: {pattern!r}: no such Parquet file. Check the path.")
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


def _numbers(batch: Any, names: Sequence[str]) -> Tensor:
    """Return columns of a batch as numbers, NaN where there is none."""
    if not names:
        return torch.empty(batch.num_rows, 0, dtype=torch.float64)
    pyarrow, _ = arrow()
    found = []
    for name in names:
        column = batch.column(name)
        try:
            column = column.cast(pyarrow.float64())
        except pyarrow.ArrowException as error:
            raise InvalidDataError(f"column {name} holds {column.type}, not numbers.") from error
        found.append(column.to_numpy(zero_copy_only=False))
    return torch.from_numpy(np.stack(found, -1))


def require_finite(start: int, **every: Tensor | None) -> None:
    """Refuse NaN and inf, by the numbers of a shard's rows, the first of which is given."""
    for name, values in every.items():
        if values is not None and not bool(values.isfinite().all()):
            wrong = (start + (~values.isfinite().reshape(len(values), -1).all(-1)).nonzero().reshape(-1)).tolist()
            more = f" and {len(wrong) - 10} more" if len(wrong) > 10 else ""
            raise InvalidDataError(f"{name}: NaN or inf in rows {wrong[:10]}{more}.")


def arrow() -> tuple[Any, Any]:
    """Return pyarrow and its module for Parquet files.

    Raises:
        MissingDependencyError: with the remedy, if it is not installed.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise MissingDependencyError(
            "Parquet files are read by pyarrow, which is not installed: pip install 'bo_scale[parquet]'"
        ) from error
    return pyarrow, parquet
