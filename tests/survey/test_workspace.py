from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import shapely
from samples import UTM, copied, field, sites_table, write, write_area

from bo_scale.errors import SurveyError
from bo_scale.survey import Survey

pytestmark = pytest.mark.usefixtures("small")


def test_known_errors_reach_the_model(dutch: Path, tmp_path: Path) -> None:
    survey = copied(dutch / "s.gpkg", tmp_path)
    measured = survey.workspace.measured()
    assert measured.variance is not None
    assert measured.variance[0] == pytest.approx(0.05**2)  # the median of those that are known
    np.testing.assert_allclose(measured.variance[1:30], 0.05**2)
    np.testing.assert_allclose(measured.variance[30:], 1.5**2)
    assert list(survey.plan(1).table.columns)[:5] == ["site", "x", "y", "lead", "sd"]
    assert "Amersfoort / RD New" in " ".join(survey.notes)


def test_errors_that_nobody_gave_are_missed(dutch: Path, tmp_path: Path) -> None:
    table = pd.read_csv(dutch / "sites.csv").assign(sd="")
    survey = Survey.create(tmp_path / "s.gpkg", write(tmp_path, "t.csv", table), "lead", crs="EPSG:28992", error="sd")
    with pytest.raises(SurveyError, match="has no value in any row"):
        survey.plan()


def test_counts_become_shares(tmp_path: Path) -> None:
    rng, table = np.random.default_rng(1), sites_table(45, seed=9)
    share = 1 / (1 + np.exp(5 - field(table.lon.to_numpy(), table.lat.to_numpy())))
    examined = rng.integers(20, 60, 45)
    table = table.assign(examined=examined, positive=rng.binomial(examined, share)).drop(columns="zinc")
    table.loc[3, "positive"] = table.examined[3] + 1
    given, forbidden = write(tmp_path, "t.csv", table), write_area(tmp_path, shapely.box(5.7, 50.95, 5.72, 51.0))
    survey = Survey.create(
        tmp_path / "s.gpkg", given, "positive", of="examined", threshold=0.5, kernel="matern52", forbidden=[forbidden]
    )
    assert survey.scale.name == "logit"
    aside = dict(zip(survey.rejected.row, survey.rejected.reason))
    assert aside.pop(5) == "positive is more than examined"
    assert set(aside.values()) == {"outside the area"}
    assert set(aside) == {2 + k for k in np.flatnonzero(table.lon < 5.72)} - {5}
    prediction = survey.predict(cells=400)
    assert ((prediction.mean > 0) & (prediction.mean < 1)).all()
    assert prediction.quantity == "positive / examined"
    centres = UTM.transform(*prediction.raster.centres.T, direction="INVERSE")
    truth = 1 / (1 + np.exp(5 - field(*centres)))
    assert np.abs(prediction.mean - truth).mean() < 0.12  # 15 seeds: at most 0.0802
    assert np.corrcoef(prediction.mean, truth)[0, 1] > 0.75  # at least 0.858
    plan = survey.plan(3, "misclassification")
    assert list(plan.table.columns)[:5] == ["site", "lon", "lat", "positive", "examined"]
    inside = plan.table.lon.between(5.7001, 5.7199) & plan.table.lat.between(50.9501, 50.9999)
    assert not inside.any()
    done = plan.table.assign(positive=[3, "", 0], examined=[10, "", 8])
    arrival = survey.update(write(tmp_path, "done.csv", done))
    assert (arrival.added, arrival.blank, arrival.matched) == (2, 1, ["P1", "P3"])
    np.testing.assert_array_equal(survey.workspace.values()[-2:], [0.3, 0.0])
