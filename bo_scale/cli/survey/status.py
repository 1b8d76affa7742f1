"""`bo-scale survey status`: say what there is."""

import argparse
from pathlib import Path

from bo_scale.cli.command import Command
from bo_scale.survey.paths import require_survey


def _add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("survey", type=Path, help="the survey's GeoPackage")


def _run(given: argparse.Namespace) -> None:
    require_survey(given.survey)

    from bo_scale.survey import Survey

    print(Survey(given.survey).status())


STATUS = Command("status", "describe the survey", _add_arguments, _run)
