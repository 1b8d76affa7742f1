"""`bo-scale survey predict`: export what is predicted."""

import argparse

from bo_scale.cli.command import Command
from bo_scale.cli.survey.cells import add_cell_arguments, write_each
from bo_scale.survey.paths import EXPORT_ENDINGS


def _add_arguments(command: argparse.ArgumentParser) -> None:
    add_cell_arguments(command, "files to write: .tif or .csv")


def _run(given: argparse.Namespace) -> None:
    write_each(given, EXPORT_ENDINGS, lambda survey, path, prediction: survey.export(path, prediction))


PREDICT = Command("predict", "export predictions on a grid", _add_arguments, _run, ("survey", "out"))
