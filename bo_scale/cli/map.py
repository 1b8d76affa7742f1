"""`bo-scale survey map`: draw what is known."""

import argparse

from bo_scale.cli.cells import add_cell_arguments, write_each
from bo_scale.cli.command import Command


def _add_arguments(command: argparse.ArgumentParser) -> None:
    add_cell_arguments(command, "map.html or map.png; several may be given")


def _run(given: argparse.Namespace) -> None:
    from bo_scale.survey.output.writers import MAPS

    write_each(given, MAPS, lambda survey, path, prediction: survey.map(path, prediction, given.title))


MAP = Command("map", "draw what is known", _add_arguments, _run)
