"""Predictions at cells, which `map` and `predict` write to files."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from bo_scale.cli.numbers import number
from bo_scale.survey.geography.cell_counts import require_cell_count
from bo_scale.survey.paths import require_survey, require_target

if TYPE_CHECKING:
    from bo_scale.survey import Prediction, Survey


def add_cell_arguments(command: argparse.ArgumentParser, files: str, dates: bool = False) -> None:
    """Add the arguments of a command that writes predictions.

    Args:
        command: Its parser.
        files: Help of the files to write.
        dates: Whether several dates may be given.
    """
    add = command.add_argument
    add("survey", type=Path, help="the survey's GeoPackage")
    add("--cells", type=int, help="approximate number of cells (default: 60,000)")
    add("--size", type=number, metavar="METRES", help="width of a cell; give this or --cells")
    add("--threshold", type=number, help="threshold in units of the value column (default: that of the survey)")
    about = "also 95 %% intervals: of the quantity, and of a new measurement"
    add("--prediction", action="store_true", help=about)
    when = "date that is predicted, of a survey with time (default: that of the latest measurement)"
    if dates:
        several = f"{when}; several make a page with a slider"
        add("--date", action="append", default=None, metavar="DATE", help=several)
    else:
        add("--date", metavar="DATE", help=when)
    add("--out", type=Path, nargs="+", required=True, metavar="FILE", help=files)


def write_each(
    given: argparse.Namespace, endings: tuple[str, ...], write: "Callable[[Survey, Path, Prediction], None]"
) -> None:
    """Predict once, and write every file.

    Args:
        given: Parsed arguments.
        endings: Endings that files may have.
        write: Function that writes a file.
    """
    require_survey(given.survey)  # before the packages of surveys are imported
    require_cell_count(given.cells)
    for path in given.out:
        require_target(path, endings, [given.survey])

    from bo_scale.survey import Survey
    from bo_scale.survey.output.exports import require_replaceable

    for path in given.out:
        require_replaceable(path)  # before the work is done
    survey = Survey(given.survey)
    prediction = survey.predict(given.cells, given.size, given.threshold, intervals=given.prediction, date=given.date)
    space = survey.workspace.at_time(given.date)
    read = [] if given.date in (None, space.shown_time) else [f"Predicted for {space.shown_time}."]
    for note in (*space.notes_on_date, *read):
        print(note)
    for path in given.out:
        write(survey, path, prediction)
        print(f"Written: {path}, {prediction.raster.count:,} cells of {prediction.raster.size:.4g} m")
    if prediction.exceeding is not None:
        print(prediction.exceeding.summary)
