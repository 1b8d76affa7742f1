"""Statistics of some of a model's rows: what is sent around instead of the rows themselves."""

import hashlib
import os
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from botorch.models.transforms.outcome import Standardize
from jaxtyping import Float
from torch import Tensor

from bo_scale.errors import InvalidDataError
from bo_scale.files import replacing
from bo_scale.gp.weight_space.inference import Statistics, no_statistics
from bo_scale.models.errors import UnsupportedError
from bo_scale.models.shell.cloning import clone_module
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
        means: Means by which the model standardises targets; zeros if it does not.
        stdvs: Their standard deviations; ones if it does not.
        knows_noise: Whether rows come with noise variances.
        digest: Digest of the features, of the units and of the kind of noise: only equal ones may be added.
    """

    groups: Statistics
    means: Float[Tensor, " m"]
    stdvs: Float[Tensor, " m"]
    knows_noise: bool
    digest: str

    @property
    def count(self) -> int:
        """Number of rows."""
        return self.groups[0].count

    def __add__(self, other: "PartialStatistics") -> "PartialStatistics":
        """Return the statistics of both sets of rows.

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
        return replace(self, groups=tuple(a + b for a, b in pairs))

    @classmethod
    def of(cls, model: Any) -> "PartialStatistics":
        """Return the statistics that a model has, with a digest of all that determines what they mean."""
        return seen_by(model)

    @property
    def content(self) -> dict[str, Any]:
        """The statistics as plain tensors and numbers."""
        return {"format": FORMAT, "digest": self.digest, "groups": [each.state() for each in self.groups]}

    def moments(self) -> tuple[Float[Tensor, " m"], Float[Tensor, " m"]]:
        """Return means and standard deviations of the targets, in the model's units, weighted as rows are."""
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
        with replacing(path) as unfinished, unfinished.open("wb") as file:
            torch.save(self.content | beside, file)

    @classmethod
    def load(cls, path: str | os.PathLike[str], model: Any) -> "PartialStatistics":
        """Return the statistics of a file.

        Args:
            path: The file.
            model: The model that they were made with.

        Raises:
            InvalidDataError: if the file holds something else, or statistics of other features, units or noise.
        """
        return restored(torch.load(path, weights_only=True, map_location=model._device), without_rows(model), str(path))


def summed_apart(model: Any, X: Tensor, Y: Tensor, noise: Tensor | None, rows: int) -> PartialStatistics:
    """Return the statistics of rows under a model's features; the model's own rows have no part in it."""
    return seen_by(with_host_rows(without_rows(model), X, Y, noise, rows))


def with_statistics(model: M, statistics: PartialStatistics) -> M:
    """Return the model of the rows in these statistics, instead of its own."""
    child = without_rows(model)
    if statistics.digest != seen_by(child).digest:
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
    if model.forgetting.forgets:
        raise UnsupportedError("model: with decay rows count by their order, which parts do not know. Leave out decay.")
    if isinstance(child_of(model, "likelihood"), StudentTNoise):
        raise UnsupportedError(
            "model: StudentTNoise weighs each row by its residual, which sums do not hold. Use Gaussian noise."
        )
    child = clone_module(model).eval()
    found = child._seen().settled()
    nothing = no_statistics(found.hyperparameters.features, 1 if _alike(found) else child.num_outputs, child._device)
    child._inference = replace(found.derived_from(summed=nothing), may_wait=False)
    child._take_rows(None)
    child._tell_likelihood()
    return child


def _alike(found: Any) -> bool:
    """Return whether one sum serves all outputs."""
    return found.hyperparameters.shared or len(found.hyperparameters.features) == 1


def _units_of(model: Any) -> tuple[Float[Tensor, " m"], Float[Tensor, " m"]]:
    """Return means and standard deviations by which a model standardises its targets."""
    transform = child_of(model, "outcome_transform")
    if transform is None:
        zeros = torch.zeros(model.num_outputs, dtype=torch.float64)
        return zeros, zeros + 1
    if type(transform) is not Standardize:
        raise UnsupportedError("model: its outcome transform must be Standardize, or none.")
    return transform.means.detach().cpu().double().reshape(-1), transform.stdvs.detach().cpu().double().reshape(-1)


def seen_by(model: Any) -> PartialStatistics:
    """Return the statistics of a model, with a digest of all that determines what they mean."""
    groups, (means, stdvs) = model.statistics, _units_of(model)
    found = hashlib.sha256(repr((type(model).__name__, model.knows_noise, model.num_outputs)).encode())
    for each in model._seen().hyperparameters.features:
        for part in each.depends_on():
            found.update(_bytes(part))
    for values in (means, stdvs, *_parameters_of(child_of(model, "input_transform"))):
        found.update(_bytes(values))
    return PartialStatistics(groups, means, stdvs, model.knows_noise, found.hexdigest())


def _parameters_of(transform: Any) -> list[Tensor]:
    return [] if transform is None else list(transform.state_dict().values())


def _bytes(part: Any) -> bytes:
    """Return what tells a part of a fingerprint from others: the values of tensors, the text of anything else."""
    if isinstance(part, Tensor):
        return repr((part.dtype, tuple(part.shape))).encode() + part.detach().cpu().contiguous().numpy().tobytes()
    return repr(part).encode()


def _split(groups: Statistics, size: int) -> Statistics:
    """Return statistics of each output where they are of all together."""
    if len(groups) == size:
        return groups
    return tuple(groups[0].outputs([j]) for j in range(size))


def restored(content: Any, blank: Any, source: str) -> PartialStatistics:
    """Return the statistics that `save` wrote, as torch reads them, given a model without rows.

    Raises:
        InvalidDataError: for something else, or statistics of other features, units or noise.
    """
    if not isinstance(content, dict) or not {"format", "digest", "groups"} <= content.keys():
        raise InvalidDataError(f"{source}: holds no statistics that `save` wrote.")
    none = seen_by(blank)
    if content["format"] != FORMAT or content["digest"] != none.digest:
        raise InvalidDataError(
            f"{source}: holds statistics of other features, other units of the targets or another kind of noise than "
            "the model's. Use the model that they were made with."
        )
    features = blank._seen().hyperparameters.features
    empty = no_statistics(features, len(content["groups"]), blank._device)
    return replace(
        none, groups=tuple(zero.restored(state) for zero, state in zip(empty, content["groups"], strict=True))
    )
