"""The outline that a map shows instead of the coasts that ship."""

import argparse
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bo_scale.survey import Survey


def add_outline_argument(command: argparse.ArgumentParser) -> None:
    """Add the argument of a command that draws maps."""
    about = "file of polygons to outline on the map instead of coasts and borders"
    command.add_argument("--outline", type=Path, metavar="FILE", help=about)


def require_outline(path: Path | None, survey: "Survey") -> None:
    """Refuse an outline that cannot be read, before the work is done.

    Raises:
        SurveyError: saying what cannot be used.
    """
    from bo_scale.survey.geography.shapes import read_polygons

    if path is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they come when the map is drawn
            read_polygons(path, survey.workspace.crs)
