"""`bo-scale loop ask`: propose the next points."""

import argparse

from bo_scale.cli.loop.journal import what_is_missing, writing
from bo_scale.cli.loop.records import pending_of
from bo_scale.cli.loop.shown import command as typed
from bo_scale.cli.loop.shown import points_table, print_json
from bo_scale.cli.loop.words import read_fixed
from bo_scale.errors import InvalidArgumentError


def run(given: argparse.Namespace) -> None:
    """Run the command with parsed arguments."""
    with writing(given.path) as optimizer:
        missing = what_is_missing(optimizer)
        if missing is not None:
            raise InvalidArgumentError(f"ask: this run must be asked in Python. {missing}")
        before = set(optimizer.history.pending.points)
        optimizer.ask(given.q, fixed=read_fixed(given.fixed, optimizer.space) or None)
        points = {number: point for number, point in pending_of(optimizer).items() if number not in before}
    if given.json:
        print_json([{"number": number, "point": point} for number, point in points.items()])
    else:
        print(points_table(points))
        print(f"To tell a value: {typed('tell', given.path, f'--pending {next(iter(points))} --value VALUE')}")
