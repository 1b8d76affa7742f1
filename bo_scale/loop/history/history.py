"""The history of a loop: points asked for and told, and how each event changes them, live or replayed."""

import math
import threading
from collections.abc import Sequence
from typing import Any

from jaxtyping import Float
from torch import Tensor

from bo_scale.errors import InvalidArgumentError
from bo_scale.loop.history.journal import Event
from bo_scale.loop.history.ledger import Ledger
from bo_scale.loop.history.observations import Observations, Pending
from bo_scale.loop.history.records import Step
from bo_scale.loop.problem.outcomes import Outcomes
from bo_scale.loop.problem.space import Points, Space


class History:
    """Everything that happened in a loop, a function of its events.

    An Optimizer changes it under its `lock`; hold that lock to read several parts of one moment.

    Attributes:
        lock: Held while an event is recorded.
        told: Observations.
        pending: Pending points.
        ledger: All points, and what became of them.
        steps: The record of each ask.
        asks: The number of asks.
        initial_points: The number of quasi-random first points asked for.
        from_ax: Whether it began as an Ax experiment.

    Args:
        space: The space of the points.
        outcomes: The outcomes that are told.
        tolerance: Points within this share of the range of each other are the same.
    """

    def __init__(self, space: Space, outcomes: Outcomes, tolerance: float) -> None:
        self.lock = threading.RLock()
        self._space = space
        self._outcomes = outcomes
        self._tolerance = space.tolerances(tolerance)
        self.told = Observations(space.dimension, len(outcomes.signs))
        self.pending = Pending({}, {})
        self.ledger = Ledger(len(space.parameters))
        self.steps: list[Step] = []
        self.asks = 0
        self.initial_points = 0
        self.from_ax = False

    @property
    def pending_points(self) -> Points:
        """Pending points, exactly as they were asked for."""
        space = self._space
        return space.points([space.unpacked(self.ledger.pending(number)) for number in self.pending.points])

    @property
    def observations(self) -> tuple[Points, Any, Any]:
        """Told points, exactly as they were, their values, and the noise variances if known."""
        space, entries = self._space, [entry for entry in self.ledger.entries() if entry.status == "told"]
        rows = [space.unpacked(entry.packed) for entry in sorted(entries, key=lambda entry: entry.observation)]
        _, Y, variances = self.told.first(self.told.count)
        named = self._outcomes.named
        Yvar = None if variances is None else named(variances.clone())
        return space.points(rows), named(self._outcomes.inner(Y)), Yvar

    def ask(self, step: Step, rows: list[list[Any]], initial: int) -> None:
        """Record that points were asked for.

        Args:
            step: The ask.
            rows: The points, settled.
            initial: The number of quasi-random ones among them.
        """
        self.asks = step.ask + 1
        self.initial_points += initial
        self._expect(rows)
        self.steps.append(step)

    def _expect(self, rows: list[list[Any]]) -> list[int]:
        """Make points pending; return their numbers."""
        numbers = self.pending.add(self._space.encode(rows, slack=math.inf))
        self.ledger.asked(numbers, self._space.packed(rows))
        return numbers

    def match(self, unit: Float[Tensor, "n d"]) -> list[int | None]:
        """Return for every point the number of the pending one that it matches; None for a new point."""
        return self.pending.match(unit, self._tolerance)

    def tell(
        self,
        unit: Float[Tensor, "q d"],
        rows: list[list[Any]],
        values: Float[Tensor, "q m"],
        variances: Float[Tensor, "q m"] | None,
        matched: list[int | None],
    ) -> None:
        """Record observations.

        Args:
            unit: Their points.
            rows: The same, settled.
            values: In raw units.
            variances: Noise variances, or None.
            matched: Numbers of the pending points that they are of.
        """
        self.ledger.told(matched, self._space.packed(rows), self.told.count)
        self.told.append(unit, self._outcomes.inner(values), variances)
        self.pending.resolve(matched)
        self.pending.recall(unit, self._tolerance)

    def abandon(self, numbers: list[int]) -> None:
        """Record that pending points will never be observed."""
        self.ledger.abandoned(numbers)
        self.pending.abandon(numbers)

    def replay(self, event: Event) -> None:
        """Apply an event of a journal.

        Raises:
            KeyError, TypeError, ValueError: if it is none.
        """
        match event["event"]:
            case "ask":
                step = Step(**{name: event[name] for name in Step.__dataclass_fields__})
                self.ask(step, event["X"], event["initial"])
            case "tell":
                self._tell_rows(event["X"], event["Y"], event["Yvar"], event["matched"])
            case "abandon":
                self.abandon(event["numbers"])
            case "import":
                self._import(event)
            case "trials":
                self._are_trials(
                    event.get("entries", range(len(self.ledger.trials), len(self.ledger))), event["trials"]
                )
            case "recall":
                self._recall(event["entries"])
            case unknown:
                raise InvalidArgumentError(f"event {unknown!r}")

    def _tell_rows(self, rows: list[list[Any]], Y: Any, Yvar: Any, matched: list[int | None]) -> None:
        unit = self._space.encode(rows, slack=math.inf)
        variances = None if Yvar is None else self._outcomes.read("Yvar", Yvar, len(unit))
        self.tell(unit, rows, self._outcomes.read("Y", Y, len(unit)), variances, matched)

    def _import(self, event: Event) -> None:
        """Record the trials of an experiment: their points, observations, and which were abandoned."""
        first, rows = len(self.ledger), event["X"]
        numbers = self._expect(rows)
        if event["told"]:
            matched: list[int | None] = [numbers[i] for i in event["told"]]
            self._tell_rows([rows[i] for i in event["told"]], event["Y"], event["Yvar"], matched)
        self.abandon([numbers[i] for i in event["abandoned"]])
        self._are_trials(range(first, len(self.ledger)), event["trials"])
        self.ledger.imported.update(range(first, len(self.ledger)))
        self.from_ax = True

    def _are_trials(self, entries: Sequence[int], trials: Sequence[int]) -> None:
        self.ledger.trials.update(zip(entries, trials))

    def _recall(self, entries: Sequence[int]) -> None:
        """Make abandoned points pending again."""
        every = list(self.ledger.entries())
        rows = [self._space.unpacked(every[place].packed) for place in entries]
        unit = self._space.encode(rows, slack=math.inf)
        self.ledger.recalled(entries, self.pending.add(unit))
        self.pending.recall(unit, self._tolerance)
