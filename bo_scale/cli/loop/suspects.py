"""`bo-scale loop suspects`: observations far from what all others predict."""

import argparse

from bo_scale.cli.loop.journal import reading
from bo_scale.cli.loop.records import Observation, observations_of
from bo_scale.cli.loop.shown import command, print_json, table
from bo_scale.cli.loop.words import outcome_names
from bo_scale.loop.insight import Suspect


def run(given: argparse.Namespace) -> None:
    """Run the command with parsed arguments."""
    with reading(given.path) as optimizer:
        found = optimizer.suspects()
        observations = observations_of(optimizer, [each.row for each in found])
        (name, *_) = outcome_names(optimizer.outcomes)
    if given.json:
        print_json([_record(each, one) for each, one in zip(found, observations, strict=True)])
    elif found:
        parts = {column: [one.point[column] for one in observations] for column in observations[0].point}
        names = {"id": [each.id for each in found], **parts, "outcome": [each.outcome or name for each in found]}
        numbers = {column: [getattr(each, column) for each in found] for column in ("value", "predicted", "sd", "z")}
        print(table(names | {f"{column} ": values for column, values in numbers.items()}))
        print(f"To correct one: {command('revise', given.path, 'ID VALUE')}")
        print(f"To take one out: {command('forget', given.path, 'ID')}")
    else:
        print("No observation stands apart from the others.")


def _record(suspect: Suspect, observation: Observation) -> dict[str, object]:
    numbers = {name: getattr(suspect, name) for name in ("outcome", "value", "predicted", "sd", "z")}
    return {"id": suspect.id, "point": observation.point, **numbers}
