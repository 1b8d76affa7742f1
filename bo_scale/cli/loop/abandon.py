"""`bo-scale loop abandon`: give pending points up."""

import argparse

from bo_scale.cli.loop.journal import writing
from bo_scale.cli.loop.records import pending_of, pending_point
from bo_scale.cli.loop.shown import command as typed
from bo_scale.cli.loop.shown import in_words, words
from bo_scale.cli.loop.words import as_told


def run(given: argparse.Namespace) -> None:
    """Run the command with parsed arguments."""
    with writing(given.path) as optimizer:
        before, space = pending_of(optimizer), optimizer.space
        points = [pending_point(optimizer, number) for number in dict.fromkeys(given.pending)]
        optimizer.abandon([row for point in points for row in as_told(point, space)])
        left = pending_of(optimizer)
    gone = {number: point for number, point in before.items() if number not in left}
    for number, point in gone.items():
        print(f"Given up: pending point {number}, {in_words(point)}.")
    print(f"Pending: {len(left):,}. If a value comes after all:")
    for point in gone.values():
        print(f"  {typed('tell', given.path, f'--point {words(point)} --value VALUE')}")
