"""The history of a loop: points asked for and told, and how each event changes them, live or replayed."""

import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from bo_scale.errors import InvalidArgumentError, InvalidDataError
from bo_scale.loop.history.journal import Event
from bo_scale.loop.history.ledger import Ledger
from bo_scale.loop.history.migration import Aside, Migration, set_aside
from bo_scale.loop.history.observations import Id, Observations, Pending, near
from bo_scale.loop.history.records import Attempt, Step
from bo_scale.loop.problem.outcomes import Outcomes
from bo_scale.loop.problem.space import Points, Space

Values = tuple[Tensor, Tensor | None]
"""Values and their variances, if known."""
_CHUNK = 4096
"""Events whose points are encoded together."""


class History:
    """Everything that happened in a loop, a function of its events.

    An Optimizer changes it under its `lock`; hold that lock to read several parts of one moment.

    Attributes:
        lock: Held while an event is recorded.
        space: The space of the points, which a migration changes.
        outcomes: The outcomes that are told.
        told: Observations.
        pending: Pending points.
        ledger: All points, and what became of them.
        aside: Observations outside the space, after a migration to a narrower one.
        failures: Points that were tried, gave no value, and were not told since, in the unit cube.
        attempts: Evaluations of a run that failed.
        steps: The record of each ask.
        asks: The number of asks.
        initial_points: The number of first points asked for.
        centre_first: Whether the first of these is the centre of the space.
        from_ax: Whether it began as an Ax experiment.
        share: Points within this share of the range of each other are the same.
        forgotten: Observations that were taken out, by their ids.
        settings: The settings, as a journal describes them.
        epoch: The number of the ask from which models are made anew, after the last correction or change.

    Args:
        space: The space of the points.
        outcomes: The outcomes that are told.
        tolerance: Points within this share of the range of each other are the same.
        settings: The settings, as a journal describes them.
        centre_first: Whether the first point is the centre of the space.
    """

    def __init__(
        self,
        space: Space,
        outcomes: Outcomes,
        tolerance: float,
        settings: Mapping[str, Any] | None = None,
        centre_first: bool = False,
    ) -> None:
        self.lock = threading.RLock()
        self.space = space
        self.outcomes = outcomes
        self.share = tolerance
        self._tolerance = space.tolerances(tolerance)
        self.told = Observations(space.dimension, len(outcomes.signs))
        self.pending = Pending({}, {})
        self.ledger = Ledger(len(space.parameters))
        self.aside: list[Aside] = []
        self.failures = self.told.first(0)[0]
        self.attempts: list[Attempt] = []
        self.steps: list[Step] = []
        self.asks = 0
        self.initial_points = 0
        self.centre_first = centre_first
        self.from_ax = False
        self.settings = dict(settings or {})
        self.epoch = 0
        self.forgotten: dict[Id, Aside] = {}
        self._next_id = 0

    @property
    def pending_points(self) -> Points:
        """Pending points, exactly as they were asked for."""
        space = self.space
        return space.points([space.unpacked(self.ledger.pending(number)) for number in self.pending.points])

    @property
    def observations(self) -> tuple[Points, Any, Any]:
        """Told points, exactly as they were, their values, and the noise variances if known."""
        _, Y, variances = self.told.first(self.told.count)
        named = self.outcomes.named
        Yvar = None if variances is None else named(variances.clone())
        return self.space.points(self.told_rows()), named(self.outcomes.inner(Y)), Yvar

    def told_rows(self) -> list[list[Any]]:
        """Return the told points in the order of the observations, settled. O(n log n)."""
        entries = [entry for entry in self.ledger.entries() if entry.status == "told"]
        return [self.space.unpacked(entry.packed) for entry in sorted(entries, key=lambda entry: entry.observation)]

    def everything(self) -> tuple[Observations, list[list[Any]], list[str]]:
        """Return all observations, also those that do not count: with their points and what became of each. O(n)."""
        whole, rows = self.told.without([]), self.told_rows()
        statuses = ["told"] * whole.count
        nowhere = self.failures.new_zeros(1, self.space.dimension)  # a point outside has no place in the unit cube
        for status, others in (("set aside", self.aside), ("forgotten", list(self.forgotten.values()))):
            for each in others:
                whole.append(nowhere, each.value, each.variance, [each.name], [each.time], [each.cost])
                whole.attributes[each.name] = each.attributes
                rows.append([each.point.get(label) for label in self.space.labels])
                statuses.append(status)
        return whole, rows, statuses

    # ------------------------------------------------------------------ asked, told, abandoned, failed

    def ask(self, step: Step, rows: list[list[Any]], initial: int, unit: Tensor | None = None) -> None:
        """Record that points were asked for.

        Args:
            step: The ask.
            rows: The points, settled.
            initial: The number of first points among them.
            unit: The same in the unit cube, if known.
        """
        self.asks = step.ask + 1
        self.initial_points += initial
        self._expect(rows, unit)
        self.steps.append(step)

    def _expect(self, rows: list[list[Any]], unit: Tensor | None = None) -> list[int]:
        """Make points pending; return their numbers."""
        numbers = self.pending.add(self._encoded(rows) if unit is None else unit)
        self.ledger.asked(numbers, self.space.packed(rows))
        return numbers

    def match(self, unit: Float[Tensor, "n d"]) -> list[int | None]:
        """Return for every point the number of the pending one that it matches; None for a new point."""
        return self.pending.match(unit, self._tolerance)

    def same_point(self, unit: Float[Tensor, " d"], other: Float[Tensor, " d"]) -> bool:
        """Return whether two points are the same but for the tolerance."""
        return bool(((unit - other).abs() <= self._tolerance).all())

    def tell(
        self,
        unit: Float[Tensor, "q d"],
        rows: list[list[Any]],
        values: Float[Tensor, "q m"],
        variances: Float[Tensor, "q m"] | None,
        matched: list[int | None],
        event: Event | None = None,
    ) -> list[Id]:
        """Record observations, and return their ids.

        Args:
            unit: Their points.
            rows: The same, settled.
            values: In raw units.
            variances: Noise variances, or None.
            matched: Numbers of the pending points that they are of.
            event: The event, which may have their ids, a time and attributes.
        """
        event = event or {}
        ids = event["ids"] if event.get("ids") is not None else self._new_ids(len(rows))
        for name in ids:
            self.forgotten.pop(name, None)
        self.ledger.told(matched, self.space.packed(rows), self.told.count)
        costs = costs_of(event, len(rows))
        self.told.append(unit, self.outcomes.inner(values), variances, ids, [_seconds(event)] * len(rows), costs)
        for name, attributes in zip(ids, event.get("attributes") or ()):
            if attributes:
                self.told.attributes[name] = attributes
        self.pending.resolve(matched)
        self._gave_a_value(unit)
        return ids

    def _gave_a_value(self, unit: Float[Tensor, "q d"]) -> None:
        """Record that points are neither failed nor abandoned: they were observed."""
        self.pending.recall(unit, self._tolerance)
        if len(self.failures):
            self.failures = self.failures[~near(self.failures, unit, self._tolerance)]

    def _new_ids(self, count: int) -> list[Id]:
        """Return numbers that no observation has, or had before it was forgotten."""
        found, gone = list[Id](), {*self.forgotten, *(each.name for each in self.aside)}
        while len(found) < count:
            if self.told.place(self._next_id) is None and self._next_id not in gone:
                found.append(self._next_id)
            self._next_id += 1
        return found

    def abandon(self, numbers: list[int]) -> None:
        """Record that pending points will never be observed."""
        self.ledger.abandoned(numbers)
        self.pending.abandon(numbers)

    def fail(self, unit: Float[Tensor, "q d"], rows: list[list[Any]], matched: list[int | None]) -> None:
        """Record that points were tried and gave no value."""
        self.ledger.failed(matched, self.space.packed(rows))
        self.pending.fail(unit, matched)
        self.failures = torch.cat([self.failures, unit])

    def attempt(self, event: Event) -> None:
        """Record that an evaluation of points failed, and why."""
        self.attempts.append(Attempt(self.space.points(event["X"]), str(event["reason"]), event["time"]))

    # ------------------------------------------------------------------ corrected and changed

    def revise(
        self,
        names: Sequence[Id],
        values: Float[Tensor, "k m"],
        variances: Float[Tensor, "k m"] | None,
        costs: Sequence[float] | None = None,
        points: list[list[Any]] | None = None,
    ) -> None:
        """Record that observations had other values, and unless None variances and costs; also of those set aside.

        Unless None, they had other points too; then none of them was set aside.
        """
        inner, rows = self.outcomes.inner(values), {name: row for row, name in enumerate(names)}
        outside = {each.name for each in self.aside} & rows.keys()
        inside = [name for name in names if name not in outside]
        kept = [rows[name] for name in inside]
        self.told = self.told.revised(self._places(inside), inner[kept], None if variances is None else variances[kept])
        self.aside = [
            each if each.name not in outside else each.revised(inner, variances, costs, rows[each.name])
            for each in self.aside
        ]
        if costs is not None:
            for place, row in zip(self._places(inside), kept, strict=True):
                self.told.costs[place] = costs[row]
        if points is not None:
            self._move(self._places(names), points)
        self.epoch = self.asks

    def _move(self, places: list[int], points: list[list[Any]]) -> None:
        """Record that observations, by their places, are of other points."""
        unit = self._encoded(points)
        X = self.told.first(self.told.count)[0].clone()
        X[places] = unit
        self.told = self.told.placed(X)
        self.ledger.moved(places, self.space.packed(points))
        self._gave_a_value(unit)

    def values_of(self, names: Sequence[Id]) -> Float[Tensor, "k m"]:
        """Return the values of observations in raw units, also of those set aside."""
        outside = {each.name: each.value for each in self.aside}
        _, Y, _ = self.told.first(self.told.count)
        inner = [outside[name] if name in outside else Y[self._places([name])] for name in names]
        return self.outcomes.inner(torch.cat([Y[:0], *inner]))

    def forget(self, names: Sequence[Id]) -> None:
        """Record that observations do not count."""
        outside = {each.name: each for each in self.aside if each.name in set(names)}
        rows = self._places([each for each in names if each not in outside])
        points = self.told_rows()
        inside = [set_aside(self.told, row, dict(zip(self.space.labels, points[row], strict=True))) for row in rows]
        self.aside = [each for each in self.aside if each.name not in outside]
        self.forgotten |= outside | {each.name: each for each in inside}
        self.told = self.told.without(rows)
        self.ledger.forgotten(rows)
        self.epoch = self.asks

    def restore(self, names: Sequence[Id]) -> None:
        """Record that observations that were taken out count again; those outside the space are set aside."""
        back = [self.forgotten.pop(each) for each in names]
        first = self.told.count
        self.aside += self.back().bring_back(back, self.told, self.ledger)
        self._gave_a_value(self.told.first(self.told.count)[0][first:])
        self.epoch = self.asks

    def back(self) -> Migration:
        """Return what carries observations that were taken out into the space as it is now."""
        return Migration(self.space, self.space, {}, self.share)

    def _places(self, names: Sequence[Id]) -> list[int]:
        places = [self.told.place(name) for name in names]
        if None in places:
            raise InvalidArgumentError(f"id {names[places.index(None)]!r}")
        return [place for place in places if place is not None]

    def change(self, settings: Mapping[str, Any]) -> None:
        """Record that settings have changed to these."""
        self.settings |= settings
        self.epoch = self.asks

    def migrate(self, migration: Migration) -> None:
        """Record that the space has changed: points are carried over, as far as they lie in it."""
        self.failures = migration.carried(self.failures)
        self.space = migration.space
        self._tolerance = self.space.tolerances(self.share)
        self.told, self.pending, self.ledger, self.aside = migration.apply(
            self.told, self.pending, self.ledger, self.aside
        )
        self.forgotten = {name: migration.since(each) for name, each in self.forgotten.items()}
        self.epoch = self.asks

    # ------------------------------------------------------------------ replay

    def replay(self, event: Event, unit: Tensor | None = None, values: Values | None = None) -> None:
        """Apply an event of a journal.

        Args:
            event: The event.
            unit: Its points in the unit cube, if known.
            values: Its values and variances, if known.

        Raises:
            KeyError, TypeError, ValueError: if it is none.
        """
        match event["event"]:
            case "ask":
                step = Step(**{name: event[name] for name in Step.__dataclass_fields__})
                self.ask(step, event["X"], event["initial"], unit)
            case "tell":
                self._tell_rows(event, unit, values)
            case "abandon":
                self.abandon(event["numbers"])
            case "attempt":
                self.attempt(event)
            case "fail":
                self.fail(self._encoded(event["X"]), event["X"], event["matched"])
            case "revise" | "forget" | "restore" | "change" | "migrate":
                self._replay_correction(event)
            case _:
                self._replay_of_ax(event)

    def _replay_correction(self, event: Event) -> None:
        match event["event"]:
            case "revise":
                values, variances = self._read(event, len(event["ids"]))
                self.revise(event["ids"], values, variances, costs_of(event, len(event["ids"])), event.get("X"))
            case "forget":
                self.forget(event["ids"])
            case "restore":
                self.restore(event["ids"])
            case "change":
                self.change(event["settings"])
            case "migrate":
                slack = event.get("slack", self.share)
                self.migrate(Migration(self.space, Space.described(event["space"]), event["values"], slack))

    def _replay_of_ax(self, event: Event) -> None:
        match event["event"]:
            case "import":
                self._import(event)
            case "trials":
                first = range(len(self.ledger.trials), len(self.ledger))
                self._are_trials(event.get("entries", first), event["trials"])
            case "recall":
                self._recall(event["entries"])
            case unknown:
                raise InvalidArgumentError(f"event {unknown!r}")

    def replay_all(self, events: Sequence[Event]) -> Iterator[Event]:
        """Apply events and yield each when it is applied. Points of many events are encoded together.

        Raises:
            KeyError, TypeError, ValueError: if one cannot be applied; then it is the next to come.
        """
        for chunk in _chunks(events):
            units, values = self._encoded_together(chunk), self._read_together(chunk)
            for event, unit, each in zip(chunk, units, values, strict=True):
                self.replay(event, unit, each)
                yield event

    def _encoded_together(self, events: Sequence[Event]) -> Sequence[Tensor | None]:
        """Return the points of events in the unit cube; None for each if they must be looked at one by one."""
        sizes = [len(event["X"]) if event.get("event") in _WITH_POINTS else 0 for event in events]
        rows = [row for event, size in zip(events, sizes) if size for row in event["X"]]
        try:
            return self._encoded(rows).split(sizes)
        except (KeyError, TypeError, ValueError):
            return [None] * len(events)

    def _read_together(self, events: Sequence[Event]) -> Sequence[Values | None]:
        """Return values and variances of events; None for each if they must be looked at one by one."""
        tells = [event if event.get("event") == "tell" else _NO_VALUES for event in events]
        try:
            sizes = [len(event["Y"]) for event in tells]
            Y = [row for event in tells for row in event["Y"]]
            Yvar = [row for event in tells for row in event["Yvar"] or [None] * len(event["Y"])]
            known = any(event["Yvar"] is not None for event in tells)
            values, variances = self._read({"Y": Y, "Yvar": Yvar if known else None}, len(Y))
        except (KeyError, TypeError, ValueError):
            return [None] * len(events)
        spread = [None] * len(events) if variances is None else variances.split(sizes)
        return list(zip(values.split(sizes), spread))

    def _encoded(self, rows: list[list[Any]]) -> Float[Tensor, "n d"]:
        return self.space.encode(rows, slack=math.inf)

    def _read(self, event: Event, n: int) -> tuple[Float[Tensor, "n m"], Float[Tensor, "n m"] | None]:
        """Return values and variances of an event."""
        variances = None if event["Yvar"] is None else self.outcomes.read("Yvar", event["Yvar"], n, partly=True)
        return self.outcomes.read("Y", event["Y"], n), variances

    def _tell_rows(self, event: Event, unit: Tensor | None = None, read: Values | None = None) -> None:
        rows = event["X"]
        values, variances = read or self._read(event, len(rows))
        self.tell(self._encoded(rows) if unit is None else unit, rows, values, variances, event["matched"], event)

    def _import(self, event: Event) -> None:
        """Record the trials of an experiment: their points, observations, and which were abandoned."""
        first, rows = len(self.ledger), event["X"]
        numbers = self._expect(rows)
        if event["told"]:
            told = {"X": [rows[i] for i in event["told"]], "matched": [numbers[i] for i in event["told"]]}
            self._tell_rows({**told, "Y": event["Y"], "Yvar": event["Yvar"]})
        self.abandon([numbers[i] for i in event["abandoned"]])
        self._are_trials(range(first, len(self.ledger)), event["trials"])
        self.ledger.imported.update(range(first, len(self.ledger)))
        self.from_ax = True

    def _are_trials(self, entries: Sequence[int], trials: Sequence[int]) -> None:
        self.ledger.trials.update(zip(entries, trials))

    def _recall(self, entries: Sequence[int]) -> None:
        """Make abandoned points pending again."""
        every = list(self.ledger.entries())
        rows = [self.space.unpacked(every[place].packed) for place in entries]
        unit = self._encoded(rows)
        self.ledger.recalled(entries, self.pending.add(unit))
        self.pending.recall(unit, self._tolerance)


_NO_VALUES: Event = {"Y": [], "Yvar": None}
_WITH_POINTS = ("ask", "tell")
_ONE_BY_ONE = ("migrate", "import", "recall")


def _chunks(events: Sequence[Event]) -> Iterator[Sequence[Event]]:
    """Yield events in parts during which the space stays the same."""
    start = 0
    for end, event in enumerate(events, start=1):
        if end - start == _CHUNK or end == len(events) or event.get("event") in _ONE_BY_ONE:
            yield events[start:end]
            start = end


def costs_of(event: Event, n: int) -> list[float] | None:
    """Return the n costs that an event tells, NaN where it tells none; None if it has no costs."""
    if event.get("costs") is None:
        return None
    costs = [math.nan if cost is None else float(cost) for cost in event["costs"]]
    if len(costs) != n:
        raise InvalidDataError(f"{len(costs)} costs for {n} points")
    return costs


def _seconds(event: Event) -> float:
    """Return the time of an event, in seconds since 1970; NaN if its journal has none."""
    return datetime.fromisoformat(event["time"]).timestamp() if "time" in event else math.nan
