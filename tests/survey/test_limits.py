"""Surveys with values below a limit of detection, and with zeros."""

import sqlite3
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from samples import write

from bo_scale.errors import SurveyError
from bo_scale.survey import Survey
from bo_scale.survey.mapping.scales import Log
from bo_scale.survey.tables.table import read_table

CRS = "EPSG:25832"


def assays(n: int = 90) -> pd.DataFrame:
    """Lead, log-normal, written as laboratories do where it is below 5."""
    rng = np.random.default_rng(2)
    x, y = rng.uniform(4e5, 4.1e5, n).round(1), rng.uniform(5.6e6, 5.61e6, n).round(1)
    lead = np.exp(1.7 + np.sin(x / 2000) + 0.1 * rng.standard_normal(n)).round(2)
    return pd.DataFrame({"x": x, "y": y, "lead": [f"{value}" if value >= 5 else "<5" for value in lead]})


def test_limits_are_read(tmp_path: Path) -> None:
    cells = ["<0,5", "< 5", "≤ 2,5", "<=7", "1,5", "<", "<LOD"]
    path = tmp_path / "lab.csv"
    path.write_text("x;y;lead\n" + "\n".join(f"400000;5600000;{cell}" for cell in cells), encoding="utf-8")
    read = read_table(path, "lead", crs=CRS)
    assert list(read.frame.value) == [0.5, 5.0, 2.5, 7.0, 1.5]
    assert list(read.frame.below) == [1, 1, 1, 1, 0]
    assert [one.reason for one in read.refused] == ["lead is not a number: <", "lead is not a number: <LOD"]


def test_limits_of_counts_are_refused(tmp_path: Path) -> None:
    table = write(tmp_path, "t.csv", pd.DataFrame({"x": [4e5, 4.1e5], "y": [5.6e6] * 2, "k": ["<3", "1"], "n": [5, 5]}))
    assert [one.reason for one in read_table(table, "k", crs=CRS, of="n").refused] == ["k is not a number: <3"]


def test_a_survey_with_limits_predicts_below_them(tmp_path: Path) -> None:
    survey = Survey.create(
        tmp_path / "s.gpkg", write(tmp_path, "a.csv", assays()), "lead", crs=CRS, transform="log", kernel="matern32"
    )
    hidden = survey.sites.below.to_numpy() > 0
    assert 0.2 < hidden.mean() < 0.8
    found = survey.fitted().at(np.stack([survey.sites.geometry.x, survey.sites.geometry.y], -1))
    assert (found["mean"][hidden] < 5).mean() > 0.9
    assert (found["mean"][~hidden] > 4.5).mean() > 0.9
    assert any("Values below a limit of detection" in note for note in survey.notes)
    again = Survey(tmp_path / "s.gpkg").fitted()
    assert again.sites.digest == again.fit.settled
    assert len(Survey(tmp_path / "s.gpkg").plan(batch=2).table) == 2


def test_older_versions_refuse_what_they_would_misread(tmp_path: Path) -> None:
    for name, frame, wanted in (("a", assays(), "2"), ("b", assays().assign(lead=3.5), "1")):
        Survey.create(tmp_path / f"{name}.gpkg", write(tmp_path, f"{name}.csv", frame), "lead", crs=CRS)
        with sqlite3.connect(tmp_path / f"{name}.gpkg") as file:
            ((found,),) = file.execute("SELECT value FROM settings WHERE key = 'bo_scale format'").fetchall()
        assert found == wanted


def test_limits_that_come_later_are_taken_in(tmp_path: Path) -> None:
    numbers = assays()[assays().lead != "<5"]
    survey = Survey.create(tmp_path / "s.gpkg", write(tmp_path, "a.csv", numbers), "lead", crs=CRS, keep_outside=True)
    survey.fitted()
    survey.update(write(tmp_path, "b.csv", assays()[assays().lead == "<5"].head(4)))
    assert survey.fitted().sites.likelihood is not None
    assert (survey.sites.below > 0).sum() == 4


# ---------------------------------------------------------------- zeros


def test_zeros_have_a_scale(tmp_path: Path) -> None:
    table = assays().assign(lead=lambda frame: [0.0 if value == "<5" else float(value) for value in frame.lead])
    path = write(tmp_path, "z.csv", table)
    survey = Survey.create(tmp_path / "s.gpkg", path, "lead", crs=CRS, transform="log1p", kernel="matern32")
    assert len(survey.sites) == len(table)
    assert survey.scale == Log(1.0, "log1p")
    assert (survey.predict(cells=100).mean >= 0).all()
    small = Survey.create(tmp_path / "t.gpkg", path, "lead", crs=CRS, transform="log", offset=0.1, kernel="matern32")
    assert small.scale == Log(0.1)
    assert Survey(tmp_path / "t.gpkg").scale == Log(0.1)
    with pytest.raises(SurveyError, match="only the scale log has one"):
        Survey.create(tmp_path / "u.gpkg", path, "lead", crs=CRS, offset=0.1)
    with pytest.raises(SurveyError, match="not negative"):
        Survey.create(tmp_path / "u.gpkg", path, "lead", crs=CRS, transform="log", offset=-1.0)


def test_a_logarithm_with_an_offset_goes_there_and_back() -> None:
    scale, y = Log(0.5), np.array([0.0, 0.3, 7.0])
    np.testing.assert_allclose(scale.backward(scale.forward(y)), y, atol=1e-12)
    np.testing.assert_allclose(scale.slope(y), (scale.forward(y + 1e-6) - scale.forward(y - 1e-6)) / 2e-6, rtol=1e-6)
    draws = np.random.default_rng(0).normal(-0.5, 0.7, 400_000)
    mean, sd = scale.moments(np.array([-0.5]), np.array([0.7]))
    assert mean[0] == pytest.approx(scale.backward(draws).mean(), rel=0.02)
    assert sd[0] == pytest.approx(scale.backward(draws).std(), rel=0.03)
    assert list(scale.usable(np.array([-0.1, 0.0, np.inf]))) == [False, True, False]
