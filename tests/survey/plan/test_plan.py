import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import shapely
from samples import copied, filled, metres, sites_table, write
from scipy.spatial import cKDTree
from scipy.spatial.distance import cdist, pdist

from bo_scale.survey import Survey
from bo_scale.survey.choice.designs import DESIGNS, design
from bo_scale.survey.choice.objectives import OBJECTIVES
from bo_scale.survey.plan import problem
from bo_scale.survey.plan.plan import _plain

pytestmark = pytest.mark.usefixtures("small")


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
            "screens": [],
            "cost": None,
            "when": None,
            "sd_before": plan.sd_before,
            "sd_after": plan.sd_after,
        }
    ]


def test_a_plan_says_what_to_expect_in_the_users_units(path: Path) -> None:
    survey = Survey(path)
    plan, prediction = survey.plan(4), survey.predict(cells=20_000)
    nearest = cdist(metres(plan.table), prediction.raster.centres).argmin(1)
    np.testing.assert_allclose(plan.table.predicted, prediction.mean[nearest], rtol=0.03)
    np.testing.assert_allclose(plan.table.predicted_sd, prediction.sd[nearest], rtol=0.1)


@pytest.mark.parametrize("objective", [*OBJECTIVES, *DESIGNS])
def test_a_plan_follows_from_the_file_and_the_seed(path: Path, objective: Any) -> None:
    tables = []
    for number, seed in enumerate((3, 3, 4)):
        copy = Path(shutil.copy(path, path.with_name(f"copy{number}.gpkg")))
        tables.append(Survey(copy).plan(3, objective, seed=seed).table)
    pd.testing.assert_frame_equal(tables[0], tables[1])
    assert not np.array_equal(tables[0].lon, tables[2].lon)


@pytest.mark.usefixtures("whole_fits")
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


def test_a_plan_of_fewer_sites_says_so(path: Path) -> None:
    plan = Survey(path).plan(30, spacing=700.0)
    assert 0 < len(plan.table) < 30
    assert (
        f"Only {len(plan.table)} of the 30 sites wanted are planned: no other place keeps the distances." in plan.notes
    )


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


def test_maximin_reduces_uncertainty_hardly_more_than_variance_and_lies_farther_apart(path: Path) -> None:
    survey = Survey(path)
    wide, wise = survey.plan(5, "maximin"), survey.plan(5, "variance")
    assert wise.sd_after < 1.05 * wide.sd_after  # 3 of 14 seeds: up to 1 % above
    sites = metres(sites_table())
    least = [cdist(metres(plan.table), sites).min() for plan in (wide, wise)]
    assert least[0] >= least[1]
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
    assert f"Latin hypercube: {missed} of 18 strata have no site, because no place is left in them." in plan.notes


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


def test_what_was_asked_for_may_be_numbers_of_numpy() -> None:
    asked = {"batch": np.int64(2), "spacing": np.float32(0.5), "weights": Path("people.csv")}
    assert json.dumps(asked, default=_plain) == '{"batch": 2, "spacing": 0.5, "weights": "people.csv"}'


def test_a_plan_counts_and_says_where_the_quantity_is_rough(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    survey = Survey(path)
    west, _, east, _ = survey.region.bounds
    before = survey.plan(4)
    assert not any("weighs up to" in line for line in before.notes)
    monkeypatch.setattr(problem, "roughness", lambda *given: np.where(given[3][:, 0] > (west + east) / 2, 9.0, 0.1))
    found = survey.plan(4)
    assert "weighs up to 9.0 times as much" in found.notes[-2]
    assert (survey.workspace.xy(survey.planned)[-4:, 0] > (west + east) / 2).all()
    assert found.sd_before == before.sd_before
    assert not any("weighs up to" in line for line in survey.plan(4, "uncertainty").notes)


def test_chance_is_not_told_as_roughness(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Estimates of an even roughness vary from place to place, up to three times of what it is."""

    def even(model: Any, fit: Any, sites: Any, places: Any) -> Any:
        rng = np.random.default_rng(0)
        xy = rng.uniform(places.min(0), places.max(0), (400, 2))
        distance, at = cKDTree(xy).query(places, 32)
        weight = np.exp(-2 * np.square(distance / distance[:, [7]]))
        return (2 + (weight * rng.chisquare(1, 400)[at]).sum(1)) / (2 + weight.sum(1))

    monkeypatch.setattr(problem, "roughness", even)
    assert not any("weighs up to" in line for line in Survey(path).plan(4).notes)


def test_a_new_plan_says_what_it_drops(path: Path) -> None:
    survey = Survey(path)
    survey.plan(2)
    assert survey.plan(1).notes == ["These planned sites were not measured and are dropped: P1, P2 (--add keeps them)."]
    assert survey.plan(1, add=True).notes == []


def test_ids_that_the_user_has_given_are_not_given_again(path: Path) -> None:
    survey = Survey(path)
    survey.plan(1)
    survey.update(write(path.parent, "own.csv", sites_table(1, seed=9).assign(site="P3")))
    assert survey.plan(3, add=True).table.site.tolist() == ["P2", "P4", "P5"]
