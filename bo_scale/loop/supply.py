"""Supply of a run with points to evaluate: those that are pending, then new ones."""

from collections.abc import Iterator
from typing import Any

from bo_scale.loop.problem.space import Points


class Supply:
    """The points left to evaluate: those that were pending before the run, then new ones.

    Args:
        optimizer: It counts the observations.
        waiting: Points pending before the run.
        q: Number of points of an evaluation.
        batches: Number of asks of q points, or None.
        total: Number of observations at the end, or None.
        whole: Whether waiting points are evaluated in one call.
        at_once: Largest number of points that one ask may have, for several evaluations.
    """

    def __init__(
        self, optimizer: Any, waiting: Points, q: int, batches: int | None, total: int | None, whole: bool, at_once: int
    ) -> None:
        self._optimizer, self._waiting, self._q = optimizer, waiting, q
        self._batches, self._total, self._at_once = batches, total, at_once
        self._chunk = max(len(waiting), 1) if whole else q

    @property
    def expected(self) -> int:
        """The number of observations at the end, if nothing fails."""
        if self._total is not None:
            return self._total
        return self._optimizer.num_observations + len(self._waiting) + (self._batches or 0) * self._q

    def take(self, under_way: int) -> Points | None:
        """Return waiting points to evaluate next; None if there are none.

        Args:
            under_way: Number of points that are evaluated or asked for at present.
        """
        size = min(self._chunk, len(self._waiting), self._room(under_way))
        if size <= 0:
            return None
        points, self._waiting = self._waiting[:size], self._waiting[size:]
        return points

    def order(self, under_way: int, free: int) -> int:
        """Return the number of points to ask for next, 0 for none; the caller asks for them.

        Args:
            under_way: Number of points that are evaluated at present.
            free: Number of workers without any.
        """
        evaluations = min(free, max(self._at_once // self._q, 1))
        if self._batches is not None:
            evaluations = min(evaluations, self._batches)
            self._batches -= evaluations
        return max(min(evaluations * self._q, self._room(under_way)), 0)

    def parts(self, points: Points) -> Iterator[Points]:
        """Yield the points of an ask by evaluations."""
        for start in range(0, len(points), self._q):
            yield points[start : start + self._q]

    def _room(self, under_way: int) -> int:
        if self._total is None:
            return max(self._q, self._at_once, self._chunk)
        return self._total - self._optimizer.num_observations - under_way
