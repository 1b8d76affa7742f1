"""The page of the command line has every command and every argument, in sections and tables."""

import argparse
import re
from pathlib import Path

import pytest

from bo_scale.cli.command import Command
from bo_scale.cli.program import COMMANDS as SINGLE
from bo_scale.cli.program import TOOLS
from bo_scale.survey.choice.objectives import OBJECTIVES

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "cli.md").read_text()
OF_TOOLS = {f"{tool.name} {each.name}": each for tool in TOOLS for each in tool.commands}
COMMANDS = {**OF_TOOLS, **{each.name: each for each in SINGLE}}
NAMES = "|".join([*(rf"{tool.name} \w+" for tool in TOOLS), *(each.name for each in SINGLE)])
TITLE = rf"^## ({NAMES})\n(.*?)(?=^## |\Z)"
SECTIONS = dict(re.findall(TITLE, PAGE, re.DOTALL | re.MULTILINE))


def rows(command: str) -> dict[str, list[str]]:
    """Cells of the tables of a section, by the name of the argument."""
    found = [re.split(r"(?<!\\)\|", line)[1:-1] for line in SECTIONS[command].splitlines() if line.startswith("| `")]
    names = [re.match(r"`([^` ]+)", cells[0].strip()) for cells in found]
    return {name[1]: [cell.strip() for cell in cells] for name, cells in zip(names, found, strict=True) if name}


def arguments(command: Command) -> dict[str, argparse.Action]:
    """Arguments of a command by their names on the page; positional ones in capitals."""
    parser = argparse.ArgumentParser(add_help=False)
    command.add_arguments(parser)
    return {(each.option_strings or [each.dest.upper()])[0]: each for each in parser._actions}


def shipped(choice: str) -> bool:
    """Whether a choice is the package's own: other tests register objectives."""
    made = OBJECTIVES.get(choice)
    return made is None or str(getattr(made.score or made.draw, "__module__", "")).startswith("bo_scale.")


def test_it_has_every_command() -> None:
    assert list(SECTIONS) == list(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_it_has_every_argument(command: str) -> None:
    assert sorted(rows(command)) == sorted(arguments(COMMANDS[command]))


@pytest.mark.parametrize("command", COMMANDS)
def test_it_says_what_is_required_and_the_choices(command: str) -> None:
    told = rows(command)
    for name, each in arguments(COMMANDS[command]).items():
        meaning, default = told[name][1:]
        assert (default == "required") == each.required, name
        for choice in filter(shipped, each.choices or ()):
            assert f"`{choice}`" in meaning, f"{name}: {choice}"
        assert (each.metavar is None) or not each.option_strings or f"{name} {each.metavar}" in told[name][0], name
        assert ("again" in meaning) == isinstance(each, argparse._AppendAction), name
        if isinstance(each.default, int | float) and not isinstance(each.default, bool):
            assert default.startswith(f"{each.default:g}"), name
