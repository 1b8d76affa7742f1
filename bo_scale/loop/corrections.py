"""Correct what a run was told, and carry it over to another space."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from bo_scale.errors import InvalidArgumentError, InvalidDataError, SpaceError
from bo_scale.loop import telling
from bo_scale.loop.history.history import costs_of
from bo_scale.loop.history.journal import Event
from bo_scale.loop.history.migration import Migration
from bo_scale.loop.history.observations import Id
from bo_scale.loop.problem.space import Space
from bo_scale.loop.run import Run

logger = logging.getLogger("bo_scale.loop")


def revise(run: Run, names: Sequence[Id], Y: Any, Yvar: Any, X: Any, cost: Any) -> None:
    """Correct observations; see `Optimizer.revise`."""
    history = run.history
    if Y is None and Yvar is None and X is None and cost is None:
        raise InvalidDataError("Y: nothing to correct. Give a value, a variance, a point or a cost.")
    given = None if Y is None else history.outcomes.read("Y", Y, len(names))
    variances = telling.read_variances(history, Yvar, len(names))
    costs = None if cost is None else telling.read_costs(cost, len(names))
    with run.model_lock, history.lock:
        telling.require_ids(history, names)
        rows = None if X is None else _points(run, names, X)
        if not names:
            return
        values, outcomes = history.values_of(names) if given is None else given, history.outcomes
        event: Event = {"event": "revise", "ids": [*names], "Y": outcomes.shown(values)}
        event["Yvar"] = telling.shown_variances(outcomes, variances)
        event |= {} if costs is None else {"costs": costs}
        event |= {} if rows is None else {"X": rows}
        with run.persistence.written(event):
            history.revise(names, values, variances, costs_of(event, len(names)), rows)
        run.start_anew()


def _points(run: Run, names: Sequence[Id], X: Any) -> list[list[Any]]:
    """Return the points of observations, settled.

    Raises:
        SpaceError: if they lie outside the space, or an observation was set aside.
        InvalidDataError: for another number of points than of observations.
    """
    history = run.history
    n = len(history.space.encode(X, slack=run.tolerance))
    if n != len(names):
        raise InvalidDataError(f"X: {n} points for {len(names)} observations. Give one for each.")
    outside = [name for name in names if history.told.place(name) is None]
    if outside:
        raise SpaceError(
            f"X: the observations {outside[:5]} were set aside, since they lie outside the space. Forget them, and "
            f"tell them with the right points."
        )
    return history.space.settled(X)


def forget(run: Run, names: Sequence[Id]) -> None:
    """Take observations out of a run; see `Optimizer.forget`."""
    with run.model_lock, run.history.lock:
        telling.require_ids(run.history, names)
        if not names:
            return
        with run.persistence.written({"event": "forget", "ids": [*names]}):
            run.history.forget(names)
        run.start_anew()


def restore(run: Run, names: Sequence[Id]) -> None:
    """Take observations back into a run; see `Optimizer.restore`."""
    history = run.history
    with run.model_lock, history.lock:
        unknown = [name for name in names if name not in history.forgotten]
        if unknown:
            raise InvalidArgumentError(
                f"id: {unknown[:5]} were not forgotten, or told again since. Forgotten: {[*history.forgotten][-20:]}."
            )
        if not names:
            return
        outside = history.back().rows([history.forgotten[name].point for name in names]).count(None)
        with run.persistence.written({"event": "restore", "ids": [*names]}):
            history.restore(names)
        run.start_anew()
    if outside:
        logger.warning("%d observations are outside the space and set aside.", outside)


def migrate(run: Run, space: Space, values: Mapping[str, Any]) -> None:
    """Carry a run over to another space; see `Optimizer.migrate`."""
    history = run.history
    with run.model_lock, history.lock:
        migration = Migration(history.space, space, values, history.share)
        if space.describe() == history.space.describe():
            return
        run.require_served(space)
        outside, given_up = migration.counts(history.told, history.ledger, history.aside)
        migration.rows(
            [each.point for each in history.forgotten.values()]
        )  # which may be restored: refuse what they lack
        event: Event = {"event": "migrate", "space": space.describe(), "values": dict(migration.values)}
        event["slack"] = migration.slack
        with run.persistence.written(event):
            history.migrate(migration)
        run.serve()
    if outside or given_up:
        said = "%d observations are outside the space and set aside, %d pending points outside are given up."
        logger.warning(said, outside, given_up)
