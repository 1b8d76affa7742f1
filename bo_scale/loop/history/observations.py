"""Observations and pending points of a loop, as rows in the unit cube."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from bo_scale.models.shell.rows import Rows

ABANDONED = 64
"""So many of the points abandoned last still count as pending, so that they are not proposed again."""

ELEMENTS = 4_000_000
"""Maximum number of differences computed at once."""


class Observations:
    """All told rows, in the order they were told. Appending is O(1) amortised; what was read before stays as it was.

    Attributes:
        known_noise: Whether values come with their variances; None before the first.
    """

    def __init__(self, dimension: int, outcomes: int = 1) -> None:
        empty = torch.empty(0, dimension, dtype=torch.float64)
        none = empty.new_empty(0, outcomes)
        self._rows = Rows.of(empty, none, none)
        self.known_noise: bool | None = None

    @property
    def count(self) -> int:
        """The number of rows."""
        return self._rows.count

    def append(self, X: Float[Tensor, "q d"], Y: Float[Tensor, "q m"], Yvar: Float[Tensor, "q m"] | None) -> None:
        """Add rows."""
        self.known_noise = Yvar is not None
        self._rows = self._rows.append(X, Y, torch.ones_like(Y) if Yvar is None else Yvar)

    def first(self, n: int) -> tuple[Float[Tensor, "n d"], Float[Tensor, "n m"], Float[Tensor, "n m"] | None]:
        """Return inputs, values and variances of the first n rows."""
        return self._rows.X[:n], self._rows.Y[:n], self._rows.D[:n] if self.known_noise else None


@dataclass
class Pending:
    """Points asked for, each under a number of its own, until they are told or abandoned."""

    points: dict[int, Float[Tensor, " d"]]
    abandoned: dict[int, Float[Tensor, " d"]]
    next_number: int = 0

    def add(self, X: Float[Tensor, "q d"]) -> list[int]:
        """Add points that were just asked for; return their numbers."""
        numbers = list(range(self.next_number, self.next_number + len(X)))
        self.points.update(zip(numbers, X.unbind(0), strict=True))
        self.next_number += len(X)
        return numbers

    def match(self, X: Float[Tensor, "n d"], tolerance: float | Float[Tensor, " d"]) -> list[int | None]:
        """Return for every row the nearest pending point within the tolerance, each at most once; else None."""
        matched: list[int | None] = [None] * len(X)
        if not self.points:
            return matched
        numbers, pending = list(self.points), torch.stack(list(self.points.values()))
        free = torch.ones(len(numbers), dtype=torch.bool)
        for row in rows_where(_near(X, pending, tolerance)):
            gaps = (pending - X[row]).abs()
            within = (gaps <= tolerance).all(-1) & free
            if bool(within.any()):
                nearest = int(gaps.amax(-1).where(within, torch.inf).argmin())
                matched[row], free[nearest] = numbers[nearest], False
        return matched

    def resolve(self, numbers: list[int | None]) -> None:
        """Forget points that have been told."""
        for number in numbers:
            if number is not None:
                self.points.pop(number, None)

    def recall(self, X: Float[Tensor, "n d"], tolerance: float | Float[Tensor, " d"]) -> None:
        """Forget abandoned points that were told after all."""
        if self.abandoned:
            near = _near(_stacked(list(self.abandoned.values()), X.shape[-1]), X, tolerance)
            for number, back in zip(list(self.abandoned), near.tolist(), strict=True):
                if back:
                    del self.abandoned[number]

    def abandon(self, numbers: list[int]) -> None:
        """Move points from pending to abandoned; the last ones are remembered."""
        for number in numbers:
            self.abandoned[number] = self.points.pop(number)
        for number in list(self.abandoned)[:-ABANDONED]:
            del self.abandoned[number]

    def tensor(self, dimension: int) -> Float[Tensor, "p d"]:
        """Return the pending points in the order in which they were asked for."""
        return _stacked(list(self.points.values()), dimension)

    def avoided(self, dimension: int) -> Float[Tensor, "p d"] | None:
        """Return what an acquisition function counts as pending: pending and abandoned points; None for none."""
        points = [*self.points.values(), *self.abandoned.values()]
        return _stacked(points, dimension) if points else None


def _near(
    X: Float[Tensor, "n d"], others: Float[Tensor, "p d"], tolerance: float | Float[Tensor, " d"]
) -> Bool[Tensor, " n"]:
    """Return which rows have another point within the tolerance in every input."""
    parts = X.split(max(1, ELEMENTS // max(1, others.numel())))
    return torch.cat([((part.unsqueeze(1) - others).abs() <= tolerance).all(-1).any(-1) for part in parts])


def _stacked(points: list[Tensor], dimension: int) -> Float[Tensor, "p d"]:
    return torch.stack(points) if points else torch.empty(0, dimension, dtype=torch.float64)


def rows_where(flags: Bool[Tensor, " n"]) -> list[int]:
    """Return the numbers of the rows that are true."""
    return flags.nonzero().squeeze(-1).tolist()
