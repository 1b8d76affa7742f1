"""Observations and pending points of a run, by the names of parameters and outcomes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from bo_scale.cli.loop.commands import UNKNOWN
from bo_scale.cli.loop.shown import value_words
from bo_scale.cli.loop.words import outcome_names
from bo_scale.errors import InvalidArgumentError
from bo_scale.loop import Optimizer
from bo_scale.loop.best import having
from bo_scale.loop.history.observations import Id
from bo_scale.loop.tables import labels
from bo_scale.loop.telling import require_ids

LISTED = 20
"""Up to so many numbers of pending points are listed in a message."""


@dataclass(frozen=True)
class Observation:
    """An observation.

    Attributes:
        id: Its id.
        point: Values of the parameters.
        outcomes: Values of the outcomes.
        variances: Those of their noise variances that are known; None for none.
        time: When it was told; None if unknown.
        notes: The user's notes.
        cost: What it cost; None if unknown.
    """

    id: Id
    point: dict[str, Any]
    outcomes: dict[str, float]
    variances: dict[str, float] | None
    time: datetime | None
    notes: dict[str, Any]
    cost: float | None


def observations_of(optimizer: Optimizer, rows: Sequence[int] | None = None) -> list[Observation]:
    """Return observations in the order they were told. O(n).

    Args:
        optimizer: The run.
        rows: Their numbers in that order; None for all.
    """
    told, outcomes = optimizer.history.told, outcome_names(optimizer.outcomes)
    _, Y, D = told.first(told.count)
    values, names = optimizer.outcomes.inner(Y).tolist(), labels(optimizer.space)
    variances, settled = None if D is None else D.tolist(), optimizer.history.told_rows()
    return [
        Observation(
            told.ids[row],
            dict(zip(names, settled[row], strict=True)),
            dict(zip(outcomes, values[row], strict=True)),
            None if variances is None else _known(dict(zip(outcomes, variances[row], strict=True))),
            moment(told.times[row]),
            dict(told.attributes.get(told.ids[row], {})),
            None if math.isnan(told.costs[row]) else told.costs[row],
        )
        for row in (range(told.count) if rows is None else rows)
    ]


def observations_under(optimizer: Optimizer, ids: Sequence[Id]) -> list[Observation]:
    """Return the observations of ids.

    Raises:
        InvalidArgumentError: if there is none, or it was set aside.
    """
    require_ids(optimizer.history, ids)
    places = [optimizer.history.told.place(each) for each in ids]
    outside = [each for each, place in zip(ids, places) if place is None]
    if outside:
        raise InvalidArgumentError(
            f"id: {outside[:5]} lie outside the space and are set aside, so they do not count. To change them, widen "
            f"the space first: Optimizer.open(path).migrate(…)."
        )
    return observations_of(optimizer, [place for place in places if place is not None])


def best_observed(optimizer: Optimizer) -> dict[str, tuple[Observation, bool]]:
    """Return the best observation of each objective, and whether it is feasible; infeasible ones only if none is.

    With a fidelity only those at its target count.
    """
    told, outcomes = optimizer.history.told, optimizer.outcomes
    X, Y, _ = told.first(told.count)
    places = having(optimizer.space, X, optimizer.space.held(optimizer.settings.fidelity)).nonzero().squeeze(-1)
    Y = Y[places]
    if len(Y) == 0:
        return {}
    violation = outcomes.goal(Y).violation(Y)
    least = float(violation.min().clamp_min(0))
    among = Y.where((violation <= least).unsqueeze(-1), -math.inf)
    rows = [int(places[among[:, j].argmax()]) for j in range(outcomes.objectives)]
    best = observations_of(optimizer, rows)
    return {name: (each, least <= 0) for name, each in zip(outcome_names(outcomes), best)}


def pending_of(optimizer: Optimizer) -> dict[int, dict[str, Any]]:
    """Return pending points by their numbers, which stay the same until they are told or abandoned."""
    points = named_points(optimizer, optimizer.pending)
    return dict(zip(optimizer.history.pending.points, points, strict=True))


def pending_point(optimizer: Optimizer, number: int) -> dict[str, Any]:
    """Return the pending point of a number.

    Raises:
        InvalidArgumentError: if there is none.
    """
    points = pending_of(optimizer)
    if number not in points:
        before = 0 <= number < optimizer.history.pending.next_number
        why = "it was told, failed or abandoned before" if before else "no point has this number"
        listed = f"Choose from {list(points)}." if 0 < len(points) <= LISTED else "`bo-scale loop pending` lists them."
        raise InvalidArgumentError(f"--pending: {number} is not pending: {why}. {listed}")
    return points[number]


def named_points(optimizer: Optimizer, points: Any) -> list[dict[str, Any]]:
    """Return points as dictionaries, x0, x1, … in a space without names."""
    names = labels(optimizer.space)
    return [dict(zip(names, row, strict=True)) for row in optimizer.space.settled(points)] if len(points) else []


def variance_words(observation: Observation) -> str:
    """Write the variances of an observation as options take them."""
    unknown: dict[str, float | str] = dict.fromkeys(observation.outcomes, UNKNOWN)
    return value_words(unknown | (observation.variances or {}))


def _known(variances: dict[str, float]) -> dict[str, float] | None:
    """Return the variances that are known; None for none."""
    return {name: each for name, each in variances.items() if not math.isnan(each)} or None


def moment(seconds: float) -> datetime | None:
    """Return a time in UTC; None if it is unknown."""
    return None if math.isnan(seconds) else datetime.fromtimestamp(seconds, UTC)
