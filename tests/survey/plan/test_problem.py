from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import shapely
import torch
from samples import copied, metres, people_inside, sites_table, write
from scipy.spatial.distance import cdist, pdist

from bo_scale.errors import SurveyError
from bo_scale.survey import Survey
from bo_scale.survey.mapping.model import coordinates, forecast, predict
from bo_scale.survey.mapping.roughness import roughness
from bo_scale.survey.mapping.sites import Sites
from bo_scale.survey.plan import problem

pytestmark = pytest.mark.usefixtures("small")


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
        monkeypatch.setattr(f"bo_scale.survey.mapping.model.{name}", value)
    monkeypatch.setattr(problem, "CLOSED_CELLS", 1500)
    monkeypatch.setattr("bo_scale.survey.mapping.model._grid_is_better", lambda *_: False)
    table = sites_table(60).assign(sd=0.5).rename(columns={"zinc": "lead"})
    error = "sd" if known else None
    survey = Survey.create(tmp_path / "s.gpkg", write(tmp_path, "s.csv", table), "lead", error=error, transform="none")
    prediction, plan = survey.predict(cells=problem.CLOSED_CELLS), survey.plan(3)
    found = survey.fitted()
    sites, fit, model = found.sites, found.fit, found.model
    assert fit.nearest is not None
    assert plan.sd_before == pytest.approx(np.square(prediction.sd).mean() ** 0.5)
    assert plan.sd_after < plan.sd_before
    variance = None if sites.variance is None else np.append(sites.variance, [0.5**2] * 3)
    then = Sites(np.concatenate([sites.xy, metres(plan.table)]), np.append(sites.z, [1.0, 9.0, -4.0]), variance)
    assert plan.sd_after == pytest.approx(
        np.square(predict(model, fit, then, prediction.raster.centres, False)[1]).mean() ** 0.5, rel=1e-3
    )
    assert survey.plan(2, add=True).sd_before == pytest.approx(plan.sd_after, rel=1e-6)


def test_of_many_noisy_sites_the_typical_sd_is_that_of_the_grid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"EXACT": 40, "FINE_POINTS": 300, "COARSE_POINTS": 80}.items():
        monkeypatch.setattr(f"bo_scale.survey.mapping.model.{name}", value)
    monkeypatch.setattr(problem, "CLOSED_CELLS", 1500)
    monkeypatch.setattr("bo_scale.survey.mapping.model._grid_is_better", lambda *_: True)
    survey = Survey.create(tmp_path / "s.gpkg", write(tmp_path, "s.csv", sites_table(60)), "zinc", transform="none")
    prediction, plan = survey.predict(cells=problem.CLOSED_CELLS), survey.plan(3)
    assert survey.fitted().fit.nearest is None
    assert plan.sd_before == pytest.approx(np.square(prediction.sd).mean() ** 0.5, rel=1e-3)
    assert plan.sd_after < plan.sd_before


def test_spacing_counts_from_sites_under_way(path: Path) -> None:
    survey = Survey(path)
    first = survey.plan(2, spacing=400.0, objective="uncertainty")
    second = survey.plan(2, spacing=400.0, objective="uncertainty", add=True, seed=1)
    assert cdist(metres(second.table), metres(first.table)).min() >= 399.9


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"batch": 0}, "1 to 1000"),
        ({"batch": 1001}, "1 to 1000"),
        ({"repeats": 0}, "repeats=0: give at least 1"),
        ({"spacing": -1.0}, "spacing=-1.0: .* not negative"),
        ({"spacing": float("nan")}, "not negative"),
        ({"clearance": -1.0}, "clearance=-1.0: .* not negative"),
        ({"seed": -1}, "seed=-1: .* not negative"),
        ({"days": 0}, "days=0: give at least 1"),
        ({"threshold": 0.0}, "must be positive"),
        ({"spacing": 1e5}, "Reduce spacing"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(path: Path, given: dict[str, Any], word: str) -> None:
    before = path.read_bytes()
    with pytest.raises(SurveyError, match=word):
        Survey(path).plan(**given)
    assert path.read_bytes() == before


def test_an_objective_that_is_none_and_a_threshold_that_is_missing_are_refused(dutch: Path) -> None:
    survey = Survey(dutch / "s.gpkg")
    with pytest.raises(
        SurveyError, match=r"choose one of variance, .*thompson, random, stratified, maximin, coverage, latin"
    ):
        problem.Request(1, "entropy", None, 0.0, None, 1, 0, False).checked(survey.scale, None)
    for objective in ("straddle", "misclassification"):
        with pytest.raises(SurveyError, match="needs a threshold"):
            survey.plan(1, objective)


def test_candidates_are_chosen_from(dutch: Path, tmp_path: Path) -> None:
    survey = copied(dutch / "candidates.gpkg", tmp_path)
    given = pd.read_csv(dutch / "candidates.csv").drop(index=4)
    kept = survey.workspace.state.candidates
    assert kept is not None
    assert kept.name.tolist() == given.name.tolist()
    np.testing.assert_array_equal(shapely.get_coordinates(kept.geometry), given[["x", "y"]])
    assert any("Candidate sites: 11. Rows left out" in line and line.endswith(": 1.") for line in survey.notes)
    plan = survey.plan(14)
    assert sorted(zip(plan.table.x, plan.table.y)) == sorted(zip(given.x, given.y))
    assert "Only 11 of the 14 sites wanted are planned: no candidate is left." in plan.notes
    twice = survey.plan(22, "uncertainty", repeats=2)
    assert twice.table.groupby(["x", "y"]).size().tolist() == [2] * 11


def test_a_plan_is_for_the_candidates_where_there_are_some(dutch: Path, tmp_path: Path) -> None:
    """The area is much larger: what is little known far from all candidates does not count."""
    survey = copied(dutch / "candidates.gpkg", tmp_path)
    found, state = survey.fitted(), survey.workspace.state
    plan = survey.plan(3)
    assert plan.over == "candidates"
    assert state.candidates is not None
    sd = forecast(found.model, found.fit, problem.places_of(state.candidates, survey.workspace.metric), False)[1]
    assert plan.sd_before == pytest.approx(np.square(sd).mean() ** 0.5, rel=1e-6)
    weighted = survey.plan(3, weights=dutch / "weights.csv")
    assert weighted.over == "weights"


def test_many_candidates_are_gathered(dutch: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    survey = copied(dutch / "candidates.gpkg", tmp_path)
    whole = survey.plan(2).sd_before
    monkeypatch.setattr(problem, "CELLS", 6)
    monkeypatch.setattr(problem, "CLOSED_CELLS", 6)
    assert survey.plan(2).sd_before == pytest.approx(whole, rel=0.2)


@pytest.mark.parametrize("signal", [0.0, 1.0])
def test_a_plan_says_if_the_quantity_can_hardly_be_predicted(tmp_path: Path, signal: float) -> None:
    table = sites_table(60)
    noise = np.random.default_rng(3).standard_normal(60)
    trend = (table.lon - table.lon.mean()) / table.lon.std()
    made = table.assign(zinc=signal * trend + (1 - 0.8 * signal) * noise)
    survey = Survey.create(tmp_path / "s.gpkg", write(tmp_path, "s.csv", made), "zinc")
    said = [note for note in survey.plan(2).notes if "tell hardly anything of each other" in note]
    assert len(said) == (signal == 0.0)


@pytest.mark.parametrize("objective", ["variance", "uncertainty", "random"])
def test_candidates_under_way_are_not_proposed_again(dutch: Path, tmp_path: Path, objective: Any) -> None:
    survey = copied(dutch / "candidates.gpkg", tmp_path)
    first, second = (survey.plan(6, objective, add=add).table for add in (False, True))
    assert len({*first.name, *second.name}) == len(first) + len(second) == 11
    with pytest.raises(SurveyError, match=r"every candidate site is planned or measured already. .* raise repeats"):
        survey.plan(1, objective, add=True)
    assert len(survey.plan(11, objective, add=True, repeats=2).table) == 11


def test_measured_candidates_may_be_worth_it_again_but_not_to_designs(dutch: Path, tmp_path: Path) -> None:
    survey = copied(dutch / "candidates.gpkg", tmp_path)
    survey.plan(6).table.assign(lead=3.0, sd=1.0).to_csv(tmp_path / "done.csv", index=False)
    survey.update(tmp_path / "done.csv")
    assert len(survey.plan(11, "variance").table) == 11
    assert len(survey.plan(11, "stratified").table) == 5


def test_of_many_candidates_some_are_looked_at(dutch: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(problem, "CANDIDATES", 5)
    survey = copied(dutch / "candidates.gpkg", tmp_path)
    plan = survey.plan(11, seed=1)
    assert len(plan.table) == 5
    assert plan.notes[0] == "Only 5 of 11 candidate sites were considered, drawn with the seed."
    assert set(plan.table.x) != set(survey.plan(11, seed=2).table.x)
    assert set(plan.table.x) == set(survey.plan(11, seed=1).table.x)


def test_weights_draw_the_plan_to_where_they_are(dutch: Path, tmp_path: Path) -> None:
    everywhere = copied(dutch / "s.gpkg", tmp_path).plan(4).table
    weighted = copied(dutch / "weights.gpkg", tmp_path).plan(4).table
    assert (weighted.x < 181_300).all()
    assert (weighted.y < 331_800).all()
    assert set(zip(weighted.x, weighted.y)) != set(zip(everywhere.x, everywhere.y))


def test_one_survey_is_planned_for_several_targets(dutch: Path, tmp_path: Path) -> None:
    """Weights of a plan are those of a survey begun with them, and no longer there for the next plan."""
    survey, weighted = copied(dutch / "s.gpkg", tmp_path), copied(dutch / "weights.gpkg", tmp_path)
    everywhere = survey.plan(4)
    for objective, threshold in (("variance", None), ("misclassification", 3.0)):
        plan = survey.plan(3, objective, threshold=threshold, weights=dutch / "weights.csv")
        wanted = weighted.plan(3, objective, threshold=threshold)
        pd.testing.assert_frame_equal(plan.table.drop(columns="site"), wanted.table.drop(columns="site"))
        assert plan.sd_before == wanted.sd_before != everywhere.sd_before
        inside = len(people_inside(survey, dutch))
        assert plan.notes[0].startswith(f"Places with weights: {inside}. Rows left out")
        assert plan.notes[0].endswith(f": {300 - inside}.")
        assert (plan.table.x < 181_300).all()
        assert (plan.table.y < 331_800).all()
    assert [plan["weights"] for plan in survey.settings["plans"]] == [None, "weights.csv", "weights.csv"]
    again = survey.plan(4)
    pd.testing.assert_frame_equal(again.table.drop(columns="site"), everywhere.table.drop(columns="site"))
    assert Survey(tmp_path / "s.gpkg").workspace.state.weights is None
    east = write(tmp_path, "east.csv", pd.DataFrame({"x": [181_600.0], "y": [332_200.0], "weight": [7.0]}))
    other = weighted.plan(1, weights=east).table
    assert cdist(other[["x", "y"]], [[181_600.0, 332_200.0]]).min() < 250


@pytest.mark.parametrize("objective", ["uncertainty", "straddle", "thompson", "latin"])
def test_a_plan_says_where_weights_make_no_difference(dutch: Path, tmp_path: Path, objective: Any) -> None:
    survey, weighted = copied(dutch / "s.gpkg", tmp_path), copied(dutch / "weights.gpkg", tmp_path)
    said = f"Weights do not affect which sites are chosen: {objective} ignores them"
    plan, other = (each.plan(2, objective, threshold=3.0) for each in (survey, weighted))
    np.testing.assert_array_equal(plan.table[["x", "y"]], other.table[["x", "y"]])
    assert not any(line.startswith(said) for line in plan.notes)
    assert sum(line.startswith(said) for line in other.notes) == 1
    if objective != "latin":
        plan = survey.plan(2, objective, threshold=3.0, weights=dutch / "weights.csv")
        assert sum(line.startswith(said) for line in plan.notes) == 1
    assert not any("Weights" in line for line in weighted.plan(1, "misclassification", threshold=3.0, add=True).notes)


def test_the_value_of_a_weighted_plan_is_that_of_a_dense_computation(dutch: Path, tmp_path: Path) -> None:
    survey = copied(dutch / "s.gpkg", tmp_path)
    plan = survey.plan(3, weights=dutch / "weights.csv")
    found = survey.fitted()
    sites, fit, model = found.sites, found.fit, found.model
    table = people_inside(survey, dutch)
    process, omega = model.processes[0], table.weight.to_numpy() / table.weight.sum()
    whole = np.concatenate([plan.table[["x", "y"]].to_numpy(), table[["x", "y"]].to_numpy()])
    assert sites.variance is not None
    noise = max(np.median(sites.variance) / fit.unit**2 + fit.nugget, 1e-6)
    with torch.no_grad():
        K = process.covariance(coordinates(model, fit, whole)).numpy()
    rough = omega * roughness(model, fit, sites, whole[3:])
    totals, errors = [omega @ K.diagonal()[3:]], [rough @ K.diagonal()[3:] / rough.sum()]
    for index in range(3):
        K = K - np.outer(K[index], K[index]) / (K[index, index] + noise)
        totals.append(omega @ K.diagonal()[3:])
        errors.append(rough @ K.diagonal()[3:] / rough.sum())
    assert plan.sd_before == pytest.approx(fit.unit * totals[0] ** 0.5)
    assert plan.sd_after == pytest.approx(fit.unit * totals[-1] ** 0.5, rel=1e-4)
    np.testing.assert_allclose(survey.planned.score, -np.diff(errors), rtol=1e-2)


def test_clearance_is_the_distance_from_measured_sites(path: Path) -> None:
    survey, measured = Survey(path), metres(sites_table())
    near = metres(survey.plan(6, spacing=400.0, clearance=0.0).table)
    assert pdist(near).min() >= 400.0 - 1.0
    far = metres(survey.plan(3, spacing=0.0, clearance=350.0).table)
    assert cdist(far, measured).min() >= 350.0 - 1.0
