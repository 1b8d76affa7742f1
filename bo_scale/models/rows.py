"""Training rows, shared by a model and all that it is conditioned into."""

from dataclasses import dataclass, field

from jaxtyping import Float
from torch import Tensor
from typing_extensions import override


class _Buffer:
    """Rows with room to grow. Only its owner, the view that reaches its end, may write behind it."""

    def __init__(self, X: Tensor, Y: Tensor, D: Tensor) -> None:
        self.X, self.Y, self.D = X, Y, D
        self.used = len(X)


@dataclass(frozen=True)
class Rows:
    """The first n rows of a growing buffer of raw inputs X, transformed targets Y and noise variances D.

    Appending writes behind the last row and returns a longer view of the same buffer: O(1) amortised, and nothing is
    copied unless the buffer is full or another view has already grown past this one.

    Attributes:
        count: n.
    """

    _buffer: _Buffer = field(repr=False)
    count: int

    @classmethod
    def of(cls, X: Float[Tensor, "n d"], Y: Float[Tensor, "n m"], D: Float[Tensor, "n m"]) -> "Rows":
        """Rows of their own; the tensors given are not copied before something is appended."""
        return cls(_Buffer(X, Y, D), len(X))

    @property
    def X(self) -> Float[Tensor, "n d"]:
        """Inputs before any transform."""
        return self._buffer.X[: self.count]

    @property
    def Y(self) -> Float[Tensor, "n m"]:
        """Targets after the outcome transform."""
        return self._buffer.Y[: self.count]

    @property
    def D(self) -> Float[Tensor, "n m"]:
        """Noise variances, in squared units of Y; ones where the noise is learned."""
        return self._buffer.D[: self.count]

    def append(self, X: Float[Tensor, "q d"], Y: Float[Tensor, "q m"], D: Float[Tensor, "q m"]) -> "Rows":
        """These rows and, behind them, q more."""
        end = self.count + len(X)
        buffer = self._buffer
        if buffer.used != self.count or end > len(buffer.X):
            room = max(end, 2 * self.count, 16)
            buffer = _Buffer(*(_with_room(v, room) for v in (self.X, self.Y, self.D)))
        for whole, new in ((buffer.X, X), (buffer.Y, Y), (buffer.D, D)):
            whole.data[self.count : end] = new  # .data: earlier views are untouched, autograd need not fear for them
        buffer.used = end
        return Rows(buffer, end)

    def with_targets(self, Y: Float[Tensor, "n m"], D: Float[Tensor, "n m"] | None = None) -> "Rows":
        """The same inputs with other targets."""
        return Rows.of(self.X, Y, self.D if D is None else D)

    def outputs(self, indices: list[int]) -> "Rows":
        """Some of the outputs."""
        return Rows.of(self.X, self.Y[:, indices], self.D[:, indices])

    def to(self, like: Tensor) -> "Rows":
        """On the device and in the dtype of a tensor."""
        if (self.X.dtype, self.X.device) == (like.dtype, like.device):
            return self
        return Rows.of(self.X.to(like), self.Y.to(like), self.D.to(like))

    def __deepcopy__(self, memo: dict[int, object]) -> "Rows":
        return Rows.of(self.X.clone(), self.Y.clone(), self.D.clone())

    @override
    def __reduce__(self) -> tuple[object, ...]:
        return Rows.of, (self.X.clone(), self.Y.clone(), self.D.clone())


def _with_room(values: Float[Tensor, "n c"], room: int) -> Float[Tensor, "r c"]:
    grown = values.new_empty(room, values.shape[-1])
    grown[: len(values)] = values.detach()
    return grown
