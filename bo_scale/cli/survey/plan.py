"""`bo-scale survey plan`: choose where to measure next."""

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from typing_extensions import override

from bo_scale.cli.command import Command
from bo_scale.cli.numbers import number
from bo_scale.cli.survey.outline import add_outline_argument, require_outline
from bo_scale.cli.survey.travel import add_travel_arguments, travel_of
from bo_scale.errors import SurveyError
from bo_scale.survey.choice.objectives import DESIGNS, OBJECTIVES, current_name
from bo_scale.survey.paths import (
    MAP_ENDINGS,
    TABLE_ENDINGS,
    require_file,
    require_survey,
    require_target,
)
from bo_scale.survey.plan.numbers import require_plan_numbers

if TYPE_CHECKING:
    from bo_scale.survey import Plan, Survey

MISSED = 5
"""Sites not visited that are named."""


class _Names(tuple[str, ...]):
    """Names to choose from, shown as they are now; former ones are known too."""

    @override
    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and super().__contains__(current_name(name))


def _add_arguments(command: argparse.ArgumentParser) -> None:
    add, designs = command.add_argument, list(DESIGNS)
    add("survey", type=Path, help="the survey's GeoPackage")
    batch = "sites a day (default: 6); for teams that travel, the most for each (default: all that fit)"
    add("--batch", type=int, help=batch)
    add("--days", type=int, default=1, help="number of days to plan (default: 1)")
    add(
        "--objective",
        choices=_Names((*OBJECTIVES, *DESIGNS)),
        default="variance",
        help=f"what the sites are for (default: variance); {', '.join(designs[:-1])} and {designs[-1]} need no model",
    )
    about = ", ".join(each.name for each in OBJECTIVES.values() if each.needs_threshold)
    add("--threshold", type=number, help=f"threshold for {about} and the map (default: that of the survey)")
    add(
        "--spacing",
        type=number,
        default=0.0,
        metavar="METRES",
        help="least distance between planned sites (default: 0)",
    )
    add("--clearance", type=number, metavar="METRES", help="least distance from measured sites (default: --spacing)")
    add("--repeats", type=int, default=1, help="how often a candidate site may be in the batch (default: 1)")
    add(
        "--weights",
        type=Path,
        help="CSV of places with a column 'weight', for this plan instead of the survey's weights",
    )
    add(
        "--exclude",
        action="append",
        default=[],
        metavar="RASTER",
        help="GeoTIFF: no site where it is not 0; or SLOPE.tif>30",
    )
    add("--cost", type=Path, metavar="RASTER", help="GeoTIFF of what a site costs, against which its gain is weighed")
    add(
        "--date",
        metavar="DATE",
        help="date of the plan and the map, of a survey with time (default: the latest measured)",
    )
    add("--seed", type=int, default=0, help="seed of everything random (default: 0)")
    add("--add", action="store_true", help="keep the sites planned already, and plan more (default: drop them)")
    remove = "plan nothing; list so many measured sites whose loss costs the map least, to thin a network"
    add("--remove", type=int, metavar="NUMBER", help=remove)
    add("--again", action="store_true", help="plan nothing; write the table of the sites still to be measured")
    add("--out", type=Path, required=True, metavar="NEXT.csv", help="table to write, for you to fill in: .csv or .xlsx")
    add("--map", type=Path, metavar="MAP.html", help="also draw a map: .html or .png")
    add("--title", help="title of the map (default: name of the value column)")
    add_outline_argument(command)
    add("--gpx", type=Path, metavar="FILE.gpx", help="write the sites, and routes, for a navigation device")
    add("--kml", type=Path, metavar="FILE.kml", help="write the sites, and routes, for Google Earth or a phone")
    add_travel_arguments(command)


def _run(given: argparse.Namespace) -> None:
    _require_files(given)
    require_plan_numbers(given.batch, given.days, given.repeats, given.spacing, given.clearance, given.seed)

    from bo_scale.survey import Survey

    survey = Survey(given.survey)
    require_outline(given.outline, survey)
    if given.remove is not None:
        _write_removal(given, survey)
        return
    survey.require_replaceable(given.out)
    (_write_pending if given.again else _write_plan)(given, survey)
    for path, write in ((given.gpx, survey.gpx), (given.kml, survey.kml)):
        if path is not None:
            write(path)
            print(f"Written: {path}")
    if given.map:
        date = survey.workspace.pending_date if given.again and given.date is None else given.date
        survey.map(given.map, survey.predict(threshold=given.threshold, date=date), given.title, given.outline)
        print(f"Written: {given.map}")


def _require_files(given: argparse.Namespace) -> None:
    """Refuse files that cannot be read or written, before packages are imported and the plan is made."""
    require_survey(given.survey)
    if given.remove is not None:
        _require_alone(given)
    weights = None if given.objective in DESIGNS else given.weights  # designs refuse them
    files = [Path(each) for each in (weights, given.matrix, given.outline, *given.barrier) if each is not None]
    for path in files:
        require_file(path)
    targets = ((given.out, TABLE_ENDINGS), (given.map, MAP_ENDINGS), (given.gpx, (".gpx",)), (given.kml, (".kml",)))
    for path, endings in targets:
        if path is not None:
            require_target(path, endings, [given.survey, *files])
    if given.outline is not None and given.map is None:
        raise SurveyError("--outline: no map is drawn. Give --map MAP.html too, or leave out --outline.")


def _require_alone(given: argparse.Namespace) -> None:
    """Refuse options of plans beside --remove, which plans nothing.

    Raises:
        SurveyError: naming the first.
    """
    if given.remove < 1:
        raise SurveyError(f"--remove={given.remove}: give at least 1.")
    others = {name: getattr(given, name) is not None for name in ("batch", "clearance", "gpx", "kml")}
    others |= {name: bool(getattr(given, name)) for name in ("spacing", "add", "again", "depot", "barrier", "start")}
    others |= {"objective": given.objective != "variance", "days": given.days != 1, "repeats": given.repeats != 1}
    if found := [name for name, is_given in others.items() if is_given]:
        raise SurveyError(f"--{found[0]}: --remove plans no new sites; leave out one of the two.")


def _write_removal(given: argparse.Namespace, survey: "Survey") -> None:
    """Write the table of stations to give up, and draw a map with them."""
    from bo_scale.survey.plan.removal import require_replaceable

    require_replaceable(given.out)
    found = survey.removable(given.remove, weights=given.weights, date=given.date)
    found.write(given.out)
    print("\n".join([*found.notes, found.table.to_string(index=False)]))
    scale = "" if survey.scale.name == "none" else f", on the {survey.scale.name} scale"
    without = f"{found.sd_after:.4g} without these {len(found.table)} stations"
    print(f"Typical sd over the {found.over}{scale}: {found.sd_before:.4g} now, {without}.")
    print(f"Written: {given.out}. The survey keeps all its measurements.")
    if given.map:
        survey.map(
            given.map, survey.predict(threshold=given.threshold, date=given.date), given.title, given.outline, found
        )
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
        travel=travel_of(given),
        weights=given.weights,
        exclude=given.exclude,
        cost=given.cost,
        date=given.date,
    )
    try:
        plan.write(given.out)
    except SurveyError as error:
        again = f"bo-scale survey plan {shlex.quote(str(given.survey))} --again --out OTHER.csv"
        raise SurveyError(f"{error} The survey has the plan; `{again}` writes its table.") from error
    print("\n".join([*plan.notes, plan.table.to_string(index=False), *_routes(plan)]))
    if plan.left_out:
        print("These sites would be chosen if nobody had to travel, but they are not visited:")
        more = [f"… and {len(plan.left_out) - MISSED} more."] * (len(plan.left_out) > MISSED)
        print("\n".join(f"  {reason}" for reason in [*plan.left_out[:MISSED], *more]))
    scale = "" if survey.scale.name == "none" else f", on the {survey.scale.name} scale"
    known, expected = f"{plan.sd_before:.4g} now", f"{plan.sd_after:.4g} expected with these sites"
    print(f"Typical sd over the {plan.over}{scale}: {known}, {expected}.")
    files = shlex.join([str(given.survey), str(given.out)])
    print(f"Written: {given.out}. Fill in what you measure, then run: bo-scale survey update {files}")


def _routes(plan: "Plan") -> list[str]:
    return [f"{route.name}: {' – '.join(route.sites)}, {route.cost}." for route in plan.routes]


def _write_pending(given: argparse.Namespace, survey: "Survey") -> None:
    pending = survey.workspace.pending
    if not len(pending):
        raise SurveyError(f"--again: {given.survey} has no site still to be measured. Leave out --again to plan some.")
    survey.write_pending(given.out)
    print(f"Written: {given.out}. Sites still to be measured: {', '.join(pending.site)}.")


PLAN = Command("plan", "choose where to measure next", _add_arguments, _run, ("survey", "out", "gpx", "map"))
