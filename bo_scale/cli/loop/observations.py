"""`bo-scale loop observations`: what was observed."""

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from bo_scale.cli.loop.commands import LAST
from bo_scale.cli.loop.journal import reading
from bo_scale.cli.loop.records import Observation, observations_of
from bo_scale.cli.loop.shown import print_json, table
from bo_scale.errors import InvalidArgumentError


def run(given: argparse.Namespace) -> None:
    """Run the command with parsed arguments."""
    if given.last is not None and given.last < 1:
        raise InvalidArgumentError(f"--last: {given.last} is below 1. Give the number of observations to show.")
    with reading(given.path) as optimizer:
        n = optimizer.num_observations
        shown = min(n, given.last or (n if given.json else LAST))
        found = observations_of(optimizer, range(n - shown, n))
    if given.json:
        print_json([asdict(each) for each in found])
    elif found:
        print(table(_columns(found)))
        print(f"Observations: {n:,}." if shown == n else f"The last {shown:,} of {n:,} observations.")
    else:
        print("No observation yet.")


def _columns(found: Sequence[Observation]) -> dict[str, list[Any]]:
    """Return columns, also if a parameter and an outcome have the same name."""
    columns: dict[str, list[Any]] = {"id": [each.id for each in found]}
    parts = {
        "": [each.point for each in found],
        " ": [each.outcomes for each in found],
        " variance": [each.variances or {} for each in found],
    }
    for suffix, rows in parts.items():
        for name in dict.fromkeys(name for row in rows for name in row):
            columns[f"{name}{suffix}"] = [row.get(name) for row in rows]
    if any(each.cost is not None for each in found):
        columns["cost "] = [each.cost for each in found]
    columns["time (UTC)"] = [each.time for each in found]
    for name in dict.fromkeys(name for each in found for name in each.notes):
        columns[f"{name} (note)"] = [each.notes.get(name) for each in found]
    return columns
