"""`bo-scale survey …`: surveys from the command line. Everything it does, `bo_scale.survey.Survey` does."""

import argparse
import re
import sys
import warnings
from collections.abc import Sequence

from bo_scale.cli.command import add_command
from bo_scale.cli.init import INIT
from bo_scale.cli.map import MAP
from bo_scale.cli.plan import PLAN
from bo_scale.cli.predict import PREDICT
from bo_scale.cli.status import STATUS
from bo_scale.cli.update import UPDATE
from bo_scale.errors import BoScaleError, BoScaleWarning

COMMANDS = (INIT, PLAN, UPDATE, MAP, PREDICT, STATUS)
"""Commands of `bo-scale survey`, in the order of its help."""
WEST = re.compile(r"-[\d.][^,]*,\s*[-+]?[\d.]")
"""A place whose first coordinate is negative, which looks like an option."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; 0 if it did what it should, 1 if it refused, with the reason on standard error."""
    parsed = parse(sys.argv[1:] if arguments is None else arguments)
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


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse arguments, also places in the west, which begin with a minus."""
    return parser().parse_args([f" {text}" if WEST.match(text) else text for text in arguments])


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    whole = argparse.ArgumentParser(prog="bo-scale", description="Decide where to sample next.")
    tools = whole.add_subparsers(required=True, metavar="TOOL")
    survey = tools.add_parser(
        "survey", help="plan surveys and map their results", description="Turn measurements into a plan and a map."
    )
    commands = survey.add_subparsers(required=True, metavar="COMMAND")
    for each in COMMANDS:
        add_command(commands, each)
    return whole


if __name__ == "__main__":
    sys.exit(main())
