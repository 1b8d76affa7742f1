"""`bo-scale TOOL COMMAND …`: what runs a command, and shows errors and warnings."""

import argparse
import re
import sys
import warnings
from collections.abc import Sequence

from bo_scale.cli.command import add_tool
from bo_scale.cli.survey import SURVEY
from bo_scale.errors import BoScaleError, BoScaleWarning

TOOLS = (SURVEY,)
"""Tools of `bo-scale`, in the order of its help."""
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
    for each in TOOLS:
        add_tool(tools, each)
    return whole


if __name__ == "__main__":
    sys.exit(main())
