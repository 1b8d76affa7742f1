"""`bo-scale loop tell`: record values of points, or failures."""

import argparse
import shlex
from pathlib import Path
from typing import Any

from bo_scale.cli.loop.journal import writing
from bo_scale.cli.loop.records import named_points, pending_of, pending_point
from bo_scale.cli.loop.shown import cell, command, in_words
from bo_scale.cli.loop.words import (
    SLACK,
    as_told,
    read_id,
    read_number,
    read_point,
    read_values,
    read_variances,
    require_every,
    row_of,
)
from bo_scale.errors import InvalidArgumentError
from bo_scale.loop import Optimizer
from bo_scale.loop.tables import tell_past


def run(given: argparse.Namespace) -> None:
    """Run the command with parsed arguments."""
    _require_together(given)
    with writing(given.path) as optimizer:
        (_tell_point if given.csv is None else _tell_table)(optimizer, given)
        n, left = optimizer.num_observations, len(optimizer.pending)
    print(f"Observations: {n:,}. Pending: {left:,}.")


def _require_together(given: argparse.Namespace) -> None:
    """Refuse options that do not go together."""
    single = [name for name in ("value", "variance", "id", "cost", "failed") if getattr(given, name)]
    if given.csv is not None and single:
        raise InvalidArgumentError(f"--{single[0]}: with --csv it comes from the table. Leave it out.")
    if given.csv is None and (given.column or given.decimal or given.outside != "refuse"):
        raise InvalidArgumentError("--column, --decimal, --outside: they are for --csv. Leave them out.")
    if given.failed and single != ["failed"]:
        raise InvalidArgumentError(f"--{single[0]}: a failed point has none. Leave it out, or --failed.")
    if given.csv is None and not given.failed and not given.value:
        raise InvalidArgumentError("--value: none given. Give --value NUMBER, or --failed if there is none.")


def _tell_point(optimizer: Optimizer, given: argparse.Namespace) -> None:
    point, outcomes, before = _point(optimizer, given), optimizer.outcomes, pending_of(optimizer)
    X, n = as_told(point, optimizer.space), optimizer.num_observations
    if given.failed:
        optimizer.tell(X, failed=True)
        said = "Failed"
    else:
        values = read_values("--value", given.value, outcomes)
        Yvar = row_of(read_variances(given.variance, outcomes), outcomes) if given.variance else None
        name = None if given.id is None else [read_id(given.id, optimizer.history.told.ids)]
        cost = None if given.cost is None else read_number("--cost", given.cost)
        (told,) = optimizer.tell(X, require_every("--value", values, outcomes), Yvar, id=name, cost=cost)
        said = f"Told {in_words(values)} under the id {told}"
        if optimizer.num_observations == n:
            return print(f"The id {told} was told before, with the same point and value. Nothing changes.")
    gone = [each for each in before if each not in optimizer.history.pending.points]
    which = f"pending point {gone[0]}" if gone else "a new point, which was not pending"
    print(f"{said}: {which}, {in_words(point)}.")
    if not given.failed:
        print(f"To undo: {command('forget', given.path, shlex.quote(str(told)))}")
    return None


def _point(optimizer: Optimizer, given: argparse.Namespace) -> dict[str, Any]:
    if given.pending is not None:
        return pending_point(optimizer, given.pending)
    point = read_point("--point", given.point, optimizer.space)
    unit = optimizer.space.encode(as_told(point, optimizer.space), slack=SLACK)
    if optimizer.space.conditions:  # without values of parameters that do not exist there
        (point,) = named_points(optimizer, as_told(point, optimizer.space))
    if optimizer.history.match(unit) == [None]:
        _require_unlike(point, pending_of(optimizer), given.path)
    return point


def _require_unlike(point: dict[str, Any], pending: dict[int, dict[str, Any]], path: Path) -> None:
    """Refuse a point that only looks like a pending one: it was copied with six digits."""
    for number, other in pending.items():
        if all(cell(value) == cell(point[name]) for name, value in other.items()):
            raise InvalidArgumentError(
                f"--point: it is pending point {number}, rounded to six digits. Tell --pending {number} instead. If it "
                f"is another point, abandon that one first: {command('abandon', path, f'--pending {number}')}"
            )


def _tell_table(optimizer: Optimizer, given: argparse.Namespace) -> None:
    n, before = optimizer.num_observations, len(optimizer.pending)
    tell_past(optimizer, given.csv, given.column, given.outside == "skip", given.decimal)
    matched = before - len(optimizer.pending)
    print(f"Told from {given.csv}: {optimizer.num_observations - n:,} observations, {matched:,} of pending points.")
