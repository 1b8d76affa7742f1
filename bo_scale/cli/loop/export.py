"""`bo-scale loop export`: write the observations to a file."""

import argparse
from pathlib import Path

from bo_scale.cli.command import Command
from bo_scale.cli.loop.journal import add_reading_arguments, reading
from bo_scale.cli.loop.shown import print_json
from bo_scale.errors import InvalidArgumentError


def _add_arguments(command: argparse.ArgumentParser) -> None:
    add_reading_arguments(command)
    command.add_argument("file", type=Path, metavar="FILE.csv", help="CSV to write, with a row for each observation")


def _run(given: argparse.Namespace) -> None:
    if given.file.suffix.lower() != ".csv":
        raise InvalidArgumentError(f"{given.file}: give a file that ends in .csv.")
    with reading(given.path) as optimizer:
        optimizer.to_csv(given.file)
        n = optimizer.num_observations
    if given.json:
        print_json({"file": str(given.file), "observations": n})
    else:
        print(f"Written: {given.file}, {n:,} observations.")


EXPORT = Command("export", "write the observations to a CSV file", _add_arguments, _run)
