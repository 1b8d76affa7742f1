"""Surveys of a quantity that is absent from parts of the area: from the table to maps, plans and updates."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from samples import write
from scipy.special import expit

from bo_scale.errors import SurveyError
from bo_scale.survey import Survey
from bo_scale.survey.mapping.scales import Amounts
from bo_scale.survey.plan.travel import Depot, Travel

CRS = "EPSG:25832"


def share(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.asarray(expit(4 * np.sin(x / 1500)))


def amount(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.asarray(np.exp(1 + np.cos(y / 2000)))


def catches(n: int = 120, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    x, y = rng.uniform(0, 6000, (2, n))
    there = rng.random(n) < share(x, y)
    value = np.where(there, amount(x, y) * np.exp(0.2 * rng.standard_normal(n)), 0.0)
    return pd.DataFrame({"x": (4e5 + x).round(1), "y": (5.6e6 + y).round(1), "catch": value.round(4)})


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two")
    path = folder / "s.gpkg"
    Survey.create(path, write(folder, "s.csv", catches()), "catch", crs=CRS, transform="two-part", threshold=2.0)
    Survey(path).fitted()
    return path


def copy(made: Path, folder: Path) -> Survey:
    (folder / "s.gpkg").write_bytes(made.read_bytes())
    return Survey(folder / "s.gpkg")


def test_maps_are_of_presence_times_amount(made: Path) -> None:
    """Without bias, nearer than maps of all values as one, and with intervals that hold the truth."""
    survey = Survey(made)
    x, y = np.random.default_rng(5).uniform(300, 5700, (2, 300))
    truth = share(x, y) * amount(x, y)
    found = survey.predict_at(4e5 + x, 5.6e6 + y)
    inside = (found["lower"] <= truth) & (truth <= found["upper"])
    assert inside.mean() > 0.85
    assert np.sqrt(np.square(found["mean"] - truth).mean()) < 0.7 * truth.std()
    assert found["mean"].mean() == pytest.approx(truth.mean(), rel=0.25)
    assert (found["lower"] >= 0).all()
    assert isinstance(survey.scale, Amounts)


def test_its_hyperparameters_and_stand_ins_are_kept(made: Path) -> None:
    survey = Survey(made)
    assert survey.settings["presence_fit"]["count"] == 120
    assert survey.settings["fit"]["count"] == int((survey.sites.value > 0).sum())
    before = made.read_bytes()
    again = Survey(made).fitted()
    assert made.read_bytes() == before
    assert again.presence is not None
    assert "two Gaussian processes" in survey.predict(cells=200).notes[0]
    assert "above zero, and another one where they are" in survey.status()


def test_how_much_is_above_a_threshold_agrees_with_the_map(made: Path) -> None:
    survey = Survey(made)
    prediction = survey.predict(cells=900)
    assert prediction.exceedance is not None
    above = survey.exceeding(2.0, draws=400)
    assert above.share.mean == pytest.approx(prediction.exceedance.mean(), abs=0.02)
    assert above.share.lower < above.share.mean < above.share.upper
    with pytest.raises(SurveyError, match="must be positive"):
        survey.exceeding(0.0)


@pytest.mark.parametrize("objective", ["variance", "uncertainty", "coverage"])
def test_plans_and_updates_go_on(made: Path, tmp_path: Path, objective: str) -> None:
    survey = copy(made, tmp_path)
    plan = survey.plan(4, objective)
    assert len(plan.table) == 4
    assert plan.sd_after < plan.sd_before
    plan.table.assign(catch=[0.0, 1.5, 0.0, 3.0]).to_csv(tmp_path / "next.csv", index=False)
    assert survey.update(tmp_path / "next.csv").added == 4
    assert len(survey.fitted().sites.z) == int((survey.sites.value > 0).sum())


def test_objectives_of_thresholds_are_refused_by_name(made: Path, tmp_path: Path) -> None:
    survey = copy(made, tmp_path)
    for objective in ("straddle", "misclassification", "thompson"):
        with pytest.raises(SurveyError, match=f"objective='{objective}': .* variance, uncertainty, or a design"):
            survey.plan(2, objective)


@pytest.mark.parametrize("count", [0, 1])
def test_too_few_amounts_are_said(tmp_path: Path, count: int) -> None:
    table = catches(8).assign(catch=[1.0] * count + [0.0] * (8 - count))
    survey = Survey.create(tmp_path / "s.gpkg", write(tmp_path, "s.csv", table), "catch", crs=CRS, transform="two-part")
    with pytest.raises(SurveyError, match=f"{count} values above zero"):
        survey.fitted()


def test_negative_values_are_set_aside(tmp_path: Path) -> None:
    table = catches(20)
    table.loc[3, "catch"] = -1.0
    survey = Survey.create(tmp_path / "s.gpkg", write(tmp_path, "s.csv", table), "catch", crs=CRS, transform="two-part")
    assert len(survey.sites) == 19
    assert "zero or above" in survey.rejected.reason[0]


def test_limits_of_detection_are_set_aside_not_taken_for_values(tmp_path: Path) -> None:
    table = catches(20).astype({"catch": str})
    table.loc[4, "catch"] = "<5"
    survey = Survey.create(tmp_path / "s.gpkg", write(tmp_path, "s.csv", table), "catch", crs=CRS, transform="two-part")
    assert len(survey.sites) == 19
    assert "is a limit" in survey.rejected.reason[0]


def test_teams_that_travel_plan_for_both_parts(made: Path, tmp_path: Path) -> None:
    survey = copy(made, tmp_path)
    travel = Travel([Depot(403_000.0, 5_603_000.0)], kilometres=15.0)
    plan = survey.plan(3, travel=travel)
    assert 1 <= len(plan.table) <= 3
    assert plan.routes[0].cost
