"""The examples, run in a short form."""

import functools
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ax.api.client import Client
from ax.orchestration.orchestrator import Orchestrator
from ax.orchestration.orchestrator_options import OrchestratorOptions

EXAMPLES = Path(__file__).parent.parent / "examples"


def test_malaria_runs_and_leaves_its_plots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.setattr(sys, "argv", ["malaria.py", "--out", str(tmp_path), "--batches", "2", "--grid-size", "12"])
    import malaria

    malaria.main()
    runs = json.loads((tmp_path / "malaria.json").read_text())["runs"]
    assert [run["strategy"] for run in runs] == ["nipv", "random"]
    assert runs[0]["counts"] == [10, 16, 22]
    assert len(set(runs[0]["sites"])) == 22
    assert all(0 < error < 0.3 for run in runs for error in run["rmse"])
    assert {"maps.png", "rmse.png"} <= {p.name for p in tmp_path.iterdir()}
    assert "nipv" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore::bo_scale.errors.InterpolationWarning")  # twelve observations of a rough function
def test_levy_runs_and_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    arguments = ["levy.py", "--out", str(tmp_path), "--batches", "4", "--journal", str(tmp_path / "run")]
    monkeypatch.setattr(sys, "argv", arguments)
    import levy

    levy.main()
    assert json.loads((tmp_path / "levy.json").read_text())["n"] == [3, 6, 9, 12]
    levy.main()
    assert json.loads((tmp_path / "levy.json").read_text())["n"] == [15, 18, 21, 24]
    assert (tmp_path / "levy.png").exists()
    assert "Seconds a batch" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore::bo_scale.errors.InterpolationWarning")  # of the model that forgets nothing
def test_drift_runs_and_forgetting_follows_better(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.setattr(sys, "argv", ["drift.py", "--out", str(tmp_path), "--steps", "16", "--decay", "0.9"])
    import drift

    drift.main()
    runs = json.loads((tmp_path / "drift.json").read_text())["runs"]
    assert [run["decay"] for run in runs] == [1.0, 0.9]
    assert runs[0]["effective_count"][-1] == 72
    assert runs[1]["effective_count"][-1] == pytest.approx(10, rel=1e-3)
    assert all(len(run["value"]) == len(run["error"]) == len(run["x"]) == 16 for run in runs)
    assert sum(runs[1]["error"][8:]) < sum(runs[0]["error"][8:])
    assert (tmp_path / "drift.png").exists()
    assert "mean true value" in capsys.readouterr().out


def test_ax_with_one_objective_finds_a_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.setattr(sys, "argv", ["ax_one.py", "--out", str(tmp_path), "--trials", "10"])
    import ax_one

    ax_one.main()
    told = json.loads((tmp_path / "ax_one.json").read_text())
    order = [loaf["trial"] for loaf in told["loaves"]]
    assert len(order) == 10
    assert order != sorted(order)
    assert all(2 <= loaf["hours"] <= 30 and loaf["flour"] in ax_one.FLOURS for loaf in told["loaves"])
    assert told["stream"]["refitted"] >= 1
    assert told["stream"]["streamed"] + told["stream"]["accumulated"] >= 1  # trials end in any order
    assert 0 < told["best"]["mean"] <= told["best"]["best_there_is"] < 10
    assert (tmp_path / "ax_one.png").exists()
    assert "Best recipe" in capsys.readouterr().out


def test_ax_with_two_objectives_finds_a_front(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.setattr(sys, "argv", ["ax_two.py", "--out", str(tmp_path), "--trials", "9"])
    import ax_two

    ax_two.main()
    told = json.loads((tmp_path / "ax_two.json").read_text())
    assert len(told["trials"]) == 9
    assert set(told["streams"]) == {"accuracy", "latency"}
    assert all(stream["streamed"] >= 1 for stream in told["streams"].values())
    assert len(told["front"]) >= 2
    assert 0.6 < told["volume"][-1] <= 1
    assert sorted(told["volume"]) == pytest.approx(told["volume"])
    assert (tmp_path / "ax_two.png").exists()
    assert "true front" in capsys.readouterr().out


def test_ax_with_constraints_keeps_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.setattr(sys, "argv", ["ax_constrained.py", "--out", str(tmp_path), "--trials", "8"])
    import ax_constrained

    ax_constrained.main()
    told = json.loads((tmp_path / "ax_constrained.json").read_text())
    assert len(told["trials"]) == 8
    assert all(each["cement"] + each["slag"] <= ax_constrained.BINDER + 1e-6 for each in told["trials"])
    assert all(stream["streamed"] >= 1 for stream in told["streams"].values())
    assert 71 < told["cheapest"] < 72
    assert (tmp_path / "ax_constrained.png").exists()
    assert "Best mix" in capsys.readouterr().out


def test_a_malaria_survey_measures_what_it_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    short = ["--sites", "40", "--rounds", "1", "--batch", "4", "--cell", "60000"]
    monkeypatch.setattr("bo_scale.survey.plan.problem.CANDIDATES", 500)
    monkeypatch.setattr(sys, "argv", ["survey_malaria.py", "--out", str(tmp_path), *short])
    import survey_malaria

    survey_malaria.main()
    told = json.loads((tmp_path / "survey_malaria.json").read_text())
    assert [run["counts"] for run in told["runs"]] == [[40, 44], [40, 44]]
    assert told["runs"][0]["rmse"][0] == told["runs"][1]["rmse"][0]
    assert all(0 < error < 0.2 for run in told["runs"] for error in run["rmse"])
    assert all(share > 0.8 for run in told["runs"] for share in run["coverage"])
    assert told["sd_after"] < told["sd_before"]
    status = survey_malaria.Survey(tmp_path / "survey_malaria.gpkg").planned.status
    assert list(status) == ["measured"] * 4 + ["planned"] * 4
    assert all((tmp_path / f"survey_malaria.{kind}").stat().st_size > 5000 for kind in ("html", "png", "tif"))
    assert "planned RMSE" in capsys.readouterr().out


def test_a_ship_knows_its_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    short = ["--readings", "400", "--cells", "3000", "--stations", "2"]
    monkeypatch.setattr("bo_scale.survey.plan.problem.CANDIDATES", 500)
    monkeypatch.setattr(sys, "argv", ["survey_ship.py", "--out", str(tmp_path), *short])
    import survey_ship

    survey_ship.main()
    told = json.loads((tmp_path / "survey_ship.json").read_text())
    assert told["with"]["rmse_slow"] < 0.7 * told["without"]["rmse_slow"]
    assert all(0.75 < told["with"][f"coverage_{place}"] <= 1 for place in survey_ship.PLACES)  # 15 seeds: from 0.837
    stations, track = (
        np.loadtxt(tmp_path / file, delimiter=",", skiprows=1, usecols=columns)
        for file, columns in (("stations.csv", (1, 2)), ("track.csv", (0, 1)))
    )
    places = np.concatenate([stations, track])
    apart = np.linalg.norm(stations[:, None] - places, axis=-1)
    assert len(stations) == 2
    assert np.sort(apart)[:, 1].min() > survey_ship.SPACING - 0.1
    assert all((tmp_path / f"survey_ship.{kind}").stat().st_size > 5000 for kind in ("html", "png", "tif"))
    assert "by fast track" in capsys.readouterr().out


def test_a_tour_is_planned_and_planned_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.setattr("bo_scale.survey.plan.problem.CANDIDATES", 200)
    monkeypatch.setattr("bo_scale.survey.plan.teams.REACHED", 100)
    monkeypatch.setattr("bo_scale.survey.routes.orienteering.RESTARTS", 1)
    monkeypatch.setattr("bo_scale.survey.survey.MAP_CELLS", 2000)
    monkeypatch.setattr(sys, "argv", ["survey_tour.py", "--out", str(tmp_path), "--sites", "30", "--days", "2"])
    import survey_tour

    survey_tour.main()
    first, second = json.loads((tmp_path / "survey_tour.json").read_text())["plans"]
    assert [(route["day"], route["team"]) for route in first["routes"]] == [(1, 1), (1, 2), (2, 1), (2, 2)]
    assert [(route["day"], route["team"]) for route in second["routes"]] == [(1, 1), (1, 2)]
    assert all(route["hours"] <= survey_tour.DAY for plan in (first, second) for route in plan["routes"])
    assert second["sites"] - first["sites"] == len(first["routes"][0]["sites"]) + len(first["routes"][1]["sites"]) // 2
    assert first["sd_after"] < first["sd_before"]
    assert first["left_out"]
    status = survey_tour.Survey(tmp_path / "survey_tour.gpkg").planned.status
    assert {"measured", "dropped", "planned"} == set(status)
    assert all((tmp_path / f"survey_tour_2.{kind}").stat().st_size > 5000 for kind in ("html", "png"))
    assert (tmp_path / "survey_tour_2.gpx").read_text().count("<rte>") == 2
    assert (tmp_path / "survey_tour_2.csv").read_text().startswith("site,team,stop,longitude,latitude,incidence,")
    assert "Measured on the first day: P1" in capsys.readouterr().out


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ax without its wait of a second after every start of a trial, and without the database of another test."""
    quick = functools.partial(
        OrchestratorOptions, min_seconds_before_poll=0.0, seconds_between_polls_backoff_factor=1.0
    )
    monkeypatch.setattr("ax.api.client.OrchestratorOptions", quick)
    monkeypatch.setattr("ax.storage.sqa_store.db.SESSION_FACTORY", None)


@pytest.mark.usefixtures("at_once")
def test_the_tuning_service_goes_on_where_it_was_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    arguments = ["tune_service.py", "--out", str(tmp_path), "--trials", "3", "--workers", "2"]
    monkeypatch.setattr(sys, "argv", arguments)
    import tune_service

    with monkeypatch.context() as patched:
        patched.setattr(Orchestrator, "wait_for_completed_trials_and_report_results", interrupted)
        with pytest.raises(KeyboardInterrupt):
            tune_service.main()
    assert "0 trials are there, 3 are to come" in capsys.readouterr().out
    tune_service.main()
    said = capsys.readouterr().out
    assert "2 trials are there, 1 are to come" in said
    results = [json.loads(path.read_text()) for path in (tmp_path / "runs").glob("trial-*/result.json")]
    assert len(results) == 3
    assert all(result["attempt"] == "attempt-1" for result in results)
    assert f"{min(result['outcomes']['error'][0] for result in results):.2f} %" in said
    assert (tmp_path / "tune_service.png").exists()


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("name", ["tuning", "soak"])
def test_an_experiment_that_was_begun_and_not_more_is_made_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    import tune_service

    from benchmarks import soak

    opened = {"tuning": lambda: tune_service.opened(tmp_path, "-error", [], 0), "soak": lambda: soak.opened(tmp_path)}
    for method in ("configure_optimization", "set_generation_strategy"):
        with monkeypatch.context() as patched:
            patched.setattr(Client, method, interrupted)
            with pytest.raises(KeyboardInterrupt):
                opened[name]()
    client = opened[name]()
    strategy = client._generation_strategy.name
    assert client._experiment.optimization_config is not None
    assert "bo_scale" in strategy
    again = opened[name]()
    assert again._experiment.optimization_config == client._experiment.optimization_config
    assert again._generation_strategy.name == strategy


def interrupted(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.usefixtures("at_once")
def test_tuning_with_two_objectives_finds_a_front(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.setattr(sys, "argv", ["tune_two.py", "--out", str(tmp_path), "--trials", "2", "--workers", "2"])
    import tune_two

    tune_two.main()
    lines = capsys.readouterr().out.splitlines()
    heading = next(number for number, line in enumerate(lines) if line.split()[:1] == ["trial"])
    shown = [line.split() for line in lines[heading + 1 : -1]]
    errors, sizes = [float(row[5]) for row in shown], [float(row[7]) for row in shown]
    assert 1 <= len(shown) <= 2
    assert errors == sorted(errors, reverse=True)
    assert sizes == sorted(sizes)
    assert (tmp_path / "tune_two.png").exists()


def test_a_front_is_of_trials_that_no_other_beats_in_both(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    import tune_two

    pairs = [(5, 3.0), (1, 9.0), (2, 9.0), (3, 4.0), (3, 5.0), (6, 3.0), (4, 4.5)]
    rows = [{"size": size, "error": error} for size, error in pairs]
    assert [tuple(row.values()) for row in tune_two.front(rows)] == [(1, 9.0), (3, 4.0), (5, 3.0)]
