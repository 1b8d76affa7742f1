"""The online case: its measures against definitions, every learner on a small stream, tables and plots of results."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

sys.path.append(str(Path(__file__).parents[2]))
from benchmarks import online, online_learners
from bo_scale import WISKIClassifier


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(online, "CHECKPOINTS", 3)
    monkeypatch.setattr(online, "EXACT_ROWS", 26)
    monkeypatch.setattr(online, "SERIES", 14)
    monkeypatch.setattr(online, "SNAPSHOTS", (5, 8, 11))
    monkeypatch.setattr(online, "SERIES_START", 2)
    monkeypatch.setattr(online, "CLASSES", {"banana": (6, 30)})
    monkeypatch.setattr(online_learners, "SVGP_POINTS", 12)
    monkeypatch.setattr(online_learners, "SVGP_START", 15)
    monkeypatch.setattr(WISKIClassifier, "fit", lambda classifier: classifier)  # has tests of its own


def write(folder: Path) -> None:
    """A regression in five inputs, two classes in two, and a series."""
    g = torch.Generator().manual_seed(0)
    X = torch.rand(40, 5, generator=g).numpy()
    mask = (np.arange(40) % 4 == 0)[:, None].repeat(3, 1)
    np.savez(folder / "skillcraft.npz", X=X, y=np.sin(3 * X[:, 0]) + X[:, 1], test_mask=mask)
    np.savez(folder / "banana.npz", X=X[:, :2], y=np.where(X[:, 0] > X[:, 1], 1, -1), test_mask=mask)
    np.savez(folder / "fx2007.npz", y=np.sin(np.arange(50) / 3.0))


def test_class_scores_are_what_they_are_called() -> None:
    probabilities = torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.3, 0.7], [0.45, 0.55]], dtype=torch.float64)
    found = online.class_scores(probabilities, torch.tensor([0, 1, 1, 1]))
    assert found["accuracy"] == 0.75
    assert found["log_loss"] == pytest.approx(-np.log([0.9, 0.1, 0.7, 0.55]).mean())
    assert found["ece"] == pytest.approx((abs(1.8 - 1) + 0.3 + 0.45) / 4)


@pytest.mark.filterwarnings("ignore::bo_scale.errors.InterpolationWarning")
def test_steps_are_timed_after_few_observations_and_after_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path)
    (tmp_path / "skillcraft.npz").rename(tmp_path / "protein.npz")
    monkeypatch.setattr(online, "STEPS", 4)
    monkeypatch.setattr(online, "PRETRAINING", 0.4)
    unit = online.units(tmp_path)["protein steps"]()
    assert unit["n"] == [12, 26]
    assert all(second > 0 for second in unit["seconds"])
    assert "after 12 observations" in online.table({"units": {"protein steps": unit}})


@pytest.mark.filterwarnings("ignore::bo_scale.errors.InterpolationWarning")
def test_every_learner_streams_and_is_shown(tmp_path: Path) -> None:
    write(tmp_path)
    every = ("WISKI", "exact", "SVGP")
    wanted = [f"fx2007 {model} time" for model in every]
    wanted += [f"skillcraft {model} seed 0" for model in every]
    wanted += [f"banana {model} random seed 0" for model in (*every, "batch")] + ["banana WISKI by region seed 0"]
    assert set(wanted) < set(online.units(tmp_path))
    result: dict[str, Any] = {"units": {}}
    for name in wanted:
        result["units"][name] = online.units(tmp_path)[name]()
    for unit in result["units"].values():
        if "curve" in unit:
            n = unit["curve"]["n"]
            assert n[-1] == (26 if unit["model"] == "exact" else 30)
            assert all(len(values) == len(n) for key, values in unit["curve"].items() if key != "seconds")
            assert len(unit["curve"]["seconds"]) == len(n) - 1
    shown = online.table(result)
    assert shown.count("skillcraft") == 3
    assert shown.count("banana") == 5
    assert "fx2007" in shown
    (row,) = online.headline(result)
    assert row[1].startswith("banana")
    online.plot(result, tmp_path / "plots")
    assert {path.name for path in (tmp_path / "plots").iterdir()} == set(online.PLOTS)
    assert online.table({"units": {}}) == ""


def test_the_headline_is_of_the_end_of_the_streams() -> None:
    def unit(model: str, rmse: float, nll: float) -> dict[str, Any]:
        found = {"rmse": rmse, "nll": nll}
        curve = {name: [9.0, value] for name, value in found.items()}
        return {"data": "elevators", "model": model, **({"curve": curve} if model == "WISKI" else found)}

    units = {"a": unit("WISKI", 0.42, 0.6), "b": unit("WISKI", 0.40, 0.5), "c": unit("batch", 0.4, 0.5)}
    ((_, shown, _),) = online.headline({"units": units})
    assert shown == "elevators +2.5 %, +0.050 nats (target: 5 %, 0.05 nats)"
    assert online.headline({"units": {}}) == []
