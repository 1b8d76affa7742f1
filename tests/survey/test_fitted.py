from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import shapely
from samples import copied, filled, metres, people_inside, sites_table, write, write_area
from scipy import stats
from scipy.spatial.distance import cdist

from bo_scale.errors import SurveyError
from bo_scale.survey import Survey, fitted
from bo_scale.survey.mapping.exceedance import Interval
from bo_scale.survey.mapping.fit import Fit
from bo_scale.survey.mapping.model import fit_model, forecast, model_of
from bo_scale.survey.mapping.sites import Sites

pytestmark = pytest.mark.usefixtures("small")
REAL_FIT = fit_model


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    fits: list[int] = []

    def fit(sites: Sites, *rest: Any, **named: Any) -> Any:
        fits.append(len(sites.z))
        return REAL_FIT(sites, *rest, **named)

    monkeypatch.setattr(fitted, "fit_model", fit)
    return fits


def test_a_fit_is_used_until_a_quarter_more_is_known(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fits, survey = counted(monkeypatch), Survey(path)
    before = survey.settings["fit"]
    assert before["count"] == 48
    more = sites_table(12, seed=77)
    survey.update(write(path.parent, "some.csv", more.iloc[:11]))
    survey.predict(cells=50)
    survey.plan(1)
    assert fits == []
    assert survey.settings["fit"] == before
    survey.update(write(path.parent, "more.csv", more.iloc[11:]))
    Survey(path).predict(cells=50)
    assert fits == [60]
    assert Survey(path).settings["fit"]["count"] == 60
    Survey(path).plan(1)
    Survey(path).predict(cells=50)
    assert fits == [60]


def test_new_measurements_count_before_the_next_fit(path: Path) -> None:
    survey = Survey(path)
    table = survey.plan(1).table
    place = metres(table)
    before = survey.predict(cells=1500)
    nearest = cdist(place, before.raster.centres).argmin()
    survey.update(write(path.parent, "done.csv", filled(table, P1=60.0)))
    after = survey.predict(cells=1500)
    assert after.mean[nearest] > before.mean[nearest] * 1.5
    sites = survey.workspace.measured()
    model = model_of(sites, Fit.of(survey.settings["fit"]))
    mean, _ = forecast(model, Fit.of(survey.settings["fit"]), before.raster.centres, False)
    np.testing.assert_allclose(np.log(after.mean) - mean, np.log1p((after.sd / after.mean) ** 2) / 2, atol=1e-8)


def test_a_fit_is_made_anew_where_sites_leave_its_box(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    survey = Survey(path)
    survey._save(replace(survey.workspace.state, settings={**survey.settings, "keep_outside": True}))
    fits = counted(monkeypatch)
    survey.update(write(path.parent, "new.csv", pd.DataFrame({"lon": [5.79], "lat": [50.97], "zinc": [6.0]})))
    survey.predict(cells=50)
    assert fits == [49]


def test_places_of_ones_own_are_predicted_with_intervals_on_the_scale(path: Path) -> None:
    survey, table = Survey(path), sites_table()
    found = survey.predict_at(table.lon, table.lat)
    np.testing.assert_allclose(np.log(found["mean"]), np.log(table.zinc), atol=0.25)
    s = np.sqrt(np.log1p((found.sd / found["mean"]) ** 2))
    m = np.log(found["mean"]) - s**2 / 2
    np.testing.assert_allclose(found.lower, np.exp(m - 1.959964 * s), rtol=1e-6)
    np.testing.assert_allclose(found.upper, np.exp(m + 1.959964 * s), rtol=1e-6)


def test_one_place_is_predicted_as_any(path: Path) -> None:
    survey = Survey(path)
    found = survey.predict_at(np.float64(5.71), np.float64(50.96))
    pd.testing.assert_frame_equal(found, survey.predict_at([5.71], [50.96]))


def test_it_knows_what_was_measured(path: Path) -> None:
    survey, table = Survey(path), sites_table()
    prediction = survey.predict(cells=20_000)
    distance = cdist(metres(table), prediction.raster.centres)
    there, far = distance.argmin(1), int(distance.min(0).argmax())
    np.testing.assert_allclose(np.log(prediction.mean[there]), np.log(table.zinc), atol=0.25)
    relative = prediction.sd / prediction.mean
    assert relative[there].max() < relative[far]
    assert prediction.raster.count == pytest.approx(20_000, rel=0.02)
    assert shapely.intersects_xy(survey.region.shape, *prediction.raster.centres.T).all()


def test_how_much_exceeds_is_told_with_its_interval(path: Path) -> None:
    survey = Survey(path)
    prediction = survey.predict(cells=400)
    assert prediction.exceedance is not None
    found = prediction.exceeding
    assert found is not None
    assert found == survey.exceeding()
    assert found.summary in prediction.notes
    assert found.share.mean == pytest.approx(prediction.exceedance.mean())
    assert found.share.lower < found.share.mean < found.share.upper
    assert found.area.mean == pytest.approx(found.share.mean * survey.region.area / 1e6)
    assert found.weight is None
    higher = survey.exceeding(14.0, draws=50, seed=3)
    assert higher.threshold == 14.0
    assert higher.share.upper < found.share.lower
    assert survey.predict(cells=50, threshold=14.0).exceeding != found
    survey.map(path.with_name("map.html"), prediction)
    assert "of the area, the 95 % interval includes the threshold" in path.with_name("map.html").read_text()
    for threshold in (-1.0, float("nan")):
        with pytest.raises(SurveyError, match="must be positive"):
            survey.exceeding(threshold)


def test_how_many_people_are_above_is_told_where_people_are_known(dutch: Path, tmp_path: Path) -> None:
    survey = copied(dutch / "weights.gpkg", tmp_path)
    with pytest.raises(SurveyError, match="give one"):
        survey.exceeding()
    prediction = survey.predict(cells=100)
    assert prediction.exceeding is None
    found, people = survey.exceeding(3.0), people_inside(survey, dutch)
    there = survey.predict_at(people.x, people.y)
    above = stats.norm.sf((3.0 - there["mean"]) / there.sd)
    assert found.weight is not None
    assert found.weight.mean == pytest.approx(people.weight @ above)
    assert found.weight_share == Interval(*(part / people.weight.sum() for part in vars(found.weight).values()))
    assert found.weight.lower < found.weight.mean < found.weight.upper
    assert "of the weights" in found.summary


def test_exceedance_is_the_probability_of_a_normal(path: Path) -> None:
    survey = Survey(path)
    prediction = survey.predict(cells=300)
    s = np.sqrt(np.log1p((prediction.sd / prediction.mean) ** 2))
    m = np.log(prediction.mean) - s**2 / 2
    assert prediction.threshold == 10.0
    np.testing.assert_allclose(prediction.exceedance, stats.norm.sf(np.log(10), m, s), atol=1e-8)
    other = survey.predict(cells=300, threshold=14.0)
    np.testing.assert_allclose(other.exceedance, stats.norm.sf(np.log(14), m, s), atol=1e-8)
    with pytest.raises(SurveyError, match="must be positive"):
        survey.predict(threshold=-1.0)


def test_cells_have_the_size_wanted(path: Path) -> None:
    prediction = Survey(path).predict(size=250.0)
    assert prediction.raster.size == 250.0
    assert prediction.raster.count == pytest.approx(Survey(path).region.area / 250.0**2, rel=0.05)
    with pytest.raises(SurveyError, match="either"):
        Survey(path).predict(cells=10, size=250.0)


def _wave(seed: int, length: float) -> Callable[[np.ndarray], np.ndarray]:
    """A function of variance one with nearly a Matérn-3/2 covariance: cosines with frequencies of a t distribution."""
    rng = np.random.default_rng(seed)
    frequency = rng.normal(size=(400, 2)) / length * np.sqrt(3 / rng.chisquare(3, (400, 1)))
    phase, height = rng.uniform(0, 2 * np.pi, 400), rng.normal(size=400)
    return lambda xy: np.sqrt(2 / 400) * np.cos(xy @ frequency.T + phase) @ height


def test_intervals_hold_what_they_promise(tmp_path: Path) -> None:
    score, exceeded, promised = [], [], []
    for seed in range(3):
        truth, rng = _wave(seed, 1500.0), np.random.default_rng(100 + seed)
        xy = rng.uniform(0, 10_000, (130, 2)).round(2)
        value = 20 + 3 * truth(xy) + 0.3 * rng.normal(size=130)
        frame = pd.DataFrame({"x": xy[:, 0] + 600_000, "y": xy[:, 1] + 5_600_000, "v": value})
        table = write(tmp_path, f"{seed}.csv", frame)
        survey = Survey.create(
            tmp_path / f"{seed}.gpkg", table, "v", crs="EPSG:32631", threshold=21.0, kernel="matern32"
        )
        prediction = survey.predict(cells=400)
        real = 20 + 3 * truth(prediction.raster.centres - [600_000, 5_600_000])
        score.append((real - prediction.mean) / prediction.sd)
        exceeded.append(real > 21.0)
        promised.append(prediction.exceedance)
    z, p = np.concatenate(score), np.concatenate(promised)
    assert 0.88 < (np.abs(z) < 1.96).mean() < 0.99
    assert 0.38 < (np.abs(z) < 0.674).mean() < 0.63
    assert np.concatenate(exceeded).mean() == pytest.approx(p.mean(), abs=0.05)
    assert ((p - np.concatenate(exceeded)) ** 2).mean() < 0.17  # Brier; 0.25 knows nothing


def test_planned_sites_at_sea_are_pointed_out_if_the_measured_ones_are_on_land(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    lon = np.concatenate([rng.uniform(-3.2, -2.2, 15), rng.uniform(-4.8, -4.0, 15)])
    lat = np.concatenate([rng.uniform(48.0, 48.5, 15), rng.uniform(50.4, 50.6, 15)])
    table = pd.DataFrame({"lon": lon, "lat": lat, "zinc": rng.uniform(1, 2, 30)})
    survey = Survey.create(tmp_path / "s.gpkg", write(tmp_path, "t.csv", table), "zinc", kernel="matern32")
    (note,) = (note for note in survey.plan(3, "maximin", progress=False).notes if "sea" in note)
    assert note.startswith("Planned sites at sea: P")
    assert note.endswith("Give an area of land (init --area), because without one plans may be at sea.")
    area = write_area(tmp_path, shapely.box(-5.5, 47.8, -1.5, 51))
    survey = Survey.create(tmp_path / "a.gpkg", tmp_path / "t.csv", "zinc", kernel="matern32", area=area)
    (note,) = (note for note in survey.plan(3, "maximin", progress=False).notes if "sea" in note)
    assert note.endswith("Cut the sea out of the area (init --area or --forbidden).")
