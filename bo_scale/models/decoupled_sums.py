"""Sums over rows of which a decoupled GP is made: what is sent around instead of the rows themselves."""

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from bo_scale.errors import InvalidDataError
from bo_scale.gp.function_space.variational import BasisSums
from bo_scale.models.decoupled_parameters import Stamp
from bo_scale.models.errors import UnsupportedError
from bo_scale.models.shell.cloning import clone_module
from bo_scale.models.shell.digest import digest_of
from bo_scale.models.shell.door import require_finite, require_given, require_noise, require_tensors
from bo_scale.models.shell.lending import child_of
from bo_scale.models.shell.merging import in_model_units
from bo_scale.models.shell.partial_statistics import read, written
from bo_scale.models.shell.student_t import StudentTNoise

M = TypeVar("M", bound=Any)
"""A `DecoupledGP`."""
FORMAT = 1
RawRows = tuple[Tensor, Tensor, Tensor | None]
"""Raw inputs, raw values, and noise variances or None."""


@dataclass(frozen=True)
class DecoupledStatistics:
    """Sums over some rows, under the bases and the kernel of a model and in its units. A commutative monoid under `+`.

    They cost M_α² + M_β² numbers for each output, whatever the number of rows.

    Attributes:
        sums: Sums of every output.
        count: Number of rows.
        noise_sum: Sums of known noise variances.
        digest: Digest of all that the sums depend on: only equal ones may be added.
    """

    sums: tuple[BasisSums, ...]
    count: int
    noise_sum: Float[Tensor, " m"]
    digest: str

    def __add__(self, other: "DecoupledStatistics") -> "DecoupledStatistics":
        """Return the sums over both sets of rows.

        Raises:
            InvalidDataError: if they are of models with other bases, hyperparameters, units or another kind of noise.
        """
        if self.digest != other.digest:
            raise InvalidDataError(
                "statistics: the two are of models with other bases, other hyperparameters, other units of the targets "
                "or another kind of noise. Make both with one model: save it, and send it to where the rows are."
            )
        sums = tuple(a + b for a, b in zip(self.sums, other.sums, strict=True))
        return replace(self, sums=sums, count=self.count + other.count, noise_sum=self.noise_sum + other.noise_sum)

    @property
    def content(self) -> dict[str, Any]:
        """The sums as plain tensors and numbers."""
        values = {"sums": [list(each.tensors) for each in self.sums], "count": self.count, "noise": self.noise_sum}
        return {"format": FORMAT, "digest": self.digest, **values, "check": digest_of(values)}

    def save(self, path: str | os.PathLike[str], **beside: Any) -> None:
        """Write a file that `torch.load(weights_only=True)` reads. Atomic.

        Args:
            path: The file.
            **beside: Plain values to keep beside, which `load` does not read.
        """
        written(self.content | beside, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str], model: Any) -> "DecoupledStatistics":
        """Return the sums of a file.

        Args:
            path: The file.
            model: The model that they were made with.

        Raises:
            InvalidDataError: if the file is damaged, or holds something else, or sums of another model.
        """
        return restored(read(Path(path), next(model.parameters()).device), model, str(path))

    def to(self, device: torch.device) -> "DecoupledStatistics":
        """Return the same sums on a device."""
        sums = tuple(BasisSums(*(values.to(device) for values in each.tensors)) for each in self.sums)
        return replace(self, sums=sums, noise_sum=self.noise_sum.to(device))

    def outputs(self, indices: list[int], digest: str) -> "DecoupledStatistics":
        """Return the sums of some outputs, for a model with another digest."""
        sums = tuple(self.sums[j] for j in indices)
        return DecoupledStatistics(sums, self.count, self.noise_sum[indices], digest)


def restored(content: Any, model: Any, source: str) -> DecoupledStatistics:
    """Return sums from their content.

    Raises:
        InvalidDataError: for something else, or sums that are damaged, or of another model.
    """
    if not isinstance(content, dict) or not {"format", "digest", "sums", "count", "noise", "check"} <= content.keys():
        raise InvalidDataError(f"{source}: holds no statistics that `save` wrote.")
    if content["format"] != FORMAT or content["digest"] != digest_of_model(model):
        raise InvalidDataError(
            f"{source}: holds statistics of other bases, other hyperparameters, other units of the targets or another "
            "kind of noise than the model's. Use the model that they were made with."
        )
    if content["check"] != digest_of({name: content[name] for name in ("sums", "count", "noise")}):
        raise InvalidDataError(f"{source}: is damaged: its sums are not those that were written. Make it anew.")
    sums = tuple(BasisSums(*each) for each in content["sums"])
    return DecoupledStatistics(sums, content["count"], content["noise"], content["digest"])


def digest_of_model(model: Any) -> str:
    """Return a digest of all of a model that sums over rows depend on."""
    transforms = [child_of(model, name) for name in ("input_transform", "outcome_transform")]
    told = [None if transform is None else dict(transform.state_dict()) for transform in transforms]
    kernel = [(type(part).__name__, getattr(part, "nu", None)) for part in model.covar_module.modules()]
    kind = model.knows_noise, model.num_outputs, kernel
    return digest_of([kind, told, Stamp.of(model).settings])


@torch.no_grad()
def summed(model: Any, batches: Iterable[RawRows]) -> DecoupledStatistics:
    """Return the sums over raw rows of the CPU, some at a time; the model's own rows have no part in it."""
    device, m = next(model.parameters()).device, model.num_outputs
    total = nothing(model)
    for X, Y, noise in batches:
        require_given(X=X, Y=Y)
        require_tensors(noise=noise)
        if X.shape != (len(X), model.num_inputs) or Y.shape != (len(X), m):
            expected = f"n × {model.num_inputs} and n × {m}"
            raise InvalidDataError(f"X, Y: shapes {tuple(X.shape)} and {tuple(Y.shape)}, expected {expected}.")
        require_noise(noise, Y.shape, "noise", zero=model.knows_noise)
        require_finite(X=X, Y=Y)
        known = None if noise is None else noise.to(device)
        total = total + of_transformed(model, *in_model_units(model, X.to(device), Y.to(device), known))
    return total


def nothing(model: Any) -> DecoupledStatistics:
    """Return the sums over no rows."""
    sums = tuple(BasisSums.nothing(model._held.bases) for _ in range(model.num_outputs))
    noise = torch.zeros(model.num_outputs, dtype=torch.float64, device=next(model.parameters()).device)
    return DecoupledStatistics(sums, 0, noise, digest_of_model(model))


def of_transformed(model: Any, X: Tensor, Y: Tensor, D: Tensor) -> DecoupledStatistics:
    """Return the sums over transformed rows."""
    X, Y, D = (values.to(torch.float64) for values in (X, Y, D))
    residual, noise, bases = Y - model._constants(), model._noise_scale() * D, model._held.bases.frozen()
    sums = tuple(
        BasisSums.of(model._kernel(j, frozen=True), bases, X, residual[:, j], noise[:, j])
        for j in range(model.num_outputs)
    )
    return DecoupledStatistics(sums, len(X), D.sum(0), digest_of_model(model))


@torch.no_grad()
def with_statistics(model: M, statistics: DecoupledStatistics) -> M:
    """Return the model of the rows in these sums, instead of its own. It keeps no row of them.

    Raises:
        InvalidDataError: for sums of another model.
    """
    child = without_rows(model)
    if statistics.digest != digest_of_model(child):
        raise InvalidDataError(
            "statistics: they are of other bases, other hyperparameters, other units of the targets or another kind of "
            "noise than the model's. Use the model that they were made with."
        )
    child._take_sums(statistics.to(next(child.parameters()).device))
    return child


@torch.no_grad()
def without_rows(model: M) -> M:
    """Return a copy of a model without rows.

    Raises:
        UnsupportedError: if sums over parts of the rows do not make the model, with the reason.
    """
    if model._fantasies is not None:
        raise UnsupportedError("model: it holds fantasies. Use the model that they were made from.")
    if isinstance(child_of(model, "likelihood"), StudentTNoise):
        raise UnsupportedError(
            "model: StudentTNoise weighs each row by its residual, which sums do not hold. Use Gaussian noise."
        )
    if not model._polishes:
        raise UnsupportedError(
            "model: sums determine the variational parameters at their optimum. Use polish=True and at most 2048 mean "
            "points."
        )
    child = clone_module(model).eval()
    child._take_rows(child._kept_rows.first(0))
    child._joined, child._summed, child._inference = 0, None, None
    return child
