import json
from pathlib import Path

import pandas as pd
import pytest
from samples import filled, write

from bo_scale.survey import Survey

pytestmark = pytest.mark.usefixtures("small")


def test_its_status_is_what_there_is(path: Path) -> None:
    survey = Survey(path)
    table = survey.plan(3).table
    bad = pd.DataFrame({"lon": [5.75], "lat": [50.98], "zinc": [5.0]})
    survey.update(write(path.parent, "done.csv", pd.concat([filled(table, P2=5.0), bad])))
    text = survey.status()
    for part in (
        "Measurements: 49. Rows set aside: 1.",
        "done.csv, row 5: outside the area",
        "Plans: 1. Sites planned: 2 to be measured, 1 measured, 0 dropped.",
        "to be measured: P1, P3",
        "lengthscales were learned from 48 of them, and will be learned again when there are 60.",
        f"Area: {survey.region.area / 1e6:.4g} km²",
        "zinc",
    ):
        assert part in text
    assert json.loads(json.dumps(survey.settings)) == survey.settings
