"""The ledger: every point that was asked for or told, in order, exactly as it was, with its status."""

from array import array
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

Status = Literal["pending", "told", "abandoned", "failed", "forgotten"]
_STATUSES: tuple[Status, ...] = ("pending", "told", "abandoned", "failed", "forgotten")


@dataclass(frozen=True)
class Entry:
    """A point and its status.

    Attributes:
        packed: Its values as numbers, as `Space.packed` gives them.
        status: Pending, told, abandoned, failed or forgotten.
        observation: The row of its observation; −1 without one.
    """

    packed: tuple[float, ...]
    status: Status
    observation: int


@dataclass
class Ledger:
    """The entries, in the order in which points came up. O(1) amortised for each, some 8 bytes a value.

    Attributes:
        width: Values of a point.
        trials: The index of each entry's trial in an Ax experiment, by the place of the entry.
        imported: Places of entries that were trials before the loop knew of them.
    """

    width: int
    trials: dict[int, int] = field(default_factory=dict)
    imported: set[int] = field(default_factory=set)
    _values: "array[float]" = field(default_factory=lambda: array("d"))
    _statuses: "array[int]" = field(default_factory=lambda: array("b"))
    _observations: "array[int]" = field(default_factory=lambda: array("q"))
    _pending: dict[int, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._statuses)

    def entries(self) -> Iterator[Entry]:
        """Yield all entries, the oldest first."""
        for i in range(len(self)):
            packed = tuple(self._values[i * self.width : (i + 1) * self.width])
            yield Entry(packed, _STATUSES[self._statuses[i]], self._observations[i])

    def pending(self, number: int) -> tuple[float, ...]:
        """Return the values of a pending point."""
        entry = self._pending[number]
        return tuple(self._values[entry * self.width : (entry + 1) * self.width])

    def numbers(self) -> list[int | None]:
        """Return the number under which each entry is pending; None where it is not."""
        numbers: list[int | None] = [None] * len(self)
        for number, entry in self._pending.items():
            numbers[entry] = number
        return numbers

    def asked(self, numbers: Sequence[int], packed: Sequence[Sequence[float]]) -> None:
        """Add pending points, each under its number."""
        for number, values in zip(numbers, packed, strict=True):
            self._pending[number] = len(self)
            self._add(values)

    def told(self, numbers: Sequence[int | None], packed: Sequence[Sequence[float]], first: int) -> None:
        """Mark points as told: pending ones by number, others added. Their observations are rows from `first` on."""
        for row, (number, values) in enumerate(zip(numbers, packed, strict=True), start=first):
            entry = len(self) if number is None else self._pending.pop(number)
            if number is None:
                self._add(values)
            self._statuses[entry], self._observations[entry] = _STATUSES.index("told"), row

    def abandoned(self, numbers: Sequence[int]) -> None:
        """Mark pending points as abandoned."""
        for number in numbers:
            self._statuses[self._pending.pop(number)] = _STATUSES.index("abandoned")

    def failed(self, numbers: Sequence[int | None], packed: Sequence[Sequence[float]]) -> None:
        """Mark points as failed: pending ones by number, others added."""
        for number, values in zip(numbers, packed, strict=True):
            entry = len(self) if number is None else self._pending.pop(number)
            if number is None:
                self._add(values)
            self._statuses[entry] = _STATUSES.index("failed")

    def forgotten(self, rows: Sequence[int]) -> None:
        """Mark the points of some observations as forgotten; later observations move up. O(entries)."""
        gone = sorted(rows)
        for entry, row in enumerate(self._observations):
            before = bisect_left(gone, row)
            if row >= 0 and before < len(gone) and gone[before] == row:
                self._statuses[entry], self._observations[entry] = _STATUSES.index("forgotten"), -1
            else:
                self._observations[entry] = row - before

    def restored(self, packed: Sequence[Sequence[float]], first: int) -> None:
        """Mark points as told again: forgotten ones with these values, others added. O(entries).

        Their observations are rows from `first` on.
        """
        if not packed:
            return
        gone = defaultdict[bytes, list[int]](list)
        for entry in range(len(self)):
            if self._statuses[entry] == _STATUSES.index("forgotten"):
                gone[self._values[entry * self.width : (entry + 1) * self.width].tobytes()].append(entry)
        for row, values in enumerate(packed, start=first):
            same = gone[array("d", values).tobytes()]
            entry = same.pop() if same else len(self)
            if entry == len(self):
                self._add(values)
            self._statuses[entry], self._observations[entry] = _STATUSES.index("told"), row

    def moved(self, rows: Sequence[int], packed: Sequence[Sequence[float]]) -> None:
        """Replace the points of some observations. O(entries)."""
        points = dict(zip(rows, packed, strict=True))
        for entry, row in enumerate(self._observations):
            if row in points:
                self._values[entry * self.width : (entry + 1) * self.width] = array("d", points[row])

    def recalled(self, places: Sequence[int], numbers: Sequence[int]) -> None:
        """Mark abandoned points, by their places, as pending again, each under its number."""
        for place, number in zip(places, numbers, strict=True):
            self._statuses[place], self._pending[number] = _STATUSES.index("pending"), place

    def _add(self, values: Sequence[float]) -> None:
        self._values.extend(values)
        self._statuses.append(0)
        self._observations.append(-1)
