"""`bo-scale survey map`: draw what is known."""

import argparse

from bo_scale.cli.command import Command
from bo_scale.cli.survey.cells import add_cell_arguments, write_each
from bo_scale.cli.survey.outline import add_outline_argument, require_outline
from bo_scale.survey.paths import MAP_ENDINGS, require_survey


def _add_arguments(command: argparse.ArgumentParser) -> None:
    add_cell_arguments(command, "files to write: .html or .png")
    command.add_argument("--title", help="title of the map (default: name of the value column)")
    add_outline_argument(command)


def _run(given: argparse.Namespace) -> None:
    from bo_scale.survey import Survey

    require_survey(given.survey)
    require_outline(given.outline, Survey(given.survey))
    write_each(
        given,
        MAP_ENDINGS,
        lambda survey, path, prediction: survey.map(path, prediction, given.title, given.outline),
    )


MAP = Command("map", "draw a map of the predictions and the sites", _add_arguments, _run, ("survey", "out"))
