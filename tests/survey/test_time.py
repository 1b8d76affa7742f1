"""Surveys of a quantity that changes: maps and plans for a date, and nothing beyond the range in time."""

import re
import shutil
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
import rasterio
import torch

from bo_scale.cli.program import main
from bo_scale.errors import SurveyError
from bo_scale.survey import Survey
from bo_scale.survey.mapping import scored
from bo_scale.survey.mapping.anisotropy import Stretch
from bo_scale.survey.mapping.fit import Fit
from bo_scale.survey.mapping.matern import matern, practical
from bo_scale.survey.mapping.model import _range_of_nearest, coordinates, fit_model, forecast, model_of, predict
from bo_scale.survey.mapping.nearest import Nearest
from bo_scale.survey.mapping.sites import Sites
from bo_scale.survey.mapping.structure import Structure
from bo_scale.survey.mapping.temporal import ABRUPT, CHANGING, SMOOTH, WITH_A_STAY, Time, shown, time_of
from bo_scale.survey.output.writers import picture_of

Array = npt.NDArray[np.float64]
BOX = (0.0, 0.0, 1000.0, 800.0)


def sites_of(n: int, seed: int = 0) -> Sites:
    rng = np.random.default_rng(seed)
    xy, t = rng.uniform((0, 0), (1000, 800), (n, 2)), rng.uniform(100, 200, (n, 1))
    return Sites(xy, np.sin(xy[:, 0] / 150 + t[:, 0] / 20) + 0.1 * rng.normal(size=n), None, covariates=t)


def at_150(xy: Array) -> Array:
    return np.full((len(xy), 1), 150.0)


@pytest.mark.parametrize(("parts", "smoothness"), [(CHANGING, ABRUPT), (WITH_A_STAY, ABRUPT), (WITH_A_STAY, SMOOTH)])
@pytest.mark.parametrize("grids", [[], [[10, 8, 8], [8, 8, 4]]])
def test_the_kernel_is_separable_with_a_part_that_stays(parts: str, smoothness: float, grids: list[list[int]]) -> None:
    sites, at = sites_of(30), sites_of(6, 1)
    time = Time(100.0, 100.0, True, parts, smoothness=smoothness)
    grids = grids[: 1 + (parts == WITH_A_STAY)]
    fit = Fit("matern32", 30, BOX, 0.0, 1.0, grids, {}, time=time.saved, beside=at_150)
    model = model_of(sites, fit)
    X = torch.cat([coordinates(model, fit, each.xy, each.covariates) for each in (sites, at)])
    with torch.no_grad():
        if grids:
            K = model._feature_map(0).prior_covariance(X).numpy()
        else:
            K = model.covar_module(X).to_dense().numpy()
            r, lag = torch.cdist(X[:, :2], X[:, :2]).numpy() / 0.2, abs(X[:, 2:] - X[:, 2]).numpy() / 0.3
            space = (1 + 3**0.5 * r) * np.exp(-(3**0.5) * r)
            held = matern(smoothness, lag)
            expected = space * held if parts == CHANGING else 0.5 * space * (1 + held)
            np.testing.assert_allclose(K, expected, rtol=1e-5, atol=1e-7)
    mean = float(model.mean_module.constant.detach())
    gain = np.linalg.solve(K[:30, :30] + float(model.measurement_noise(0)) * np.eye(30), K[:30, 30:]).T
    found, sd = forecast(model, fit, at.xy, False, at.covariates)
    np.testing.assert_allclose(found, mean + gain @ (sites.z - mean), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(sd**2, (K[30:, 30:] - gain @ K[:30, 30:]).diagonal(), rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("lasting", [ABRUPT, SMOOTH])
def test_the_nearest_in_space_and_time_are_dense_kriging_where_they_are_all(lasting: float) -> None:
    sites, at = sites_of(25), sites_of(4, 1)
    found = Nearest((0.5, 1.5), (80.0, 300.0), (0.5, 1.0), 0.2, 0.1, times=(20.0, 1e4), pace=4.0, lasting=lasting)
    here, there = (np.c_[each.xy, each.covariates] for each in (sites, at))
    mean, sd = found.forecast(here, sites.z, None, there, False)
    every = np.concatenate([here, there])
    r = np.linalg.norm(every[:, None, :2] - every[:, :2], axis=-1)
    lag = abs(every[:, None, 2] - every[:, 2])
    a = 3**0.5 * r / 300
    K = 0.5 * np.exp(-r / 80) * matern(lasting, lag / 20) + (1 + a) * np.exp(-a) * matern(lasting, lag / 1e4)
    weights = np.stack([found.forecast(here, 0.2 + row, None, there, False)[0] - 0.2 for row in np.eye(25)], -1)
    gain = np.linalg.solve(K[:25, :25] + 0.1 * np.eye(25), K[:25, 25:]).T
    assert np.abs(weights - gain).max() < 0.05  # the farthest fade
    np.testing.assert_allclose(mean, 0.2 + gain @ (sites.z - 0.2), atol=0.1)
    np.testing.assert_allclose(sd**2, (K[25:, 25:] - gain @ K[:25, 25:]).diagonal(), rtol=0.1)


def test_times_are_dates_or_numbers() -> None:
    assert time_of("2024-06-01") == (19875.0, True)
    assert time_of("2024-06-01 12:00:00") == (19875.5, True)
    assert time_of("2024-06-01t12:00:00z") == (19875.5, True)
    assert time_of("7.5") == (7.5, False)
    assert np.isnan(time_of("soon")[0])
    assert np.isnan(time_of(None)[0])
    assert shown(19875.0, dates=True) == "2024-06-01"
    assert shown(19875.5, dates=True) == "2024-06-01 12:00:00"
    assert shown(7.5, dates=False) == "7.5"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 measurements of a front that moves east with time, one of them without a date, and a survey with a fit."""
    rng = np.random.default_rng(0)
    x, y, t = rng.uniform(0, 5000, 60), rng.uniform(0, 5000, 60), rng.integers(0, 120, 60)
    z = np.tanh((x - 1000 - 25 * t) / 1000) + 0.05 * rng.normal(size=60)
    days = [date(2024, 3, 1) + timedelta(int(k)) for k in t]
    rows = [
        f"{400_000 + a:.1f},{5_600_000 + b:.1f},{c:.4f},{d if k else ''}"
        for k, (a, b, c, d) in enumerate(zip(x, y, z, days, strict=True))
    ]
    folder = tmp_path_factory.mktemp("front")
    (folder / "sites.csv").write_text("\n".join(["x,y,salt,date", *rows]))
    given = {"crs": "EPSG:25832", "kernel": "matern32", "time": "date"}
    Survey.create(folder / "s.gpkg", folder / "sites.csv", "salt", **given).predict(cells=50)
    return folder


@pytest.fixture
def table(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(made / "sites.csv", tmp_path / "sites.csv"))


def test_a_survey_predicts_and_plans_for_a_date(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = table.with_name("s.gpkg")
    begin = ["survey", "init", str(table), "--value", "salt", "--crs", "EPSG:25832", "--kernel", "matern32"]
    assert main([*begin, "--time", "date", "--out", str(path)]) == 0
    out = capsys.readouterr().out
    assert "Time: date, from 2024-03-0" in out
    assert "they have no value of date: 1 (sites.csv, row 2)" in out
    survey = Survey(path)
    place = [403_000.0], [5_602_500.0]
    early, late = (survey.predict_at(*place, date=when)["mean"][0] for when in ("2024-03-10", "2024-06-25"))
    assert early > 0.5
    assert late < 0.2
    prediction = survey.predict(300, date="2024-04-01")
    assert any("Predicted for 2024-04-01." in note for note in prediction.notes)
    assert any("the latest measurement" in note for note in survey.predict(300).notes)
    assert survey.plan(2, date="2024-06-20", progress=False).table["date"].tolist() == ["", ""]
    for wrong, message in (
        ("2050-01-01", "beyond their range in time"),
        ("spring", "a date such as 2024-03"),
        ("7", "a date"),
    ):
        with pytest.raises(SurveyError, match=message):
            survey.predict_at(*place, date=wrong)
    report = survey.report(progress=False)
    assert [score.name for score in report.scores] == ["by place", "by blocks", "by periods"]
    assert report.scores[0].rmse < 0.5
    assert report.scores[2].folds == 10
    for told in ("By periods: from", "In time the quantity changes", "the time between measurements, of pairs"):
        assert told in report.text or any(told in str(section) for section in report.sections)
    assert main(["survey", "predict", str(path), "--date", "2050-01-01", "--out", str(table.with_name("p.tif"))]) == 1
    assert "Give a date from" in capsys.readouterr().err
    page = table.with_name("m.html")
    given = ["--date", "2024-04-01", "--date", "2024-06-20", "--cells", "200", "--out", str(page)]
    assert main(["survey", "map", str(path), *given]) == 0
    assert page.read_text().count("<template data-date=") == 2
    assert main(["survey", "map", str(path), *given[:-1], str(page.with_suffix(".png"))]) == 1
    assert "m.png: several dates make a page with a slider; give a file that ends in .html." in capsys.readouterr().err
    assert main(["survey", "model", str(path), "--decay", "20"]) == 0
    assert "whose hold falls to 1/e in 20 days" in capsys.readouterr().out
    assert main(["survey", "model", str(path), "--time", "none"]) == 0
    with pytest.raises(SurveyError, match="the survey has no time"):
        Survey(path).predict_at(*place, date="2024-06-01")
    with pytest.raises(SurveyError, match="the tables have no column dya"):
        survey.change_time("dya")


@pytest.fixture
def changing(made: Path, table: Path) -> Survey:
    """A survey of the front."""
    return Survey(shutil.copy(made / "s.gpkg", table.with_name("s.gpkg")))


def test_dates_are_given_as_offices_write_them(changing: Survey) -> None:
    place = [403_000.0], [5_602_500.0]
    expected = changing.predict_at(*place, date="2024-04-01")
    for written in ("01.04.2024", "1.4.24", "2024/04/01", "2024-04-01 00:00"):
        np.testing.assert_array_equal(changing.predict_at(*place, date=written), expected)
    page = changing.path.with_name("m.html")
    changing.map_dates(page, ["01.04.2024", "20.06.2024"], 200)
    text = page.read_text(encoding="utf-8")
    assert 'data-date="2024-04-01"' in text
    ends = re.findall(r"&quot;low&quot;:(.+?),&quot;high&quot;:(.+?),", text)  # of mean and sd, at both dates
    assert len(ends) == 4
    assert ends[:2] == ends[2:]


def test_rows_of_a_table_are_predicted_at_their_own_dates(changing: Survey, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = (changing.path.with_name(name) for name in ("places.csv", "predicted.csv"))
    dates = ["10.03.2024", "2024-06-20", "", "soon", "2050-01-01"]
    path.write_text("\n".join(["x,y,date", *(f"403000,5602500.5,{each}" for each in dates)]))
    asked = ["survey", "predict", str(changing.path), "--at", str(path), "--prediction", "--out", str(out)]
    assert main(asked) == 0
    said, found = capsys.readouterr().out, pd.read_csv(out)
    assert "because date has no date: 2 (row 4; row 5)" in said
    assert "because measurements tell nothing of their date: 1 (row 6). Dates from" in said
    assert "latest measurement" not in said
    ends = ["predicted", "predicted_sd", "predicted_lower", "predicted_upper", "new_lower", "new_upper"]
    for k, when in enumerate(dates[:2]):
        expected = changing.predict_at([403_000.0], [5_602_500.5], date=when, intervals=True)
        np.testing.assert_allclose(found.loc[k, ends].astype(float), expected.iloc[0], rtol=1e-5)
    assert found.predicted[2:].isna().all()
    assert found.y.tolist() == [5_602_500.5] * 5  # rows without a prediction keep their places
    assert [line.split(",")[0] for line in out.read_text().splitlines()[1:]] == ["403000"] * 5
    assert main([*asked, "--date", "2024-06-20"]) == 0
    assert "All rows are predicted for 2024-06-20, whatever their date." in capsys.readouterr().out
    np.testing.assert_allclose(pd.read_csv(out).predicted, found.predicted[1])
    path.write_text("x,y\n403000,5602500.5")
    assert main(asked) == 0
    assert "the date of the latest measurement. --date gives another one." in capsys.readouterr().out
    path.write_text("x,y,date\n403000,5602500.5,soon")
    assert main(asked) == 1
    assert "no row can be predicted. Rows without a prediction" in capsys.readouterr().err


def test_dates_may_be_in_a_column_of_another_name(changing: Survey, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = (changing.path.with_name(name) for name in ("lab.csv", "predicted.csv"))
    path.write_text("x,y,salt,sampled,date\n403000,5602500.5,0.5,05.05.2024,2024-06-01")  # date: of the analysis
    asked = ["survey", "predict", str(changing.path), "--at", str(path), "--time", "sampled", "--out", str(out)]
    assert main(asked) == 0
    expected = changing.predict_at([403_000.0], [5_602_500.5], date="2024-05-05")["mean"]
    np.testing.assert_allclose(pd.read_csv(out).predicted, expected, rtol=1e-5)
    assert main(["survey", "update", str(changing.path), str(path), "--time", "sampled"]) == 0
    survey = Survey(changing.path)
    assert survey.workspace.time.shown(survey.workspace.times[-1]) == "2024-05-05"
    assert survey.update(path, names={"time": "sampled"}).known == 1
    with pytest.raises(SurveyError, match="there is no column smapled"):
        survey.update(path, names={"time": "smapled"})
    survey.change_time(None)
    for refused in (survey.update, survey.predict_table):
        with pytest.raises(SurveyError, match="the survey has no time"):
            refused(path, names={"time": "sampled"})
    with pytest.raises(SystemExit):
        main([*asked, "--time", "date"])


def test_a_date_that_nobody_named_is_told(changing: Survey, capsys: pytest.CaptureFixture[str]) -> None:
    survey, out = str(changing.path), str(changing.path.with_name("m.tif"))
    latest = changing.workspace.shown_time
    note = f"Predicted for {latest}, the date of the latest measurement. --date gives another one."
    assert main(["survey", "predict", survey, "--cells", "100", "--out", out]) == 0
    assert note in capsys.readouterr().out
    with rasterio.open(out) as file:
        assert file.tags()["date"] == latest
    assert note in changing.plan(2, progress=False).notes
    assert main(["survey", "predict", survey, "--cells", "100", "--date", "2024-06-01", "--out", out]) == 0
    assert note not in capsys.readouterr().out
    assert picture_of(changing.workspace, changing.predict(100, date="2024-06-01"), None).title == "salt, 2024-06-01"


def test_of_each_place_the_measurement_nearest_to_the_date_is_drawn(table: Path, changing: Survey) -> None:
    x, y, *_ = table.read_text().splitlines()[5].split(",")
    visits = [("2024-04-01", 7.0), ("2024-05-01", 8.0), ("", 9.0)]
    table.write_text("\n".join(["x,y,salt,date", *(f"{x},{y},{value},{when}" for when, value in visits)]))
    assert changing.update(table).added == 3
    for date_, value in (("2024-04-08", 7.0), ("2024-04-28", 8.0)):
        picture = picture_of(changing.workspace, changing.predict(100, date=date_), None)
        assert len(picture.values) == 60
        assert picture.values[(picture.sites == [float(x), float(y)]).all(1)].tolist() == [value]
        assert any("the measurement nearest to the date is drawn" in note for note in picture.prediction.notes)
    with_all = picture_of(changing.workspace, replace(changing.predict(100), date=""), None)
    assert len(with_all.values) == 63


def test_later_measurements_move_the_last_date_that_is_predicted(table: Path, changing: Survey) -> None:
    first, last = changing.fitted().dates
    table.write_text("x,y,salt,date\n403000,5602500,0.5,2024-07-30")
    changing.update(table)
    new = np.nanmax(changing.workspace.times) - np.nanmax(changing.workspace.times[:-1])
    fitted = changing.fitted()
    assert fitted.fit.count == 59  # it was not fitted anew
    assert fitted.dates == (first, pytest.approx(last + new))
    beyond = changing.workspace.time.shown(np.floor(last + new))
    assert np.isfinite(changing.predict_at([403_000.0], [5_602_500.0], date=beyond)["mean"][0])
    with pytest.raises(SurveyError, match="to 2024-07-30, and tell nothing"):
        changing.predict_at([403_000.0], [5_602_500.0], date="2050-01-01")


def test_a_plan_keeps_its_date(changing: Survey) -> None:
    first = changing.plan(2, date="2024-04-01", progress=False)
    second = changing.plan(2, date="2024-06-20", add=True, progress=False)
    expected = pd.concat([first.table, second.table], ignore_index=True)
    pd.testing.assert_frame_equal(changing.pending(), expected)
    out, page = (str(changing.path.with_name(name)) for name in ("again.csv", "again.html"))
    assert main(["survey", "plan", str(changing.path), "--again", "--out", out, "--map", page]) == 0
    assert "salt, 2024-06-20" in Path(page).read_text(encoding="utf-8")


def test_a_plan_gains_on_its_date(changing: Survey) -> None:
    plan = changing.plan(4, date="2024-04-01", progress=False)
    plan.table.assign(salt=plan.table.predicted, date="2024-04-01").to_csv(done := changing.path.with_name("done.csv"))
    changing.update(done)
    (gain,) = changing.report(progress=False).gains
    cells = changing.region.cells(1000).centres
    on_that_date = changing.fitted(date="2024-04-01").known(cells)
    assert gain.after == pytest.approx(np.sqrt(np.square(on_that_date.moments()[1]).mean()), rel=1e-6)
    assert gain.expected == pytest.approx(gain.after, rel=0.05)
    assert gain.percent > 3


def test_dates_with_the_day_or_the_month_first_are_told_by_their_column(table: Path, changing: Survey) -> None:
    text = table.read_text()
    for order, read in (("%d/%m/%Y", "05/06/2024"), ("%m/%d/%Y", "06/05/2024"), ("%d-%m-%y", "05-06-24")):
        written = table.with_name("office.csv")
        dates = pd.read_csv(table, parse_dates=["date"]).date.dt.strftime(order).fillna("")
        rows = [",".join([*line.split(",")[:3], when]) for line, when in zip(text.splitlines()[1:], dates, strict=True)]
        written.write_text("\n".join(["x,y,salt,date", *rows]))
        survey = Survey.create(
            table.with_name("o.gpkg"), written, "salt", crs="EPSG:25832", time="date", overwrite=True
        )
        np.testing.assert_array_equal(survey.workspace.times, changing.workspace.times)
        assert survey.workspace.at_time(read).shown_time == "2024-06-05"
        assert survey.update(written).known == 60
        written.write_text(f"x,y,salt,date\n401000,5601000,0.5,{read}")  # alone it may be read in two ways
        survey.update(written)
        assert survey.workspace.time.shown(survey.workspace.times[-1]) == "2024-06-05"


def test_dates_that_may_be_read_in_two_ways_are_pointed_out(table: Path) -> None:
    table.write_text(
        "\n".join(
            ["x,y,salt,date", *(f"{400_000 + 97 * k},{5_600_000 + 53 * k**2},{k},0{k}/04/2024" for k in range(1, 9))]
        )
    )
    with pytest.raises(SurveyError, match="01/04/2024 may begin with the day or with the month"):
        Survey.create(table.with_name("t.gpkg"), table, "salt", crs="EPSG:25832", time="date")
    table.write_text(table.read_text() + "\n401000,5602000,3,2024-05-01\n401500,5602000,3,2024-05-02")
    survey = Survey.create(table.with_name("t.gpkg"), table, "salt", crs="EPSG:25832", time="date")
    assert any("01/04/2024 may begin with the day or with the month; 05.06.2024 is" in note for note in survey.notes)


def test_surveys_from_before_orders_were_kept_know_their_rows(table: Path) -> None:
    table.write_text(table.read_text().replace("2024-04-05", "05/04/2024") + "\n401000,5602000,3,14/04/2024")
    survey = Survey.create(table.with_name("t.gpkg"), table, "salt", crs="EPSG:25832")
    sites = survey.workspace.state.sites
    sites["other"] = [text.replace("2024-04-05", "05/04/2024") for text in sites.other]
    settings = {name: value for name, value in survey.settings.items() if name != "dates"}
    survey._save(replace(survey.workspace.state, sites=sites, settings=settings))
    assert survey.update(table).added == 0


def test_of_many_sites_the_nearest_tell_the_range() -> None:
    nearest = {"variances": [1.0, 0.001], "times": [5.0, 900.0]}
    assert _range_of_nearest(nearest, 100.0) == pytest.approx(5 * np.log(20))
    assert _range_of_nearest(nearest | {"lasting": SMOOTH}, 100.0) == pytest.approx(5 * practical(1.5))
    assert _range_of_nearest(nearest, 20.0) == pytest.approx(10)


@pytest.mark.parametrize("asked", [Stretch(3.0, 45.0), "none"])
def test_the_structure_of_a_changing_field_is_that_of_its_kernel(asked: Stretch | str) -> None:
    sites = sites_of(60)
    fit, model = fit_model(
        sites,
        BOX,
        "matern32",
        time=Time(100.0, 100.0, True),
        anisotropy=asked,
        beside=lambda xy: np.full((len(xy), 1), 150.0),
    )
    told = Structure.of(fit, known_errors=False)
    for bearing in (45.0, 135.0):
        step = 120 * np.array([[np.sin(np.radians(bearing)), np.cos(np.radians(bearing))]])
        X = coordinates(model, fit, np.concatenate([sites.xy[:1], sites.xy[:1] + step]))
        with torch.no_grad():
            K = fit.unit**2 * model.covar_module(X).to_dense()
        expected = float(K[0, 0] - K[0, 1])
        assert told.semivariance(np.array([120.0]), bearing)[0] - told.nugget == pytest.approx(expected, rel=1e-5)


def simulated(smoothness: float, sites: int, at: int, seed: int) -> tuple[Array, Array, Array, Array]:
    """Places with their times, measurements, the quantity at the last places, and what its own GP predicts there."""
    rng = np.random.default_rng(seed)
    xyt = rng.uniform((0, 0, 0), (1000, 800, 365), (sites + at, 3))
    space = matern(1.5, np.linalg.norm(xyt[:, None, :2] - xyt[:, :2], axis=-1) / 250)
    K = space * (0.3 + 0.7 * matern(smoothness, abs(xyt[:, None, 2] - xyt[:, 2]) / 60))
    f = np.linalg.cholesky(K + 1e-8 * np.eye(len(K))) @ rng.normal(size=len(K))
    z = f[:sites] + 0.1 * rng.normal(size=sites)
    return xyt, z, f[sites:], K[sites:, :sites] @ np.linalg.solve(K[:sites, :sites] + 0.01 * np.eye(sites), z)


@pytest.mark.parametrize(("smoothness", "many"), [(SMOOTH, False), (ABRUPT, True), (SMOOTH, True)])
def test_smoothness_in_time_is_learned(smoothness: float, many: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("SCORED", 400), ("SPARSE", 200), ("STEPS", 40)):
        monkeypatch.setattr(scored, name, value)
    count = 1500 if many else 250
    xyt, z, f, own = simulated(smoothness, count, 300, 1)
    sites = Sites(xyt[:count, :2], z, None, covariates=xyt[:count, 2:])
    fit, model = fit_model(sites, BOX, "matern32", time=Time(0.0, 365.0, True), beside=at_150)
    found = fit.time if fit.nearest is None else {"smoothness": fit.nearest["lasting"]}
    assert found is not None
    assert found["smoothness"] == smoothness
    mean, sd = predict(model, fit, sites, xyt[count:, :2], False, xyt[count:, 2:])
    assert np.sqrt(np.mean((mean - f) ** 2)) < 1.15 * np.sqrt(np.mean((own - f) ** 2))
    assert 0.9 < np.mean(abs(mean - f) < 1.96 * sd) < 0.99
