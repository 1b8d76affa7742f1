"""`bo-scale loop revise`: correct the value of an observation, or its point."""

import argparse
import shlex

from bo_scale.cli.loop.journal import writing
from bo_scale.cli.loop.records import Observation, observations_under, variance_words
from bo_scale.cli.loop.shown import command as typed
from bo_scale.cli.loop.shown import in_words, value_words, words
from bo_scale.cli.loop.words import (
    as_told,
    read_id,
    read_point,
    read_values,
    read_variances,
    require_every,
    row_of,
)
from bo_scale.errors import InvalidArgumentError


def run(given: argparse.Namespace) -> None:
    """Run the command with parsed arguments."""
    if not given.value and not given.point and not given.variance:
        raise InvalidArgumentError("VALUE: nothing to correct. Give the right value, or --point, or --variance.")
    with writing(given.path) as optimizer:
        name, outcomes = read_id(given.id, optimizer.history.told.ids), optimizer.outcomes
        (before,) = observations_under(optimizer, [name])
        values = before.outcomes | (read_values("VALUE", given.value, outcomes) if given.value else {})
        spread = (before.variances or {}) | read_variances(given.variance, outcomes) if given.variance else None
        space = optimizer.space
        X = as_told(read_point("--point", given.point, space, before.point), space) if given.point else None
        optimizer.revise([name], require_every("VALUE", values, outcomes), row_of(spread, outcomes), X=X)
        (after,) = observations_under(optimizer, [name])
    if given.point:
        print(f"Observation {name}.")
        print(f"Before: {_shown(before)} at {in_words(before.point)}. Now: {_shown(after)} at {in_words(after.point)}.")
    else:
        print(f"Observation {name} at {in_words(before.point)}.")
        print(f"Before: {_shown(before)}. Now: {_shown(after)}.")
    rest = [f"--variance {variance_words(before)}"] if given.variance else []
    rest += [f"--point {words(before.point)}"] if given.point else []
    print(f"To undo: {typed('revise', given.path, shlex.quote(str(name)), value_words(before.outcomes), *rest)}")


def _shown(observation: Observation) -> str:
    spread = observation.variances
    return in_words(observation.outcomes) + ("" if spread is None else f" (variance: {in_words(spread)})")
