"""Read what a user tells: points, values, variances, ids and notes; and which of it was told before."""

import json
import logging
import math
import operator
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from bo_scale.errors import InvalidArgumentError, InvalidDataError
from bo_scale.loop.history.history import History
from bo_scale.loop.history.journal import Event
from bo_scale.loop.history.observations import Id, rows_where
from bo_scale.loop.problem.outcomes import Outcomes
from bo_scale.loop.run import Run
from bo_scale.spelling import suggestion

logger = logging.getLogger("bo_scale.loop")
SAME = 1e-12
"""Values this near, relative to their size, are the same."""
REASON_LENGTH = 500
"""Characters of the reason of a failure that are kept."""


@dataclass(frozen=True)
class Report:
    """Observations as they are told.

    Attributes:
        unit: Points in the unit cube.
        rows: The same, settled.
        values: Values in raw units.
        variances: Noise variances, or None.
        ids: The user's ids, or None.
        attributes: The user's notes on each, or None.
        costs: What each cost, None where that is not known; or None.
    """

    unit: Float[Tensor, "q d"]
    rows: list[list[Any]]
    values: Float[Tensor, "q m"]
    variances: Float[Tensor, "q m"] | None
    ids: list[Id] | None
    attributes: list[Mapping[str, Any]] | None
    costs: list[float | None] | None = None

    def without(self, left_out: Sequence[int]) -> "Report":
        """Return all but some rows."""
        gone = set(left_out)
        kept = [row for row in range(len(self.rows)) if row not in gone]

        def part(values: Any) -> Any:
            return None if values is None else [values[row] for row in kept]

        variances = None if self.variances is None else self.variances[kept]
        return Report(
            self.unit[kept],
            part(self.rows),
            self.values[kept],
            variances,
            part(self.ids),
            part(self.attributes),
            part(self.costs),
        )

    def event(self, outcomes: Outcomes, matched: list[int | None]) -> Event:
        """Return the event that records it."""
        event = {
            "event": "tell",
            "matched": matched,
            "X": self.rows,
            "Y": outcomes.shown(self.values),
            "Yvar": shown_variances(outcomes, self.variances),
        }
        more = {"ids": self.ids, "attributes": self.attributes, "costs": self.costs}
        return event | {name: value for name, value in more.items() if value is not None}

    def told_before(self, history: History) -> list[int]:
        """Return the rows whose observation was told before under the same id.

        Raises:
            InvalidDataError: if an id is of another observation.
        """
        found, aside = list[int](), {each.name for each in history.aside}
        for row, name in enumerate(self.ids or ()):
            place = history.told.place(name)
            if place is None:
                if name in aside:
                    raise InvalidDataError(f"id: {name!r} is of an observation outside the space. Give another id.")
                continue
            self._require_same(row, name, place, history)
            found.append(row)
        return found

    def _require_same(self, row: int, name: Id, place: int, history: History) -> None:
        X, Y, D = history.told.first(history.told.count)
        before = history.outcomes.inner(Y[place : place + 1])[0]
        same = history.same_point(self.unit[row], X[place]) and _near(self.values[row], before)
        if self.variances is not None and D is not None:
            same = same and _near(self.variances[row], D[place])
        if self.costs is not None and self.costs[row] is not None:
            same = same and math.isclose(self.costs[row] or math.nan, history.told.costs[place], rel_tol=SAME)
        if not same:
            at, now = (_plain(point) for point in history.space.decode(torch.stack([X[place], self.unit[row]])))
            moved = "" if at == now else " Were lines of a table moved? A column 'id' keeps them apart."
            raise InvalidDataError(
                f"id: {name!r} was told before as {before.tolist()} at {at}, and now as {self.values[row].tolist()} at "
                f"{now}, or with another variance or cost; nothing was recorded.{moved} To correct the value call "
                f"revise({name!r}, value). For another "
                f"observation give another id."
            )


def tell(run: Run, X: Any, Y: Any, Yvar: Any, names: Any, attributes: Any, cost: Any) -> list[Id]:
    """Record observations and return their ids; see `Optimizer.tell`."""
    history = run.history
    with history.lock:
        report = read(history, X, Y, Yvar, names, attributes, cost, run.tolerance)
        new = report.without(report.told_before(history))
        if not new.rows:
            return report.ids or []
        matched = history.match(new.unit)
        event = new.event(history.outcomes, matched)
        with run.persistence.written(event):
            made = history.tell(new.unit, new.rows, new.values, new.variances, matched, event)
        count = history.told.count
    logger.info("told %d observations, n = %d", len(made), count)
    return report.ids or made


def tell_failed(run: Run, X: Any, values: Mapping[str, Any]) -> None:
    """Record that points were tried and gave no value; not again for those that proposals avoid already.

    Args:
        run: The run.
        X: The points.
        values: Values and variances by argument: None, or None or NaN for each point.

    Raises:
        InvalidArgumentError: for other values.
    """
    history = run.history
    with history.lock:
        unit, rows = history.space.encode(X, slack=run.tolerance), history.space.settled(X)
        for name, each in values.items():
            if each is not None and not history.outcomes.read(name, each, len(unit), partly=True).isnan().all():
                raise InvalidArgumentError(
                    f"{name}: a failed point has none; nothing was recorded. Leave it out, or failed=True. Tell points "
                    f"with values by themselves."
                )
        matched, failed = history.match(unit), history.pending.abandoned.values()
        new = [
            row
            for row, number in enumerate(matched)
            if number is not None or not any(history.same_point(unit[row], each) for each in failed)
        ]
        if new:
            matched, rows = [matched[row] for row in new], [rows[row] for row in new]
            with run.persistence.written({"event": "fail", "matched": matched, "X": rows}):
                history.fail(unit[new], rows, matched)


def note_attempt(run: Run, X: Any, reason: str) -> None:
    """Record that an evaluation of points failed, and why. What becomes of the points is recorded by itself."""
    rows = run.history.space.settled(X)
    event: Event = {"event": "attempt", "X": rows, "reason": reason[:REASON_LENGTH]}
    with run.history.lock, run.persistence.written(event):
        run.history.attempt(event)


def read(history: History, X: Any, Y: Any, Yvar: Any, names: Any, attributes: Any, cost: Any, slack: float) -> Report:
    """Read observations.

    Raises:
        SpaceError: if points lie outside the space; the message names the rows.
        InvalidDataError: for NaN or inf, a shape that does not fit, or variances that are not positive.
        InvalidArgumentError: for ids and attributes that do not fit.
    """
    unit = history.space.encode(X, slack=slack)
    values = history.outcomes.read("Y", Y, len(unit))
    return Report(
        unit,
        history.space.settled(X),
        values,
        _some_known(read_variances(history, Yvar, len(unit))),
        None if names is None else read_ids(names, len(unit)),
        None if attributes is None else _read_attributes(attributes, len(unit)),
        None if cost is None else read_costs(cost, len(unit)),
    )


def read_variances(history: History, Yvar: Any, n: int) -> Float[Tensor, "n m"] | None:
    """Read noise variances, which are positive; NaN where unknown."""
    if Yvar is None:
        return None
    variances = history.outcomes.read("Yvar", Yvar, n, partly=True)
    bad = rows_where((variances <= 0).any(-1))
    if bad:
        raise InvalidDataError(f"Yvar: variances in rows {bad[:5]} are not positive.")
    return variances


def _some_known(variances: Float[Tensor, "n m"] | None) -> Float[Tensor, "n m"] | None:
    return None if variances is None or bool(variances.isnan().all()) else variances


def shown_variances(outcomes: Outcomes, variances: Float[Tensor, "n m"] | None) -> list[Any] | None:
    """Return variances for a journal: numbers for a single outcome, rows for several, None where unknown."""
    if variances is None:
        return None
    rows = [[None if math.isnan(each) else each for each in row] for row in variances.tolist()]
    return [row[0] for row in rows] if len(outcomes.signs) == 1 else rows


def read_costs(cost: Any, n: int) -> list[float | None]:
    """Read what n points cost: a positive number each; None or NaN where that is not known.

    Raises:
        InvalidDataError: for another number of costs, or one that is not positive and finite.
    """
    given = cost.tolist() if hasattr(cost, "tolist") else cost
    costs = list(given) if isinstance(given, list | tuple) else [given]
    if len(costs) != n:
        raise InvalidDataError(f"cost: {len(costs)} for {n} points. Give one for each.")
    return [_read_cost(each) for each in costs]


def _read_cost(cost: Any) -> float | None:
    plain = cost.item() if hasattr(cost, "item") else cost
    if plain is None or (isinstance(plain, float) and math.isnan(plain)):
        return None
    if isinstance(plain, bool) or not isinstance(plain, int | float) or not 0 < plain < math.inf:
        raise InvalidDataError(f"cost: {cost!r} is not a positive number. Leave it None where it is not known.")
    return float(plain)


def read_ids(names: Any, n: int | None = None) -> list[Id]:
    """Read one id or several: strings or whole numbers, all different.

    Args:
        names: The ids.
        n: How many there must be; None for any number.
    """
    if hasattr(names, "tolist"):
        names = names.tolist()
    if n is not None and isinstance(names, set | frozenset):
        raise InvalidArgumentError("id: a set has no order, in which ids would belong to points. Give a list.")
    several = isinstance(names, Iterable) and not isinstance(names, str | Mapping)
    read = [_read_id(each) for each in (names if several else [names])]
    if n is not None and len(read) != n:
        raise InvalidArgumentError(f"id: {len(read)} ids for {n} points. Give one for each.")
    if len(set(read)) < len(read):
        twice = sorted(repr(each) for each, count in Counter(read).items() if count > 1)
        raise InvalidArgumentError(f"id: {', '.join(twice[:5])} given twice. Each observation has an id of its own.")
    return read


def _read_id(name: Any) -> Id:
    if isinstance(name, str) and name:
        return name
    try:
        if isinstance(name, bool):
            raise TypeError
        return operator.index(name)
    except TypeError as error:
        raise InvalidArgumentError(f"id: {name!r} is neither a string nor a whole number.") from error


def _read_attributes(attributes: Any, n: int) -> list[Mapping[str, Any]]:
    each = [attributes] * n if isinstance(attributes, Mapping) else list(attributes)
    if len(each) != n or not all(isinstance(one, Mapping) for one in each):
        raise InvalidArgumentError(f"attributes: give one dictionary, or one for each of {n} points.")
    try:
        plain: list[Mapping[str, Any]] = json.loads(json.dumps(each, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(f"attributes: JSON cannot hold them ({error}). Use text and numbers.") from error
    return plain


def require_ids(history: History, names: Sequence[Id]) -> None:
    """Refuse ids of no observation.

    Raises:
        InvalidArgumentError: naming them.
    """
    aside = {each.name for each in history.aside}
    unknown = [name for name in names if history.told.place(name) is None and name not in aside]
    gone = [name for name in unknown if name in history.forgotten]
    if gone:
        raise InvalidArgumentError(f"id: {gone[:5]} were forgotten. restore(…) takes them back.")
    if unknown:
        raise InvalidArgumentError(
            f"id: no observation has {unknown[:5]}. observations_frame() lists ids."
            f"{suggestion(unknown, (each for each in history.told.ids if isinstance(each, str)))}"
        )


def _near(a: Float[Tensor, " m"], b: Float[Tensor, " m"]) -> bool:
    return bool(torch.isclose(a, b, rtol=SAME, atol=0.0, equal_nan=True).all())


def _plain(point: Any) -> Any:
    return point.tolist() if isinstance(point, Tensor) else point
