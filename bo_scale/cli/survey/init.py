"""`bo-scale survey init`: begin a survey from a table of measurements."""

import argparse
import shlex
from contextlib import suppress
from pathlib import Path

from bo_scale.cli.command import Command
from bo_scale.cli.numbers import number
from bo_scale.cli.survey.covariates import COVARIATE, DECAY, TIME
from bo_scale.cli.survey.reading import add_reading_arguments
from bo_scale.cli.survey.rejected import print_rejected
from bo_scale.errors import SurveyError
from bo_scale.survey.paths import SURVEY_ENDINGS, require_file, require_target


def _add_arguments(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("table", type=Path, help="CSV or workbook (.xlsx) with a row for each measurement")
    add(
        "--value",
        "--count",
        required=True,
        metavar="COLUMN",
        help="column of measured values; with --of, of numbers of positives; with --exposure, of numbers of cases",
    )
    add("--x", metavar="COLUMN", help="column of longitudes or eastings (default: recognised by name)")
    add("--y", metavar="COLUMN", help="column of latitudes or northings (default: recognised by name)")
    add("--crs", help="coordinate system of the table, such as EPSG:25832 (default for degrees: WGS 84)")
    add("--error", metavar="COLUMN", help="column of each measurement's standard deviation, in units of the value")
    add("--of", metavar="COLUMN", help="column of the numbers examined; --value is then the number of positives")
    exposure = "column of exposures, such as population; --value is then the number of cases"
    add("--exposure", metavar="COLUMN", help=exposure)
    add(
        "--area",
        type=Path,
        help="file of polygons where sampling is allowed (default: hull of the sites, or the globe)",
    )
    forbidden = "file of polygons to cut out of the area; repeat the option for several files"
    add("--forbidden", type=Path, action="append", default=[], help=forbidden)
    add("--candidates", type=Path, help="CSV of the only places to choose from; coordinate columns as in the table")
    add("--weights", type=Path, help="CSV of places with a column 'weight', for example population")
    add(
        "--transform",
        choices=("none", "log", "log1p", "two-part", "logit"),
        help="scale of the model: log for skewed values, log1p or two-part if some are zero, logit for bounded ones",
    )
    add("--lower", type=number, default=0.0, help="lower bound of the logit scale (default: 0)")
    add("--upper", type=number, default=1.0, help="upper bound of the logit scale (default: 1)")
    add("--offset", type=number, default=0.0, help="number that --transform log adds to values first (default: 0)")
    add("--threshold", type=number, help="value of interest, in units of the value column")
    add("--kernel", default="auto", help="kernel: auto (default), matern12, matern32, matern52 or two-scale")
    anisotropy = (
        "ratio and bearing of an axis along which correlation reaches farther, such as 3,45; learn (default), none"
    )
    add("--anisotropy", metavar="RATIO,ANGLE", default="learn", help=anisotropy)
    divide = "file of polygons or lines that correlation goes around, such as a lake or a ridge; repeat for several"
    add("--divide", type=Path, action="append", default=[], metavar="FILE", help=divide)
    add("--site", metavar="COLUMN", help="column of ids of sites (default: the one called site, if there is one)")
    add("--covariate", action="append", default=[], metavar="COVARIATE", help=COVARIATE)
    add("--time", metavar="COLUMN", help=TIME)
    add("--decay", type=number, metavar="DAYS", help=DECAY)
    add_reading_arguments(command)
    outside = "rows outside the area, or far from all others: set them aside (default), or keep them as measurements"
    add("--outside", choices=("aside", "keep"), default="aside", help=outside)
    add("--overwrite", action="store_true", help="replace an existing survey")
    add("--out", type=Path, required=True, metavar="SURVEY.gpkg", help="survey file to create")


def _run(given: argparse.Namespace) -> None:
    named = (given.area, *given.forbidden, *given.divide, given.candidates, given.weights)
    others = [each for each in named if each is not None]
    for path in (given.table, *others):
        require_file(path)
    require_target(given.out, SURVEY_ENDINGS, [given.table, *others])

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
        exposure=given.exposure,
        area=given.area,
        forbidden=given.forbidden,
        candidates=given.candidates,
        weights=given.weights,
        transform=given.transform,
        lower=given.lower,
        upper=given.upper,
        offset=given.offset,
        threshold=given.threshold,
        kernel=given.kernel,
        keep_outside=given.outside == "keep",
        overwrite=given.overwrite,
        site=given.site,
        sheet=given.sheet,
        decimal=given.decimal,
        covariates=given.covariate,
        time=given.time,
        decay=given.decay,
        anisotropy=given.anisotropy,
        divides=given.divide,
    )
    if before is not None:
        plans = len(before.settings["plans"])
        ids = " Tables that name their sites alone need coordinates now." if plans else ""
        print(f"Replaced: a survey of {len(before.sites):,} measurements and {plans} plans.{ids}")
    print("\n".join(survey.notes))
    print(f"Measurements used: {int(survey.workspace.modelled.sum()):,}.")
    print_rejected([(f"{one.file}, row {one.row}", str(one.reason)) for one in survey.rejected.itertuples()])
    typed = shlex.quote(str(given.out))
    print(f"Written: {given.out}. Next: bo-scale survey plan {typed} --batch 6 --out next.csv --map map.html")


INIT = Command("init", "begin a survey from a table of measurements", _add_arguments, _run, ("out",))
