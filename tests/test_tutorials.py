"""The tutorials, run in a short form."""

import json
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.fixture
def told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[str], dict[str, Any]]:
    """Run a tutorial and return its numbers, and what it printed; its plot is there."""

    def run(name: str) -> dict[str, Any]:
        monkeypatch.syspath_prepend(EXAMPLES)
        monkeypatch.setattr(sys, "argv", [f"{name}.py", "--out", str(tmp_path), "--short"])
        import_module(name).main()
        assert (tmp_path / f"{name}.png").stat().st_size > 5000
        return {**json.loads((tmp_path / f"{name}.json").read_text()), "printed": capsys.readouterr().out}

    return run


def test_past_results_lead_to_good_batches(told: Callable[[str], dict[str, Any]]) -> None:
    numbers = told("tutorial_past_results")
    assert (numbers["past"], numbers["candidates"]) == (2_000, 5_000)
    assert [score["model"] for score in numbers["scores"]] == ["GRIEF", "SoftKI"]
    for score in numbers["scores"]:
        assert score["rmse"] < 0.95 * numbers["sd"]
        assert 0.88 < score["coverage"] <= 1
        assert 0 < score["width"] < 4 * numbers["sd"]
    for run in numbers["runs"]:
        assert min(run["first"]) >= 4  # at random more than 3 come once in 600 times
        assert run["found"][-1] >= run["found"][0]
        assert len(run["found"]) == 2
    assert "by Thompson draws" in numbers["printed"]


def test_wind_is_predicted_ahead_and_forgotten(told: Callable[[str], dict[str, Any]]) -> None:
    numbers = told("tutorial_sensors")
    assert [chosen["memory"] for chosen in numbers["chosen"]] == [None, 6.0]
    assert len(numbers["nll_of_first_half"]) == 2
    without, with_decay = numbers["second_half"]
    assert with_decay["rmse"] < without["rmse"] < min(numbers["baselines_rmse"].values())
    assert 0.9 < with_decay["coverage"] < 0.99
    assert "half weight after 6 h" in numbers["printed"]


def test_a_reading_is_predicted_from_what_was_known_ten_minutes_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    import torch
    import tutorial_sensors as tutorial

    from bo_scale.datasets import TrackData, load_wind

    data, start, end = load_wind(), 6.0, 7.0
    hours = (data.time - data.time[0]) / tutorial.HOUR
    later = (hours >= end - 1 / 3).double().unsqueeze(-1)  # of the last ten minutes predicted, and of the ten before
    changed = TrackData(data.X, data.time, data.Y + 100 * later)
    runs = [tutorial.stream(each, 6.0, 0.5, start, end) for each in (data, changed)]
    shown = torch.tensor(runs[0].hour)
    predicted = [
        torch.tensor(run.error, dtype=torch.float64) + each.Y[(hours >= start) & (hours < end), 0]
        for run, each in zip(runs, (data, changed), strict=True)
    ]
    torch.testing.assert_close(predicted[0], predicted[1])
    assert (shown >= end - 1 / 6).any()


@pytest.mark.filterwarnings("ignore::bo_scale.errors.InterpolationWarning")  # of few eigenfunctions
def test_a_fully_bayesian_gp_of_many_rows_knows_its_noise(told: Callable[[str], dict[str, Any]]) -> None:
    numbers = told("tutorial_million_rows")
    results = numbers["results"]
    assert [(r["model"], r["rows"]) for r in results] == [
        (model, rows) for rows in (500, 20_000) for model in ("GRIEF", "GRIEFBayes")
    ]
    for result in results:
        assert len(result["noise_sd"]) == (32 if result["model"] == "GRIEFBayes" else 1)
        assert 0.08 < min(result["noise_sd"]) <= max(result["noise_sd"]) < 0.15
        assert 0.88 < result["coverage"] < 0.98
        assert result["map_coverage"] < result["whole_coverage"]
    few, many = results[1], results[3]
    assert many["rmse"] < few["rmse"]
    assert max(many["noise_sd"]) - min(many["noise_sd"]) < 0.5 * (max(few["noise_sd"]) - min(few["noise_sd"]))
    assert many["map_coverage"] < 0.5 < 0.85 < many["whole_coverage"]  # what the page warns of, and the remedy
    assert "GRIEFBayes: fitted in" in numbers["printed"]
