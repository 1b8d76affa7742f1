"""`bo-scale survey …`: surveys from the command line. Everything it does, `bo_scale.survey.Survey` does."""

import argparse
import re
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from bo_scale.errors import BoScaleError, BoScaleWarning, SurveyError
from bo_scale.survey.choice.objectives import DESIGNS, OBJECTIVES, current_name

if TYPE_CHECKING:
    from bo_scale.survey import Depot, Plan, Survey, Travel
    from bo_scale.survey.mapping.prediction import Prediction
    from bo_scale.survey.store.arrivals import Arrival

LISTED = 20
"""Rows kept aside that are named."""
MISSED = 5
"""Sites not visited that are named."""
WEST = re.compile(r"-[\d.][^,]*,\s*[-+]?[\d.]")
"""A place whose first coordinate is negative, which looks like an option."""
TRAVEL = ("kilometres", "hours", "speed", "stay", "teams", "matrix", "unit")
"""Arguments of `Travel` that are options of the same name."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; 0 if it did what it should, 1 if it refused, with the reason on standard error."""
    given = sys.argv[1:] if arguments is None else arguments
    parsed = _parser().parse_args([f" {text}" if WEST.match(text) else text for text in given])
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
    print("\n".join(survey.said))
    print(f"Measurements used: {len(survey.sites):,}.")
    _list_aside([(f"{one.file}, row {one.row}", str(one.reason)) for one in survey.aside.itertuples()])
    print(f"Written: {given.out}. Next: bo-scale survey plan {given.out} --batch 6 --out next.csv --map map.html")


def _plan(given: argparse.Namespace) -> None:
    from bo_scale.survey import Survey
    from bo_scale.survey.survey import MAPS, writer

    for path in (given.out, given.map, given.gpx):
        if path is not None and not path.resolve().parent.is_dir():
            raise SurveyError(f"{path}: there is no folder {path.resolve().parent}.")  # before the plan is made
    if given.gpx is not None:
        writer(given.gpx, {".gpx": None})
    if given.map is not None:
        writer(given.map, MAPS)
    survey = Survey(given.survey)
    routed = bool(survey.routes) and (given.again or given.add)
    if given.gpx is not None and not routed and (given.again or not given.depot):
        raise SurveyError("--gpx: no route is planned; plan some, and say where the teams start, as --depot 11.2,46.5.")
    survey.require_replaceable(given.out)
    (_write_pending if given.again else _write_plan)(given, survey)
    if given.gpx:
        survey.gpx(given.gpx)
        print(f"Written: {given.gpx}")
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
        days=given.days,
        travel=_travel(given),
        weights=given.weights,
    )
    plan.write(given.out)
    print("\n".join([*plan.said, plan.table.to_string(index=False), *_routes(plan)]))
    if plan.left_out:
        print("Not visited, though they would come first if nobody had to travel:")
        more = [f"… and {len(plan.left_out) - MISSED} more."] * (len(plan.left_out) > MISSED)
        print("\n".join(f"  {reason}" for reason in [*plan.left_out[:MISSED], *more]))
    scale = "" if survey.scale.name == "none" else f", on the {survey.scale.name} scale"
    known, expected = f"{plan.sd_before:.4g} now", f"{plan.sd_after:.4g} expected with these sites"
    print(f"Typical sd over the {plan.over}{scale}: {known}, {expected}.")
    print(f"Written: {given.out}. Fill in what you measure, then: bo-scale survey update {given.survey} {given.out}")


def _routes(plan: "Plan") -> list[str]:
    return [f"{route.name}: {' – '.join(route.sites)}, {route.cost}." for route in plan.routes]


def _travel(given: argparse.Namespace) -> "Travel | None":
    """Where teams start and how far they get, if that was said."""
    from bo_scale.survey import Travel

    chosen = {name: getattr(given, name) for name in TRAVEL if getattr(given, name) is not None}
    if not given.depot:
        if chosen or given.start or given.barrier or given.one_way or given.around_forbidden:
            raise SurveyError("--depot: say where the teams start, as --depot 11.2,46.5.")
        return None
    return Travel(
        [_depot(text, f"depot {number}") for number, text in enumerate(given.depot, start=1)],
        starts=[_depot(text, f"start {number}") for number, text in enumerate(given.start, start=1)] or None,
        one_way=given.one_way,
        barriers=given.barrier,
        around_forbidden=given.around_forbidden,
        **chosen,
    )


def _depot(text: str, name: str) -> "Depot":
    """Of `X,Y` or `NAME=X,Y`."""
    from bo_scale.survey import Depot

    *named, place = text.strip().rsplit("=", 1)
    try:
        x, y = map(float, place.split(","))
    except ValueError:
        raise SurveyError(f"{text}: give a place as X,Y or NAME=X,Y, in coordinates as in the table.") from None
    return Depot(x, y, *(named or [name]))


def _write_pending(given: argparse.Namespace, survey: "Survey") -> None:
    from bo_scale.survey.plan.plan import write_table

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
    from bo_scale.survey.output.exports import require_replaceable
    from bo_scale.survey.survey import writer

    for path in given.out:
        writer(path, kinds)  # before the work is done
        require_replaceable(path)
    survey = Survey(given.survey)
    prediction = survey.predict(given.cells, given.size, given.threshold)
    for path in given.out:
        write(survey, path, prediction)
        print(f"Written: {path}, {prediction.raster.count:,} cells of {prediction.raster.size:.4g} m")
    if prediction.exceeding is not None:
        print(prediction.exceeding.said)


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


class _Once(argparse.Action):
    """What is given, unless the option was given before: one of two values would be lost."""

    @override
    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        seen = namespace.__dict__.setdefault("seen", set())
        if option is not None and self.dest in seen:
            raise argparse.ArgumentError(self, "is there twice; give it once, with all that belongs to it")
        seen.add(self.dest)
        setattr(namespace, self.dest, values)


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
    command.register("action", None, _Once)
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


class _Names(tuple[str, ...]):
    """Names to choose from, shown as they are now; former ones are known too."""

    @override
    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and super().__contains__(current_name(name))


def _plan_arguments(command: argparse.ArgumentParser) -> None:
    add, designs = command.add_argument, list(DESIGNS)
    add("survey", type=Path, help="the survey's GeoPackage")
    add("--batch", type=int, help="how many sites a day; 6, or for teams that travel as many as they can visit")
    add("--days", type=int, default=1, help="of work")
    add(
        "--objective",
        choices=_Names((*OBJECTIVES, *DESIGNS)),
        default="variance",
        help=f"what the sites are for; {', '.join(designs[:-1])} and {designs[-1]} are designs that need no model",
    )
    add("--threshold", type=float, help="for straddle and misclassification; else that of the survey")
    add("--spacing", type=float, default=0.0, metavar="METRES", help="least distance between the sites planned")
    add("--clearance", type=float, metavar="METRES", help="least distance from measured sites; else that of --spacing")
    add("--repeats", type=int, default=1, help="how often a candidate site may be in the batch")
    add("--weights", type=Path, help="CSV as that of init: what counts in this plan, instead of the survey's weights")
    add("--seed", type=int, default=0)
    add("--add", action="store_true", help="plan beside the sites planned already; else these are dropped")
    add("--again", action="store_true", help="plan nothing: write the table of the sites that are to be measured")
    add("--out", type=Path, required=True, metavar="NEXT.csv", help="table to fill in")
    add("--map", type=Path, metavar="MAP.html", help="draw a map too, .html or .png")
    add("--title", help="of the map")
    travel = command.add_argument_group("travel", "within a budget for each team and day, with --depot")
    add = travel.add_argument
    add(
        "--depot", metavar="X,Y", action="append", default=[], help="where teams start, or NAME=X,Y; one, or one a team"
    )
    add("--kilometres", type=float, metavar="KM", help="of a team's day; or")
    add("--hours", type=float, metavar="H", help="of a team's day, with --speed")
    add("--speed", type=float, metavar="KM/H")
    add("--stay", type=float, metavar="MINUTES", help="of work at a site, with --hours")
    add("--teams", type=int, help="how many, where they start at one depot")
    add("--one-way", action="store_true", help="a day ends at the last site")
    add("--start", metavar="X,Y", action="append", default=[], help="where a team is now, on the first day")
    add("--barrier", metavar="FILE", action="append", default=[], help="polygons that ways lead around")
    add("--around-forbidden", action="store_true", help="ways lead around the forbidden parts too")
    add("--matrix", metavar="FILE", help="CSV of the ways between candidate sites and depots, by name")
    add("--unit", choices=("km", "minutes"), help="of the matrix")
    add("--gpx", type=Path, metavar="FILE.gpx", help="write the routes for a navigation device")


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
