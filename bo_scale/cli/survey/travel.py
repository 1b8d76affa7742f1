"""Arguments of teams that travel."""

import argparse
from typing import TYPE_CHECKING

from bo_scale.cli.numbers import number
from bo_scale.errors import SurveyError

if TYPE_CHECKING:
    from bo_scale.survey import Depot, Travel

TRAVEL = ("kilometres", "hours", "speed", "stay", "teams", "matrix", "unit")
"""Arguments of `Travel` that are options of the same name."""


def add_travel_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of a group of their own."""
    travel = command.add_argument_group(
        "travel", "Plan tours of teams that travel. Each team has a budget a day. All these options need --depot."
    )
    add = travel.add_argument
    depot = "where the teams start, as X,Y or NAME=X,Y; give one for all teams, or repeat it for each team"
    add("--depot", metavar="X,Y", action="append", default=[], help=depot)
    add("--kilometres", type=number, metavar="KM", help="budget of a team's day in kilometres; give this or --hours")
    add(
        "--hours",
        type=number,
        metavar="H",
        help="budget of a team's day in hours; needs --speed or a matrix in minutes",
    )
    add("--speed", type=number, metavar="KM/H", help="speed of travel; needs --hours")
    add("--stay", type=number, metavar="MINUTES", help="minutes of work at each site (default: 0); needs --hours")
    add("--teams", type=int, help="number of teams (default: one for each depot)")
    add("--one-way", action="store_true", help="end each day at the last site instead of at the depot")
    start = "where a team starts on the first day (default: its depot); repeat it for each team"
    add("--start", metavar="X,Y", action="append", default=[], help=start)
    barrier = "file of polygons that routes go around; repeat the option for several files"
    add("--barrier", metavar="FILE", action="append", default=[], help=barrier)
    add("--around-forbidden", action="store_true", help="routes go around the survey's forbidden parts too")
    add("--matrix", metavar="FILE", help="CSV of distances or travel times between candidate sites and depots, by name")
    add("--unit", choices=("km", "minutes"), help="unit of the matrix (default: km)")


def travel_of(given: argparse.Namespace) -> "Travel | None":
    """Return where teams start and how far they get; None if nobody travels.

    Raises:
        SurveyError: if it is not said where they start.
    """
    from bo_scale.survey import Travel

    chosen = {name: getattr(given, name) for name in TRAVEL if getattr(given, name) is not None}
    if not given.depot:
        if chosen or given.start or given.barrier or given.one_way or given.around_forbidden:
            raise SurveyError("--depot: say where the teams start, for example --depot 11.2,46.5.")
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
    """Return the depot of `X,Y` or `NAME=X,Y`."""
    from bo_scale.survey import Depot

    *named, place = text.strip().rsplit("=", 1)
    try:
        x, y = map(float, place.split(","))
    except ValueError:
        raise SurveyError(f"{text}: give a place as X,Y or NAME=X,Y, in the coordinates of your table.") from None
    return Depot(x, y, *(named or [name]))
