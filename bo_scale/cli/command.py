"""A command: its name, its arguments and what it runs."""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from typing_extensions import override


@dataclass(frozen=True)
class Command:
    """A command of the command line.

    Attributes:
        name: Its name.
        help: Its purpose, in a few words.
        add_arguments: Function that adds its arguments to a parser.
        run: Function that runs it with parsed arguments.
    """

    name: str
    help: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], None]


class Once(argparse.Action):
    """Store a value, unless the option was given before: one of two values would be lost."""

    @override
    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        seen = namespace.__dict__.setdefault("seen", set())
        if option is not None and self.dest in seen:
            raise argparse.ArgumentError(self, "was given twice; give it once, with all its values")
        seen.add(self.dest)
        setattr(namespace, self.dest, values)


def add_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]", command: Command) -> None:
    """Add the parser of a command."""
    description = f"{command.help[0].upper()}{command.help[1:]}."
    parser = commands.add_parser(command.name, help=command.help, description=description)
    parser.register("action", None, Once)
    parser.set_defaults(run=command.run)
    command.add_arguments(parser)
