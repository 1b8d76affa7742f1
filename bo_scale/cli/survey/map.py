"""`bo-scale survey map`: draw what is known."""

import argparse

from bo_scale.cli.command import Command
from bo_scale.cli.survey.cells import add_cell_arguments, write_each
from bo_scale.cli.survey.outline import add_outline_argument, require_outline
from bo_scale.errors import SurveyError
from bo_scale.survey.paths import MAP_ENDINGS, require_survey, require_target


def _add_arguments(command: argparse.ArgumentParser) -> None:
    add_cell_arguments(command, "files to write: .html or .png", dates=True)
    command.add_argument("--title", help="title of the map (default: name of the value column)")
    add_outline_argument(command)


def _run(given: argparse.Namespace) -> None:
    from bo_scale.survey import Survey

    require_survey(given.survey)
    require_outline(given.outline, Survey(given.survey))
    if given.date is not None and len(given.date) > 1:
        _write_dates(given)
        return
    given.date = None if given.date is None else given.date[0]
    write_each(
        given,
        MAP_ENDINGS,
        lambda survey, path, prediction: survey.map(path, prediction, given.title, given.outline),
    )


def _write_dates(given: argparse.Namespace) -> None:
    """Write pages of several dates."""
    from bo_scale.survey import Survey

    if given.prediction:
        raise SurveyError("--prediction: a page of several dates has no intervals; give one --date, or leave it out.")
    for path in given.out:
        if path.suffix.lower() in MAP_ENDINGS[2:]:
            raise SurveyError(f"{path}: several dates make a page with a slider; give a file that ends in .html.")
        require_target(path, MAP_ENDINGS[:2], [given.survey])
    survey, size = Survey(given.survey), {"cells": given.cells, "size": given.size}
    about = {"threshold": given.threshold, "title": given.title, "outline": given.outline}
    for path in given.out:
        survey.map_dates(path, given.date, **size, **about)
        print(f"Written: {path}, {len(given.date)} dates")


MAP = Command("map", "draw a map of the predictions and the sites", _add_arguments, _run, ("survey", "out"))
