"""`bo-scale survey update`: take measurements in."""

import argparse
from pathlib import Path

from bo_scale.cli.command import Command
from bo_scale.cli.survey.rejected import print_rejected
from bo_scale.survey.paths import require_file, require_survey


def _add_arguments(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("survey", type=Path, help="the survey's GeoPackage")
    add("table", type=Path, help="CSV with the columns of the first table; the column 'site' names planned sites")
    add("--repeats", action="store_true", help="add rows that the survey has already as further measurements")
    add("--replace", action="store_true", help="set aside earlier values of the same planned sites")


def _run(given: argparse.Namespace) -> None:
    require_survey(given.survey)
    require_file(given.table)

    from bo_scale.survey import Survey

    arrival = Survey(given.survey).update(given.table, repeats=given.repeats, corrections=given.replace)
    print(f"Measurements added: {arrival.added:,}.")
    if arrival.matched:
        print(f"Planned sites measured: {', '.join(arrival.matched)}.")
    if arrival.known:
        print(f"Left out because the survey has them already: {arrival.known:,} (--repeats adds them again).")
    if arrival.blank:
        print(f"Rows without a value yet: {arrival.blank:,}.")
    print("\n".join(arrival.notes), end="\n" if arrival.notes else "")
    print_rejected([(f"{given.table.name}, row {row}", reason) for row, reason in arrival.rejected])


UPDATE = Command("update", "add measurements to the survey", _add_arguments, _run, ("survey",))
