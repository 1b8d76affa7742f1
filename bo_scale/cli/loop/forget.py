"""`bo-scale loop forget`: take observations out."""

import argparse
import shlex
from pathlib import Path

from bo_scale.cli.loop.journal import writing
from bo_scale.cli.loop.records import Observation, observations_under, variance_words
from bo_scale.cli.loop.shown import command as typed
from bo_scale.cli.loop.shown import in_words, value_words, words
from bo_scale.cli.loop.words import read_id


def run(given: argparse.Namespace) -> None:
    """Run the command with parsed arguments."""
    with writing(given.path) as optimizer:
        ids = [read_id(each, optimizer.history.told.ids) for each in given.id]
        before = observations_under(optimizer, ids)
        optimizer.forget(ids)
        n = optimizer.num_observations
    for each in before:
        print(f"Forgotten: observation {each.id}, {in_words(each.outcomes)} at {in_words(each.point)}.")
    print(f"Observations: {n:,}. To undo:")
    for each in before:
        print(f"  {_again(given.path, each)}")
    if any(each.notes for each in before):
        print("Notes are not told again; in Python, tell(…, attributes=…) does.")


def _again(path: Path, observation: Observation) -> str:
    """Return the command that tells an observation again."""
    parts = [f"--point {words(observation.point)}", f"--value {value_words(observation.outcomes)}"]
    if observation.variances is not None:
        parts.append(f"--variance {variance_words(observation)}")
    if observation.cost is not None:
        parts.append(f"--cost {observation.cost}")
    return typed("tell", path, *parts, f"--id {shlex.quote(str(observation.id))}")
