import multiprocessing
import random
import threading
import time
from pathlib import Path

import pandas as pd
import pytest
from samples import filled, refuse, write

from bo_scale.errors import SurveyError
from bo_scale.models.refit import Refit
from bo_scale.survey import Survey, fitted, workspace
from bo_scale.survey import survey as module
from bo_scale.survey.plan import problem

pytestmark = pytest.mark.usefixtures("small")


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


@pytest.mark.parametrize("step", ["read_state", "fit_model", "coordinates", "design_state", "choose", "write_state"])
def test_a_plan_that_crashes_leaves_the_file_as_it_was(
    step: str, path: Path, unfitted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = unfitted if step == "fit_model" else path
    survey, before = Survey(file), file.read_bytes()
    with monkeypatch.context() as patch:
        homes = {"read_state": module, "fit_model": fitted, "write_state": module}
        patch.setattr(homes.get(step, problem), step, refuse)
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
        patch.setattr(problem, "choose", refuse)
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
        patch.setattr(workspace if step == "read_table" else module, step, refuse)
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
    monkeypatch.setattr(problem, "CANDIDATES", 60)
    monkeypatch.setattr(problem, "CELLS", 200)
    monkeypatch.setattr(fitted, "REFIT", Refit(1e9))
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
