"""`bo-scale TOOL COMMAND …`: what runs a command, and shows errors and warnings."""

import argparse
import logging
import os
import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from typing_extensions import override

from bo_scale.cli.command import add_command, add_tool
from bo_scale.cli.interrupts import Interrupts
from bo_scale.cli.loop import LOOP
from bo_scale.cli.rows import FIT, PREDICT
from bo_scale.cli.survey import SURVEY
from bo_scale.cli.targets import Targets
from bo_scale.errors import BoScaleError, BoScaleWarning

TOOLS = (SURVEY, LOOP)
"""Tools of `bo-scale`, in the order of its help."""
COMMANDS = (FIT, PREDICT)
"""Commands that are of no tool."""
WEST = re.compile(r"-[\d.][^,]*,\s*[-+]?[\d.]")
"""A place whose first coordinate is negative, which looks like an option."""
SMALL = re.compile(r"-[\d.]+[eE][-+]?\d+")
"""A negative number such as -1e-3, which looks like one too."""
INTERRUPTED = 130
"""Exit code of a command that was stopped by Ctrl-C, as shells have it."""
UNREAD = 141
"""Exit code of a command whose output nobody reads any more, as shells have it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Returns:
        0 if it did what it should; 1 if it refused, with the reason on standard error; 130 after Ctrl-C, and 141 if
        nobody reads its output any more, with what was written and what was not.
    """
    parsed = parse(sys.argv[1:] if arguments is None else arguments)
    targets = Targets(parsed, parsed.writes)
    with Interrupts() as interrupts:
        try:
            return _run(parsed, targets)
        except (Exception, KeyboardInterrupt) as error:
            if interrupts.seen or isinstance(error, KeyboardInterrupt):
                print(f"Interrupted. {targets.summary()}".rstrip(), file=sys.stderr)
                return INTERRUPTED
            if not isinstance(error, ImportError | OSError):
                raise
            print(f"bo-scale: {error}", file=sys.stderr)
            return 1


def _run(parsed: argparse.Namespace, targets: Targets) -> int:
    """Run a command; return its exit code."""
    try:
        with _notes():
            parsed.run(parsed)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes it once more as it ends
        if targets.unfinished():
            print(f"bo-scale: the reader of the output has gone. {targets.summary()}", file=sys.stderr)
        return UNREAD
    except MemoryError as error:
        print(f"bo-scale: there is not enough memory ({error}). {targets.summary()}".rstrip(), file=sys.stderr)
        return 1
    except BoScaleError as error:
        print(f"bo-scale: {error}", file=sys.stderr)
        return 1
    return 0


class _Notes(logging.Handler):
    """Prints what the package logs."""

    @override
    def emit(self, record: logging.LogRecord) -> None:
        print(f"Note: {record.getMessage()}", file=sys.stderr)


@contextmanager
def _notes() -> Iterator[None]:
    """Show the package's own warnings, whether given or logged, and no others."""
    logger, handler = logging.getLogger("bo_scale"), _Notes(logging.WARNING)
    others = logging.NullHandler()  # without one, what other packages log would be shown
    logger.addHandler(handler)
    logging.getLogger().addHandler(others)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("always", BoScaleWarning)
            warnings.showwarning = lambda message, *_, **__: print(f"Note: {message}", file=sys.stderr)
            yield
    finally:
        logger.removeHandler(handler)
        logging.getLogger().removeHandler(others)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse arguments, also places in the west and small numbers, which begin with a minus."""
    return parser().parse_args(
        [f" {text}" if WEST.match(text) or SMALL.fullmatch(text) else text for text in arguments]
    )


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    whole = argparse.ArgumentParser(prog="bo-scale", description="Decide where to sample next.")
    tools = whole.add_subparsers(required=True, metavar="TOOL")
    for each in TOOLS:
        add_tool(tools, each)
    for command in COMMANDS:
        add_command(tools, command)
    return whole


if __name__ == "__main__":
    sys.exit(main())
