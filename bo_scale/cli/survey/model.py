"""`bo-scale survey model`: show or change what the model uses."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from bo_scale.cli.command import Command
from bo_scale.cli.numbers import number
from bo_scale.cli.survey.covariates import COVARIATE, DECAY, TIME
from bo_scale.survey.paths import require_survey

if TYPE_CHECKING:
    from bo_scale.survey import Survey


def _add_arguments(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("survey", type=Path, help="the survey's GeoPackage")
    add("--covariate", action="append", default=[], metavar="COVARIATE", help=f"add or replace one: {COVARIATE}")
    add("--time", metavar="COLUMN", help=f"{TIME}; none for one that does not change")
    add("--decay", type=number, metavar="DAYS", help=DECAY)
    add("--drop", action="append", default=[], metavar="NAME", help="drop a covariate; repeat the option for several")
    anisotropy = "how much farther correlation reaches along an axis, and its bearing, such as 3,45; or learn, or none"
    add("--anisotropy", metavar="RATIO,ANGLE", help=anisotropy)
    divide = "file of polygons or lines that correlation goes around, instead of those before; repeat for several; none"
    add("--divide", action="append", default=[], metavar="FILE", help=divide)


def _run(given: argparse.Namespace) -> None:
    require_survey(given.survey)

    from bo_scale.survey import Survey

    survey = Survey(given.survey)
    if given.time is not None or given.decay is not None:
        column = survey.workspace.time_column if given.time is None else given.time
        survey.change_time(None if given.time == "none" else column, given.decay)
    if given.covariate or given.drop:
        survey.change_covariates(given.covariate, given.drop)
    if dropped := given.divide == ["none"]:  # before an anisotropy, which comes without divides
        survey.change_divides()
    if given.anisotropy is not None:
        survey.change_anisotropy(given.anisotropy)
        survey.fitted()
    if given.divide and not dropped:
        survey.change_divides(given.divide)
    print("\n".join(survey.workspace.said or ["Covariates: none."]))
    print("\n".join(survey.workspace.said_of_divides or ["Divides: none."]))
    print(_anisotropy(survey))
    if survey.covariates:
        table = survey.coefficients
        scale = "" if survey.scale.name == "none" else f" (on the {survey.scale.name} scale)"
        print(f"Coefficients of {survey.workspace.quantity}{scale}, with 95 % intervals:")
        print(table.to_string(index=False, float_format=lambda number: f"{number:.4g}"))
        if table["class"].any():
            print("Those of classes are differences from the mean of all classes.")


def _anisotropy(survey: "Survey") -> str:
    """Say what the anisotropy is, and where it comes from."""
    from bo_scale.survey.mapping.anisotropy import sentence

    asked, found = survey.workspace.anisotropy, survey.anisotropy
    how = "given" if not isinstance(asked, str) else "learned" if asked == "learn" else "not learned"
    if found is None:
        return f"Anisotropy ({how}): none." + (" It is learned with the next map." if _unfitted(survey, how) else "")
    undo = "--anisotropy learn" if how == "given" else "--anisotropy none"
    return f"Anisotropy ({how}): {sentence(found)} To undo: {undo}."


def _unfitted(survey: "Survey", how: str) -> bool:
    return how == "learned" and survey.settings["fit"] is None


MODEL = Command("model", "show or change covariates, time, anisotropy and divides of the model", _add_arguments, _run)
