"""`bo-scale survey init`: begin a survey from a table of measurements."""

import argparse
from contextlib import suppress
from pathlib import Path

from bo_scale.cli.command import Command
from bo_scale.cli.rejected import print_rejected
from bo_scale.errors import SurveyError


def _add_arguments(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("table", type=Path, help="CSV, a row for each measurement")
    add("--value", required=True, metavar="COLUMN", help="what was measured; with --of, how many were positive")
    add("--x", metavar="COLUMN", help="longitude or easting; longitude and latitude are recognised by name")
    add("--y", metavar="COLUMN", help="latitude or northing")
    add("--crs", help="coordinate system of the columns, as EPSG:25832; WGS 84 for longitude and latitude")
    add("--error", metavar="COLUMN", help="standard deviation of each measurement, in units of the value")
    add("--of", metavar="COLUMN", help="how many were examined: the value is then k positive of n")
    add("--area", type=Path, help="polygons of where sampling is allowed; else the hull of the sites")
    add("--forbidden", type=Path, action="append", default=[], help="polygons cut out of it; may be given again")
    add("--candidates", type=Path, help="CSV of places to choose from, in columns named as in the table")
    add("--weights", type=Path, help="CSV of places with a column 'weight', such as population")
    add("--transform", choices=("none", "log", "logit"), help="scale of the model: log if skewed, logit if bounded")
    add("--lower", type=float, default=0.0, help="bound of a logit")
    add("--upper", type=float, default=1.0, help="bound of a logit")
    add("--threshold", type=float, help="value of interest, in units of the column")
    add("--kernel", default="auto", help="auto, matern12, matern32, matern52 or two-scale")
    add("--outside", choices=("aside", "keep"), default="aside", help="what to do with rows outside the area")
    add("--overwrite", action="store_true", help="replace a survey that is there")
    add("--out", type=Path, required=True, metavar="SURVEY.gpkg", help="the survey to make")


def _run(given: argparse.Namespace) -> None:
    from bo_scale.survey import Survey

    before = None
    if given.overwrite and given.out.exists():
        with suppress(SurveyError):  # whatever the file is, it may be replaced
            before = Survey(given.out)
    survey = Survey.create(
        given.out,
        given.table,
        given.value,
        x=given.x,
        y=given.y,
        crs=given.crs,
        error=given.error,
        of=given.of,
        area=given.area,
        forbidden=given.forbidden,
        candidates=given.candidates,
        weights=given.weights,
        transform=given.transform,
        lower=given.lower,
        upper=given.upper,
        threshold=given.threshold,
        kernel=given.kernel,
        keep_outside=given.outside == "keep",
        overwrite=given.overwrite,
    )
    if before is not None:
        print(f"Replaced: a survey of {len(before.sites):,} measurements and {len(before.settings['plans'])} plans.")
    print("\n".join(survey.notes))
    print(f"Measurements used: {len(survey.sites):,}.")
    print_rejected([(f"{one.file}, row {one.row}", str(one.reason)) for one in survey.rejected.itertuples()])
    print(f"Written: {given.out}. Next: bo-scale survey plan {given.out} --batch 6 --out next.csv --map map.html")


INIT = Command("init", "begin a survey from a table of measurements", _add_arguments, _run)
