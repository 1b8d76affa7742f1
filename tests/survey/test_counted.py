"""Surveys of counts, from the table to the map."""

import shutil
from pathlib import Path

import geopandas as gpd
import numpy as np
import pandas as pd
import pytest
from samples import write
from scipy.special import expit

from bo_scale.errors import SurveyError
from bo_scale.survey import Survey
from bo_scale.survey import fitted as module
from bo_scale.survey.workspace import STAND_INS

CRS = "EPSG:25832"


def places(n: int, seed: int = 0) -> pd.DataFrame:
    xy = np.random.default_rng(seed).uniform([4e5, 5.6e6], [4.1e5, 5.61e6], (n, 2))
    return pd.DataFrame({"x": xy[:, 0].round(1), "y": xy[:, 1].round(1)})


def level(table: pd.DataFrame) -> np.ndarray:
    return np.sin(table.x.to_numpy() / 2500) + np.cos(table.y.to_numpy() / 3000)


def examinations(n: int, seed: int = 0, most: int = 1) -> pd.DataFrame:
    """Positives of so many examined at most, with the share expit(level − 1)."""
    table, rng = places(n, seed), np.random.default_rng(seed + 1)
    examined = rng.integers(1, most + 1, n)
    return table.assign(positive=rng.binomial(examined, expit(level(table) - 1)), examined=examined)


def watched(n: int, seed: int = 0) -> pd.DataFrame:
    """Cases with the rate 0.02 exp(level) in populations of ten to five hundred."""
    table, rng = places(n, seed), np.random.default_rng(seed + 1)
    people = rng.integers(10, 500, n)
    return table.assign(cases=rng.poisson(0.02 * people * np.exp(level(table))), people=people)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("counted")
    table = write(folder, "one.csv", examinations(120))
    Survey.create(
        folder / "one.gpkg",
        table,
        "positive",
        of="examined",
        crs=CRS,
        threshold=0.3,
        kernel="matern32",
        keep_outside=True,
    )
    Survey(folder / "one.gpkg").fitted()
    return folder


@pytest.fixture
def one(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(made / "one.gpkg", tmp_path / "one.gpkg"))


def test_one_examined_at_each_place_gives_shares_without_bias(one: Path) -> None:
    found = Survey(one).predict(cells=400)
    centres = pd.DataFrame(found.raster.centres, columns=["x", "y"])
    truth = expit(level(centres) - 1)
    assert abs(found.mean.mean() - truth.mean()) < 0.06
    assert np.corrcoef(found.mean, truth)[0, 1] > 0.5
    assert found.exceeding is not None
    assert found.exceeding.share.lower < (truth > 0.3).mean() < found.exceeding.share.upper


def test_rates_are_cases_by_exposure(tmp_path: Path) -> None:
    table = write(tmp_path, "cases.csv", watched(120))
    survey = Survey.create(tmp_path / "c.gpkg", table, "cases", exposure="people", crs=CRS, threshold=0.03)
    assert survey.workspace.quantity == "cases / people"
    assert survey.scale.name == "log"
    found = survey.predict(cells=400)
    truth = 0.02 * np.exp(level(pd.DataFrame(found.raster.centres, columns=["x", "y"])))
    assert np.corrcoef(found.mean, truth)[0, 1] > 0.8
    assert found.mean.mean() == pytest.approx(truth.mean(), rel=0.25)
    plan = survey.plan(batch=3)
    assert {"cases", "people"} <= set(plan.table.columns)
    assert (plan.table.predicted > 0).all()
    assert survey.exceeding(0.05).share.mean < survey.exceeding(0.01).share.mean


def test_stand_ins_are_kept_and_found_again_where_counts_change(one: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    solved = []
    monkeypatch.setattr(module, "settled", lambda *given: solved.append(1) or REAL(*given))
    survey = Survey(one)
    before = survey.fitted()
    assert solved == []
    assert set(STAND_INS) <= set(survey.sites.columns)
    frame = gpd.read_file(one, layer="sites")
    frame.loc[0, "value"] = 1 - frame.loc[0, "value"]  # as somebody might in QGIS
    survey._save(module.replace(survey.workspace.state, sites=survey.sites.assign(value=frame.value)))
    after = Survey(one).fitted()
    assert len(solved) == 1
    assert after.sites.z[0] != pytest.approx(before.sites.z[0], abs=0.1)
    Survey(one).fitted()
    assert len(solved) == 1


REAL = module.settled


def test_new_counts_are_taken_in(one: Path, tmp_path: Path) -> None:
    survey = Survey(one)
    new = write(tmp_path, "new.csv", examinations(10, seed=5, most=30))
    assert survey.update(new).added == 10
    assert np.isnan(survey.sites[STAND_INS[0]]).sum() == 10
    found = survey.fitted()
    assert np.isfinite(found.sites.z).all()
    assert not survey.sites[STAND_INS[0]].isna().any()
    assert found.fit.count == 120  # not fitted anew


def test_surveys_of_counts_from_before_are_fitted_anew(one: Path) -> None:
    """Their hyperparameters were those of log((k + ½)/(n − k + ½))."""
    survey = Survey(one)
    settings = survey.workspace.state.settings
    old = {name: value for name, value in settings["fit"].items() if name != "settled"}
    columns = {name: value for name, value in settings["columns"].items() if name != "exposed"}
    sites = survey.sites.drop(columns=list(STAND_INS))
    survey._save(
        module.replace(survey.workspace.state, sites=sites, settings=settings | {"fit": old, "columns": columns})
    )
    again = Survey(one).fitted()
    assert again.fit.settled == again.sites.digest != ""


def test_plans_of_counts_weigh_the_variance_of_the_share(one: Path) -> None:
    plan = Survey(one).plan(batch=4)
    assert len(plan.table) == 4
    assert 0 < plan.sd_after < plan.sd_before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"exposure": "people", "of": "people"}, "give one of them"),
        ({"exposure": "people", "transform": "logit"}, r"exposure: counts have a scale \(log\)"),
        ({"exposure": "people", "error": "people"}, "leave out transform and error"),
        ({"exposure": "people", "lower": 1.0}, "leave out lower and upper"),
        ({"exposure": "peeple"}, "Did you mean people"),
        ({"exposure": "people", "threshold": -1.0}, "must be positive"),
    ],
)
def test_options_that_cannot_be_are_refused(tmp_path: Path, options: dict[str, object], message: str) -> None:
    table = write(tmp_path, "cases.csv", watched(20))
    with pytest.raises(SurveyError, match=message):
        Survey.create(tmp_path / "c.gpkg", table, "cases", crs=CRS, **options)  # type: ignore[arg-type]


def test_rows_that_are_no_counts_are_set_aside(tmp_path: Path) -> None:
    frame = watched(20).astype({"cases": float, "people": float})
    frame.loc[0, "cases"], frame.loc[1, "people"], frame.loc[2, "cases"] = 1.5, 0.0, 10_000.0
    survey = Survey.create(tmp_path / "c.gpkg", write(tmp_path, "c.csv", frame), "cases", exposure="people", crs=CRS)
    assert list(survey.rejected.reason) == ["cases is not a count (0, 1, 2, …)", "people is not positive"]
    assert len(survey.sites) == 18
