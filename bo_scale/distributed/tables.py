"""Parquet and Arrow files of rows: their columns, what they say of themselves, and their rows some at a time."""

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bo_scale.errors import InvalidDataError, MissingDependencyError

Rows = tuple[Tensor, Tensor, Tensor | None]
"""Raw inputs `n × d`, values `n × m`, and noise variances `n × m` or None."""
ARROW = (".arrow", ".feather")
"""Endings of files of Arrow's inter-process format."""
ENDINGS = (".parquet", ".pq", *ARROW)
BATCH = 1 << 16
"""Rows that are read at once to find their range."""


@dataclass(frozen=True)
class Columns:
    """Names of the columns of files.

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


@dataclass(frozen=True)
class TableFile:
    """A Parquet file, or one of Arrow's inter-process format by its ending.

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
        with self._opened([]) as table:
            return [each.name for each in table.schema if types.is_integer(each.type) or types.is_floating(each.type)]

    def groups(self) -> list[int]:
        """Return the number of rows of each row group, or record batch."""
        with self._opened([]) as table:
            return table.groups()

    def drawn(self, group: int, places: Any) -> Rows:
        """Return rows of a row group by their places in it, with NaN where there is no number."""
        inputs, targets, noise = self.columns.groups
        with self._opened([*inputs, *targets, *noise]) as table:
            found = table.group(group, [*inputs, *targets, *noise]).take(places).combine_chunks()
        X, Y, D = (_numbers(found, names) for names in (inputs, targets, noise))
        return X, Y, D if noise else None

    def bounds(self) -> tuple[Tensor, Tensor]:
        """Return the lowest and the highest value of each input, by the file's statistics, or from all rows."""
        inputs = self.columns.groups[0]
        with self._opened(inputs) as table:
            told = table.ranges(inputs) if set(inputs) <= set(self.numeric()) else None
        if told is not None:
            lowest, highest = zip(*told, strict=True)
            return torch.tensor(lowest, dtype=torch.float64), torch.tensor(highest, dtype=torch.float64)
        low, up = torch.full((2, len(inputs)), math.inf, dtype=torch.float64)
        up = -up
        for batch in self._read(BATCH, inputs, all_columns=False):
            X = _numbers(batch, inputs)
            low = torch.minimum(low, torch.where(X.isnan(), math.inf, X).amin(0))
            up = torch.maximum(up, torch.where(X.isnan(), -math.inf, X).amax(0))
        return low, up

    @contextmanager
    def _opened(self, names: Sequence[str]) -> "Iterator[_Parquet | _Arrow]":
        pyarrow, parquet = arrow()
        is_arrow = self.path.endswith(ARROW)
        try:
            with ExitStack() as stack:
                if is_arrow:
                    source = stack.enter_context(pyarrow.memory_map(self.path))
                    table: _Parquet | _Arrow = _Arrow(stack.enter_context(pyarrow.ipc.open_file(source)))
                else:
                    table = _Parquet(stack.enter_context(parquet.ParquetFile(self.path)))
                missing = [name for name in names if name not in table.schema.names]
                if missing:
                    there = ", ".join(table.schema.names)
                    raise InvalidDataError(f"no column {', '.join(missing)}; there are {there}.")
                yield table
        except (pyarrow.ArrowException, OSError) as error:
            raise InvalidDataError(f"cannot be read as {'Arrow' if is_arrow else 'Parquet'}: {error}") from error

    def _read(self, count: int, names: list[str], all_columns: bool) -> Iterator[Any]:
        with self._opened(names) as table:
            yield from table.batches(count, None if all_columns else names)


@dataclass(frozen=True)
class _Parquet:
    """An open Parquet file.

    Attributes:
        file: The file.
    """

    file: Any

    @property
    def schema(self) -> Any:
        """The schema, of Arrow."""
        return self.file.schema_arrow

    def groups(self) -> list[int]:
        """Return the number of rows of each row group."""
        return [each.num_rows for each in self._groups]

    def group(self, number: int, names: list[str]) -> Any:
        """Return columns of a row group."""
        return self.file.read_row_group(number, columns=names)

    def batches(self, count: int, names: list[str] | None) -> Iterator[Any]:
        """Yield columns of rows, so many at a time; all columns for None."""
        yield from self.file.iter_batches(batch_size=count, columns=names)

    def ranges(self, names: list[str]) -> list[tuple[float, float]] | None:
        """Return the lowest and the highest value of each column, if every row group tells; else None."""
        groups = self._groups
        places = {group.column(j).path_in_schema: j for group in groups[:1] for j in range(group.num_columns)}
        told: list[list[Any]] = [[group.column(places[name]).statistics for group in groups] for name in names]
        if not groups or not all(each is not None and each.has_min_max for column in told for each in column):
            return None
        return [(min(float(e.min) for e in column), max(float(e.max) for e in column)) for column in told]

    @property
    def _groups(self) -> list[Any]:
        return [self.file.metadata.row_group(k) for k in range(self.file.num_row_groups)]


@dataclass(frozen=True)
class _Arrow:
    """An open file of Arrow's inter-process format, also called Feather.

    Attributes:
        reader: Reader of the file, which is mapped into memory.
    """

    reader: Any

    @property
    def schema(self) -> Any:
        """The schema."""
        return self.reader.schema

    def groups(self) -> list[int]:
        """Return the number of rows of each record batch."""
        return [self.reader.get_batch(k).num_rows for k in range(self.reader.num_record_batches)]

    def group(self, number: int, names: list[str]) -> Any:
        """Return columns of a record batch."""
        pyarrow, _ = arrow()
        return pyarrow.Table.from_batches([self.reader.get_batch(number).select(names)])

    def batches(self, count: int, names: list[str] | None) -> Iterator[Any]:
        """Yield columns of rows, at most so many at a time; all columns for None."""
        for k in range(self.reader.num_record_batches):
            whole = self.reader.get_batch(k)
            batch = whole if names is None else whole.select(names)
            yield from (batch.slice(start, count) for start in range(0, batch.num_rows, count))

    def ranges(self, names: list[str]) -> None:
        """Return None: such files do not tell."""


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
            "Parquet and Arrow files are read by pyarrow, which is not installed: pip install 'bo_scale[parquet]'"
        ) from error
    return pyarrow, parquet
