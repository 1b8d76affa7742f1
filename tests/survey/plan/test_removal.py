"""Stations to give up: against brute-force refits with the same hyperparameters."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from samples import copied, write

from bo_scale.cli.program import main
from bo_scale.errors import SurveyError
from bo_scale.survey import Survey
from bo_scale.survey.mapping.forecast import slopes
from bo_scale.survey.mapping.model import fit_model, forecast, model_of
from bo_scale.survey.mapping.sites import Sites
from bo_scale.survey.mapping.surface import Surface
from bo_scale.survey.plan import removal as module
from bo_scale.survey.plan.problem import Request
from bo_scale.survey.plan.removal import Removal

NOTHING = Request(None, "variance", None, 0.0, None, 1, 0, add=False)
pytestmark = pytest.mark.usefixtures("small")


def typical_sd(survey: Survey, kept: np.ndarray, cells: np.ndarray, weights: np.ndarray) -> float:
    """The root of the mean variance over cells given some measurements, with the hyperparameters of all."""
    found = survey.fitted()
    sites = found.sites
    variance = None if sites.variance is None else sites.variance[kept]
    own = None if sites.covariates is None else sites.covariates[kept]
    some = Sites(sites.xy[kept], sites.z[kept], variance, covariates=own)
    _, sd = forecast(model_of(some, found.fit), found.fit, cells, progress=False)
    return float(np.average(np.square(sd), weights=weights) ** 0.5)


def cells_of(survey: Survey) -> tuple[np.ndarray, np.ndarray]:
    return survey.fitted()._problem(NOTHING, survey.workspace.state.weights, False).cells


def require_cheapest(survey: Survey, found: Removal, others: int = 4) -> None:
    """Compare the sds with those of models of the measurements that are left, and of others that might be."""
    cells, weights = cells_of(survey)
    xy, rng = survey.fitted().sites.xy, np.random.default_rng(0)
    places, of = np.unique(xy, axis=0, return_inverse=True)
    of, gone = of.reshape(-1), list[int]()
    for place, sd in zip(found.xy, found.table.sd_without, strict=True):
        chosen = int(np.flatnonzero((places == place).all(1))[0])
        assert typical_sd(survey, ~np.isin(of, [*gone, chosen]), cells, weights) == pytest.approx(sd, rel=1e-4)
        for other in rng.choice([k for k in range(len(places)) if k not in (*gone, chosen)], others, replace=False):
            assert typical_sd(survey, ~np.isin(of, [*gone, other]), cells, weights) >= sd * (1 - 1e-4)
        gone.append(chosen)
    assert found.sd_before == pytest.approx(typical_sd(survey, np.ones(len(xy), dtype=bool), cells, weights))
    assert found.over == ("area" if survey.workspace.state.weights is None else "weights")


@pytest.mark.parametrize("name", ["s", "weights"])
def test_an_exact_survey_gives_up_what_refits_would(dutch: Path, tmp_path: Path, name: str) -> None:
    """With known errors that are very unequal, a place that was measured twice, and weights."""
    survey = copied(dutch / f"{name}.gpkg", tmp_path)
    twice = pd.read_csv(dutch / "sites.csv").iloc[[3, 35]].assign(lead=[3.3, 3.1], sd=[0.4, 0.4])
    survey.update(write(tmp_path, "twice.csv", twice))
    found = survey.removable(3, progress=False)
    require_cheapest(survey, found)
    assert all(a <= b for a, b in pairwise(found.table.sd_without))


def test_a_survey_on_grids_gives_up_what_downdates_tell(dutch: Path, tmp_path: Path, monkeypatch: Any) -> None:
    survey = copied(dutch / "s.gpkg", tmp_path)
    space = survey.workspace
    sites = space.measured()
    fit, model = fit_model(replace(sites), tuple(survey.settings["fit"]["box"]), "matern32", exact_up_to=10)
    assert fit.grids
    found = replace(survey.fitted(), fit=replace(fit, nearest=None), model=model)
    monkeypatch.setattr(Survey, "fitted", lambda self, progress=None: found)
    require_cheapest(survey, found.removal(2, None, [], False), others=2)
    monkeypatch.setattr(module, "CONSIDERED", 20)
    some = found.removal(2, None, [], False)
    assert any("Only 1" in note and "of 40 stations were considered" in note for note in some.notes)


@pytest.fixture(scope="module")
def visited_often(tmp_path_factory: pytest.TempPathFactory) -> Survey:
    """24 wells that were visited two or three times, of a quantity that changes."""
    rng = np.random.default_rng(4)
    where, well = rng.uniform(0, 5000, (24, 2)).round(1), np.repeat(np.arange(24), rng.integers(2, 4, 24))
    day = rng.integers(0, 200, len(well))
    salt = np.sin(where[well, 0] / 1500 + day / 40) + 0.1 * rng.standard_normal(len(well))
    date = (pd.Timestamp("2024-03-01") + pd.to_timedelta(day, unit="D")).strftime("%Y-%m-%d")
    table = pd.DataFrame({"x": 400_000 + where[well, 0], "y": 5_600_000 + where[well, 1], "salt": salt, "date": date})
    folder = tmp_path_factory.mktemp("wells")
    path = write(folder, "wells.csv", table)
    return Survey.create(folder / "w.gpkg", path, "salt", crs="EPSG:25832", time="date", kernel="matern32")


@pytest.mark.parametrize("grids", [False, True])
def test_visits_of_a_station_count_at_their_own_times_and_go_together(
    visited_often: Survey, monkeypatch: Any, grids: bool
) -> None:
    survey, found = visited_often, visited_often.fitted(date="2024-09-01")
    if grids:
        box, sites = tuple(survey.settings["fit"]["box"]), replace(found.sites)
        how = {"exact_up_to": 10, "time": found.workspace.time, "beside": found.workspace.covariates}
        fit, model = fit_model(sites, box, "matern32", **how)
        assert fit.grids
        found = replace(found, fit=replace(fit, nearest=None), model=model)
    monkeypatch.setattr(Survey, "fitted", lambda self, progress=None: found)
    removal = found.removal(2, None, [], False)
    require_cheapest(survey, removal, others=2)
    assert removal.table.measurements.min() > 1
    stations = module._Stations.of_places(found.sites.xy, found.sites.covariates)
    state = module._state(found._problem(NOTHING, None, False), stations, np.arange(24))
    total = state.total()
    for station, increase in list(enumerate(state.increases().tolist()))[::8]:
        assert increase == pytest.approx(state.without(station).total() - total, rel=1e-4)


def test_stations_are_given_up_for_a_date(visited_often: Survey) -> None:
    survey = visited_often
    before = survey.removable(1, progress=False, date="2024-05-01").sd_before
    later = survey.removable(1, progress=False)
    assert later.sd_before > before  # hardly any well was visited then
    assert later.notes[0].startswith("Predicted for 2024-")


def test_both_parts_count_where_there_are_zeros(dutch: Path, tmp_path: Path) -> None:
    """The variance of presence times amount, by the delta method; five places have no amount."""
    survey = copied(dutch / "s.gpkg", tmp_path)
    found, sites = survey.fitted(), survey.fitted().sites
    assert sites.variance is not None
    seen = Sites(sites.xy, np.sign(sites.z - 3), np.full(40, 0.8))
    some = Sites(sites.xy[5:], sites.z[5:] / 4, sites.variance[5:])
    presence = Surface(seen, found.fit, model_of(seen, found.fit))
    both = replace(found, sites=some, model=model_of(some, found.fit), presence=presence)
    cells, weights = cells_of(survey)
    amount, logit = (each.forecast(cells)[0] for each in (both.surface, presence))
    squares = [np.square(each) for each in slopes(amount, logit)]

    def total(gone: set[int]) -> float:
        parts = []
        for all_of, first, square in ((some, 5, squares[0]), (seen, 0, squares[1])):
            kept = np.array([k + first not in gone for k in range(len(all_of.z))])
            assert all_of.variance is not None
            left = Sites(all_of.xy[kept], all_of.z[kept], all_of.variance[kept])
            sd = forecast(model_of(left, found.fit), found.fit, cells, progress=False)[1]
            parts.append(float(np.average(square * np.square(sd), weights=weights)))
        return sum(parts) ** 0.5

    removal = both.removal(2, None, [], False)
    first, second = (int(np.flatnonzero((sites.xy == place).all(1))[0]) for place in removal.xy)
    assert all(total({k}) >= total({first}) for k in range(0, 40, 7))
    np.testing.assert_allclose(removal.table.sd_without, [total({first}), total({first, second})], rtol=1e-4)
    assert removal.sd_before == pytest.approx(total(set()), rel=1e-6)


def test_the_command_line_lists_and_draws_them(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, page, png = (str(path.parent / name) for name in ("gone.csv", "gone.html", "gone.png"))
    assert main(["survey", "plan", str(path), "--remove", "3", "--out", out, "--map", page]) == 0
    assert main(["survey", "plan", str(path), "--remove", "3", "--out", out, "--map", png]) == 0
    assert list(pd.read_csv(out).order) == [1, 2, 3]
    assert "without these 3 stations" in capsys.readouterr().out
    assert '"removed":[{"label":"row ' in Path(page).read_text()
    assert not len(Survey(path).planned)
    for words, error in (
        (["--remove", "3", "--batch", "2"], "--batch: --remove plans no new sites"),
        (["--remove", "0"], "--remove=0: give at least 1"),
        (["--remove", "48"], "48 measured places; give 1 to 47"),
    ):
        assert main(["survey", "plan", str(path), *words, "--out", out]) == 1
        assert error in capsys.readouterr().err
    with pytest.raises(SurveyError, match="is not a table of stations"):
        module.require_replaceable(write(path.parent, "other.csv", pd.DataFrame({"a": [1]})))
