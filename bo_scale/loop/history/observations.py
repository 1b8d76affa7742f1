"""Observations and pending points of a loop, as rows in the unit cube."""

import math
import threading
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from bo_scale.models.shell.rows import Rows

Id = int | str
"""The name of an observation: its number in the order of telling, or the one that a user gave."""

ABANDONED = 64
"""So many of the points abandoned last still count as pending, so that they are not proposed again."""

ELEMENTS = 4_000_000
"""Maximum number of differences computed at once."""


class Observations:
    """All told rows, in the order they were told. Appending is O(1) amortised; what was read before stays as it was.

    Attributes:
        known_noise: Whether some values came with their variances.
        ids: The id of each row.
        times: When each was told, in seconds since 1970; NaN if unknown.
        costs: What each cost; NaN if unknown.
        attributes: What users noted, by id.
    """

    def __init__(self, dimension: int, outcomes: int = 1) -> None:
        empty = torch.empty(0, dimension, dtype=torch.float64)
        none = empty.new_empty(0, outcomes)
        self._joined = Rows.of(empty, none, none)
        self._new: list[tuple[Tensor, Tensor, Tensor]] = []
        self._count = 0
        self._lock = threading.Lock()
        self.known_noise = False
        self.ids: list[Id] = []
        self.times: array[float] = array("d")
        self.costs: array[float] = array("d")
        self.attributes: dict[Id, Mapping[str, Any]] = {}
        self._places: dict[Id, int] = {}

    @property
    def count(self) -> int:
        """The number of rows."""
        return self._count

    @property
    def _rows(self) -> Rows:
        """All rows, those last appended joined to the others."""
        with self._lock:
            if self._new:
                new, self._new = self._new, []
                self._joined = self._joined.append(*map(torch.cat, zip(*new, strict=True)))
            return self._joined

    def append(
        self,
        X: Float[Tensor, "q d"],
        Y: Float[Tensor, "q m"],
        Yvar: Float[Tensor, "q m"] | None,
        ids: Sequence[Id] | None = None,
        times: Iterable[float] | None = None,
        costs: Iterable[float] | None = None,
    ) -> None:
        """Add rows; their ids are those of `range` unless given."""
        self.known_noise = self.known_noise or (Yvar is not None and not bool(Yvar.isnan().all()))
        self.ids.extend(range(self._count, self._count + len(X)) if ids is None else ids)
        self.times.extend([math.nan] * len(X) if times is None else times)
        self.costs.extend([math.nan] * len(X) if costs is None else costs)
        with self._lock:
            self._new.append((X, Y, torch.full_like(Y, math.nan) if Yvar is None else Yvar))
            self._count += len(X)

    def first(self, n: int) -> tuple[Float[Tensor, "n d"], Float[Tensor, "n m"], Float[Tensor, "n m"] | None]:
        """Return inputs, values and variances of the first n rows: NaN where unknown, None if all are."""
        rows = self._rows
        return rows.X[:n], rows.Y[:n], rows.D[:n] if self.known_noise else None

    def place(self, name: Id) -> int | None:
        """Return the row of an id; None if there is none. O(1) amortised."""
        for row in range(len(self._places), len(self.ids)):
            self._places[self.ids[row]] = row
        return self._places.get(name)

    def revised(self, rows: list[int], Y: Float[Tensor, "k m"], Yvar: Float[Tensor, "k m"] | None) -> "Observations":
        """Return the same observations with other values in some rows, and other variances unless None. O(n)."""
        X, values, variances = (each.clone() for each in (self._rows.X, self._rows.Y, self._rows.D))
        values[rows] = Y
        if Yvar is not None:
            variances[rows] = Yvar
        return self._with(Rows.of(X, values, variances), range(self._count))

    def without(self, rows: list[int]) -> "Observations":
        """Return all observations but those in some rows. O(n)."""
        gone = set(rows)
        kept = [row for row in range(self._count) if row not in gone]
        return self._with(self._rows.without(torch.tensor(rows, dtype=torch.long)), kept)

    def placed(self, X: Float[Tensor, "n e"]) -> "Observations":
        """Return the same observations at other inputs."""
        return self._with(Rows.of(X, self._rows.Y, self._rows.D), range(self._count))

    def _with(self, rows: Rows, kept: Sequence[int]) -> "Observations":
        """Return observations with other rows, and the ids and notes of those kept."""
        new = Observations(rows.X.shape[-1], rows.Y.shape[-1])
        new._joined, new._count = rows, rows.count
        new.ids = [self.ids[row] for row in kept]
        new.times = array("d", [self.times[row] for row in kept])
        new.costs = array("d", [self.costs[row] for row in kept])
        new.known_noise = not bool(rows.D.isnan().all())
        new.attributes = {name: self.attributes[name] for name in new.ids if name in self.attributes}
        return new


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
        for row in rows_where(near(X, pending, tolerance)):
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
            back_again = near(_stacked(list(self.abandoned.values()), X.shape[-1]), X, tolerance)
            for number, back in zip(list(self.abandoned), back_again.tolist(), strict=True):
                if back:
                    del self.abandoned[number]

    def abandon(self, numbers: list[int]) -> None:
        """Move points from pending to abandoned; the last ones are remembered."""
        for number in numbers:
            self.abandoned[number] = self.points.pop(number)
        for number in list(self.abandoned)[:-ABANDONED]:
            del self.abandoned[number]

    def fail(self, X: Float[Tensor, "q d"], matched: list[int | None]) -> None:
        """Forget pending points that failed, and remember where, as of abandoned ones."""
        for x, number in zip(X, matched, strict=True):
            if number is None:
                number, self.next_number = self.next_number, self.next_number + 1
                self.points[number] = x
            self.abandon([number])

    def tensor(self, dimension: int) -> Float[Tensor, "p d"]:
        """Return the pending points in the order in which they were asked for."""
        return _stacked(list(self.points.values()), dimension)

    def avoided(self, dimension: int) -> Float[Tensor, "p d"] | None:
        """Return what an acquisition function counts as pending: pending and abandoned points; None for none."""
        points = [*self.points.values(), *self.abandoned.values()]
        return _stacked(points, dimension) if points else None


def near(
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
