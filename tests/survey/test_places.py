"""Predictions at the places of a table, and intervals of new measurements."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import rasterio
from samples import saved, sites_table, write
from scipy import stats

from bo_scale.cli.program import main
from bo_scale.errors import SurveyError
from bo_scale.survey import Survey
from bo_scale.survey.mapping.fit import Fit

pytestmark = pytest.mark.usefixtures("small")
PLACES = "id;x;lon;lat;upper\n007;a;5,71;50,96;30 cm\nB;b;5.7x;50,97;\nC;c;5,75;50,955;10 cm\n"


def test_rows_and_columns_of_the_table_are_kept(path: Path) -> None:
    survey = Survey(path)
    found = survey.predict_table(saved(path.parent, PLACES), intervals=True)
    columns = ["id", "x", "lon", "lat", "upper", "predicted", "predicted_sd", "predicted_lower", "predicted_upper"]
    assert list(found.table) == [*columns, "new_lower", "new_upper", "exceedance"]
    assert list(found.table.id) == ["007", "B", "C"]
    assert list(found.table.upper) == ["30 cm", "", "10 cm"]
    assert found.table.iloc[1, 5:].isna().all()
    there = survey.predict_at([5.71, 5.75], [50.96, 50.955], intervals=True)
    np.testing.assert_allclose(found.table.iloc[[0, 2], 5:-1].to_numpy(dtype=float), there, rtol=1e-5)
    assert any("row 3: lon is not a number" in note for note in found.notes)
    assert any("no area" in note or "outside" not in note for note in found.notes)
    for name in ("out.csv", "out.xlsx"):
        found.write(path.parent / name)
        found.write(path.parent / name)  # its own file may be replaced
    assert (path.parent / "out.csv").read_text().startswith("id,x,lon,lat,upper,predicted")
    back = pd.read_excel(path.parent / "out.xlsx", dtype={"id": str})
    assert back.id[0] == "007"
    np.testing.assert_allclose(back.predicted.iloc[[0, 2]], there["mean"], rtol=1e-5)


def test_ids_stand_for_places_and_predictions_are_replaced(path: Path) -> None:
    survey = Survey(path)
    plan = survey.plan(2, "maximin").table
    table = write(path.parent, "ids.csv", pd.DataFrame({"site": ["P2", "P1", "P9"], "predicted": [1, 2, 3]}))
    found = survey.predict_table(table)
    np.testing.assert_allclose(found.table.lon[:2], plan.lon[::-1], atol=1e-6)
    np.testing.assert_allclose(found.table.predicted[:2], plan.predicted[::-1], rtol=1e-4)
    assert any("predictions replace in what is written: predicted" in note for note in found.notes)
    assert any("there is no site P9" in note for note in found.notes)


def test_intervals_of_measurements_contain_their_noise(path: Path) -> None:
    survey = Survey(path)
    found = survey.predict_at([5.72], [50.96], intervals=True)
    fit, model = Fit.of(survey.settings["fit"]), survey.fitted().model
    s = np.sqrt(np.log1p((found.sd / found["mean"]) ** 2))
    m = np.log(found["mean"]) - s**2 / 2
    noise = float(model.measurement_noise(0)) * fit.unit**2
    np.testing.assert_allclose(found.new_upper, np.exp(stats.norm.ppf(0.975, m, np.sqrt(s**2 + noise))), rtol=1e-6)
    with pytest.raises(SurveyError, match="error: the measurements of this survey have none"):
        survey.predict_at([5.72], [50.96], intervals=True, error=[0.1])


def test_known_errors_of_new_measurements_count(dutch: Path) -> None:
    survey = Survey(dutch / "s.gpkg")
    x, y = [181_000.0] * 3, [331_000.0] * 3
    found = survey.predict_at(x, y, intervals=True, error=[np.nan, 0.05, 1.5])
    half = ((found.new_upper - found.new_lower) / 2 / stats.norm.ppf(0.975)) ** 2 - found.sd**2
    beyond = survey.fitted().surface.noise
    np.testing.assert_allclose(half - beyond, [0.05**2, 0.05**2, 1.5**2], rtol=1e-3)


def test_the_command_line_writes_intervals(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = [str(path.parent / name) for name in ("map.html", "map.png")]
    assert main(["survey", "map", str(path), "--prediction", "--cells", "300", "--out", *out]) == 0
    tif = str(path.parent / "p.tif")
    assert main(["survey", "predict", str(path), "--prediction", "--cells", "300", "--out", tif]) == 0
    with rasterio.open(tif) as file:
        assert file.descriptions == ("mean", "sd", "exceedance", "lower", "upper", "new_lower", "new_upper")
        bands = dict(zip(file.descriptions, file.read(masked=True), strict=True))
    assert (bands["new_lower"] <= bands["lower"]).all()
    assert (bands["upper"] <= bands["new_upper"]).all()
    table, done = write(path.parent, "places.csv", sites_table()[["lon", "lat"]]), str(path.parent / "at.csv")
    assert main(["survey", "predict", str(path), "--at", str(table), "--prediction", "--out", done]) == 0
    found = pd.read_csv(done)
    zinc = sites_table().zinc
    assert ((found.new_lower <= zinc) & (zinc <= found.new_upper)).mean() >= 0.9
    assert main(["survey", "predict", str(path), "--at", str(table), "--out", str(table)]) == 1
    assert main(["survey", "predict", str(path), "--x", "lon", "--out", tif]) == 1
    assert "--x: this is about a table of places" in capsys.readouterr().err
