"""Measurements that are taken back, and counted again."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from samples import filled, sites_table, write

from bo_scale.cli.program import main
from bo_scale.errors import SurveyError
from bo_scale.survey import Survey

pytestmark = pytest.mark.usefixtures("small")


@pytest.mark.usefixtures("whole_fits")
def test_what_is_withdrawn_was_never_there(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    survey = Survey(path)
    place = [5.74], [50.98]
    before = survey.predict_at(*place)
    plan = survey.plan(2, progress=False).table
    file = write(path.parent, "done.csv", filled(plan, P1=99.0, P2=98.0))
    survey.update(file)
    assert abs(survey.predict_at(*place)["mean"] - before["mean"])[0] > 1e-3
    more = pd.concat([filled(plan, P1=99.0, P2=98.0), pd.DataFrame({"lon": [5.71], "lat": [50.96], "zinc": [1.5]})])
    asked = ["survey", "update", str(path), str(write(path.parent, "done.csv", more)), "--withdraw"]
    assert main(asked) == 0
    said = capsys.readouterr().out
    assert "Measurements withdrawn: 2." in said
    assert "to be measured again: P1, P2." in said
    assert "Rows that are no measurements of the survey: 1 (row 4)." in said
    survey = Survey(path)
    np.testing.assert_allclose(survey.predict_at(*place), before, rtol=1e-6)
    assert survey.planned.status.tolist() == ["planned", "planned"]
    assert survey.rejected.reason.str.startswith("withdrawn").tolist() == [True, True]
    assert main(asked) == 1
    assert "none of its rows is a measurement of the survey" in capsys.readouterr().err
    assert main([*asked, "--replace"]) == 1
    assert "--replace: --withdraw adds nothing" in capsys.readouterr().err


def test_withdrawn_rows_count_again_if_they_are_repeated(path: Path) -> None:
    survey = Survey(path)
    first, second = (survey.plan(1, add=True, progress=False).table for _ in range(2))
    file = write(path.parent, "done.csv", filled(pd.concat([first, second]), P1=9.0, P2=8.0))
    survey.update(file)
    assert survey.withdraw(file).planned == ["P2"]
    assert survey.planned.status.tolist() == ["dropped", "planned"]
    left_out = survey.update(file)
    assert (left_out.added, left_out.aside) == (0, 2)
    assert survey.update(file, repeats=True).added == 2
    assert survey.planned.status.tolist() == ["measured", "measured"]
    assert survey.rejected.empty


def test_a_survey_keeps_a_measurement(path: Path) -> None:
    survey = Survey(path)
    with pytest.raises(SurveyError, match="no measurement would be left"):
        survey.withdraw(write(path.parent, "all.csv", sites_table()))
