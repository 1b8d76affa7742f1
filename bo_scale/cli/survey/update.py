"""`bo-scale survey update`: take measurements in."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from bo_scale.cli.command import Command
from bo_scale.cli.survey.reading import add_reading_arguments
from bo_scale.cli.survey.rejected import print_rejected
from bo_scale.errors import SurveyError
from bo_scale.survey.paths import require_file, require_survey

if TYPE_CHECKING:
    from bo_scale.survey.store.arrivals import Arrival

NAMES = ("value", "x", "y", "error", "of", "site", "time")
"""Columns that may be called otherwise than in the first table."""
LISTED = 5
"""Rows that are named."""


def _add_arguments(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("survey", type=Path, help="the survey's GeoPackage")
    table = "CSV or workbook (.xlsx) with the columns of the first table; or ids of sites instead of coordinates"
    add("table", type=Path, help=table)
    add("--value", "--count", metavar="COLUMN", help="column of values (default: the name in the first table)")
    add("--x", metavar="COLUMN", help="column of longitudes or eastings (default: the name in the first table)")
    add("--y", metavar="COLUMN", help="column of latitudes or northings (default: the name in the first table)")
    add("--error", metavar="COLUMN", help="column of errors (default: the name in the first table)")
    of = "column of numbers examined, or of exposures (default: the name in the first table)"
    add("--of", "--exposure", metavar="COLUMN", help=of)
    site = "column of ids or names of sites (default: site, that of the first table, or name)"
    add("--site", metavar="COLUMN", help=site)
    add(
        "--time", metavar="COLUMN", help="column of dates, of a survey with time (default: the name in the first table)"
    )
    add_reading_arguments(command)
    add("--repeats", action="store_true", help="add rows that the survey has already as further measurements")
    add("--replace", action="store_true", help="set aside earlier values of the same sites")
    add(
        "--withdraw", action="store_true", help="set aside the measurements of this table, as if they had not been sent"
    )


def _run(given: argparse.Namespace) -> None:
    require_survey(given.survey)
    require_file(given.table)

    from bo_scale.survey import Survey

    names = {name: text for name in NAMES if (text := getattr(given, name)) is not None}
    if given.withdraw:
        _withdraw(given, names)
        return
    arrival = Survey(given.survey).update(
        given.table,
        repeats=given.repeats,
        corrections=given.replace,
        names=names,
        sheet=given.sheet,
        decimal=given.decimal,
    )
    print(f"Measurements added: {arrival.added:,}.")
    if arrival.matched:
        print(f"Planned sites measured: {', '.join(arrival.matched)}.")
    if arrival.known:
        aside = f", {arrival.aside:,} of them set aside" if arrival.aside else ""
        print(f"Left out because the survey has them already: {arrival.known:,}{aside} (--repeats adds them again).")
    if arrival.blank:
        print(f"Rows without a value yet: {arrival.blank:,}.")
    print("\n".join(arrival.notes), end="\n" if arrival.notes else "")
    told = arrival.rejected if arrival.added else sorted([*arrival.rejected, *arrival.again])
    print_rejected([(f"{given.table.name}, row {row}", reason) for row, reason in told])
    _require_use(given.table, arrival)


def _withdraw(given: argparse.Namespace, names: dict[str, str]) -> None:
    """Withdraw the measurements of a table.

    Raises:
        SurveyError: beside options of what is added.
    """
    from bo_scale.survey import Survey

    for name in ("repeats", "replace"):
        if getattr(given, name):
            raise SurveyError(f"--{name}: --withdraw adds nothing; leave out one of the two.")
    found = Survey(given.survey).withdraw(given.table, names=names, sheet=given.sheet, decimal=given.decimal)
    print(f"Measurements withdrawn: {found.count:,}. They are set aside; --repeats takes them in again.")
    if found.planned:
        print(f"Planned sites that are to be measured again: {', '.join(found.planned)}.")
    if found.missing:
        rows = ", ".join(map(str, found.missing[:LISTED])) + (", …" if len(found.missing) > LISTED else "")
        print(f"Rows that are no measurements of the survey: {len(found.missing):,} (row {rows}).")


def _require_use(table: Path, arrival: "Arrival") -> None:
    """Refuse a table of which nothing was added and rows were set aside, now or before, other than corrected values.

    Raises:
        SurveyError: with the first reason.
    """
    if arrival.added or not (arrival.rejected or arrival.again):
        return
    if arrival.rejected:
        row, reason = arrival.rejected[0]
        rows = _rows(len(arrival.rejected))
        raise SurveyError(f"{table}: nothing was added, and {rows} set aside (row {row}: {reason}).")
    row, reason = arrival.again[0]
    what = "all rows with a value were" if len(arrival.again) == arrival.known else _rows(len(arrival.again))
    raise SurveyError(f"{table}: nothing was added: {what} set aside before (row {row}: {reason}).")


def _rows(count: int) -> str:
    return f"{count:,} row was" if count == 1 else f"{count:,} rows were"


UPDATE = Command("update", "add measurements to the survey", _add_arguments, _run, ("survey",))
