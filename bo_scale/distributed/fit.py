"""Models of all rows of Parquet files: sample, choose, fit and sum; and the file that holds such a model."""

import logging
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models.transforms import Normalize, Standardize
from gpytorch.mlls import ExactMarginalLogLikelihood
from jaxtyping import Float
from torch import Tensor
from torch.distributions import Normal

from bo_scale.distributed.accumulate import accumulate
from bo_scale.distributed.scheduling import Submits
from bo_scale.distributed.shards import listed
from bo_scale.distributed.tables import Columns, Rows, TableFile
from bo_scale.errors import InvalidArgumentError, InvalidDataError
from bo_scale.files import replacing
from bo_scale.models.catalogue import MODELS
from bo_scale.models.shell.data import least_stdv
from bo_scale.models.shell.storage import model_content, restore_model
from bo_scale.models.shell.weight_space import WeightSpaceModel
from bo_scale.random import seeded

logger = logging.getLogger("bo_scale.distributed")
FORMAT = 1
SIZES = {"wiski": "grid_size", "grief": "num_eigenfunctions", "softki": "num_interpolation_points"}
"""Models that rows are summed for, by name, and the option that says how fine each is."""
GROUPS = 64
"""Largest number of row groups that a sample is read from."""
HELD_OUT = 5
"""One of so many sampled rows is held out to choose the model."""
NEGLIGIBLE = 0.01
"""Nats by which an earlier one of `SIZES`, which costs less a row, may be behind."""
DUMMIES = 8
"""Rows on which a model is made that a file then restores."""


@dataclass(frozen=True)
class FileModel:
    """A model of the rows of files, with the names of its columns.

    Attributes:
        model: The model, whose inputs and targets are in the files' units.
        columns: Names of the inputs, targets and noise variances.
        kind: Name of the model: one of `SIZES`.
        options: Constructor options.
        bounds: Lowest and highest value of each input in the files, `2 × d`.
        scores: Mean log density at held-out rows of every model that was tried; empty if one was given.
        seconds: Time for the sample's fit, and for the sums of all rows.
    """

    model: WeightSpaceModel
    columns: Columns
    kind: str
    options: Mapping[str, Any]
    bounds: Float[Tensor, "2 d"]
    scores: Mapping[str, float] = field(default_factory=dict)
    seconds: tuple[float, float] = (0.0, 0.0)

    def noise_sds(self) -> list[float]:
        """Return the standard deviation of each target's noise, in its units; none if variances are columns."""
        if self.columns.groups[2]:
            return []
        with torch.no_grad():
            middle = self.bounds.mean(0, keepdim=True)
            found: list[Any] = [self.model.posterior(middle, observation_noise=noise) for noise in (True, False)]
            new, known = (each.variance for each in found)
        sds: list[float] = (new - known).clamp_min(0.0).sqrt().reshape(-1).tolist()
        return sds

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a file from which `load` makes the same model, to the last bit. Atomic."""
        content = {
            "format": FORMAT,
            "kind": self.kind,
            "options": dict(self.options),
            "columns": self.columns.groups,
            "bounds": self.bounds,
            "scores": dict(self.scores),
            "seconds": self.seconds,
            "model": model_content(self.model),
        }
        with replacing(path) as unfinished, unfinished.open("wb") as file:
            torch.save(content, file)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "FileModel":
        """Return the model of a file.

        Raises:
            InvalidDataError: if the file holds no such model, or is damaged.
        """
        try:
            content = torch.load(path, weights_only=True)
            if content["format"] != FORMAT:
                raise InvalidDataError(f"{path}: written by a newer bo_scale. Upgrade.")
            inputs, targets, noise = content["columns"]
            kind, options, bounds = content["kind"], content["options"], content["bounds"]
            model = _blank(kind, options, bounds, len(targets), bool(noise))
            restored: Any = restore_model(model, content["model"], str(path))
            found = content["scores"], tuple(content["seconds"])
            return cls(restored, Columns(inputs, targets, noise), kind, options, bounds, *found)
        except InvalidDataError:
            raise
        except OSError as error:
            raise InvalidDataError(f"{path}: cannot be read: {error}") from error
        except Exception as error:  # what torch raises of damaged files is of many kinds
            raise InvalidDataError(
                f"{path}: not a model that `fit_many` or `bo-scale fit` has saved ({type(error).__name__}: {error})."
            ) from error


def fit_many(
    sources: "Iterable[Any] | str | os.PathLike[str]",
    *,
    columns: Columns,
    model: str = "auto",
    size: int | None = None,
    sample: int = 5000,
    seed: int = 0,
    executor: "Submits | int | None" = None,
    folder: str | os.PathLike[str] | None = None,
    progress: bool | None = None,
) -> FileModel:
    """Return a model of all rows of Parquet files. Memory is free of their number.

    A model is chosen and fitted on a sample of rows, then the sums of all rows are made, to which hyperparameters of
    the prior and the noise are fitted again. A GRIEF's lengthscales and a SoftKI's points are those of the sample.
    Inputs are scaled to the range that they have in the files.

    Args:
        sources: Paths of Parquet or Arrow files, patterns of these, or a folder.
        columns: Names of the columns.
        model: "wiski" (up to 4 inputs), "grief", "softki", or "auto": the first of these whose log density at held-out
            rows of the sample is within 0.01 of the highest.
        size: Grid points per input of a WISKI, eigenfunctions of a GRIEF, points of a SoftKI; None for its default.
        sample: Number of rows of the sample.
        seed: Seed of the sample and of what is random in a fit.
        executor: Where files are summed; as for `accumulate`.
        folder: Folder for the sums of each file, from which a second call goes on; as for `accumulate`.
        progress: Whether to show a bar; None for only on a terminal.

    Raises:
        InvalidArgumentError: for no sources, an unknown model, or one that does not serve so many inputs.
        InvalidDataError: for a file that cannot be read, columns without numbers, too few rows, or NaN, with numbers.
    """
    files = [each for each in listed(sources, columns) if isinstance(each, TableFile)]
    d, start = len(columns.groups[0]), time.perf_counter()
    names = _names(model, size, d)
    bounds = bounds_of(files)
    drawn = sample_of(files, sample, seed)
    if len(drawn[0]) < DUMMIES:
        raise InvalidDataError(f"sources: {len(drawn[0])} rows without NaN. A model needs {DUMMIES} at least.")
    scores = {}
    with seeded(seed, torch.device("cpu")):
        if len(names) > 1:
            scores = {name: _score(name, _options(name, None), bounds, drawn) for name in names}
            logger.info("log density at held-out rows: %s", scores)
        kind = next(name for name in names if not scores or scores[name] >= max(scores.values()) - NEGLIGIBLE)
        options = _options(kind, size)
        fitted = _fitted(kind, options, bounds, drawn)
    between = time.perf_counter()
    paths = [each.path for each in files]
    whole = accumulate(fitted, paths, columns=columns, executor=executor, folder=folder, refit=True, progress=progress)
    return FileModel(whole, columns, kind, options, bounds, scores, (between - start, time.perf_counter() - between))


def bounds_of(files: Sequence[TableFile]) -> Float[Tensor, "2 d"]:
    """Return the lowest and the highest value of each input, from the files' own statistics where they have them."""
    every = [each.bounds() for each in files]
    found = torch.stack([torch.stack([low for low, _ in every]).amin(0), torch.stack([up for _, up in every]).amax(0)])
    if not bool(found.isfinite().all()):
        names = [name for name, each in zip(files[0].columns.groups[0], found.T) if not bool(each.isfinite().all())]
        raise InvalidDataError(f"columns: {', '.join(names)}: no finite range. Are there inf, or no numbers at all?")
    return found


def sample_of(files: Sequence[TableFile], count: int, seed: int) -> Rows:
    """Return about so many rows, drawn from up to `GROUPS` row groups of the files; rows with NaN or inf are left out.

    All rows if there are no more.
    """
    random = np.random.default_rng(seed)
    groups = [(file, number, rows) for file in files for number, rows in enumerate(file.groups())]
    chosen = sorted(random.permutation(len(groups))[:GROUPS])
    total = sum(groups[k][2] for k in chosen)
    parts = []
    for k in chosen:
        file, number, rows = groups[k]
        wanted = min(rows, -(-count * rows // max(total, 1)))
        parts.append(file.drawn(number, np.sort(random.permutation(rows)[:wanted])))
    X, Y, D = (None if any(p is None for p in part) else torch.cat(part) for part in zip(*parts, strict=True))
    assert X is not None, "there are inputs"
    assert Y is not None, "there are targets"
    whole = X.isfinite().all(-1) & Y.isfinite().all(-1)
    whole = whole if D is None else whole & D.isfinite().all(-1)
    return X[whole], Y[whole], None if D is None else D[whole]


def _names(model: str, size: int | None, d: int) -> list[str]:
    if model == "auto" and size is not None:
        raise InvalidArgumentError(f"size={size}: it belongs to a model. Name one of {', '.join(SIZES)}.")
    if model not in ("auto", *SIZES):
        raise InvalidArgumentError(f"model={model!r}: choose 'auto', {', '.join(map(repr, SIZES))}.")
    names = [name for name in (SIZES if model == "auto" else [model]) if MODELS[name].serves(d)]
    if not names:
        raise InvalidArgumentError(f"model={model!r}: it serves {MODELS[model].dimensions[1]} inputs, not {d}.")
    return names


def _options(kind: str, size: int | None) -> dict[str, Any]:
    return {} if size is None else {SIZES[kind]: size}


def _made(kind: str, options: Mapping[str, Any], bounds: Tensor, rows: Rows) -> WeightSpaceModel:
    X, Y, D = rows
    low, up = bounds
    box = torch.stack([low, torch.where(up > low, up, low + low.abs().clamp_min(1.0))])  # an input may be constant
    scaled = {
        "input_transform": Normalize(X.shape[-1], bounds=box),
        "outcome_transform": Standardize(Y.shape[-1], min_stdv=least_stdv(Y)),
    }
    make: Any = MODELS[kind].model
    found: WeightSpaceModel = make(X, Y, D, **scaled, **options)
    return found


def _blank(kind: str, options: Mapping[str, Any], bounds: Tensor, m: int, knows_noise: bool) -> WeightSpaceModel:
    """Return a model of rows that do not matter, to be restored."""
    along = torch.linspace(0.0, 1.0, DUMMIES, dtype=torch.float64).unsqueeze(-1)
    X, Y = bounds[0] + (bounds[1] - bounds[0]) * along, along.expand(-1, m)
    return _made(kind, options, bounds, (X, Y, torch.ones_like(Y) if knows_noise else None))


def _fitted(kind: str, options: Mapping[str, Any], bounds: Tensor, rows: Rows) -> WeightSpaceModel:
    model = _made(kind, options, bounds, rows)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    return model


def _score(kind: str, options: Mapping[str, Any], bounds: Tensor, rows: Rows) -> float:
    """Return the mean log density of some rows under a model of the others; −inf if it cannot be fitted."""
    held = torch.arange(len(rows[0])) % HELD_OUT == 0
    X, Y, D = _where(held, rows)
    try:
        model = _fitted(kind, options, bounds, _where(~held, rows))
        with torch.no_grad():
            found: Any = model.posterior(X, observation_noise=True if D is None else D)
            return float(Normal(found.mean, found.variance.sqrt()).log_prob(Y).mean())
    except (RuntimeError, ValueError) as error:
        logger.warning("%s was not tried: %s", kind, error)
        return -float("inf")


def _where(kept: Tensor, rows: Rows) -> Rows:
    X, Y, D = rows
    return X[kept], Y[kept], None if D is None else D[kept]
