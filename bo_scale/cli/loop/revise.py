"""`bo-scale loop revise`: correct the value of an observation."""

import argparse
import shlex

from bo_scale.cli.command import Command
from bo_scale.cli.loop.journal import add_path, writing
from bo_scale.cli.loop.records import Observation, observations_under, variance_words
from bo_scale.cli.loop.shown import command as typed
from bo_scale.cli.loop.shown import in_words, value_words
from bo_scale.cli.loop.words import UNKNOWN, read_id, read_values, read_variances, require_every, row_of


def _add_arguments(command: argparse.ArgumentParser) -> None:
    add_path(command)
    command.add_argument("id", help="id of the observation, as `observations` lists it")
    value = "the right value; NAME=VALUE for some of several outcomes, others stay"
    command.add_argument("value", nargs="+", help=value)
    spread = f"its noise variance, or '{UNKNOWN}' (default: as before)"
    command.add_argument("--variance", nargs="+", action="extend", default=[], metavar="VARIANCE", help=spread)


def _run(given: argparse.Namespace) -> None:
    with writing(given.path) as optimizer:
        name, outcomes = read_id(given.id, optimizer.history.told.ids), optimizer.outcomes
        (before,) = observations_under(optimizer, [name])
        values = before.outcomes | read_values("VALUE", given.value, outcomes)
        spread = (before.variances or {}) | read_variances(given.variance, outcomes) if given.variance else None
        optimizer.revise([name], require_every("VALUE", values, outcomes), row_of(spread, outcomes))
        (after,) = observations_under(optimizer, [name])
    print(f"Observation {name} at {in_words(before.point)}.")
    print(f"Before: {_shown(before)}. Now: {_shown(after)}.")
    rest = [f"--variance {variance_words(before)}"] if given.variance else []
    print(f"To undo: {typed('revise', given.path, shlex.quote(str(name)), value_words(before.outcomes), *rest)}")


def _shown(observation: Observation) -> str:
    spread = observation.variances
    return in_words(observation.outcomes) + ("" if spread is None else f" (variance: {in_words(spread)})")


REVISE = Command("revise", "correct the value of an observation", _add_arguments, _run)
