"""Carry the points of a loop over to another space."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from bo_scale.errors import InvalidDataError, SpaceError
from bo_scale.loop.history.ledger import Entry, Ledger
from bo_scale.loop.history.observations import Id, Observations, Pending
from bo_scale.loop.problem.parameters import When
from bo_scale.loop.problem.space import Space
from bo_scale.spelling import suggestion

SLACK = 1e-9
"""Share of the range by which a point may lie outside by rounding."""


@dataclass(frozen=True)
class Aside:
    """An observation outside the space.

    Attributes:
        name: Its id.
        point: Its values by the names of the parameters, or by their columns.
        value: Outcomes, larger better: `1 × m`.
        variance: Their noise variances, or None.
        time: When it was told.
        attributes: The user's notes.
        cost: What it cost; NaN if unknown.
    """

    name: Id
    point: Mapping[str | int, Any]
    value: Float[Tensor, "1 m"]
    variance: Float[Tensor, "1 m"] | None
    time: float
    attributes: Mapping[str, Any]
    cost: float

    def revised(
        self,
        values: Float[Tensor, "k m"],
        variances: Float[Tensor, "k m"] | None,
        costs: Sequence[float] | None,
        row: int,
    ) -> "Aside":
        """Return the same observation with the values in a row, and unless None its variances and cost."""
        variance = self.variance if variances is None else variances[row : row + 1]
        cost = self.cost if costs is None else costs[row]
        return replace(self, value=values[row : row + 1], variance=variance, cost=cost)


@dataclass(frozen=True)
class Migration:
    """A change of space. Observations outside the new one are set aside, and come back when a later one holds them.

    Attributes:
        old: The space before.
        space: The space after.
        values: The value that each new parameter had in the past; also that of one which did not exist at some points,
            and now does.
        slack: Share of the range by which a point may lie outside.

    Raises:
        SpaceError: if a parameter is missing, or a new one has no value for the past. A conditional one may go without,
            as long as it exists at no point of the past: `rows` refuses such points.
    """

    old: Space
    space: Space
    values: Mapping[str, Any]
    slack: float = SLACK

    def __post_init__(self) -> None:
        if (self.old.names is None) != (self.space.names is None):
            raise SpaceError("space: name all parameters, or none, as they were before.")
        if self.old.names is None and len(self.old.parameters) != len(self.space.parameters):
            raise SpaceError("space: without names the number of parameters stays the same.")
        plain = {name: value.item() if hasattr(value, "item") else value for name, value in self.values.items()}
        object.__setattr__(self, "values", plain)
        before, after = set(self.old.labels), set(self.space.labels)
        gone, new = sorted(map(str, before - after)), sorted(map(str, after - before))
        if gone:
            raise SpaceError(
                f"space: the parameters {gone} are missing. To vary one no longer, make it Fixed(value): observations "
                f"with other values are then set aside."
            )
        conditional = _conditional(self.space)
        lacking = [name for name in new if name not in self.values and name not in conditional]
        extra = sorted(set(self.values) - set(new) - _conditional(self.old))
        if extra:
            raise SpaceError(f"values: {extra} are not new parameters, which are {new}.{suggestion(extra, new)}")
        if lacking:
            raise SpaceError(f"values: new parameters {lacking} need the value that they had in the past.")
        for name in self.values:
            self._require_value(name)

    def _require_value(self, name: str) -> None:
        """Refuse a value for the past that a new parameter does not take."""
        parameter = self.space.parameters[self.space.labels.index(name)]
        try:
            outside = parameter.encode([self.values[name]])[1]
            inside = bool((outside <= max(self.slack, SLACK)).all())  # nor for NaN
        except InvalidDataError:
            inside = False
        if not inside:
            raise SpaceError(f"values: {name!r} takes {parameter}, and got {self.values[name]!r}.")

    def rows(self, points: list[Mapping[str | int, Any]]) -> list[list[Any] | None]:
        """Return points as settled rows of the new space; None for those outside.

        Raises:
            SpaceError: for a parameter that did not exist at a point, now does, and has no value for the past.
        """
        raw = [[whole.get(label) for label in self.space.labels] for whole in map(self._since, points)]
        if not raw:
            return []
        self._require_known(raw)
        inside = self.space.holds(raw, max(self.slack, SLACK)).tolist()
        settled = iter(self.space.settled([row for row, held in zip(raw, inside) if held]))
        return [next(settled) if held else None for held in inside]

    def _require_known(self, raw: list[list[Any]]) -> None:
        """Refuse points without a value of a parameter that exists there."""
        conditional = _conditional(self.space)
        for label, column in zip(self.space.labels, zip(*raw)):
            if label not in conditional and None in column:
                raise SpaceError(_UNKNOWN.format(label, sum(value is None for value in column)))
        for label, rows in self.space.lacking(raw).items():
            raise SpaceError(_UNKNOWN.format(label, len(rows)))

    def counts(self, told: Observations, ledger: Ledger, aside: list[Aside]) -> tuple[int, int]:
        """Return how many observations will be outside, and how many pending points will be given up."""
        entries = list(ledger.entries())
        rows = self.rows([self._named(entry) for entry in entries])
        lost = [entry.status for entry, row in zip(entries, rows, strict=True) if row is None]
        back = sum(row is None for row in self.rows([each.point for each in aside]))
        return lost.count("told") + back, lost.count("pending")

    def apply(
        self, told: Observations, pending: Pending, ledger: Ledger, aside: list[Aside]
    ) -> tuple[Observations, Pending, Ledger, list[Aside]]:
        """Return observations, pending points, entries and what is set aside, in the new space. O(n)."""
        entries, numbers = list(ledger.entries()), ledger.numbers()
        rows = self.rows([self._named(entry) for entry in entries])
        places = sorted((entry.observation, place) for place, entry in enumerate(entries) if entry.status == "told")
        inside = [place for _, place in places if rows[place] is not None]
        outside = [(row, place) for row, place in places if rows[place] is None]
        carried = [row for place in inside if (row := rows[place]) is not None]
        moved, others = Ledger(len(self.space.parameters)), Pending({}, {}, pending.next_number)
        moved.told([None] * len(carried), self.space.packed(carried), 0)
        kept = told.without([row for row, _ in outside]).placed(self._encoded(carried))
        left = [set_aside(told, row, self._since(self._named(entries[place]))) for row, place in outside]
        left += self.bring_back(aside, kept, moved)
        for entry, row, number in zip(entries, rows, numbers, strict=True):
            if row is not None and entry.status not in ("told", "forgotten"):
                self._add(row, number, entry.status, moved, others)
        self._avoid(pending, others)
        return kept, others, moved, left

    def _avoid(self, before: Pending, after: Pending) -> None:
        """Carry over the points that proposals avoid."""
        for number, place in before.abandoned.items():
            if len(carried := self.carried(place.unsqueeze(0))):
                after.abandoned[number] = carried[0]

    def carried(self, unit: Float[Tensor, "f d"]) -> Float[Tensor, "g e"]:
        """Return points of the old unit cube in the new one, without those outside."""
        settled = self.old.settled(self.old.decode(unit)) if len(unit) else []
        rows = self.rows([dict(zip(self.old.labels, row, strict=True)) for row in settled])
        return self._encoded([row for row in rows if row is not None])

    def bring_back(self, aside: list[Aside], kept: Observations, ledger: Ledger) -> list[Aside]:
        """Add what is inside the space after to what is kept; return what is not. O(entries)."""
        rows = self.rows([each.point for each in aside])
        inside = [(each, row) for each, row in zip(aside, rows, strict=True) if row is not None]
        ledger.restored(self.space.packed([row for _, row in inside]), kept.count)
        for each, row in inside:
            kept.append(self._encoded([row]), each.value, each.variance, [each.name], [each.time], [each.cost])
            if each.attributes:
                kept.attributes[each.name] = each.attributes
        return [self.since(each) for each, row in zip(aside, rows, strict=True) if row is None]

    def since(self, aside: Aside) -> Aside:
        """Return an observation of the past with the values of new parameters."""
        return replace(aside, point=self._since(aside.point))

    def _add(self, row: list[Any], number: int | None, status: str, ledger: Ledger, pending: Pending) -> None:
        """Add a point without an observation: pending under its number, abandoned, or failed."""
        unit, packed = self._encoded([row]), self.space.packed([row])
        if number is not None:
            ledger.asked([number], packed)
            pending.points[number] = unit[0]
            return
        if status == "failed":
            ledger.failed([None], packed)
            return
        ledger.asked([-1], packed)
        ledger.abandoned([-1])

    def _encoded(self, rows: list[list[Any]]) -> Float[Tensor, "n d"]:
        if not rows:
            return torch.empty(0, self.space.dimension, dtype=torch.float64)
        return self.space.encode(rows, slack=max(self.slack, SLACK))

    def _since(self, point: Mapping[str | int, Any]) -> dict[str | int, Any]:
        """Return a point of the past with the values of new parameters."""
        past: dict[str | int, Any] = {name: value for name, value in self.values.items()}
        return past | {name: value for name, value in point.items() if value is not None}

    def _named(self, entry: Entry) -> dict[str | int, Any]:
        return dict(zip(self.old.labels, self.old.unpacked(entry.packed), strict=True))


_UNKNOWN = "values: {0!r} exists at {1} points of the past that have no value of it. Give values={{{0!r}: …}}."


def _conditional(space: Space) -> set[str | int]:
    return {name for name, each in zip(space.labels, space.parameters) if isinstance(each, When)}


def set_aside(told: Observations, row: int, point: Mapping[str | int, Any]) -> Aside:
    """Return an observation, by its row, with its point."""
    _, Y, D = told.first(told.count)
    name = told.ids[row]
    variance = None if D is None else D[row : row + 1]
    notes = told.attributes.get(name, {})
    return Aside(name, point, Y[row : row + 1], variance, told.times[row], notes, told.costs[row])
