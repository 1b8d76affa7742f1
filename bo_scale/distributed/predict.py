"""Predictions for the rows of Parquet files, written beside them into files of the same names."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bo_scale.distributed.scheduling import Submits, finished
from bo_scale.distributed.shards import listed
from bo_scale.distributed.tables import ARROW, Columns, TableFile, arrow
from bo_scale.errors import BoScaleError, InvalidArgumentError, InvalidDataError
from bo_scale.files import replacing
from bo_scale.models.shell.digest import digest_of
from bo_scale.models.shell.model import ScalableModel
from bo_scale.models.shell.storage import model_content
from bo_scale.threads import one_thread

ROWS = 1 << 16
"""Rows of a file that are read and written at once."""
AT_ONCE = 1000
"""Rows whose posterior is computed at once."""
KEY = b"bo_scale"


@dataclass(frozen=True)
class _Task:
    """Predictions for a file, as they are sent to a worker.

    Attributes:
        model: The model.
        digest: Digest of the model and of what is asked.
        names: Names of the outputs.
        folder: Where the files are written.
        observation_noise: Whether variances are those of observations.
    """

    model: ScalableModel
    digest: str
    names: tuple[str, ...]
    folder: Path
    observation_noise: bool

    def __call__(self, number: int, source: TableFile) -> Path:
        """Write a file with all columns of the source and the predictions, and return its path."""
        try:
            path, told = self.folder / _name(source), f"{self.digest} {source.identity()}".encode()
            if not _is_made(path, told):
                with one_thread(), replacing(path) as unfinished:
                    self._write(source, unfinished, told)
        except (BoScaleError, OSError) as error:
            raise InvalidDataError(f"source: {source.path}: {error}") from error
        return path

    def _write(self, source: TableFile, path: Path, told: bytes) -> None:
        pyarrow, parquet = arrow()
        writer = None
        try:
            for batch, X in source.inputs(ROWS):
                mean, sd = self._predicted(X)
                table = pyarrow.Table.from_batches([batch])
                for k, name in enumerate(self.names):
                    table = table.append_column(f"{name}_mean", pyarrow.array(mean[:, k].numpy()))
                    table = table.append_column(f"{name}_sd", pyarrow.array(sd[:, k].numpy()))
                if writer is None:
                    schema = table.schema.with_metadata({**(table.schema.metadata or {}), KEY: told})
                    writer = parquet.ParquetWriter(path, schema)
                writer.write_table(table.cast(writer.schema))
        finally:
            if writer is not None:
                writer.close()
        if writer is None:
            raise InvalidDataError("it has no rows.")

    def _predicted(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Return means and standard deviations, `n × m`."""
        means, sds = [], []
        X = X.to(next(self.model.parameters()).device)
        with torch.no_grad():
            for part in X.split(AT_ONCE):
                found: Any = self.model.posterior(part, observation_noise=self.observation_noise)
                means.append(found.mean.double().cpu())
                sds.append(found.variance.clamp_min(0.0).sqrt().double().cpu())
        return torch.cat(means), torch.cat(sds)


def predict_many(
    model: ScalableModel,
    sources: "Iterable[Any] | str | os.PathLike[str]",
    out: str | os.PathLike[str],
    *,
    columns: Columns,
    executor: "Submits | int | None" = None,
    observation_noise: bool = False,
    progress: bool | None = None,
) -> list[Path]:
    """Predict the rows of Parquet files, and write each file with two more columns for every target.

    For a target "y" they are "y_mean" and "y_sd". All columns of the source stay. Results are Parquet files. They are
    whole or not there, and those of an earlier call with the same model and source are not made again. Memory is free
    of the number of rows.

    Args:
        model: A model; it is sent to workers whole.
        sources: Paths of Parquet or Arrow files, patterns of these, or a folder.
        out: Folder for the files, which have the names of the sources. Workers must see it.
        columns: Names of the inputs, and of the targets, which the sources need not have.
        executor: Where files are predicted; as for `accumulate`.
        observation_noise: Whether standard deviations are those of new observations, learned noise included.
        progress: Whether to show a bar; None for only on a terminal.

    Returns:
        The paths of the files, in the order of the sources.

    Raises:
        InvalidArgumentError: for no sources, two of one name, a folder that holds the sources, or another number of
            inputs or targets than the model's.
        InvalidDataError: for a file that cannot be read, with its name, or rows with NaN, with their numbers.
    """
    files = [each for each in listed(sources, columns) if isinstance(each, TableFile)]
    folder = Path(out)
    names = [_name(each) for each in files]
    if len(set(names)) < len(names):
        raise InvalidArgumentError("sources: two files have one name, which files of the results would have, too.")
    if any(Path(each.path).parent.resolve() == folder.resolve() for each in files):
        raise InvalidArgumentError("out: it is the folder of the sources, which results would replace. Name another.")
    inputs, targets, _ = columns.groups
    _require_size("inputs", inputs, model.num_inputs)
    _require_size("targets", targets, model.num_outputs)
    folder.mkdir(parents=True, exist_ok=True)
    asked = digest_of([observation_noise, columns.groups, model_content(model)])
    task = _Task(model, asked, tuple(targets), folder, observation_noise)
    done = dict(finished(task, files, executor, progress, "files"))
    return [done[number] for number in range(len(files))]


def _name(source: TableFile) -> str:
    """Return the name of the file of predictions: that of the source, as Parquet."""
    path = Path(source.path)
    return path.with_suffix(".parquet").name if path.suffix in ARROW else path.name


def _require_size(what: str, names: Sequence[str], own: int) -> None:
    if len(names) != own:
        raise InvalidArgumentError(f"columns: {len(names)} {what} for a model of {own}. Name them all, in its order.")


def _is_made(path: Path, told: bytes) -> bool:
    """Return whether a file is of this model and this source."""
    pyarrow, parquet = arrow()
    try:
        return bool((parquet.read_schema(path).metadata or {}).get(KEY) == told)
    except (OSError, pyarrow.ArrowException):
        return False
