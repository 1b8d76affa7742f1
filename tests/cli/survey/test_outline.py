import warnings
from pathlib import Path

import pytest

from bo_scale.cli.survey.outline import require_outline
from bo_scale.errors import SurveyError
from bo_scale.survey import Survey


def test_an_outline_is_read_before_the_work_without_notes(folder: Path) -> None:
    survey = Survey("s.gpkg")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        require_outline(None, survey)
        require_outline(folder / "area.geojson", survey)
    with pytest.raises(SurveyError, match="no such file"):
        require_outline(folder / "none.geojson", survey)
