"""`bo-scale loop forget`: take observations out."""

import argparse
import shlex

from bo_scale.cli.loop.journal import writing
from bo_scale.cli.loop.records import observations_under
from bo_scale.cli.loop.shown import command, in_words
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
    quoted = [shlex.quote(str(each)) for each in ids]
    print(f"Observations: {n:,}. To undo: {command('restore', given.path, *quoted)}")
