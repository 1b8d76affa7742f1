"""The commands of `bo-scale loop`: their names and arguments. Each runs in the module of its name, imported then."""

import argparse
from pathlib import Path
from typing import Any

from bo_scale.cli.command import Command, later

LAST = 20
"""Observations shown in a table, unless another number is asked for."""
UNKNOWN = "unknown"
"""The word for a noise variance that nobody knows."""


def _add_path(command: argparse.ArgumentParser) -> None:
    """Add the argument of the journal."""
    command.add_argument("path", type=Path, help="folder of the journal")


def _add_reading_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of a command that shows something: the journal, and the form."""
    _add_path(command)
    command.add_argument("--json", action="store_true", help="print JSON, with exact numbers")


def _best(command: argparse.ArgumentParser) -> None:
    _add_reading_arguments(command)
    held = "values that some parameters have; the best point with these is shown"
    command.add_argument("--fixed", metavar="NAME=VALUE", nargs="+", action="extend", default=[], help=held)


def _observations(command: argparse.ArgumentParser) -> None:
    _add_reading_arguments(command)
    last = f"how many to show, the latest (default: {LAST}; all with --json)"
    command.add_argument("--last", type=int, metavar="NUMBER", help=last)


def _export(command: argparse.ArgumentParser) -> None:
    _add_reading_arguments(command)
    command.add_argument("file", type=Path, metavar="FILE.csv", help="CSV to write, with a row for each observation")


def _ask(command: argparse.ArgumentParser) -> None:
    _add_reading_arguments(command)
    command.add_argument("-q", type=int, default=1, metavar="NUMBER", help="number of points (default: 1)")
    held = "values of parameters that cannot be chosen this time"
    command.add_argument("--fixed", metavar="NAME=VALUE", nargs="+", action="extend", default=[], help=held)


def _tell(command: argparse.ArgumentParser) -> None:
    _add_path(command)
    which = command.add_mutually_exclusive_group(required=True)
    several: dict[str, Any] = {"nargs": "+", "action": "extend", "default": []}
    which.add_argument("--pending", type=int, metavar="NUMBER", help="the pending point, by its number")
    which.add_argument("--point", metavar="NAME=VALUE", help="any point: a value for every parameter", **several)
    which.add_argument("--csv", type=Path, metavar="FILE", help="table with a row for each observation")
    add = command.add_argument
    add("--value", help="the value; NAME=VALUE for each of several outcomes", metavar="VALUE", **several)
    add("--variance", help="noise variance of the value, in its squared units", metavar="VARIANCE", **several)
    add("--id", help="name of the observation, under which it is recorded once (default: a number)")
    add("--cost", help="what the point cost, in any unit")
    add("--failed", action="store_true", help="the point was tried and gave no value")
    add("--column", metavar="NAME", help="with --csv: column of the only outcome (default: 'value')")
    decimal = "with --csv: decimal mark, if numbers such as 1,234 may be read in two ways (default: what others show)"
    add("--decimal", choices=("comma", "point"), help=decimal)
    rows = "with --csv: what becomes of rows outside the space (default: refuse)"
    add("--outside", choices=("refuse", "skip"), default="refuse", help=rows)


def _revise(command: argparse.ArgumentParser) -> None:
    _add_path(command)
    command.add_argument("id", help="id of the observation, as `observations` lists it")
    value = "the right value; NAME=VALUE for some of several outcomes, others stay"
    command.add_argument("value", nargs="*", default=[], metavar="VALUE", help=value)
    place = "right values of some parameters, others stay: where it was observed in truth"
    command.add_argument("--point", nargs="+", action="extend", default=[], metavar="NAME=VALUE", help=place)
    spread = f"its noise variance, or '{UNKNOWN}' (default: as before)"
    command.add_argument("--variance", nargs="+", action="extend", default=[], metavar="VARIANCE", help=spread)


def _forget(command: argparse.ArgumentParser) -> None:
    _add_path(command)
    command.add_argument("id", nargs="+", help="ids of the observations, as `observations` lists them")


def _restore(command: argparse.ArgumentParser) -> None:
    _add_path(command)
    command.add_argument("id", nargs="+", help="ids of the observations, as `forget` printed them")


def _abandon(command: argparse.ArgumentParser) -> None:
    _add_path(command)
    add, numbers = command.add_argument, "numbers of pending points, as `pending` lists them"
    add("--pending", type=int, nargs="+", required=True, metavar="NUMBER", help=numbers)


COMMANDS = (
    Command("status", "describe the run", _add_reading_arguments, later("bo_scale.cli.loop.status")),
    Command("best", "show the best point, or the best trade-offs", _best, later("bo_scale.cli.loop.best")),
    Command(
        "pending",
        "list the points that wait for their values",
        _add_reading_arguments,
        later("bo_scale.cli.loop.pending"),
    ),
    Command("observations", "show what was observed", _observations, later("bo_scale.cli.loop.observations")),
    Command(
        "suspects",
        "list observations far from what all others predict",
        _add_reading_arguments,
        later("bo_scale.cli.loop.suspects"),
    ),
    Command("export", "write the observations to a CSV file", _export, later("bo_scale.cli.loop.export"), ("file",)),
    Command("ask", "propose the next points, which are then pending", _ask, later("bo_scale.cli.loop.ask")),
    Command("tell", "record the value of a point, or of all points of a table", _tell, later("bo_scale.cli.loop.tell")),
    Command("revise", "correct the value of an observation, or its point", _revise, later("bo_scale.cli.loop.revise")),
    Command("forget", "take observations out of the run", _forget, later("bo_scale.cli.loop.forget")),
    Command("restore", "take forgotten observations back", _restore, later("bo_scale.cli.loop.restore")),
    Command("abandon", "give pending points up", _abandon, later("bo_scale.cli.loop.abandon")),
)
"""All commands, in the order of the help."""
