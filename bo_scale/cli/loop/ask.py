"""`bo-scale loop ask`: propose the next points."""

import argparse

from bo_scale.cli.command import Command
from bo_scale.cli.loop.journal import add_reading_arguments, what_is_missing, writing
from bo_scale.cli.loop.records import pending_of
from bo_scale.cli.loop.shown import command as typed
from bo_scale.cli.loop.shown import points_table, print_json
from bo_scale.cli.loop.words import read_fixed
from bo_scale.errors import InvalidArgumentError


def _add_arguments(command: argparse.ArgumentParser) -> None:
    add_reading_arguments(command)
    command.add_argument("-q", type=int, default=1, metavar="NUMBER", help="number of points (default: 1)")
    held = "values of parameters that cannot be chosen this time"
    command.add_argument("--fixed", metavar="NAME=VALUE", nargs="+", action="extend", default=[], help=held)


def _run(given: argparse.Namespace) -> None:
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


ASK = Command("ask", "propose the next points, which are then pending", _add_arguments, _run)
