"""Commands: names, arguments and what they run; and the tools that they make up."""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
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
        writes: Names of the arguments that are files to write.
    """

    name: str
    help: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], None]
    writes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Tool:
    """A tool of the command line: commands on things of one kind.

    Attributes:
        name: Its name.
        help: Its purpose, in a few words.
        description: The same, in a sentence.
        commands: Its commands, in the order of its help.
    """

    name: str
    help: str
    description: str
    commands: tuple[Command, ...]


def later(module: str) -> Callable[[argparse.Namespace], None]:
    """Return what imports a module only to run its command, so that help and refusals do not wait for its packages.

    Args:
        module: Name of a module with a function `run` of parsed arguments.
    """
    return lambda given: import_module(module).run(given)


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


def add_tool(tools: "argparse._SubParsersAction[argparse.ArgumentParser]", tool: Tool) -> None:
    """Add the parser of a tool and of all its commands."""
    parser = tools.add_parser(tool.name, help=tool.help, description=tool.description)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for each in tool.commands:
        add_command(commands, each)


def add_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]", command: Command) -> None:
    """Add the parser of a command."""
    description = f"{command.help[0].upper()}{command.help[1:]}."
    parser = commands.add_parser(command.name, help=command.help, description=description)
    parser.register("action", None, Once)
    parser.set_defaults(run=command.run, writes=command.writes)
    command.add_arguments(parser)
