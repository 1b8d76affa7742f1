"""Hyperparameters fitted to all rows of shards: by their statistics, and where features are learned by passes."""

import logging
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models.transforms.outcome import Standardize
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from bo_scale.distributed.passes import Passes
from bo_scale.distributed.summable import OfWeights
from bo_scale.errors import InvalidDataError
from bo_scale.gp.weight_space.feature_gradients import Gradients
from bo_scale.gp.weight_space.inference import Statistics
from bo_scale.models.errors import UnsupportedError
from bo_scale.models.shell.digest import digest_of
from bo_scale.models.shell.partial_statistics import PartialStatistics, read, without_rows, written
from bo_scale.models.shell.weight_space import WeightSpaceModel, rows_elsewhere

logger = logging.getLogger(__name__)
GAIN, FINEST = 0.01, 2e-9
"""A fit ends when an iteration gains less log evidence than this, in all or a row: each costs two passes or more."""


def refitted(
    model: WeightSpaceModel, passes: Passes, folder: Path | None, optimizer_kwargs: Mapping[str, Any] | None
) -> WeightSpaceModel:
    """Return a model with hyperparameters fitted to all rows, targets standardised by the moments of all.

    Args:
        model: The model with the statistics of all rows.
        passes: The rows.
        folder: Folder for evaluations, from which a second fit goes on; None for none.
        optimizer_kwargs: Options of the fit.
    """
    transform = getattr(model, "outcome_transform", None)
    if type(transform) is Standardize and model.num_observations > 1:
        mean, sd = PartialStatistics.of(model).moments()
        stdvs = transform.stdvs * sd.to(transform.stdvs)
        means = transform.means + transform.stdvs * mean.to(transform.means)
        model = model.restandardised(means, stdvs)
    kept = None if folder is None else folder / "fit"
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    with rows_elsewhere(model, RowsOfShards(passes, kept)):
        given = dict(optimizer_kwargs or {})
        options = {"ftol": max(FINEST, GAIN / max(1, model.num_observations)), **given.get("options", {})}
        fit_gpytorch_mll(mll, optimizer_kwargs={**given, "options": options})
        _ = model.statistics  # under the features that were found
    if kept is not None:
        try:
            shutil.rmtree(kept)
        except OSError as error:
            logger.info("%s: its files serve no more, and could not be removed: %s", kept, error)
    return model


class RowsOfShards:
    """Rows of shards, for a fit whose features change. Each evaluation is two passes.

    With a folder every pass is kept in a file until the fit has ended. L-BFGS asks the same again after a crash, so the
    result is that of a fit without one, to the last bit.

    Args:
        passes: The rows.
        folder: Folder for the files; None for none.
    """

    def __init__(self, passes: Passes, folder: Path | None) -> None:
        self._passes, self._folder, self._count = passes, folder, 0

    def summed(self, model: WeightSpaceModel) -> Statistics:
        """Return the statistics of all rows under a model's present features. One pass."""
        self._count += 1
        blank = without_rows(model).cpu()
        one = OfWeights(blank)
        path = self._path(PartialStatistics.of(blank).digest)
        content = _read(path)
        if content is None:
            found = self._passes.sums(one, called=self._called())
            if path is not None:
                found.save(path)
        else:
            found = one.restored(content, str(path))
        return tuple(each.to(next(model.parameters()).device) for each in found.groups)

    def pulled_back(self, model: WeightSpaceModel, grads: list[Gradients]) -> list[Tensor]:
        """Return derivatives with respect to the learned features. One pass.

        Raises:
            UnsupportedError: for a model with decay.
        """
        if model.forgetting.forgets:
            raise UnsupportedError("refit: features are not learned from shards with decay. Pass refit=False.")
        blank = without_rows(model).cpu()
        centers = [each.center.cpu() for each in model.statistics]
        here = [(G.cpu(), r.cpu(), g.cpu()) for G, r, g in grads]
        path = self._path(digest_of([PartialStatistics.of(blank).digest, here]))
        found = _read(path)
        if found is None:
            found = self._passes.pulled_back(blank, centers, here, self._called())
            if path is not None:
                written(found, path)
        return [each.to(grads[0][0].device) for each in found]

    def _called(self) -> str:
        return f"shards, evaluation {self._count}"

    def _path(self, digest: str) -> Path | None:
        """Return the file of a pass, by what it is of: parameters, shards and rows at once."""
        if self._folder is None:
            return None
        self._folder.mkdir(exist_ok=True)
        shards = [each.identity() for each in self._passes.shards]
        return self._folder / f"{digest_of([digest, shards, self._passes.rows])}.pt"


def _read(path: Path | None) -> Any:
    """Return what a file holds; None if it is not there or damaged."""
    if path is None or not path.exists():
        return None
    try:
        return read(path, torch.device("cpu"))
    except InvalidDataError as error:
        logger.info("%s: not gone on from, its pass is made anew: %s", path, error)
        return None
