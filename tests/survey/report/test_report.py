"""Reports: structure, variograms and cross-validation against dense computations, and the page."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from samples import copied, filled, sites_table, write

from bo_scale.cli.program import main
from bo_scale.survey import Survey
from bo_scale.survey.mapping.fit import Fit
from bo_scale.survey.mapping.local import covariance_of
from bo_scale.survey.mapping.model import coordinates, forecast, model_of
from bo_scale.survey.mapping.nearest import Nearest
from bo_scale.survey.mapping.sites import Sites
from bo_scale.survey.mapping.structure import Part, Structure, compass, distance_text, practical
from bo_scale.survey.mapping.temporal import Time
from bo_scale.survey.report import validation as module
from bo_scale.survey.report.gains import gains_of
from bo_scale.survey.report.validation import by_blocks, by_place
from bo_scale.survey.report.variogram import variogram_in_time, variogram_of

pytestmark = pytest.mark.usefixtures("small")
HARM = "<script>alert(1)</script>"


def test_the_structure_is_that_of_the_model(path: Path) -> None:
    found, survey = Survey(path).fitted(), Survey(path)
    fit = Fit.of(survey.settings["fit"])
    told = Structure.of(fit, known_errors=False)
    middle = found.sites.xy.mean(0)
    for bearing, step in ((90.0, [700.0, 0.0]), (0.0, [0.0, 700.0])):
        points = coordinates(found.model, fit, np.stack([middle, middle + step]))
        K = found.model.processes[0].kernel(points, points).numpy() * fit.unit**2  # type: ignore[attr-defined]
        noise = float(found.model.measurement_noise(0)) * fit.unit**2
        expected = K[0, 0] - K[0, 1] + noise
        assert told.semivariance(np.array([700.0]), bearing)[0] == pytest.approx(expected, rel=1e-6)
    assert told.sill == pytest.approx(K[0, 0])
    assert 1 - told.parts[0].correlation(np.array([told.parts[0].ranges[0]]), told.parts[0].angle) == pytest.approx(
        0.95
    )


def test_the_structure_of_the_nearest_sites_is_told(path: Path) -> None:
    near = Nearest([0.5, 1.5], [900.0, 100.0], [2.0, 1.0], 0.0, 0.5)
    fit = Fit.of({**Survey(path).settings["fit"], "nearest": vars(near)})
    told = Structure.of(fit, known_errors=True)
    assert [part.smoothness for part in told.parts] == [1.5, 0.5]
    assert told.range == pytest.approx(900 * practical(0.5))
    (text,) = told.sentences("zinc")
    assert text.startswith("Short range 274 m, sill 1 (sd 1), Matérn 3/2; long range 2.7 km, sill 2")
    assert "nugget 0.5 (sd 0.707) beyond known errors, 14 % of the variance" in text


def test_change_in_time_is_told() -> None:
    time = Time(0.0, 100.0, True)
    near = Nearest([0.5, 1.5], [900.0, 100.0], [2.0, 1.0], 0.0, 0.5, times=[20.0, 4000.0], pace=1.0, lasting=1.5)
    fit = Fit("matern12", 9, (0.0, 0.0, 1.0, 1.0), 0.0, 1.0, [], {}, nearest=vars(near), time=time.saved)
    told = Structure.of(fit, known_errors=False)
    assert told.sentences("salt")[1] == (
        "In time the quantity changes smoothly (Matérn 3/2), 67 % of the variance with a range of 54.8 days; the rest "
        "stays."
    )
    assert told.reach == "2.7 km, 54.8 days in time"
    lags = np.array([10.0, 40.0])
    theta, r = near.theta, torch.full((2,), 200.0, dtype=torch.float64)
    K = covariance_of(r, theta, near.smoothness, torch.from_numpy(lags), 1.5).numpy()
    np.testing.assert_allclose(told.semivariance(np.full(2, 200.0), lag=lags), 3.5 - K, rtol=0.02)  # a part stays
    stays = replace(told, parts=tuple(replace(part, lasting=np.inf) for part in told.parts))
    assert stays.sentences("salt")[1] == "In time: nothing is seen to change."
    assert replace(time, dates=False).duration(3.14159) == "3.14"
    assert [time.duration(days) for days in (2000.0, 1.0, 0.01)] == ["5.48 years", "24 hours", "14.4 minutes"]


def test_a_variogram_in_time_is_that_of_pairs_at_hand() -> None:
    rng = np.random.default_rng(0)
    xy, t = rng.uniform(0, 1000, (4, 2))[np.arange(160) % 4], rng.uniform(0, 50, (160, 1))
    z = np.sin(t[:, 0] / 10) + xy[:, 0] / 500
    fit = Fit("matern12", 160, (0.0, 0.0, 1000.0, 1000.0), 0.0, 1.0, [], {}, time=Time(0.0, 50.0, False).saved)
    found = variogram_in_time(Sites(xy, z, None, covariates=t), fit, 1.0, 0.0)
    i, j = np.triu_indices(160, 1)
    lags = abs(t[i, 0] - t[j, 0])
    kept = (i % 4 == j % 4) & (lags <= lags.max() / 2)
    half = np.square(z[i] - z[j])[kept] / 2
    assert found.pairs.sum() == kept.sum()
    assert found.pairs @ found.semivariance == pytest.approx(half.sum())
    assert found.pairs @ found.distance == pytest.approx(lags[kept].sum())
    assert found.beside == 0
    near = variogram_of(Sites(xy, z, None, covariates=t), fit, 1.0, within=5.0)
    assert near.pairs.sum() < variogram_of(Sites(xy, z, None, covariates=t), fit, 1.0).pairs.sum()
    assert 2 < near.beside < 3


def test_axes_are_told_in_words() -> None:
    assert compass(91.0) == "east to west"
    assert compass(179.0) == "north to south"
    assert compass(60.0) == "60° (about north-east to south-west)"
    assert distance_text(999.6) == "1 km"
    assert distance_text(12.34) == "12.3 m"
    part = Part(1.5, 1.0, (300.0, 100.0), 45.0)
    along, across = part.correlation(np.array([100.0]), 45.0), part.correlation(np.array([100.0]), 135.0)
    assert along > across
    assert part.correlation(np.array([100.0]), 225.0) == pytest.approx(along)


def test_a_variogram_is_that_of_the_process(path: Path) -> None:
    """The mean of many draws is the variogram itself, whose known errors are subtracted."""
    rng = np.random.default_rng(0)
    xy = rng.uniform(0, 3000, (150, 2))
    part = Part(1.5, 2.0, (400.0, 400.0))
    r = np.linalg.norm(xy[:, None] - xy, axis=-1)
    L = np.linalg.cholesky(2 * part.correlation(r, 0.0) + 1e-9 * np.eye(150))
    errors = rng.choice([0.1, 3.0], 150)
    fit, found = Fit.of(Survey(path).settings["fit"]), []
    for _ in range(60):
        z = L @ rng.normal(size=150) + errors**0.5 * rng.normal(size=150)
        found.append(variogram_of(Sites(xy, z, errors), fit, 2.0))
    mean = np.mean([each.semivariance for each in found], 0)
    expected = 2 * (1 - part.correlation(found[0].distance, 0.0))
    near = (found[0].distance < 800) & (found[0].pairs > 60)
    np.testing.assert_allclose(mean[near], expected[near], rtol=0.12, atol=0.03)
    east = variogram_of(Sites(xy, z, errors), fit, 2.0, 90.0)
    assert 0.15 < east.pairs.sum() / found[0].pairs.sum() < 0.35


def test_measurements_are_left_out_as_if_they_were_not_there(dutch: Path, tmp_path: Path) -> None:
    survey = copied(dutch / "s.gpkg", tmp_path)
    twice = pd.read_csv(dutch / "sites.csv").iloc[[3]].assign(lead=[3.3], sd=[0.4])
    survey.update(write(tmp_path, "twice.csv", twice))
    found = survey.fitted()
    left_out = by_place(found)
    assert left_out is not None
    sites = found.sites
    assert sites.variance is not None
    for row in (3, 20):
        kept = (sites.xy != sites.xy[row]).any(1)
        assert kept.sum() == (39 if row == 3 else 40)
        some = Sites(sites.xy[kept], sites.z[kept], sites.variance[kept])
        mean, sd = forecast(model_of(some, found.fit), found.fit, sites.xy[[row]], progress=False)
        assert left_out.mean[row] == pytest.approx(float(mean[0]), rel=1e-4)
        own = sites.variance[row] + found.surface.noise
        half = (left_out.upper[row] - left_out.lower[row]) / 2 / 1.959964
        assert half == pytest.approx(float(np.sqrt(sd[0] ** 2 + own)), rel=1e-3)
    assert left_out.scores.count == 41
    assert left_out.scores.rmse == pytest.approx(float(np.sqrt(np.square(left_out.mean - left_out.value).mean())))
    assert 0.8 <= left_out.scores.inside95 <= 1


def test_blocks_are_harder_than_places_and_other_ways_agree(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = Survey(path).fitted()
    one, other = by_place(found), by_blocks(found)
    assert one is not None
    assert other is not None
    assert other.scores.folds == 9
    assert other.scores.rmse > one.scores.rmse
    monkeypatch.setattr(module, "_dense", lambda survey: False)
    monkeypatch.setattr(module, "FunctionSpacePosterior", type(None))
    again = by_blocks(found)
    assert again is not None
    np.testing.assert_allclose(again.mean, other.mean, rtol=1e-3)
    np.testing.assert_allclose(again.upper, other.upper, rtol=1e-3)


@pytest.mark.parametrize("exposed", [False, True])
def test_of_counts_the_chance_of_counting_is_told(tmp_path: Path, exposed: bool) -> None:
    """Two are examined at each place, or the exposure is two: much of the variance is chance."""
    rng = np.random.default_rng(1)
    x, y = rng.uniform(0, 5000, (2, 300))
    rate = np.exp(2 * np.sin(x / 900)) / 2 if exposed else 1 / (1 + np.exp(-4 * np.sin(x / 900)))
    found = rng.poisson(2 * rate) if exposed else rng.binomial(2, rate)
    table = pd.DataFrame({"x": 400_000 + x, "y": 5_600_000 + y, "found": found, "of": 2})
    how = {"exposure": "of"} if exposed else {"of": "of"}
    survey = Survey.create(
        tmp_path / "c.gpkg", write(tmp_path, "c.csv", table), "found", crs="EPSG:25832", kernel="matern32", **how
    )
    report = survey.report(progress=False)
    chance = (rate if exposed else rate * (1 - rate)).mean() / 2 / np.var(found / 2)
    assert report.scores[0].chance == pytest.approx(chance, abs=0.08)
    attainable = report.scores[0].attainable
    assert 0.25 * attainable < report.scores[0].explained < attainable + 0.1
    assert attainable < 0.9
    assert f"so predictions can explain {100 * attainable:.0f} % at most." in report.text
    assert f"of the variance explained ({100 * attainable:.0f} % at most)" in report.text
    assert "explain little" not in report.text


def test_a_slip_is_suspect_and_plans_have_gains(path: Path) -> None:
    survey = Survey(path)
    plan = survey.plan(2).table
    survey.update(
        write(path.parent, "done.csv", filled(plan, P1=float(plan.predicted[0]), P2=float(plan.predicted[1])))
    )
    slip = sites_table(1, seed=5).assign(zinc=0.02)
    survey.update(write(path.parent, "slip.csv", slip))
    report = survey.report(title=HARM)
    (gain,) = gains_of(survey.fitted())
    assert report.gains == [gain]
    assert (gain.planned, gain.measured, gain.inside) == (2, 2, 1.0)
    assert gain.after < gain.before
    assert gain.expected is not None
    assert gain.expected == pytest.approx(gain.after, rel=0.1)
    assert "slip.csv, row 2" in report.text
    assert f"sd over the area (on the log scale) from {gain.before:.4g}" in report.text
    report.write(path.with_name("r.html"))
    page = path.with_name("r.html").read_text("utf-8")
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert not re.findall(r"https?:|//[a-z]|@import|url\(|\{\{", page)
    assert page.count("<svg") == 4


def test_few_measurements_and_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = write(tmp_path, "t.csv", sites_table(4))
    assert main(["survey", "init", str(table), "--value", "zinc", "--out", str(tmp_path / "s.gpkg")]) == 0
    capsys.readouterr()
    out = [str(tmp_path / name) for name in ("r.html", "r.txt")]
    assert main(["survey", "report", str(tmp_path / "s.gpkg"), "--out", *out]) == 0
    said = capsys.readouterr().out
    assert "There are too few places to leave some out." in said
    assert (tmp_path / "r.txt").read_text() in said
    assert main(["survey", "report", str(tmp_path / "s.gpkg"), "--out", str(tmp_path / "r.pdf")]) == 1
    assert main(["survey", "status", str(tmp_path / "s.gpkg")]) == 0
    assert "nugget" in capsys.readouterr().out


def test_equal_values_have_a_report(tmp_path: Path) -> None:
    table = write(tmp_path, "t.csv", sites_table(12).assign(zinc=3.0))
    report = Survey.create(tmp_path / "s.gpkg", table, "zinc", kernel="matern32").report()
    report.write(tmp_path / "r.html")
    assert "nan" not in report.text
