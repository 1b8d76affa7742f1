"""Training rows, shared by a model and all models conditioned from it."""

from dataclasses import dataclass, field
from hashlib import blake2b

import torch
from jaxtyping import Float, Int
from torch import Tensor
from typing_extensions import override


class _Buffer:
    """Rows with room to grow. Only the view that reaches its end may append."""

    def __init__(self, X: Tensor, Y: Tensor, D: Tensor) -> None:
        self.X, self.Y, self.D = X, Y, D
        self.used = len(X)
        self.digests: dict[tuple[int, bool], Tensor] = {}
        """Digests of first rows, which never change."""


@dataclass(frozen=True)
class Rows:
    """The first n rows of a growing buffer of raw inputs X, transformed targets Y and noise variances D.

    Appending writes after the last row and returns a longer view of the same buffer, in O(1) amortised. If another view
    has already grown past this one, the new rows are kept apart and joined only when all rows are needed.
    """

    _buffer: _Buffer = field(repr=False)
    _head: int
    _tail: "Rows | None" = field(default=None, repr=False)

    @classmethod
    def of(cls, X: Float[Tensor, "n d"], Y: Float[Tensor, "n m"], D: Float[Tensor, "n m"]) -> "Rows":
        """Make rows in a new buffer; the given tensors are not copied until the first append."""
        return cls(_Buffer(X, Y, D), len(X))

    @property
    def count(self) -> int:
        """The number of rows n."""
        return self._head + (0 if self._tail is None else self._tail.count)

    @property
    def X(self) -> Float[Tensor, "n d"]:
        """The inputs before any transform."""
        head = self._buffer.X[: self._head]
        return head if self._tail is None else torch.cat([head, self._tail.X])

    @property
    def Y(self) -> Float[Tensor, "n m"]:
        """The targets after the outcome transform."""
        head = self._buffer.Y[: self._head]
        return head if self._tail is None else torch.cat([head, self._tail.Y])

    @property
    def D(self) -> Float[Tensor, "n m"]:
        """The noise variances, in squared units of Y; ones if the noise is learned."""
        head = self._buffer.D[: self._head]
        return head if self._tail is None else torch.cat([head, self._tail.D])

    def append(self, X: Float[Tensor, "q d"], Y: Float[Tensor, "q m"], D: Float[Tensor, "q m"]) -> "Rows":
        """Return these rows followed by q more."""
        if self._tail is not None:
            tail = self._tail.append(X, Y, D)
            if tail.count <= self._head:
                return Rows(self._buffer, self._head, tail)
            return Rows.of(self.X, self.Y, self.D).append(X, Y, D)
        buffer, end = self._buffer, self._head + len(X)
        if buffer.used != self._head:  # another view has grown past this one: the new rows branch off
            return Rows(buffer, self._head, Rows.of(X, Y, D))
        if end > len(buffer.X):
            room = max(end, 2 * self._head, 16)
            buffer = _Buffer(*(_with_room(v, room) for v in (self.X, self.Y, self.D)))
            object.__setattr__(self, "_buffer", buffer)  # the same rows with room: the next child need not copy them
        for whole, new in ((buffer.X, X), (buffer.Y, Y), (buffer.D, D)):
            whole.data[self._head : end] = new  # .data: earlier views are untouched, autograd need not fear for them
        buffer.used = end
        return Rows(buffer, end)

    def digest(self, count: int, targets: bool = False) -> Int[Tensor, ""]:
        """Return a hash of the first rows, by which a state made for them is recognised.

        It is computed in single precision, so that it does not depend on the dtype.

        Args:
            count: Number of rows.
            targets: Whether to include Y and D; otherwise only inputs.
        """
        known = self._buffer.digests if count <= self._head else {}
        if (count, targets) not in known:
            known[count, targets] = self._digested(count, targets)
        return known[count, targets]

    def _digested(self, count: int, targets: bool) -> Int[Tensor, ""]:
        parts = (self.X, self.Y, self.D) if targets else (self.X,)
        whole = blake2b(digest_size=7)
        for values in parts:
            whole.update(values[:count].detach().float().cpu().contiguous().numpy().tobytes())
        return torch.tensor(int.from_bytes(whole.digest(), "little"))

    def first(self, count: int) -> "Rows":
        """Return the first rows, apart from the others."""
        return Rows.of(*(values[:count].clone() for values in (self.X, self.Y, self.D)))

    def with_targets(self, Y: Float[Tensor, "n m"], D: Float[Tensor, "n m"] | None = None) -> "Rows":
        """Return the same inputs with other targets."""
        return Rows.of(self.X, Y, self.D if D is None else D)

    def without(self, numbers: Int[Tensor, " k"]) -> "Rows":
        """Return all rows except those with these indices, in the same order."""
        kept = torch.ones(self.count, dtype=torch.bool, device=self._buffer.X.device)
        kept[numbers] = False
        return Rows.of(self.X[kept], self.Y[kept], self.D[kept])

    def outputs(self, indices: list[int]) -> "Rows":
        """Return the rows of some outputs."""
        return Rows.of(self.X, self.Y[:, indices], self.D[:, indices])

    def to(self, like: Tensor) -> "Rows":
        """Return the rows on the device and in the dtype of a tensor."""
        if (self.X.dtype, self.X.device) == (like.dtype, like.device):
            return self
        moved = Rows.of(self.X.to(like), self.Y.to(like), self.D.to(like))
        moved._buffer.digests.update(self._buffer.digests)
        return moved

    def __deepcopy__(self, memo: dict[int, object]) -> "Rows":
        return Rows.of(self.X.clone(), self.Y.clone(), self.D.clone())

    @override
    def __reduce__(self) -> tuple[object, ...]:
        return Rows.of, (self.X.clone(), self.Y.clone(), self.D.clone())


def _with_room(values: Float[Tensor, "n c"], room: int) -> Float[Tensor, "r c"]:
    grown = values.new_empty(room, values.shape[-1])
    grown[: len(values)] = values.detach()
    return grown


def followed_by(values: Tensor, fantasies: Tensor | None, batch: torch.Size) -> Tensor:
    """Return observed values `n × k` and fantasised ones `b × q × k` in one tensor of batch shape `batch`."""
    if fantasies is None:
        return values
    parts = (values, fantasies.detach())
    return torch.cat([part.expand(*batch, *part.shape[-2:]) for part in parts], -2)
