import json
import multiprocessing
import random
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import geopandas as gpd
import numpy as np
import pandas as pd
import pytest
import rasterio
import shapely
import torch
from pyproj import CRS, Transformer
from scipy import stats
from scipy.spatial.distance import cdist, pdist

from bo_scale.errors import SurveyError
from bo_scale.survey import Survey, exceeding, prospect
from bo_scale.survey import survey as module
from bo_scale.survey.designs import DESIGNS, design
from bo_scale.survey.exceeding import Interval
from bo_scale.survey.model import Sites, coordinates, fit_model, forecast, model_of, predict
from bo_scale.survey.planner import OBJECTIVES
from bo_scale.survey.proposal import _plain
from bo_scale.survey.roughness import roughness

AREA = shapely.box(5.70, 50.95, 5.78, 51.00).difference(shapely.box(5.74, 50.97, 5.76, 50.99))
UTM = Transformer.from_crs(4326, 32631, always_xy=True)
REAL_FIT = fit_model


def field(lon: np.ndarray, lat: np.ndarray) -> np.ndarray:
    return np.asarray(5 + np.sin((lon - 5.7) * 90) + np.cos((lat - 50.95) * 110))


def metres(frame: pd.DataFrame) -> np.ndarray:
    return np.stack(UTM.transform(frame.lon.to_numpy(), frame.lat.to_numpy()), -1)


def sites_table(n: int = 48, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    lon, lat = rng.uniform(5.70, 5.78, 4 * n), rng.uniform(50.95, 51.00, 4 * n)
    inside = shapely.intersects_xy(AREA, lon, lat)
    lon, lat = lon[inside][:n].round(6), lat[inside][:n].round(6)
    zinc = np.exp(field(lon, lat) / 2 + 0.05 * rng.normal(size=n))
    return pd.DataFrame({"lon": lon, "lat": lat, "zinc": zinc.round(3)})


def write(folder: Path, name: str, frame: pd.DataFrame) -> Path:
    frame.to_csv(folder / name, index=False)
    return folder / name


def write_area(folder: Path, shape: Any = AREA, name: str = "area.geojson") -> Path:
    gpd.GeoDataFrame(geometry=[shape], crs=4326).to_file(folder / name, driver="GeoJSON")
    return folder / name


@pytest.fixture(autouse=True, scope="module")
def _small() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prospect, "CANDIDATES", 250)
        patch.setattr(prospect, "CELLS", 1500)
        patch.setattr(module, "MAP_CELLS", 1500)
        patch.setattr(module, "CELLS", 400)
        patch.setattr(exceeding, "CELLS", 400)
        yield


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A survey with a fit, and beside it, as unfitted.gpkg, without."""
    folder = tmp_path_factory.mktemp("made")
    table, area = write(folder, "sites.csv", sites_table()), write_area(folder)
    path = folder / "s.gpkg"
    survey = Survey.create(path, table, "zinc", area=area, transform="log", threshold=10.0, kernel="matern32")
    shutil.copy(path, folder / "unfitted.gpkg")
    survey.predict(cells=50)
    return folder


@pytest.fixture
def path(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(made / "s.gpkg", tmp_path / "s.gpkg"))


@pytest.fixture
def unfitted(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(made / "unfitted.gpkg", tmp_path / "u.gpkg"))


def refuse(*_: object, **__: object) -> None:
    raise RuntimeError("crash")


def filled(table: pd.DataFrame, **values: object) -> pd.DataFrame:
    """With measurements of some sites, by id."""
    done = table.copy().astype({"zinc": object})
    for name, value in values.items():
        done.loc[done.site == name, "zinc"] = value
    return done


# ---------------------------------------------------------------------- how it begins


def test_it_says_what_it_took_for_granted(path: Path, made: Path, tmp_path: Path) -> None:
    survey = Survey(path)
    said = " ".join(survey.said)
    assert "lon" in said
    assert "recognised by name" in said
    assert "UTM zone 31 north (EPSG:32631)" in said
    assert "hull" not in said
    assert survey.region.area == pytest.approx(
        shapely.transform(AREA, lambda x: np.stack(UTM.transform(*x.T), -1)).area
    )
    other = Survey.create(tmp_path / "hull.gpkg", made / "sites.csv", "zinc")
    assert "hull of the sites" in " ".join(other.said)
    xy = metres(sites_table())
    assert other.region.contains(xy).all()
    assert other.region.area > shapely.multipoints(xy).convex_hull.area
    assert len(other.sites) == 48


@pytest.mark.parametrize("name", ["predicted", "predicted_sd", "site", "name", "day", "team", "stop"])
def test_a_column_that_plans_have_is_refused(tmp_path: Path, name: str) -> None:
    table = write(tmp_path, "sites.csv", sites_table(8).rename(columns={"zinc": name}))
    with pytest.raises(SurveyError, match=f"{name}: the tables of plans have a column of that name"):
        Survey.create(tmp_path / "s.gpkg", table, name)
    assert not (tmp_path / "s.gpkg").exists()


def test_sites_on_both_sides_of_the_antimeridian_have_one_hull(tmp_path: Path) -> None:
    table = sites_table(25)
    table["lon"] = (table.lon + 180 - 5.74 + 180) % 360 - 180
    survey = Survey.create(tmp_path / "s.gpkg", write(tmp_path, "sites.csv", table), "zinc")
    there = Survey.create(tmp_path / "t.gpkg", write(tmp_path, "there.csv", sites_table(25)), "zinc")
    assert len(survey.sites) == 25
    for one in (survey, Survey(survey.path)):
        assert one.region.area == pytest.approx(there.region.area, rel=0.01)
    assert survey.region.contains(survey._xy(survey.sites)).all()


@pytest.mark.parametrize(("crs", "kept"), [(4087, False), (6933, False), (28992, True)])
def test_a_system_that_stretches_distances_is_replaced(tmp_path: Path, crs: int, kept: bool) -> None:
    table, to = sites_table(8), Transformer.from_crs(4326, crs, always_xy=True)
    table["x"], table["y"] = to.transform(table.lon, table.lat)
    survey = Survey.create(
        tmp_path / "s.gpkg", write(tmp_path, "xy.csv", table), "zinc", x="x", y="y", crs=f"EPSG:{crs}"
    )
    assert (CRS(survey.settings["metric"]) == CRS(crs)) == kept
    np.testing.assert_allclose(pdist(survey._xy(survey.sites)), pdist(metres(table)), rtol=0.04)


def test_measurements_are_kept_word_by_word(path: Path) -> None:
    sites, table = Survey(path).sites, sites_table()
    np.testing.assert_array_equal(shapely.get_coordinates(sites.geometry.to_numpy()), table[["lon", "lat"]])
    np.testing.assert_array_equal(sites.value, table.zinc)
    assert sites.row.tolist() == list(range(2, 50))
    assert sites.number.tolist() == list(range(48))
    assert set(sites.file) == {"sites.csv"}
    assert sites.text[0] == ",".join(str(part) for part in table.iloc[0])


def test_rows_that_cannot_be_used_are_kept_aside_by_number(made: Path, tmp_path: Path) -> None:
    table = sites_table().astype(object)
    table.loc[3, "zinc"], table.loc[5, "zinc"], table.loc[7, "zinc"] = "n.d.", -4.0, ""
    table.loc[9, ["lon", "lat"]] = 5.75, 50.98  # in the hole
    table.loc[11, ["lon", "lat"]] = 6.9, 50.98
    given = write(tmp_path, "sites.csv", table)
    area = made / "area.geojson"
    survey = Survey.create(tmp_path / "s.gpkg", given, "zinc", area=area, transform="log")
    aside = Survey(tmp_path / "s.gpkg").aside
    assert aside.row.tolist() == [5, 7, 9, 11, 13]
    reasons = dict(zip(aside.row, aside.reason, strict=True))
    assert "no number" in reasons[5]
    assert "not positive" in reasons[7]
    assert "no zinc" in reasons[9]
    assert reasons[11] == reasons[13] == "outside the area"
    lines = given.read_text().splitlines()
    assert aside.text.tolist() == [lines[row - 1] for row in aside.row]
    assert sorted([*survey.sites.row, *aside.row]) == list(range(2, 50))  # nothing is lost
    kept = Survey.create(
        tmp_path / "k.gpkg", given, "zinc", area=area, transform="log", keep_outside=True, kernel="matern32"
    )
    assert set(kept.sites.row) - set(survey.sites.row) == {11, 13}


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"value": "zink"}, "Did you mean zinc"),
        ({"transform": "sqrt"}, "choose one of none, log, logit"),
        ({"kernel": "rbf"}, "choose one of auto"),
        ({"transform": "logit"}, "no row can be used: zinc is not above 0 and below 1"),
        ({"transform": "log", "threshold": -1.0}, "must be positive"),
        ({"threshold": float("nan")}, "must be a finite number"),
        ({"of": "zinc", "value": "lon", "transform": "log"}, "leave transform"),
        ({"of": "zinc", "value": "lon", "upper": 100.0}, "leave lower and upper"),
        ({"transform": "logit", "lower": 3.0, "upper": 2.0}, "must be below"),
        ({"error": "sd"}, "no column sd"),
        ({"crs": "EPSG:nothing"}, "EPSG:25832"),
        ({"area": "nowhere.geojson"}, "nowhere.geojson"),
        ({"candidates": "nowhere.csv"}, "no such file"),
        ({"weights": "sites.csv"}, "need a column 'weight'"),
    ],
)
def test_what_cannot_begin_is_refused_with_the_remedy(
    made: Path, tmp_path: Path, given: dict[str, Any], word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(made)
    with pytest.raises(SurveyError, match=word):
        Survey.create(tmp_path / "s.gpkg", "sites.csv", **{"value": "zinc", **given})
    assert not list(tmp_path.iterdir())


def test_a_survey_that_is_there_is_not_replaced_unless_wanted(path: Path, made: Path) -> None:
    before = path.read_bytes()
    with pytest.raises(SurveyError, match="overwrite"):
        Survey.create(path, made / "sites.csv", "zinc")
    assert path.read_bytes() == before
    assert Survey.create(path, made / "sites.csv", "zinc", overwrite=True).settings["fit"] is None
    with pytest.raises(SurveyError, match="no folder"):
        Survey.create(path.parent / "none" / "s.gpkg", made / "sites.csv", "zinc")
    with pytest.raises(SurveyError, match="survey init"):
        Survey(path.parent / "other.gpkg")


def test_sites_far_from_the_area_and_swapped_columns_are_refused(made: Path, tmp_path: Path) -> None:
    table = sites_table()
    swapped = write(tmp_path, "swapped.csv", table.rename(columns={"lon": "lat", "lat": "lon"}))
    with pytest.raises(SurveyError, match=r"look swapped.*pass --x lat --y lon"):
        Survey.create(tmp_path / "s.gpkg", swapped, "zinc", area=made / "area.geojson")
    survey = Survey.create(tmp_path / "s.gpkg", swapped, "zinc", x="lat", y="lon", area=made / "area.geojson")
    assert len(survey.sites) == 48
    far = write(tmp_path, "far.csv", table.assign(lat=table.lat - 3))
    with pytest.raises(SurveyError, match="none of the sites lies in the area"):
        Survey.create(tmp_path / "t.gpkg", far, "zinc", area=made / "area.geojson")


# ---------------------------------------------------------------------- what is next


def test_a_plan_lies_in_the_area_and_keeps_its_distance(path: Path) -> None:
    survey = Survey(path)
    plan = survey.plan(5, spacing=300.0)
    assert list(plan.table.columns) == ["site", "lon", "lat", "zinc", "predicted", "predicted_sd"]
    assert plan.table.site.tolist() == ["P1", "P2", "P3", "P4", "P5"]
    assert (plan.table.zinc == "").all()
    xy = metres(plan.table)
    assert survey.region.contains(xy).all()
    assert not shapely.intersects_xy(shapely.box(5.74, 50.97, 5.76, 50.99), plan.table.lon, plan.table.lat).any()
    assert pdist(xy).min() >= 299.9
    assert cdist(xy, metres(sites_table())).min() >= 299.9
    assert plan.sd_after < plan.sd_before
    kept = Survey(path).planned
    assert kept.site.tolist() == plan.table.site.tolist()
    assert set(kept.status) == {"planned"}
    np.testing.assert_allclose(shapely.get_coordinates(kept.geometry), plan.table[["lon", "lat"]], atol=6e-8)
    assert Survey(path).settings["plans"] == [
        {
            "batch": 1,
            "sites": 5,
            "measurements": 48,
            "objective": "variance",
            "threshold": 10.0,
            "spacing": 300.0,
            "clearance": None,
            "repeats": 1,
            "seed": 0,
            "add": False,
            "weights": None,
            "days": 1,
            "travel": None,
        }
    ]


def test_a_plan_says_what_to_expect_in_the_users_units(path: Path) -> None:
    survey = Survey(path)
    plan, prediction = survey.plan(4), survey.predict(cells=20_000)
    nearest = cdist(metres(plan.table), prediction.raster.centres).argmin(1)
    np.testing.assert_allclose(plan.table.predicted, prediction.mean[nearest], rtol=0.03)
    np.testing.assert_allclose(plan.table.predicted_sd, prediction.sd[nearest], rtol=0.1)


def test_the_typical_sd_is_that_of_the_map(unfitted: Path) -> None:
    survey = Survey(unfitted)
    plan, prediction = survey.plan(3), survey.predict(cells=1500)
    ratio = prediction.sd / prediction.mean  # of a lognormal: sd² = log(1 + ratio²)
    assert plan.sd_before == pytest.approx(np.log1p(ratio**2).mean() ** 0.5, rel=1e-3)


@pytest.mark.parametrize("known", [False, True])
def test_of_many_sites_the_typical_sd_is_that_of_the_map(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    """Before, and after: there it is that of the nearest among sites and plan, whatever is measured."""
    for name, value in {"EXACT": 40, "FINE_POINTS": 300, "COARSE_POINTS": 80}.items():
        monkeypatch.setattr(f"bo_scale.survey.model.{name}", value)
    monkeypatch.setattr(prospect, "CLOSED_CELLS", 1500)
    table = sites_table(60).assign(sd=0.5).rename(columns={"zinc": "lead"})
    error = "sd" if known else None
    survey = Survey.create(tmp_path / "s.gpkg", write(tmp_path, "s.csv", table), "lead", error=error, transform="none")
    prediction, plan = survey.predict(cells=prospect.CLOSED_CELLS), survey.plan(3)
    sites, (fit, model) = survey._measured(), survey._model()
    assert fit.nearest is not None
    assert plan.sd_before == pytest.approx(np.square(prediction.sd).mean() ** 0.5)
    assert plan.sd_after < plan.sd_before
    variance = None if sites.variance is None else np.append(sites.variance, [0.5**2] * 3)
    then = Sites(np.concatenate([sites.xy, metres(plan.table)]), np.append(sites.z, [1.0, 9.0, -4.0]), variance)
    assert plan.sd_after == pytest.approx(
        np.square(predict(model, fit, then, prediction.raster.centres, False)[1]).mean() ** 0.5, rel=1e-6
    )
    assert survey.plan(2, add=True).sd_before == pytest.approx(plan.sd_after, rel=1e-6)


@pytest.mark.parametrize("objective", [*OBJECTIVES, *DESIGNS])
def test_a_plan_follows_from_the_file_and_the_seed(path: Path, objective: Any) -> None:
    tables = []
    for number, seed in enumerate((3, 3, 4)):
        copy = Path(shutil.copy(path, path.with_name(f"copy{number}.gpkg")))
        tables.append(Survey(copy).plan(3, objective, seed=seed).table)
    pd.testing.assert_frame_equal(tables[0], tables[1])
    assert not np.array_equal(tables[0].lon, tables[2].lon)


def test_a_plan_before_and_after_the_fit_was_saved_is_the_same(unfitted: Path, path: Path) -> None:
    pd.testing.assert_frame_equal(Survey(unfitted).plan(3).table, Survey(path).plan(3).table)


def test_a_new_plan_drops_the_old_one_unless_added(path: Path) -> None:
    survey = Survey(path)
    first = survey.plan(2)
    second = survey.plan(2)
    np.testing.assert_array_equal(second.table[["lon", "lat"]], first.table[["lon", "lat"]])
    third = survey.plan(2, add=True)
    planned = Survey(path).planned
    assert planned.site.tolist() == [f"P{k}" for k in range(1, 7)]
    assert planned.status.tolist() == ["dropped", "dropped", *["planned"] * 4]
    assert planned.batch.tolist() == [1, 1, 2, 2, 3, 3]
    assert third.sd_before == pytest.approx(second.sd_after, rel=1e-4)  # what is under way counts as measured
    assert third.sd_after < third.sd_before
    assert cdist(metres(third.table), metres(second.table)).min() > 100


def test_spacing_counts_from_sites_under_way(path: Path) -> None:
    survey = Survey(path)
    first = survey.plan(2, spacing=400.0, objective="maximum")
    second = survey.plan(2, spacing=400.0, objective="maximum", add=True, seed=1)
    assert cdist(metres(second.table), metres(first.table)).min() >= 399.9


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"batch": 0}, "1 to 1000"),
        ({"batch": 1001}, "1 to 1000"),
        ({"repeats": 0}, "repeats: at least 1"),
        ({"spacing": -1.0}, "not negative"),
        ({"spacing": float("nan")}, "not negative"),
        ({"seed": -1}, "not negative"),
        ({"threshold": 0.0}, "must be positive"),
        ({"spacing": 1e5}, "choose less"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(path: Path, given: dict[str, Any], word: str) -> None:
    before = path.read_bytes()
    with pytest.raises(SurveyError, match=word):
        Survey(path).plan(**given)
    assert path.read_bytes() == before


def test_an_objective_that_is_none_and_a_threshold_that_is_missing_are_refused(dutch: Path) -> None:
    survey = Survey(dutch / "s.gpkg")
    with pytest.raises(SurveyError, match=r"choose one of variance, .*thompson, random, stratified, maximin, latin"):
        prospect.Request(1, "entropy", None, 0.0, None, 1, 0, False).checked(survey.scale, None)
    for objective in ("straddle", "misclassification"):
        with pytest.raises(SurveyError, match="needs a threshold"):
            survey.plan(1, objective)  # type: ignore[arg-type]


def test_a_plan_of_fewer_sites_says_so(path: Path) -> None:
    plan = Survey(path).plan(30, spacing=700.0)
    assert 0 < len(plan.table) < 30
    assert f"Only {len(plan.table)} places keep the distances, of 30 wanted." in plan.said


@pytest.mark.parametrize("objective", list(DESIGNS))
def test_a_design_is_a_plan_like_any_other(path: Path, objective: Any) -> None:
    survey = Survey(path)
    first = survey.plan(6, objective, spacing=300.0)
    added = survey.plan(4, objective, spacing=300.0, clearance=100.0, add=True)
    xy, more = metres(first.table), metres(added.table)
    assert survey.region.contains(np.concatenate([xy, more])).all()
    assert min(pdist(xy).min(), pdist(more).min(), cdist(xy, more).min()) >= 299.9
    assert cdist(xy, metres(sites_table())).min() >= 299.9
    assert cdist(more, metres(sites_table())).min() >= 99.9
    assert first.sd_after < first.sd_before
    assert added.sd_before == pytest.approx(first.sd_after, rel=1e-4)
    assert first.objective == Survey(path).settings["plans"][0]["objective"] == objective
    planned = Survey(path).planned
    before = np.concatenate([metres(sites_table()), xy, more])
    for number, score in enumerate(planned.score):
        assert score == pytest.approx(cdist(before[48 + number : 49 + number], before[: 48 + number]).min(), rel=1e-3)
    assert {"predicted", "predicted_sd"} <= set(first.table.columns)


def test_maximin_reduces_uncertainty_less_than_variance_and_lies_farther_apart(path: Path) -> None:
    survey = Survey(path)
    wide, wise = survey.plan(5, "maximin"), survey.plan(5, "variance")
    assert wise.sd_after < wide.sd_after
    sites = metres(sites_table())
    least = [cdist(metres(plan.table), sites).min() for plan in (wide, wise)]
    assert least[0] > least[1]
    places = survey.region.points(250, 0)
    np.testing.assert_allclose(metres(wide.table), places[design("maximin", places, sites, 5, 0)], atol=0.1)


def test_a_latin_hypercube_of_few_candidates_says_what_it_misses(dutch: Path, tmp_path: Path) -> None:
    plan = copied(dutch / "candidates.gpkg", tmp_path).plan(9, "latin")
    places, chosen = pd.read_csv(dutch / "candidates.csv").drop(index=4), plan.table[["x", "y"]].to_numpy()
    missed = 18
    for axis, at in (("x", chosen[:, 0]), ("y", chosen[:, 1])):
        rank = places[axis].rank().sub(1).astype(int).set_axis(places[axis])
        missed -= len({int(9 * rank[value] // 11) for value in at})
    assert missed > 0
    assert f"Latin hypercube: {missed} of 18 strata have no site, for no place was left there." in plan.said


# ---------------------------------------------------------------------- candidates, weights, errors, counts


@pytest.fixture(scope="module")
def dutch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """In metres, with errors, candidates and weights, without an area."""
    folder = tmp_path_factory.mktemp("dutch")
    rng = np.random.default_rng(5)
    xy = rng.uniform([180_000, 330_000], [182_000, 333_000], (40, 2)).round(1)
    sd = np.where(np.arange(40) < 30, 0.05, 1.5)
    lead = (3 + np.sin(xy[:, 0] / 400) + np.cos(xy[:, 1] / 500) + sd * rng.normal(size=40)).round(4)
    table = pd.DataFrame({"x": xy[:, 0], "y": xy[:, 1], "lead": lead, "sd": sd.astype(object)})
    table.loc[0, "sd"] = ""
    write(folder, "sites.csv", table)
    places = rng.uniform([180_500, 330_700], [181_500, 332_300], (12, 2)).round(0)
    names = [f"well {k}" for k in range(12)]
    candidates = pd.DataFrame({"name": names, "x": places[:, 0], "y": places[:, 1]})
    candidates.loc[4, "x"] = 250_000.0  # outside
    lines = candidates.to_csv(index=False).splitlines()
    (folder / "candidates.csv").write_text("\n".join([*lines[:3], "", *lines[3:]]) + "\n")
    people = rng.uniform([180_000, 330_000], [182_000, 333_000], (300, 2)).round(0)
    weight = np.where((people[:, 0] < 181_000) & (people[:, 1] < 331_500), 100, 0)
    write(folder, "weights.csv", pd.DataFrame({"x": people[:, 0], "y": people[:, 1], "weight": weight}))
    common: dict[str, Any] = {"crs": "EPSG:28992", "error": "sd", "kernel": "matern32"}
    survey = Survey.create(folder / "s.gpkg", folder / "sites.csv", "lead", **common)
    survey.predict(cells=50)
    fit = survey.settings["fit"]
    for name, more in (("candidates", {"candidates": folder / "candidates.csv"}), ("weights", {})):
        weights = folder / "weights.csv" if name == "weights" else None
        other = Survey.create(folder / f"{name}.gpkg", folder / "sites.csv", "lead", **common, **more, weights=weights)
        other._save(module.replace(other._state, settings={**other.settings, "fit": fit}))
    return folder


def copied(source: Path, folder: Path) -> Survey:
    return Survey(shutil.copy(source, folder / source.name))


def test_known_errors_reach_the_model(dutch: Path, tmp_path: Path) -> None:
    survey = copied(dutch / "s.gpkg", tmp_path)
    measured = survey._measured()
    assert measured.variance is not None
    assert measured.variance[0] == pytest.approx(0.05**2)  # the median of those that are known
    np.testing.assert_allclose(measured.variance[1:30], 0.05**2)
    np.testing.assert_allclose(measured.variance[30:], 1.5**2)
    assert list(survey.plan(1).table.columns)[:5] == ["site", "x", "y", "lead", "sd"]
    assert "Amersfoort / RD New" in " ".join(survey.said)


def test_candidates_are_chosen_from(dutch: Path, tmp_path: Path) -> None:
    survey = copied(dutch / "candidates.gpkg", tmp_path)
    given = pd.read_csv(dutch / "candidates.csv").drop(index=4)
    kept = survey._state.candidates
    assert kept is not None
    assert kept.name.tolist() == given.name.tolist()
    np.testing.assert_array_equal(shapely.get_coordinates(kept.geometry), given[["x", "y"]])
    assert any("11 candidate sites; 1 rows" in line for line in survey.said)
    plan = survey.plan(14)
    assert sorted(zip(plan.table.x, plan.table.y)) == sorted(zip(given.x, given.y))
    assert "Only 11 candidate sites are left, of 14 wanted." in plan.said
    twice = survey.plan(22, "maximum", repeats=2)
    assert twice.table.groupby(["x", "y"]).size().tolist() == [2] * 11


@pytest.mark.parametrize("objective", ["variance", "maximum", "random"])
def test_candidates_under_way_are_not_proposed_again(dutch: Path, tmp_path: Path, objective: Any) -> None:
    survey = copied(dutch / "candidates.gpkg", tmp_path)
    first, second = (survey.plan(6, objective, add=add).table for add in (False, True))
    assert len({*first.name, *second.name}) == len(first) + len(second) == 11
    with pytest.raises(SurveyError, match=r"each is planned or measured already; .* raise repeats"):
        survey.plan(1, objective, add=True)
    assert len(survey.plan(11, objective, add=True, repeats=2).table) == 11


def test_measured_candidates_may_be_worth_it_again_but_not_to_designs(dutch: Path, tmp_path: Path) -> None:
    survey = copied(dutch / "candidates.gpkg", tmp_path)
    survey.plan(6).table.assign(lead=3.0, sd=1.0).to_csv(tmp_path / "done.csv", index=False)
    survey.update(tmp_path / "done.csv")
    assert len(survey.plan(11, "variance").table) == 11
    assert len(survey.plan(11, "stratified").table) == 5


@pytest.mark.parametrize("objective", ["random", "stratified", "latin"])
def test_a_design_goes_on_where_nothing_was_planned_or_measured(path: Path, tmp_path: Path, objective: Any) -> None:
    survey = Survey(path)
    first = survey.plan(4, objective).table
    added = survey.plan(4, objective, add=True).table
    assert cdist(metres(first), metres(added)).min() > 1
    filled(added, **dict.fromkeys(added.site, 7.0)).to_csv(tmp_path / "done.csv", index=False)
    survey.update(tmp_path / "done.csv")
    later = survey.plan(4, objective).table
    assert cdist(metres(added), metres(later)).min() > 1
    pd.testing.assert_frame_equal(survey.plan(4, objective).table[["lon", "lat"]], later[["lon", "lat"]])


def test_of_many_candidates_some_are_looked_at(dutch: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prospect, "CANDIDATES", 5)
    survey = copied(dutch / "candidates.gpkg", tmp_path)
    plan = survey.plan(11, seed=1)
    assert len(plan.table) == 5
    assert plan.said[0] == "5 of 11 candidate sites were looked at, drawn by the seed."
    assert set(plan.table.x) != set(survey.plan(11, seed=2).table.x)
    assert set(plan.table.x) == set(survey.plan(11, seed=1).table.x)


def test_weights_draw_the_plan_to_where_they_are(dutch: Path, tmp_path: Path) -> None:
    everywhere = copied(dutch / "s.gpkg", tmp_path).plan(4).table
    weighted = copied(dutch / "weights.gpkg", tmp_path).plan(4).table
    assert (weighted.x < 181_300).all()
    assert (weighted.y < 331_800).all()
    assert set(zip(weighted.x, weighted.y)) != set(zip(everywhere.x, everywhere.y))


def people_inside(survey: Survey, dutch: Path) -> pd.DataFrame:
    people = pd.read_csv(dutch / "weights.csv")
    return people[survey.region.contains(people[["x", "y"]].to_numpy())]


def test_one_survey_is_planned_for_several_targets(dutch: Path, tmp_path: Path) -> None:
    """Weights of a plan are those of a survey begun with them, and no longer there for the next plan."""
    survey, weighted = copied(dutch / "s.gpkg", tmp_path), copied(dutch / "weights.gpkg", tmp_path)
    everywhere = survey.plan(4)
    for objective, threshold in (("variance", None), ("misclassification", 3.0)):
        plan = survey.plan(3, objective, threshold=threshold, weights=dutch / "weights.csv")  # type: ignore[arg-type]
        wanted = weighted.plan(3, objective, threshold=threshold)  # type: ignore[arg-type]
        pd.testing.assert_frame_equal(plan.table.drop(columns="site"), wanted.table.drop(columns="site"))
        assert plan.sd_before == wanted.sd_before != everywhere.sd_before
        inside = len(people_inside(survey, dutch))
        assert f"{inside} places with weights; {300 - inside} rows outside the area or" in plan.said[0]
        assert (plan.table.x < 181_300).all()
        assert (plan.table.y < 331_800).all()
    assert [plan["weights"] for plan in survey.settings["plans"]] == [None, "weights.csv", "weights.csv"]
    again = survey.plan(4)
    pd.testing.assert_frame_equal(again.table.drop(columns="site"), everywhere.table.drop(columns="site"))
    assert Survey(tmp_path / "s.gpkg")._state.weights is None
    east = write(tmp_path, "east.csv", pd.DataFrame({"x": [181_600.0], "y": [332_200.0], "weight": [7.0]}))
    other = weighted.plan(1, weights=east).table
    assert cdist(other[["x", "y"]], [[181_600.0, 332_200.0]]).min() < 250


def test_the_value_of_a_weighted_plan_is_that_of_a_dense_computation(dutch: Path, tmp_path: Path) -> None:
    survey = copied(dutch / "s.gpkg", tmp_path)
    plan = survey.plan(3, weights=dutch / "weights.csv")
    sites, (fit, model) = survey._measured(), survey._model()
    table = people_inside(survey, dutch)
    process, omega = model._current_processes()[0], table.weight.to_numpy() / table.weight.sum()
    whole = np.concatenate([plan.table[["x", "y"]].to_numpy(), table[["x", "y"]].to_numpy()])
    assert sites.variance is not None
    noise = max(np.median(sites.variance) / fit.unit**2 + fit.nugget, 1e-6)
    with torch.no_grad():
        K = process.covariance(coordinates(model, whole)).numpy()
    rough = omega * roughness(model, fit, sites, whole[3:])
    totals, errors = [omega @ K.diagonal()[3:]], [rough @ K.diagonal()[3:] / rough.sum()]
    for index in range(3):
        K = K - np.outer(K[index], K[index]) / (K[index, index] + noise)
        totals.append(omega @ K.diagonal()[3:])
        errors.append(rough @ K.diagonal()[3:] / rough.sum())
    assert plan.sd_before == pytest.approx(fit.unit * totals[0] ** 0.5)
    assert plan.sd_after == pytest.approx(fit.unit * totals[-1] ** 0.5, rel=1e-4)
    np.testing.assert_allclose(survey.planned.score, -np.diff(errors), rtol=1e-2)


@pytest.mark.parametrize(
    ("frame", "word"),
    [
        ({"weight": [1.0, -1.0]}, "must not be negative"),
        ({"weight": [0.0, 0.0]}, "must be positive"),
        ({"weight": [1.0, 1.0], "x": [0.0, 1.0]}, "none of its places"),
        ({"population": [1.0, 1.0]}, "need a column 'weight'"),
    ],
)
def test_weights_that_cannot_be_are_refused(dutch: Path, tmp_path: Path, frame: dict[str, Any], word: str) -> None:
    table = pd.DataFrame({"x": [181_000.0, 181_500.0], "y": [331_000.0, 332_000.0], **frame})
    weights = write(tmp_path, "weights.csv", table)
    with pytest.raises(SurveyError, match=word):
        Survey.create(tmp_path / "s.gpkg", dutch / "sites.csv", "lead", crs="EPSG:28992", weights=weights)
    survey = copied(dutch / "s.gpkg", tmp_path)
    with pytest.raises(SurveyError, match=word):
        survey.plan(1, weights=weights)
    assert (tmp_path / "s.gpkg").read_bytes() == (dutch / "s.gpkg").read_bytes()


def test_errors_that_nobody_gave_are_missed(dutch: Path, tmp_path: Path) -> None:
    table = pd.read_csv(dutch / "sites.csv").assign(sd="")
    survey = Survey.create(tmp_path / "s.gpkg", write(tmp_path, "t.csv", table), "lead", crs="EPSG:28992", error="sd")
    with pytest.raises(SurveyError, match="no row has one"):
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
    aside = dict(zip(survey.aside.row, survey.aside.reason))
    assert aside.pop(5) == "positive is more than examined"
    assert set(aside.values()) == {"outside the area"}
    assert set(aside) == {2 + k for k in np.flatnonzero(table.lon < 5.72)} - {5}
    prediction = survey.predict(cells=400)
    assert ((prediction.mean > 0) & (prediction.mean < 1)).all()
    assert prediction.quantity == "positive / examined"
    centres = UTM.transform(*prediction.raster.centres.T, direction="INVERSE")
    truth = 1 / (1 + np.exp(5 - field(*centres)))
    assert np.abs(prediction.mean - truth).mean() < 0.08
    assert np.corrcoef(prediction.mean, truth)[0, 1] > 0.9
    plan = survey.plan(3, "misclassification")
    assert list(plan.table.columns)[:5] == ["site", "lon", "lat", "positive", "examined"]
    assert plan.table.lon.min() > 5.7199
    done = plan.table.assign(positive=[3, "", 0], examined=[10, "", 8])
    arrival = survey.update(write(tmp_path, "done.csv", done))
    assert (arrival.added, arrival.blank, arrival.matched) == (2, 1, ["P1", "P3"])
    np.testing.assert_array_equal(survey._values()[-2:], [0.3, 0.0])


# ---------------------------------------------------------------------- measurements that come in


def test_measurements_come_partially_and_out_of_order(path: Path) -> None:
    survey = Survey(path)
    table = survey.plan(4).table
    file = path.with_name("done.csv")
    shuffled = table.iloc[[2, 0, 3, 1]]
    filled(shuffled, P3=12.5, P1=7.25).to_csv(file, index=False)
    arrival = Survey(path).update(file)
    assert (arrival.added, arrival.known, arrival.blank, arrival.aside) == (2, 0, 2, [])
    assert arrival.matched == ["P1", "P3"]
    survey = Survey(path)
    assert survey.planned.status.tolist() == ["measured", "planned", "measured", "planned"]
    new = survey.sites.iloc[48:]
    assert new.site.tolist() == ["P3", "P1"]
    assert new.value.tolist() == [12.5, 7.25]
    assert new.batch.tolist() == [1, 1]
    assert new.row.tolist() == [2, 3]
    assert new.number.tolist() == [48, 49]
    assert set(survey.sites.batch[:48]) == {-1}
    again = survey.update(file)
    assert (again.added, again.known, again.blank, again.matched) == (0, 2, 2, [])
    filled(shuffled, P3=12.5, P1=7.25, P2=9).to_csv(file, index=False)
    grown = survey.update(file)
    assert (grown.added, grown.known, grown.blank, grown.matched) == (1, 2, 1, ["P2"])
    repeated = survey.update(file, repeats=True)
    assert (repeated.added, repeated.known) == (3, 0)
    assert len(Survey(path).sites) == 54
    assert Survey(path).aside.empty


def test_equal_rows_are_as_many_measurements_and_the_file_again_is_none(path: Path) -> None:
    row = pd.DataFrame({"lon": [5.71], "lat": [50.96], "zinc": [9.0]})
    survey = Survey(path)
    file = write(path.parent, "twins.csv", pd.concat([row, row]))
    assert survey.update(file).added == 2
    assert survey.update(file).added == 0
    third = survey.update(write(path.parent, "triplets.csv", pd.concat([row, row, row])))
    assert (third.added, third.known) == (1, 2)


def test_sites_are_told_by_their_id_or_by_their_place(path: Path) -> None:
    survey = Survey(path)
    plan = survey.plan(4, spacing=800.0).table
    lon, lat = plan.lon.to_numpy().copy(), plan.lat.to_numpy().copy()
    done = pd.DataFrame({"site": ["P2", "mine", "", "P9", ""], "lon": lon[0], "lat": lat[0], "zinc": 8.0})
    done.loc[1, ["lon", "lat"]] = lon[2] + 2e-4, lat[2]  # 14 m away
    done.loc[2, ["lon", "lat"]] = lon[3], lat[3] + 1.5e-3  # 170 m away: another place
    done.loc[3, ["lon", "lat"]] = 5.705, 50.955
    done = done.iloc[:4]
    arrival = survey.update(write(path.parent, "done.csv", done))
    assert arrival.added == 4
    assert arrival.matched == ["P2", "P3"]  # P2 by its id, although it was measured where P1 is planned
    assert survey.planned.status.tolist() == ["planned", "measured", "measured", "planned"]
    assert survey.sites.site[48:].tolist() == ["P2", "P3", "", "P9"]
    assert survey.sites.batch[48:].tolist() == [1, 1, -1, -1]


def test_near_is_no_more_than_half_way_to_the_next(dutch: Path, tmp_path: Path) -> None:
    survey = copied(dutch / "s.gpkg", tmp_path)
    planned = gpd.GeoDataFrame(
        {"site": ["P1", "P2", "P3"], "name": "", "batch": 1, "status": "planned", "score": 0.0},
        geometry=shapely.points([[181_000.0, 331_000.0], [181_000.0, 331_020.0], [181_000.0, 331_000.0]]),
        crs="EPSG:28992",
    )
    survey._save(module.replace(survey._state, planned=planned))
    table = pd.DataFrame({"x": [181_000.0, 181_000.0], "y": [331_012.0, 331_033.0], "lead": [1.0, 2.0], "sd": 0.1})
    aside = survey.update(write(tmp_path, "aside.csv", table.iloc[1:]))
    assert aside.matched == []  # 13 m from P2, which is 20 m from P1
    near = survey.update(write(tmp_path, "near.csv", table.iloc[:1]))
    assert near.matched == ["P2"]  # 8 m from it, 12 m from P1
    beyond = survey.update(write(tmp_path, "beyond.csv", table.assign(y=331_000 - 35 * table.lead)))
    assert beyond.added == 2
    assert beyond.matched == ["P1"]  # 35 m away with nothing else near; 70 m are too far


def test_a_dropped_site_that_was_measured_after_all_is_known_by_its_id(path: Path) -> None:
    survey = Survey(path)
    first = survey.plan(2).table
    survey.plan(1, seed=5)
    late = filled(first, P2=11.0)
    arrival = survey.update(write(path.parent, "late.csv", late))
    assert (arrival.added, arrival.blank, arrival.matched) == (1, 1, ["P2"])
    assert survey.planned.status.tolist() == ["dropped", "measured", "planned"]
    assert survey.sites.batch.iloc[-1] == 1


def test_a_measurement_where_a_site_was_dropped_is_of_no_plan(path: Path) -> None:
    survey = Survey(path)
    first, second = survey.plan(2).table, survey.plan(1, seed=5).table
    far = cdist(metres(first), metres(second)).ravel().argmax()
    there = first.iloc[[far]].assign(site="", zinc=8.0)
    arrival = survey.update(write(path.parent, "there.csv", there))
    assert (arrival.added, arrival.matched) == (1, [])
    assert survey.planned.status.tolist() == ["dropped", "dropped", "planned"]
    assert (survey.sites.site.iloc[-1], survey.sites.batch.iloc[-1]) == ("", -1)
    arrival = survey.update(write(path.parent, "here.csv", second.assign(site="", zinc=9.0)))
    assert arrival.matched == ["P3"]
    assert survey.planned.status.tolist() == ["dropped", "dropped", "measured"]
    assert (survey.sites.site.iloc[-1], survey.sites.batch.iloc[-1]) == ("P3", 2)


def test_rows_outside_are_reported_and_kept_once(path: Path) -> None:
    survey = Survey(path)
    lon, lat, zinc = [5.75, 5.71, 5.72, 5.73], [50.98, 50.96, 50.96, 50.96], [5.0, 6.0, -1.0, "?"]
    table = pd.DataFrame({"lon": lon, "lat": lat, "zinc": zinc})
    file = write(path.parent, "new.csv", table)
    arrival = survey.update(file)
    assert arrival.added == 1
    assert arrival.aside == [(2, "outside the area"), (4, "zinc is not positive"), (5, "zinc is no number: ?")]
    assert survey.update(file).known == 4
    aside = Survey(path).aside
    assert aside.row.tolist() == [2, 4, 5]
    assert aside.text.tolist() == ["5.75,50.98,5.0", "5.72,50.96,-1.0", "5.73,50.96,?"]
    assert set(aside.file) == {"new.csv"}


def test_blank_values_without_a_plan_are_kept_aside(path: Path) -> None:
    file = write(path.parent, "new.csv", pd.DataFrame({"lon": [5.71, 5.72], "lat": 50.96, "zinc": [6.0, np.nan]}))
    arrival = Survey(path).update(file)
    assert (arrival.added, arrival.blank, arrival.aside) == (1, 0, [(3, "no zinc")])


def test_a_table_of_other_columns_changes_nothing(path: Path) -> None:
    before = path.read_bytes()
    file = write(path.parent, "new.csv", pd.DataFrame({"lon": [5.71], "lat": [50.96], "copper": [6.0]}))
    with pytest.raises(SurveyError, match="no column zinc"):
        Survey(path).update(file)
    assert path.read_bytes() == before


# ---------------------------------------------------------------------- fits, and what is on disk


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    fits: list[int] = []

    def fit(sites: Sites, *rest: Any) -> Any:
        fits.append(len(sites.z))
        return REAL_FIT(sites, *rest)

    monkeypatch.setattr(module, "fit_model", fit)
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
    sites = survey._measured()
    model = model_of(sites, module.Fit.of(survey.settings["fit"]))
    mean, _ = forecast(model, module.Fit.of(survey.settings["fit"]), before.raster.centres, False)
    np.testing.assert_allclose(np.log(after.mean) - mean, np.log1p((after.sd / after.mean) ** 2) / 2, atol=1e-8)


def test_a_fit_is_made_anew_where_sites_leave_its_box(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    survey = Survey(path)
    survey._save(module.replace(survey._state, settings={**survey.settings, "keep_outside": True}))
    fits = counted(monkeypatch)
    survey.update(write(path.parent, "new.csv", pd.DataFrame({"lon": [5.79], "lat": [50.97], "zinc": [6.0]})))
    survey.predict(cells=50)
    assert fits == [49]


@pytest.mark.parametrize("step", ["read_state", "fit_model", "coordinates", "outlook", "choose", "write_state"])
def test_a_plan_that_crashes_leaves_the_file_as_it_was(
    step: str, path: Path, unfitted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = unfitted if step == "fit_model" else path
    survey, before = Survey(file), file.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(prospect if step in ("coordinates", "outlook", "choose") else module, step, refuse)
        with pytest.raises(RuntimeError, match="crash"):
            survey.plan(2)
    assert file.read_bytes() == before
    assert len(survey.planned) == 0
    assert survey.plan(2).table.site.tolist() == ["P1", "P2"]
    assert sorted(each.name for each in path.parent.iterdir() if not each.name.endswith(".lock")) == [
        "s.gpkg",
        "u.gpkg",
    ]


def test_a_fit_outlives_a_plan_that_crashes(unfitted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    survey = Survey(unfitted)
    with monkeypatch.context() as patch:
        patch.setattr(prospect, "choose", refuse)
        with pytest.raises(RuntimeError, match="crash"):
            survey.plan(2)
    found = Survey(unfitted)
    assert found.planned.empty
    assert found.settings["plans"] == []
    assert found.settings["fit"]["count"] == len(found.sites) == 48


@pytest.mark.parametrize("step", ["read_state", "read_table", "arrive", "write_state"])
def test_an_update_that_crashes_leaves_the_file_as_it_was(
    step: str, path: Path, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    survey, before = Survey(path), path.read_bytes()
    file = write(path.parent, "new.csv", pd.DataFrame({"lon": [5.71], "lat": [50.96], "zinc": [6.0]}))
    with monkeypatch.context() as patch:
        patch.setattr(module, step, refuse)
        with pytest.raises(RuntimeError, match="crash"):
            survey.update(file)
    assert path.read_bytes() == before
    assert len(survey.sites) == 48
    assert survey.update(file).added == 1


def test_a_survey_takes_up_what_another_wrote(path: Path) -> None:
    one, other = Survey(path), Survey(path)
    one.plan(2)
    table = other.plan(2, add=True).table
    assert table.site.tolist() == ["P3", "P4"]
    one.update(write(path.parent, "done.csv", filled(table, P4=5.0)))
    assert Survey(path).planned.status.tolist() == ["planned", "planned", "planned", "measured"]


def _work(path: Path, folder: Path, start: int) -> None:
    """Plan and update until somebody ends it."""
    for number in range(start, start + 1000):
        table = Survey(path).plan(2, add=True, seed=number, progress=False).table
        done = table.astype({"zinc": object})
        done.loc[0, "zinc"] = 5.0 + number / 1000
        file = folder / f"done{number}.csv"
        done.to_csv(file, index=False)
        Survey(path).update(file)


def test_a_survey_survives_being_killed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prospect, "CANDIDATES", 60)
    monkeypatch.setattr(prospect, "CELLS", 200)
    monkeypatch.setattr(module, "GROWTH", 1e9)
    monkeypatch.setattr("tqdm.std.tqdm._lock", threading.RLock(), raising=False)  # no semaphore that dies with a child
    context, rng, before = multiprocessing.get_context("fork"), random.Random(1), 0
    for turn in range(5):
        child = context.Process(target=_work, args=(path, path.parent, 1000 * turn))
        child.start()
        for _ in range(2):  # a plan and an update
            written, end = path.stat().st_mtime_ns, time.monotonic() + 60
            while path.stat().st_mtime_ns == written and time.monotonic() < end:
                time.sleep(0.002)
        time.sleep(rng.uniform(0.0, 0.3))
        child.kill()
        child.join()
        survey = Survey(path)
        planned, sites, plans = survey.planned, survey.sites, survey.settings["plans"]
        assert child.exitcode == -9
        assert planned.site.tolist() == [f"P{k + 1}" for k in range(len(planned))]
        assert sum(plan["sites"] for plan in plans) == len(planned) >= before
        assert sites.number.tolist() == list(range(len(sites)))
        measured = planned.site[planned.status == "measured"].tolist()
        assert sorted(measured) == sorted(sites.site[48:].tolist())
        assert set(planned.status) <= {"planned", "measured"}
        before = len(planned)
    assert len(Survey(path).sites) > 48
    assert len(Survey(path).plan(1, add=True).table) == 1


# ---------------------------------------------------------------------- what is known


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


def test_what_was_asked_for_may_be_numbers_of_numpy() -> None:
    asked = {"batch": np.int64(2), "spacing": np.float32(0.5), "weights": Path("people.csv")}
    assert json.dumps(asked, default=_plain) == '{"batch": 2, "spacing": 0.5, "weights": "people.csv"}'


def test_a_table_that_was_lost_is_written_again(path: Path) -> None:
    survey = Survey(path)
    table = survey.plan(3).table
    pd.testing.assert_frame_equal(survey.pending(), table)
    survey.update(write(path.parent, "done.csv", filled(table, P2=5.0)))
    assert survey.pending().site.tolist() == ["P1", "P3"]


def test_a_plan_counts_and_says_where_the_quantity_is_rough(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    survey = Survey(path)
    west, _, east, _ = survey.region.bounds
    before = survey.plan(4)
    assert not any("let expect" in line for line in before.said)
    monkeypatch.setattr(prospect, "roughness", lambda *given: np.where(given[3][:, 0] > (west + east) / 2, 9.0, 0.1))
    found = survey.plan(4)
    assert "errors there count for up to 9.0 times as much" in found.said[-2]
    assert (survey._xy(survey.planned)[-4:, 0] > (west + east) / 2).all()
    assert found.sd_before == before.sd_before
    assert not any("let expect" in line for line in survey.plan(4, "maximum").said)


def test_a_new_plan_says_what_it_drops(path: Path) -> None:
    survey = Survey(path)
    survey.plan(2)
    assert survey.plan(1).said == ["Not measured, and dropped: P1, P2 (--add keeps such sites)."]
    assert survey.plan(1, add=True).said == []


def test_a_correction_replaces_what_was_measured(path: Path) -> None:
    survey = Survey(path)
    table = survey.plan(2).table
    survey.update(write(path.parent, "done.csv", filled(table, P1=5.0, P2=6.0)))
    again = write(path.parent, "again.csv", filled(table, P1=7.0, P2=6.0))
    arrival = survey.update(again, corrections=True)
    assert (arrival.added, arrival.known) == (1, 1)
    assert survey.sites.set_index("site").value[["P1", "P2"]].tolist() == [7.0, 6.0]
    assert len(survey.sites) == 50
    assert survey.sites.number.is_unique
    assert survey.aside.reason.tolist() == ["replaced by a later value"]
    both = survey.update(write(path.parent, "both.csv", filled(table, P1=8.0)))
    assert both.said == ["P1 was measured before: both values count (--replace puts the earlier aside)."]
    assert (survey.sites.site == "P1").sum() == 2


def test_a_correction_that_is_there_already_puts_the_earlier_value_aside(path: Path) -> None:
    survey = Survey(path)
    table = survey.plan(2).table
    first = write(path.parent, "done.csv", filled(table, P1=5.0, P2=6.0))
    again = write(path.parent, "again.csv", filled(table, P1=7.0))
    survey.update(first)
    survey.update(again)
    assert survey.update(first, corrections=True).said == []  # the later value is no earlier one
    assert survey.sites.set_index("site").value["P1"].tolist() == [5.0, 7.0]
    arrival = survey.update(again, corrections=True)
    assert (arrival.added, arrival.known) == (0, 1)
    assert arrival.said == ["P1: its earlier value is put aside."]
    assert survey.sites.set_index("site").value[["P1", "P2"]].tolist() == [7.0, 6.0]
    assert survey.aside.reason.tolist() == ["replaced by a later value"]
    assert survey.update(again, corrections=True).said == []
    assert survey.sites.set_index("site").value[["P1", "P2"]].tolist() == [7.0, 6.0]


def test_a_value_comes_back_when_its_row_does(path: Path) -> None:
    survey = Survey(path)
    table = survey.plan(2).table
    first = write(path.parent, "first.csv", filled(table, P1=1.2, P2=6.0))
    wrong = write(path.parent, "wrong.csv", filled(table, P1=12.0))
    for file in (first, wrong):
        survey.update(file, corrections=True)
    assert survey.update(first).added == 0  # of a file that was taken in before
    both = write(path.parent, "both.csv", pd.concat([filled(table, P1=1.2), filled(table, P1=12.0)]))
    assert survey.update(both, corrections=True).added == 0  # one value after another, the last of which counts
    assert survey.sites.set_index("site").value[["P1", "P2"]].tolist() == [12.0, 6.0]
    arrival = survey.update(first, corrections=True)
    assert (arrival.added, arrival.known) == (1, 1)
    assert arrival.said == ["P1: a value that was replaced before counts again."]
    assert survey.sites.set_index("site").value[["P1", "P2"]].tolist() == [1.2, 6.0]
    assert survey.update(first, corrections=True).added == 0


def test_a_correction_forgets_what_was_learned_from_a_typo(path: Path) -> None:
    survey = Survey(path)
    table = survey.plan(2).table
    survey.update(write(path.parent, "done.csv", filled(table, P1=5.0)), corrections=True)
    assert survey.settings["fit"] is not None
    survey.update(write(path.parent, "again.csv", filled(table, P1=5.5)), corrections=True)
    assert Survey(path).settings["fit"] is None


def test_both_values_of_one_table_stay(path: Path) -> None:
    survey = Survey(path)
    table = survey.plan(1).table
    twice = write(path.parent, "done.csv", pd.concat([filled(table, P1=5.0), filled(table, P1=7.0)]))
    survey.update(twice)
    assert survey.update(twice, corrections=True).said == []
    assert (survey.sites.site == "P1").sum() == 2


def test_a_correction_is_only_of_planned_sites(path: Path) -> None:
    """Names of the user's own may stand for many places."""
    survey = Survey(path)
    survey.plan(1)
    for row, name in enumerate(("one.csv", "two.csv")):
        survey.update(write(path.parent, name, sites_table(2, seed=9 + row).assign(site="mast")), corrections=True)
    assert (survey.sites.site == "mast").sum() == 4


def test_ids_that_the_user_has_given_are_not_given_again(path: Path) -> None:
    survey = Survey(path)
    survey.plan(1)
    survey.update(write(path.parent, "own.csv", sites_table(1, seed=9).assign(site="P3")))
    assert survey.plan(3, add=True).table.site.tolist() == ["P2", "P4", "P5"]


def test_rows_to_look_at_are_named(path: Path) -> None:
    survey = Survey(path)
    table = survey.plan(2).table
    moved = filled(table, P1=5.0, P2=6.0)
    moved.loc[1, "lat"] = 50.955 if moved.lat[1] > 50.975 else 50.995
    moved.loc[1, "lon"] = 5.705
    moved.loc[2] = {**moved.loc[0], "site": "P99"}
    said = survey.update(write(path.parent, "moved.csv", moved)).said
    assert said[0].startswith("row 3: P2 was measured ")
    assert said[1:] == ["row 4: there is no planned site P99; taken as a measurement of its own."]


def test_codes_for_no_value_are_pointed_at(path: Path) -> None:
    coded = sites_table().assign(zinc=lambda t: t.zinc.where(t.index != 3, 9999.0))
    survey = Survey.create(path.parent / "c.gpkg", write(path.parent, "coded.csv", coded), "zinc")
    told = "looks like a code for no value, but counts. If it is one,"
    assert f"row 5: 9999 {told} blank it, and begin anew (--overwrite)." in survey.said
    later = sites_table(50).tail(2).assign(zinc=[-999.0, 5.0])
    said = survey.update(write(path.parent, "later.csv", later)).said
    assert f"row 2: -999 {told} send the row with its value (--replace)." in said


def test_a_table_of_the_user_is_not_written_over(path: Path) -> None:
    table = write(path.parent, "mine.csv", sites_table())
    before = table.read_bytes()
    with pytest.raises(SurveyError, match=r"mine\.csv: is there, and is no table of predictions"):
        Survey(path).export(table)
    assert table.read_bytes() == before
    survey, made = Survey(path), path.parent / "made.csv"
    prediction = survey.predict(cells=50)
    survey.export(made, prediction)
    survey.export(made, prediction)
    assert made.read_text().startswith("longitude,latitude,x,y,mean,sd")


def test_a_table_of_which_most_cannot_be_used_is_refused(path: Path) -> None:
    text = sites_table().astype({"zinc": object})
    text.loc[:40, "zinc"] = "high"
    with pytest.raises(SurveyError, match="41 rows cannot be used, and only 7 can: zinc is no number: high"):
        Survey.create(path.parent / "t.gpkg", write(path.parent, "text.csv", text), "zinc")


def test_clearance_is_the_distance_from_measured_sites(path: Path) -> None:
    survey, measured = Survey(path), metres(sites_table())
    near = metres(survey.plan(6, spacing=400.0, clearance=0.0).table)
    assert pdist(near).min() >= 400.0 - 1.0
    far = metres(survey.plan(3, spacing=0.0, clearance=350.0).table)
    assert cdist(far, measured).min() >= 350.0 - 1.0


def test_a_planned_site_may_be_hit_a_little_outside_the_area(path: Path) -> None:
    survey = Survey(path)
    table = survey.plan(1).table
    for offset, added in ((0.00005, 1), (0.02, 0)):
        moved = filled(table, P1=5.0 + offset).assign(lon=5.70 - offset, lat=50.96)
        assert survey.update(write(path.parent, f"{added}.csv", moved)).added == added


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
    assert found.said in prediction.said
    assert found.share.mean == pytest.approx(prediction.exceedance.mean())
    assert found.share.lower < found.share.mean < found.share.upper
    assert found.area.mean == pytest.approx(found.share.mean * survey.region.area / 1e6)
    assert found.weight is None
    higher = survey.exceeding(14.0, draws=50, seed=3)
    assert higher.threshold == 14.0
    assert higher.share.upper < found.share.lower
    assert survey.predict(cells=50, threshold=14.0).exceeding != found
    survey.map(path.with_name("map.html"), prediction)
    assert "of the area lies is not known at 95" in path.with_name("map.html").read_text()
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
    assert "of the weights" in found.said


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


def test_it_is_exported(path: Path, tmp_path: Path) -> None:
    survey = Survey(path)
    prediction = survey.predict(cells=300)
    survey.export(tmp_path / "g.tif", prediction)
    with rasterio.open(tmp_path / "g.tif") as file:
        assert file.crs.to_epsg() == 32631
        bands = file.read()
    wanted = np.stack([prediction.raster.image(v) for v in (prediction.mean, prediction.sd, prediction.exceedance)])
    np.testing.assert_allclose(bands, wanted, rtol=1e-6, atol=1e-37)  # less is not normal in float32
    survey.export(tmp_path / "g.csv", prediction)
    table = pd.read_csv(tmp_path / "g.csv")
    np.testing.assert_allclose(table[["x", "y"]], prediction.raster.centres, atol=0.006)
    np.testing.assert_allclose(table["mean"], prediction.mean, rtol=1e-6)
    with pytest.raises(SurveyError, match=r"ends in \.tif"):
        survey.export(tmp_path / "g.xlsx", prediction)


def test_it_is_drawn(path: Path, tmp_path: Path) -> None:
    survey = Survey(path)
    survey.plan(2)
    prediction = survey.predict(cells=200)
    survey.map(tmp_path / "m.html", prediction, title="Zinc in May")
    page = (tmp_path / "m.html").read_text()
    assert "Zinc in May" in page
    assert "P2" in page
    survey.map(tmp_path / "m.png", prediction)
    assert (tmp_path / "m.png").read_bytes()[:4] == b"\x89PNG"
    with pytest.raises(SurveyError, match=r"ends in \.html"):
        survey.map(tmp_path / "m.pdf", prediction)


def test_its_status_is_what_there_is(path: Path) -> None:
    survey = Survey(path)
    table = survey.plan(3).table
    bad = pd.DataFrame({"lon": [5.75], "lat": [50.98], "zinc": [5.0]})
    survey.update(write(path.parent, "done.csv", pd.concat([filled(table, P2=5.0), bad])))
    text = survey.status()
    for part in (
        "Measurements: 49. Rows kept aside: 1.",
        "done.csv, row 5: outside the area",
        "Plans: 1. Sites planned: 2 to be measured, 1 measured, 0 dropped.",
        "to be measured: P1, P3",
        "lengthscales learned from 48, and again from 60",
        f"Area: {survey.region.area / 1e6:.4g} km²",
        "zinc",
    ):
        assert part in text
    assert json.loads(json.dumps(survey.settings)) == survey.settings
