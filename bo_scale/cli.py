"""`bo-scale survey …`: surveys from the command line. Everything it does, `bo_scale.survey.Survey` does."""

import argparse
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bo_scale.errors import BoScaleError, BoScaleWarning, SurveyError

if TYPE_CHECKING:
    from bo_scale.survey import Survey
    from bo_scale.survey.arrivals import Arrival
    from bo_scale.survey.raster import Prediction

LISTED = 20
"""Rows kept aside that are named."""
OBJECTIVES = ("variance", "maximum", "straddle", "misclassification", "thompson")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; 0 if it did what it should, 1 if it refused, with the reason on standard error."""
    parsed = _parser().parse_args(arguments)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("always", BoScaleWarning)
            warnings.showwarning = lambda message, *_, **__: print(f"Note: {message}", file=sys.stderr)
            parsed.run(parsed)
    except (BoScaleError, ImportError, OSError) as error:
        print(f"bo-scale: {error}", file=sys.stderr)
        return 1
    return 0


def _init(given: argparse.Namespace) -> None:
    from bo_scale.survey import Survey

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
    print("\n".join(survey.said))
    print(f"Measurements used: {len(survey.sites):,}.")
    _list_aside([(f"{one.file}, row {one.row}", str(one.reason)) for one in survey.aside.itertuples()])
    print(f"Written: {given.out}. Next: bo-scale survey plan {given.out} --batch 6 --out next.csv --map map.html")


def _plan(given: argparse.Namespace) -> None:
    from bo_scale.survey import Survey

    for path in (given.out, given.map):
        if path is not None and not path.resolve().parent.is_dir():
            raise SurveyError(f"{path}: there is no folder {path.resolve().parent}.")  # before the plan is made
    survey = Survey(given.survey)
    survey.require_replaceable(given.out)
    (_write_pending if given.again else _write_plan)(given, survey)
    if given.map:
        survey.map(given.map, survey.predict(threshold=given.threshold), given.title)
        print(f"Written: {given.map}")


def _write_plan(given: argparse.Namespace, survey: "Survey") -> None:
    plan = survey.plan(
        given.batch,
        given.objective,
        threshold=given.threshold,
        spacing=given.spacing,
        clearance=given.clearance,
        repeats=given.repeats,
        seed=given.seed,
        add=given.add,
    )
    plan.write(given.out)
    print("\n".join([*plan.said, plan.table.to_string(index=False)]))
    scale = "" if survey.scale.name == "none" else f", on the {survey.scale.name} scale"
    print(f"Typical sd over the area{scale}: {plan.sd_before:.4g} now, {plan.sd_after:.4g} expected with these sites.")
    print(f"Written: {given.out}. Fill in what you measure, then: bo-scale survey update {given.survey} {given.out}")


def _write_pending(given: argparse.Namespace, survey: "Survey") -> None:
    from bo_scale.survey.proposal import write_table

    pending = survey.pending()
    if not len(pending):
        raise SurveyError(f"{given.survey}: no site is to be measured; leave out --again to plan some.")
    write_table(pending, given.out)
    print(f"Written: {given.out}, with what is to be measured: {', '.join(pending.site)}.")


def _update(given: argparse.Namespace) -> None:
    from bo_scale.survey import Survey

    arrival: Arrival = Survey(given.survey).update(given.table, repeats=given.repeats, corrections=given.replace)
    print(f"Measurements added: {arrival.added:,}.")
    if arrival.matched:
        print(f"Planned sites measured: {', '.join(arrival.matched)}.")
    if arrival.known:
        print(f"Left out, being there already: {arrival.known:,} (--repeats takes them as further measurements).")
    if arrival.blank:
        print(f"Without a value yet: {arrival.blank:,}.")
    print("\n".join(arrival.said), end="\n" if arrival.said else "")
    _list_aside([(f"{given.table.name}, row {row}", reason) for row, reason in arrival.aside])


def _map(given: argparse.Namespace) -> None:
    from bo_scale.survey.survey import MAPS

    _write_each(given, MAPS, lambda survey, path, prediction: survey.map(path, prediction, given.title))


def _predict(given: argparse.Namespace) -> None:
    from bo_scale.survey.survey import EXPORTS

    _write_each(given, EXPORTS, lambda survey, path, prediction: survey.export(path, prediction))


def _write_each(
    given: argparse.Namespace, kinds: dict[str, Any], write: "Callable[[Survey, Path, Prediction], None]"
) -> None:
    from bo_scale.survey import Survey
    from bo_scale.survey.survey import writer

    for path in given.out:
        writer(path, kinds)  # before the work is done
    survey = Survey(given.survey)
    prediction = survey.predict(given.cells, given.size, given.threshold)
    for path in given.out:
        write(survey, path, prediction)
        print(f"Written: {path}, {prediction.raster.count:,} cells of {prediction.raster.size:.4g} m")


def _status(given: argparse.Namespace) -> None:
    from bo_scale.survey import Survey

    print(Survey(given.survey).status())


def _list_aside(rows: list[tuple[str, str]]) -> None:
    if not rows:
        return
    print(f"Rows kept aside, in the survey's table 'aside': {len(rows):,}.")
    for where, reason in rows[:LISTED]:
        print(f"  {where}: {reason}")
    if len(rows) > LISTED:
        print(f"  … and {len(rows) - LISTED} more.")
    print("Correct them in a table and run `bo-scale survey update` with it.")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bo-scale", description="Where to sample next.")
    tools = parser.add_subparsers(required=True, metavar="TOOL")
    survey = tools.add_parser("survey", help="surveys of places", description="From measurements to a plan and a map.")
    commands = survey.add_subparsers(required=True, metavar="COMMAND")
    _init_arguments(_command(commands, "init", _init, "begin a survey from a table of measurements"))
    _plan_arguments(_command(commands, "plan", _plan, "choose where to measure next"))
    update = _command(commands, "update", _update, "take measurements in")
    update.add_argument("survey", type=Path, help="the survey's GeoPackage")
    update.add_argument("table", type=Path, help="CSV with the columns of the first one; 'site' names planned sites")
    update.add_argument("--repeats", action="store_true", help="take rows that are there already once more")
    update.add_argument("--replace", action="store_true", help="put earlier values of the same planned sites aside")
    _map_arguments(_command(commands, "map", _map, "draw what is known"), "map.html or map.png; several may be given")
    _map_arguments(
        _command(commands, "predict", _predict, "export what is predicted"),
        "grid.tif or grid.csv; several may be given",
    )
    status = _command(commands, "status", _status, "say what there is")
    status.add_argument("survey", type=Path, help="the survey's GeoPackage")
    return parser


def _command(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]",
    name: str,
    run: Callable[[argparse.Namespace], None],
    what: str,
) -> argparse.ArgumentParser:
    command = commands.add_parser(name, help=what, description=f"{what[0].upper()}{what[1:]}.")
    command.set_defaults(run=run)
    return command


def _init_arguments(command: argparse.ArgumentParser) -> None:
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


def _plan_arguments(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("survey", type=Path, help="the survey's GeoPackage")
    add("--batch", type=int, default=6, help="how many sites")
    add("--objective", choices=OBJECTIVES, default="variance", help="what the sites are for")
    add("--threshold", type=float, help="for straddle and misclassification; else that of the survey")
    add("--spacing", type=float, default=0.0, metavar="METRES", help="least distance between the sites planned")
    add("--clearance", type=float, metavar="METRES", help="least distance from measured sites; else that of --spacing")
    add("--repeats", type=int, default=1, help="how often a candidate site may be in the batch")
    add("--seed", type=int, default=0)
    add("--add", action="store_true", help="plan beside the sites planned already; else these are dropped")
    add("--again", action="store_true", help="plan nothing: write the table of the sites that are to be measured")
    add("--out", type=Path, required=True, metavar="NEXT.csv", help="table to fill in")
    add("--map", type=Path, metavar="MAP.html", help="draw a map too, .html or .png")
    add("--title", help="of the map")


def _map_arguments(command: argparse.ArgumentParser, files: str) -> None:
    add = command.add_argument
    add("survey", type=Path, help="the survey's GeoPackage")
    add("--cells", type=int, help="about how many cells; 60,000 unless given")
    add("--size", type=float, metavar="METRES", help="or their width")
    add("--threshold", type=float, help="in units of the column; else that of the survey")
    add("--title", help="of the map")
    add("--out", type=Path, nargs="+", required=True, metavar="FILE", help=files)


if __name__ == "__main__":
    sys.exit(main())
