"""`bo-scale loop export`: write the observations to a file."""

import argparse

from bo_scale.cli.loop.journal import reading
from bo_scale.cli.loop.shown import print_json
from bo_scale.errors import InvalidArgumentError


def run(given: argparse.Namespace) -> None:
    """Run the command with parsed arguments."""
    if given.file.suffix.lower() != ".csv":
        raise InvalidArgumentError(f"{given.file}: give a file that ends in .csv.")
    with reading(given.path) as optimizer:
        optimizer.to_csv(given.file)
        n = optimizer.num_observations
    if given.json:
        print_json({"file": str(given.file), "observations": n})
    else:
        print(f"Written: {given.file}, {n:,} observations.")
