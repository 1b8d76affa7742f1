"""`bo-scale survey predict`: export what is predicted, on a grid or at the places of a table."""

import argparse
from pathlib import Path

from bo_scale.cli.command import Command
from bo_scale.cli.survey.cells import add_cell_arguments, write_each
from bo_scale.cli.survey.reading import add_reading_arguments
from bo_scale.cli.survey.tiles import add_tile_arguments, is_tiled, write_tiles
from bo_scale.errors import SurveyError
from bo_scale.survey.paths import EXPORT_ENDINGS, TABLE_ENDINGS, require_file, require_survey, require_target

NAMES = ("x", "y", "site", "error", "of", "time")
"""Columns that may be called otherwise than in the first table."""
ONLY_AT = (*NAMES, "sheet", "decimal")
"""Options of `--at`."""


def _add_arguments(command: argparse.ArgumentParser) -> None:
    add_cell_arguments(command, "files to write: .tif or .csv; with --at .csv or .xlsx")
    about = "Predict any number of cells by tiles, into one cloud-optimised GeoTIFF; give --size or --cells."
    add_tile_arguments(command.add_argument_group("many cells", about))
    group = command.add_argument_group("places of a table", "Predict there instead of on a grid.")
    add = group.add_argument
    at = "CSV or workbook (.xlsx) of places, or of ids of the survey's sites; its rows and columns are kept"
    add("--at", type=Path, metavar="PLACES.csv", help=at)
    add("--x", metavar="COLUMN", help="column of longitudes or eastings (default: the name in the first table)")
    add("--y", metavar="COLUMN", help="column of latitudes or northings (default: the name in the first table)")
    add("--site", metavar="COLUMN", help="column of ids of sites, where there are no coordinates (default: site)")
    add("--error", metavar="COLUMN", help="column of errors of new measurements (default: the name in the first table)")
    of = "column of numbers examined, or of exposures, of new counts (default: the name in the first table)"
    add("--of", "--exposure", metavar="COLUMN", help=of)
    time = "column of dates, at each of which its row is predicted (default: the name in the first table)"
    add("--time", metavar="COLUMN", help=time)
    add_reading_arguments(group)


def _run(given: argparse.Namespace) -> None:
    if given.at is not None:
        if is_tiled(given):
            raise SurveyError("--workers, --dask: these are about a grid; with --at leave them out.")
        _at_places(given)
        return
    if set_here := [name for name in ONLY_AT if getattr(given, name) is not None]:
        raise SurveyError(
            f"--{set_here[0]}: this is about a table of places; give one (--at PLACES.csv), or leave it out."
        )
    if is_tiled(given):
        write_tiles(given)
        return
    write_each(given, EXPORT_ENDINGS, lambda survey, path, prediction: survey.export(path, prediction))


def _at_places(given: argparse.Namespace) -> None:
    """Predict at the places of a table, and write every file."""
    require_survey(given.survey)
    require_file(given.at)
    for name in ("cells", "size"):
        if getattr(given, name) is not None:
            raise SurveyError(f"--{name}: with --at there are no cells; leave it out.")
    for path in given.out:
        require_target(path, TABLE_ENDINGS, [given.survey, given.at])

    from bo_scale.survey import Survey
    from bo_scale.survey.places import require_predicted

    for path in given.out:
        require_predicted(path)  # before the work is done
    found = Survey(given.survey).predict_table(
        given.at,
        intervals=given.prediction,
        threshold=given.threshold,
        names={name: text for name in NAMES if (text := getattr(given, name)) is not None},
        sheet=given.sheet,
        decimal=given.decimal,
        date=given.date,
    )
    print("\n".join(found.notes), end="\n" if found.notes else "")
    for path in given.out:
        found.write(path)
        print(f"Written: {path}, {len(found.table):,} rows")


PREDICT = Command(
    "predict", "export predictions on a grid, or at the places of a table", _add_arguments, _run, ("survey", "out")
)
