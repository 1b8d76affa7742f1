"""The case of where to measure next: every strategy and model on small fields, its way and its tables."""

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[2]))
from benchmarks import fields, survey, survey_report
from benchmarks.harness import run_case
from benchmarks.store import Store
from bo_scale.models.refit import Refit
from bo_scale.survey.geography.thinning import gathered

COURSE = survey.Course(test=20, candidates=60, first=8, batch=4, batches=2)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bo_scale.survey.mapping.model.SMOOTHNESS", {"matern32": 1.5, "matern52": 2.5})
    monkeypatch.setattr("bo_scale.survey.mapping.model.FINE_POINTS", 64)
    monkeypatch.setattr("bo_scale.survey.mapping.model.COARSE_POINTS", 64)
    monkeypatch.setattr("bo_scale.survey.mapping.model.RANK", 16)
    monkeypatch.setattr("bo_scale.survey.mapping.model.OPTIMISER", {"options": {"maxiter": 2}})
    monkeypatch.setattr("benchmarks.survey_models.ACTIONS", 4)
    monkeypatch.setattr("benchmarks.survey_models.REFIT", Refit(3.0))


def write(folder: Path, name: str, degrees: bool = False, n: int = 90) -> None:
    """A smooth field, over a few kilometres or degrees."""
    g = np.random.default_rng(0)
    u = g.random((n, 2))
    X = [30.0, -2.0] + 2 * u if degrees else 4 * u
    y = np.exp(np.sin(4 * u[:, 0]) + u[:, 1] + 0.1 * g.standard_normal(n))
    np.savez(folder / fields.FIELDS[name].file, X=X, y=y)


def test_places_are_in_metres_and_values_on_their_scale(tmp_path: Path) -> None:
    write(tmp_path, "jura")
    write(tmp_path, "malaria", degrees=True)
    xy, z = fields.load_field(tmp_path, "jura")
    with np.load(tmp_path / "jura.npz") as arrays:
        np.testing.assert_allclose(xy, 1000 * arrays["X"])
        np.testing.assert_allclose(np.exp(z), arrays["y"])
    xy, _ = fields.load_field(tmp_path, "malaria")
    np.testing.assert_allclose(np.ptp(xy, axis=0), 2 * 111_000, rtol=0.05)


def test_scores_are_those_of_gaussian_predictions() -> None:
    z, mean, sd = np.array([0.0, 3.0]), np.zeros(2), np.ones(2)
    found = fields.scores(z, mean, sd)
    assert found["rmse"] == pytest.approx(4.5**0.5)
    assert found["coverage_95"] == 0.5
    assert found["width"] == pytest.approx(2 * 1.959964)
    assert found["crps"] == pytest.approx((0.2336950 + 2.4365736) / 2, abs=1e-4)


def test_the_test_set_and_the_places_chosen_among_are_apart() -> None:
    test, pool, first = survey.split(90, COURSE, seed=3)
    assert (len(test), len(pool), len(first)) == (20, 60, 8)
    assert len({*test, *pool}) == 80
    assert set(first) <= set(pool)
    np.testing.assert_array_equal(first, survey.split(90, COURSE, seed=3)[2])
    assert set(first) != set(survey.split(90, COURSE, seed=4)[2])


def test_a_round_trip_has_no_crossing() -> None:
    g = np.random.default_rng(1)
    angles = 2 * np.pi * np.arange(12) / 12
    circle = np.stack([np.cos(angles), np.sin(angles)], -1)[g.permutation(12)]
    assert survey.tour(circle) == pytest.approx(24 * np.sin(np.pi / 12))
    assert survey.tour(circle[:1]) == 0.0
    assert survey.tour(np.array([[0.0, 0.0], [3.0, 4.0]])) == 10.0


def test_every_strategy_chooses_new_sites_for_what_it_is_called(tmp_path: Path) -> None:
    write(tmp_path, "jura")
    xy, z = fields.load_field(tmp_path, "jura")
    _, pool, first = survey.split(len(z), COURSE, seed=0)
    learner = survey.MODELS["exact"](survey.box_of(xy, (np.inf, np.inf, -np.inf, -np.inf)))
    sites = survey.Sites(xy[first], z[first], None)
    fit, gp = learner.update(sites)
    left = np.setdiff1d(pool, first)
    mean, sd = survey.forecast(gp, fit, xy[left], progress=False)
    threshold, cells = float(np.median(z)), gathered(xy, 50)
    known = survey.Knowledge(gp, fit, threshold, partial(learner.roughness, sites))
    for strategy in (*survey.OBJECTIVES, *survey.DESIGNS):
        chosen = survey.select(strategy, known, xy, (left, first), cells, 4, 0)
        assert len(set(chosen)) == 4
        assert set(chosen) <= set(left)
        if strategy == "uncertainty":
            assert chosen[0] == left[sd.argmax()]
        if strategy == "straddle":
            assert chosen[0] == left[(1.96 * sd - abs(mean - threshold)).argmax()]
    again, _ = learner.update(sites)
    assert again is fit


def test_models_run_through_a_course_and_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "jura")
    monkeypatch.setattr(survey, "COURSES", {"jura": replace(COURSE, batches=1)})
    monkeypatch.setattr(survey, "SEEDS", range(1))
    monkeypatch.setattr(survey, "MANY_SEEDS", range(1))
    monkeypatch.setattr(survey, "DESIGNS", ("random", "maximin"))
    monkeypatch.setattr(survey, "OBJECTIVES", {"nipv": "variance"})
    for pattern in ("jura exact *", "jura WISKI nipv *", "jura CaGP nipv *"):
        run_case("survey", tmp_path, pattern=pattern, folder=tmp_path)
    result = Store("survey", tmp_path).read()
    assert set(result["units"]) == {f"jura exact {s} seed 0" for s in ("nipv", "random", "maximin")} | {
        f"jura {model} nipv seed 0" for model in ("WISKI", "CaGP")
    }
    starts = set()
    for unit in result["units"].values():
        assert unit["n"] == [8, 12]
        assert unit["kilometres"][0] == 0.0 < unit["kilometres"][1]
        assert len(unit["choose_seconds"]) == 1
        if unit["model"] == "exact":
            starts.add(unit["rmse"][0])
    assert len(starts) == 1
    shown = survey.table(result)
    assert "| jura | CaGP | integrated variance | 8 to 12 | 1 |" in shown
    assert "exact: mean RMSE with integrated variance, divided by that with 'maximin': jura" in shown
    survey.plot(result, tmp_path)
    assert {path.name for path in tmp_path.glob("*.png")} == set(survey.PLOTS)


def run(strategy: str, seed: int, rmse: list[float], coverage: float) -> dict[str, Any]:
    """A unit as the case stores it."""
    return {
        "field": "meuse",
        "model": "exact",
        "strategy": strategy,
        "seed": seed,
        "n": [10, 20, 40],
        "rmse": rmse,
        "crps": rmse,
        "coverage_95": [coverage, 0.95, 0.95],
        "kilometres": [0.0, 1.0, 2.0],
        "choose_seconds": [0.5, 0.5],
        "fit_seconds": [2.0, 2.0, 2.0],
    }


def test_the_criterion_is_the_area_under_the_curve_at_the_same_seeds() -> None:
    units = [
        run("nipv", 0, [1.0, 0.5, 0.5], 0.93),
        run("nipv", 1, [1.0, 0.5, 0.5], 0.97),
        run("random", 0, [1.0, 1.0, 1.0], 0.95),
        run("random", 1, [1.0, 1.0, 1.0], 0.95),
        run("random", 2, [9.0, 9.0, 9.0], 0.95),
        run("maximin", 1, [1.0, 0.5, 0.5], 0.95),
    ]
    assert survey_report.area(units[0]) == pytest.approx((10 * 0.75 + 20 * 0.5) / 30)
    result = {"units": {str(number): unit for number, unit in enumerate(units)}}
    assert survey_report.beside(result, "meuse", "exact", "random") == pytest.approx(7 / 12)
    assert survey_report.beside(result, "meuse", "exact", "maximin") == pytest.approx(1.0)
    ((_, ours, _),) = survey.headline(result)
    assert ours.startswith("random 0.58 to 0.58; maximin 1.00 to 1.00 (target: below 1); coverage 95.0%, 95.0% to")
    assert survey.headline({"units": {"0": units[0]}}) == []
