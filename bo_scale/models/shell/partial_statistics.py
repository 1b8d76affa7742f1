"""Statistics of some of a model's rows: what is sent around instead of the rows themselves."""

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from botorch.models.transforms.outcome import Standardize
from jaxtyping import Float
from torch import Tensor

from bo_scale.errors import InvalidDataError
from bo_scale.files import replacing
from bo_scale.gp.weight_space.forgetting import KEEPS_ALL, Forgetting
from bo_scale.gp.weight_space.inference import Statistics, WeightSpaceInference, no_statistics
from bo_scale.models.errors import UnsupportedError
from bo_scale.models.shell.cloning import clone_module
from bo_scale.models.shell.digest import digest_of
from bo_scale.models.shell.lending import child_of
from bo_scale.models.shell.merging import with_host_rows
from bo_scale.models.shell.student_t import StudentTNoise

M = TypeVar("M", bound=Any)
"""A `WeightSpaceModel`."""
FORMAT = 1


@dataclass(frozen=True)
class PartialStatistics:
    """Sums over some rows, under the features of a model and in its units. A commutative monoid under `+`.

    A sum of p features costs what a Gram matrix holds: about 25 p numbers on a grid of two dimensions, p² for dense
    features, whatever the number of rows. Single rows are not in it, but it is no secret: few rows in a cell of a grid
    can be told from their sums.

    Attributes:
        groups: Statistics of all outputs together if they share noise and features; otherwise of each.
        digest: Digest of features, units, kind of noise and forgetting: only equal ones may be added.
        forgetting: Rule by which earlier rows lose weight. With one, the sum is that of the first rows, then of the
            second: stats(A B) = λ^|B| stats(A) + stats(B), which is associative.
    """

    groups: Statistics
    digest: str
    forgetting: Forgetting = KEEPS_ALL

    @property
    def count(self) -> int:
        """Number of rows."""
        return self.groups[0].count

    def __add__(self, other: "PartialStatistics") -> "PartialStatistics":
        """Return the statistics of both sets of rows; where rows lose weight, the other ones came later.

        Raises:
            InvalidDataError: if they are of models with other features, other units or another kind of noise.
        """
        if self.digest != other.digest:
            raise InvalidDataError(
                "statistics: the two are of models with other features, other units of the targets or another kind of "
                "noise. Make both with one model: save it, and send it to where the rows are."
            )
        size = max(len(self.groups), len(other.groups))
        pairs = zip(_split(self.groups, size), _split(other.groups, size), strict=True)
        if not self.forgetting.forgets:
            return replace(self, groups=tuple(a + b for a, b in pairs))
        aged = self.forgetting.after(other.count)
        return replace(self, groups=tuple(a.discounted(aged) + b for a, b in pairs))

    @classmethod
    def of(cls, model: Any) -> "PartialStatistics":
        """Return the statistics that a model has, with a digest of all that determines what they mean."""
        features = [each.depends_on() for each in model._seen().hyperparameters.features]
        transforms = [child_of(model, name) for name in ("input_transform", "outcome_transform")]
        told = [None if transform is None else dict(transform.state_dict()) for transform in transforms]
        kind = type(model).__name__, model.knows_noise, model.num_outputs
        forgets = [model.forgetting.factor] if model.forgetting.forgets else []
        return cls(model.statistics, digest_of([kind, features, told, *forgets]), model.forgetting)

    @property
    def content(self) -> dict[str, Any]:
        """The statistics as plain tensors and numbers."""
        groups = [each.state() for each in self.groups]
        return {"format": FORMAT, "digest": self.digest, "groups": groups, "check": digest_of(groups)}

    def moments(self) -> tuple[Float[Tensor, " m"], Float[Tensor, " m"]]:
        """Return means and standard deviations of the targets, in the model's units, weighted as rows are.

        With the sums k, h and c of n rows the mean is y₀ + h/k and the variance (c − h²/k)/k · n/(n − 1), and 1 for
        targets that are all equal, as for BoTorch's Standardize.
        """
        means, sds = [], []
        for each in self.groups:
            shift = each.target_sum / each.weight_sum
            means.append(each.center + shift)
            spread = (each.square - shift * each.target_sum) / each.weight_sum * (each.count / max(each.count - 1, 1))
            sds.append(spread.clamp_min(0.0).sqrt())
        sd = torch.cat(sds)
        return torch.cat(means), torch.where(sd > 0, sd, torch.ones_like(sd))

    def save(self, path: str | os.PathLike[str], **beside: Any) -> None:
        """Write a file that `torch.load(weights_only=True)` reads. Atomic.

        Args:
            path: The file.
            **beside: Plain values to keep beside, which `load` does not read.
        """
        written(self.content | beside, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str], model: Any) -> "PartialStatistics":
        """Return the statistics of a file.

        Args:
            path: The file.
            model: The model that they were made with.

        Raises:
            InvalidDataError: if the file is damaged, or holds something else, or statistics of other features, units or
                noise.
        """
        return restored(read(path, model._device), without_rows(model), str(path))


def summed_apart(model: Any, X: Tensor, Y: Tensor, noise: Tensor | None, rows: int) -> PartialStatistics:
    """Return the statistics of rows under a model's features; the model's own rows have no part in it."""
    return PartialStatistics.of(with_host_rows(without_rows(model), X, Y, noise, rows))


def with_statistics(model: M, statistics: PartialStatistics) -> M:
    """Return the model of the rows in these statistics, instead of its own."""
    child = without_rows(model)
    if statistics.digest != PartialStatistics.of(child).digest:
        raise InvalidDataError(
            "statistics: they are of other features, other units of the targets or another kind of noise than the "
            "model's. Use the model that they were made with."
        )
    there = tuple(each.to(child._device) for each in statistics.groups)
    child._inference = child._seen().derived_from(summed=there)
    child._tell_likelihood()
    return child


def without_rows(model: M) -> M:
    """Return a copy of a model without its observations, which keeps statistics alone.

    Raises:
        UnsupportedError: if sums over parts of the rows do not make the model, with the reason.
    """
    if model._fantasies is not None:
        raise UnsupportedError("model: it holds fantasies. Use the model that they were made from.")
    if type(child_of(model, "outcome_transform")) not in (Standardize, type(None)):
        raise UnsupportedError("model: its outcome transform must be Standardize, or none.")
    if isinstance(child_of(model, "likelihood"), StudentTNoise):
        raise UnsupportedError(
            "model: StudentTNoise weighs each row by its residual, which sums do not hold. Use Gaussian noise."
        )
    child = clone_module(model).eval()
    child._elsewhere = child._inference = None
    child._take_rows(None)
    child._inference = blank_inference(child)
    child._tell_likelihood()
    return child


def blank_inference(model: Any) -> WeightSpaceInference:
    """Return the inference of a model that has observed nothing, at its present hyperparameters."""
    with torch.no_grad():
        known = model._hyperparameters_now(model._hyperparameters())
    alike = known.shared or model.num_outputs == 1
    nothing = no_statistics(known.features, 1 if alike else model.num_outputs, model._device)
    found: WeightSpaceInference = model._inference_from(
        WeightSpaceInference(known, nothing, model._feature_values(), may_wait=False)
    )
    return found


def _split(groups: Statistics, size: int) -> Statistics:
    """Return statistics of each output where they are of all together."""
    if len(groups) == size:
        return groups
    return tuple(groups[0].outputs([j]) for j in range(size))


def written(content: Any, path: str | os.PathLike[str]) -> None:
    """Write tensors and plain values to a file, for `read`. Atomic."""
    with replacing(path) as unfinished, unfinished.open("wb") as file:
        torch.save(content, file)


def read(path: str | os.PathLike[str], device: torch.device) -> Any:
    """Return the content of a file of tensors.

    Raises:
        InvalidDataError: if it is damaged, with the reader's reason.
    """
    with Path(path).open("rb") as file:
        try:
            return torch.load(file, weights_only=True, map_location=device)
        except Exception as error:  # damage leads torch's reader into any of a dozen errors
            raise InvalidDataError(f"{path}: is damaged, or no file of tensors: {error}") from error


def restored(content: Any, blank: Any, source: str) -> PartialStatistics:
    """Return the statistics that `save` wrote, as torch reads them, given a model without rows.

    Raises:
        InvalidDataError: for something else, or statistics that are damaged, or of other features, units or noise.
    """
    if not isinstance(content, dict) or not {"format", "digest", "groups", "check"} <= content.keys():
        raise InvalidDataError(f"{source}: holds no statistics that `save` wrote.")
    none = PartialStatistics.of(blank)
    if content["format"] != FORMAT or content["digest"] != none.digest:
        raise InvalidDataError(
            f"{source}: holds statistics of other features, other units of the targets or another kind of noise than "
            "the model's. Use the model that they were made with."
        )
    if content["check"] != digest_of(content["groups"]):
        raise InvalidDataError(f"{source}: is damaged: its sums are not those that were written. Make it anew.")
    features = blank._seen().hyperparameters.features
    empty = no_statistics(features, len(content["groups"]), blank._device)
    return replace(
        none, groups=tuple(zero.restored(state) for zero, state in zip(empty, content["groups"], strict=True))
    )
