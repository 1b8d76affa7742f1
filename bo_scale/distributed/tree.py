"""Sums by pairs in a tree that is fixed by the numbers of its leaves, in whatever order these arrive."""

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Tree:
    """A sum of so many parts: equal to the last bit for every order in which they come.

    Node k of a level is the sum of nodes 2k and 2k + 1 of the level below, or the only one of them. A node is kept
    until its neighbour is there: as many as the logarithm of the number of parts if these come in order.

    Attributes:
        count: Number of parts.
        waiting: Nodes whose neighbour is not there yet, by level and place.
    """

    count: int
    waiting: dict[tuple[int, int], Any] = field(default_factory=dict)

    def add(self, number: int, part: Any) -> None:
        """Add a part.

        Args:
            number: Its number, from 0.
            part: The part; whatever has a `+`.
        """
        level, place, width = 0, number, self.count
        while width > 1:
            neighbour = (level, place ^ 1)
            if place ^ 1 < width:
                if neighbour not in self.waiting:
                    self.waiting[level, place] = part
                    return
                other = self.waiting.pop(neighbour)
                part = other + part if place % 2 else part + other
            level, place, width = level + 1, place // 2, (width + 1) // 2
        self.waiting[level, 0] = part

    @property
    def total(self) -> Any:
        """The sum of all parts."""
        assert len(self.waiting) == 1, "all parts are there"
        return next(iter(self.waiting.values()))
