"""`bo-scale loop restore`: take forgotten observations back."""

import argparse
import shlex

from bo_scale.cli.loop.journal import writing
from bo_scale.cli.loop.records import observations_of
from bo_scale.cli.loop.shown import command, in_words
from bo_scale.cli.loop.words import read_id


def run(given: argparse.Namespace) -> None:
    """Run the command with parsed arguments."""
    with writing(given.path) as optimizer:
        history = optimizer.history
        ids = [read_id(each, history.forgotten) for each in given.id]
        optimizer.restore(ids)
        n, places = optimizer.num_observations, [history.told.place(each) for each in ids]
        back = observations_of(optimizer, [place for place in places if place is not None])
    for each in back:
        print(f"Restored: observation {each.id}, {in_words(each.outcomes)} at {in_words(each.point)}.")
    if len(back) < len(ids):
        print(f"Outside the space, and set aside: {len(ids) - len(back):,}.")
    quoted = [shlex.quote(str(each.id)) for each in back]
    print(f"Observations: {n:,}. To undo: {command('forget', given.path, *quoted)}")
