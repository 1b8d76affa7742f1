from pathlib import Path

import pandas as pd
import pytest
from samples import filled, sites_table, write

from bo_scale.errors import SurveyError
from bo_scale.survey import Survey

pytestmark = pytest.mark.usefixtures("small")


@pytest.mark.parametrize("name", ["predicted", "predicted_sd", "site", "name", "day", "team", "stop"])
def test_a_column_that_plans_have_is_refused(tmp_path: Path, name: str) -> None:
    table = write(tmp_path, "sites.csv", sites_table(8).rename(columns={"zinc": name}))
    with pytest.raises(SurveyError, match=f"{name}: the tables of plans have a column of that name"):
        Survey.create(tmp_path / "s.gpkg", table, name)
    assert not (tmp_path / "s.gpkg").exists()


def test_a_table_that_was_lost_is_written_again(path: Path) -> None:
    survey = Survey(path)
    table = survey.plan(3).table
    pd.testing.assert_frame_equal(survey.pending(), table)
    survey.update(write(path.parent, "done.csv", filled(table, P2=5.0)))
    assert survey.pending().site.tolist() == ["P1", "P3"]
