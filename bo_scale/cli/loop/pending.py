"""`bo-scale loop pending`: points that wait for their values."""

import argparse

from bo_scale.cli.loop.journal import reading
from bo_scale.cli.loop.records import pending_of
from bo_scale.cli.loop.shown import command, points_table, print_json


def run(given: argparse.Namespace) -> None:
    """Run the command with parsed arguments."""
    with reading(given.path) as optimizer:
        points = pending_of(optimizer)
    if given.json:
        print_json([{"number": number, "point": point} for number, point in points.items()])
    elif points:
        print(points_table(points))
        print(f"To tell a value: {command('tell', given.path, f'--pending {next(iter(points))} --value VALUE')}")
    else:
        print("No point is pending.")
