"""`bo-scale survey update`: take measurements in."""

import argparse
from pathlib import Path

from bo_scale.cli.command import Command
from bo_scale.cli.rejected import print_rejected


def _add_arguments(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("survey", type=Path, help="the survey's GeoPackage")
    add("table", type=Path, help="CSV with the columns of the first one; 'site' names planned sites")
    add("--repeats", action="store_true", help="take rows that are there already once more")
    add("--replace", action="store_true", help="put earlier values of the same planned sites aside")


def _run(given: argparse.Namespace) -> None:
    from bo_scale.survey import Survey

    arrival = Survey(given.survey).update(given.table, repeats=given.repeats, corrections=given.replace)
    print(f"Measurements added: {arrival.added:,}.")
    if arrival.matched:
        print(f"Planned sites measured: {', '.join(arrival.matched)}.")
    if arrival.known:
        print(f"Left out, being there already: {arrival.known:,} (--repeats takes them as further measurements).")
    if arrival.blank:
        print(f"Without a value yet: {arrival.blank:,}.")
    print("\n".join(arrival.notes), end="\n" if arrival.notes else "")
    print_rejected([(f"{given.table.name}, row {row}", reason) for row, reason in arrival.rejected])


UPDATE = Command("update", "take measurements in", _add_arguments, _run)
