"""`bo-scale loop pending`: points that wait for their values."""

import argparse

from bo_scale.cli.command import Command
from bo_scale.cli.loop.journal import add_reading_arguments, reading
from bo_scale.cli.loop.records import pending_of
from bo_scale.cli.loop.shown import command, points_table, print_json


def _run(given: argparse.Namespace) -> None:
    with reading(given.path) as optimizer:
        points = pending_of(optimizer)
    if given.json:
        print_json([{"number": number, "point": point} for number, point in points.items()])
    elif points:
        print(points_table(points))
        print(f"To tell a value: {command('tell', given.path, f'--pending {next(iter(points))} --value VALUE')}")
    else:
        print("No point is pending.")


PENDING = Command("pending", "list the points that wait for their values", add_reading_arguments, _run)
