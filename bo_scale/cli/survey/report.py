"""`bo-scale survey report`: say what the model found, how well it predicts, and what plans have gained."""

import argparse
from pathlib import Path

from bo_scale.cli.command import Command
from bo_scale.survey.paths import REPORT_ENDINGS, require_survey, require_target


def _add_arguments(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("survey", type=Path, help="the survey's GeoPackage")
    add(
        "--out",
        type=Path,
        nargs="+",
        default=[],
        metavar="FILE",
        help="files to write: .html or .txt (default: print it)",
    )
    add("--title", help="title of the report (default: name of the value column)")


def _run(given: argparse.Namespace) -> None:
    require_survey(given.survey)
    for path in given.out:
        require_target(path, REPORT_ENDINGS, [given.survey])

    from bo_scale.survey import Survey

    report = Survey(given.survey).report(given.title)
    for path in given.out:
        report.write(path)
    print("\n".join([report.text, *([""] if given.out else []), *(f"Written: {path}" for path in given.out)]))


REPORT = Command(
    "report", "report on the model, its predictions and the plans", _add_arguments, _run, ("survey", "out")
)
