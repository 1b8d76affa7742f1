"""The kriging case on a small field: both sides, limits, and what is said where PyKrige is not there."""

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[2]))
from benchmarks import fields, kriging
from benchmarks.child import in_child_within
from benchmarks.harness import run_case
from benchmarks.store import Store


def in_process(seconds: float, megabytes: int, function: Any, *arguments: Any) -> Any:
    """As in a child, without the imports of a process of its own."""
    return function(*arguments)


@pytest.fixture
def _small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    g = np.random.default_rng(0)
    X = 4 * g.random((100, 2))
    np.savez(tmp_path / "jura.npz", X=X, y=np.exp(np.sin(X[:, 0]) + 0.3 * X[:, 1] + 0.1 * g.standard_normal(100)))
    monkeypatch.setattr(kriging, "SIZES", {"jura": {40: 1}})
    monkeypatch.setattr(kriging, "LAGS", (6,))
    monkeypatch.setattr(kriging, "WEIGHTED", (False,))
    monkeypatch.setattr(kriging, "in_child_within", in_process)


@pytest.mark.usefixtures("_small")
def test_without_its_rivals_their_sides_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pykrige", None)
    monkeypatch.setitem(sys.modules, "pykrige.ok", None)
    monkeypatch.setitem(sys.modules, "gpboost", None)
    run_case("kriging", tmp_path, folder=tmp_path)
    result = Store("kriging", tmp_path).read()
    unit = result["units"]["jura n=40 seed 0"]
    assert (unit["n"], unit["test"]) == (40, 25)
    assert unit["pykrige"]["error"].startswith("not installed")
    assert 0.0 < unit["ours"]["rmse"] < 0.5
    for rival in ("PyKrige", "GPBoost"):
        assert f"- jura, n = 40, {rival}: not installed" in kriging.table(result)
    assert kriging.headline(result) == []


@pytest.mark.usefixtures("_small")
def test_all_sides_see_the_same_split(tmp_path: Path) -> None:
    pytest.importorskip("pykrige")
    pytest.importorskip("gpboost")
    run_case("kriging", tmp_path, folder=tmp_path)
    result = Store("kriging", tmp_path).read()
    unit = result["units"]["jura n=40 seed 0"]
    spread = fields.load_field(tmp_path, "jura")[1].std()
    for side in ("ours", "pykrige", "window", "gpboost"):
        assert unit[side]["rmse"] < 0.7 * spread, side
        assert 0.7 <= unit[side]["coverage_95"] <= 1.0, side
    assert unit["pykrige"]["chosen"]["n_closest_points"] is None
    assert unit["window"]["chosen"]["n_closest_points"] in kriging.WINDOWS
    ((_, ours, rival),) = kriging.headline(result)
    assert "(jura, 40 rows; target: 1.02); 40 rows" in ours
    assert rival == "PyKrige: 40 rows (target: 20×)"


def test_the_published_split_is_the_mask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    g = np.random.default_rng(0)
    held = g.random((60, 1)) < 0.2
    np.savez(tmp_path / "satellite_temp.npz", X=g.random((60, 2)), y=g.random(60), test_mask=held)
    monkeypatch.setattr(kriging, "SIZES", {"satellite_temp": {kriging.MASK: 1}})
    monkeypatch.setattr(
        kriging,
        "in_child_within",
        lambda *a: {
            "rmse": 1.0,
            "crps": 0.5,
            "coverage_95": 0.95,
            "width": 4.0,
            "seconds": {"fit": 1.0},
            "megabytes": 1.0,
        },
    )
    run_case("kriging", tmp_path, folder=tmp_path)
    result = Store("kriging", tmp_path).read()
    unit = result["units"]["satellite_temp n=mask seed 0"]
    assert unit["test"] == held.sum() == 60 - unit["n"]
    assert "satellite_temp, mask" in kriging.table(result)
    _, (_, ours, rival) = kriging.headline(result)
    assert ours == "1, 0.5, 95.0%; 1.0 s"
    assert rival == "GPBoost 1, 0.5, 95.0%; 1.0 s; best published 1.53, 0.83"


def test_a_variance_is_that_of_a_measurement() -> None:
    pytest.importorskip("pykrige")
    xy = np.random.default_rng(0).random((60, 2))
    noisy = np.random.default_rng(1).standard_normal(60)
    options = {"variogram_model": "spherical", "nlags": 6, "weight": False, "n_closest_points": None}
    mean, variance, pseudo = kriging.krige(options, xy, noisy, xy[:5])
    assert not pseudo
    assert (variance > 0.5 * noisy.var()).all()
    assert (abs(mean - noisy[:5]) > 1e-3).any()


def test_a_test_set_is_a_quarter_at_most() -> None:
    train, test = kriging.split(100, kriging.ALL, 0)
    assert (len(train), len(test), len({*train, *test})) == (75, 25, 100)
    train, test = kriging.split(10_000, 500, 0)
    assert (len(train), len(test)) == (500, 2000)
    np.testing.assert_array_equal(test, kriging.split(10_000, 2000, 0)[1])


def runs(field: str, n: int, ours: float, pykrige: float | None) -> dict[str, Any]:
    """A unit as the case stores it; None for a side that failed."""
    rest = {"crps": 1.0, "coverage_95": 0.95, "width": 4.0, "seconds": {"fit": 1.0, "predict": 0.5}, "megabytes": 3.0}
    side = {"error": "TimeoutError: not done in 300 s"} if pykrige is None else {"rmse": pykrige, **rest}
    failed = {"error": "MemoryError: none left"}
    return {"field": field, "n": n, "seed": 0, "ours": {"rmse": ours, **rest}, "pykrige": side, "window": failed}


def test_the_worst_field_and_the_reach_are_shown() -> None:
    units = {
        "a": runs("meuse", 100, 1.03, 1.0),
        "b": runs("jura", 500, 0.9, 1.0),
        "c": runs("malaria", 10_000, 1.0, None),
    }
    ((_, ours, rival),) = kriging.headline({"units": units})
    assert ours == "median 0.965, at most 1.030 (meuse, 100 rows; target: 1.02); 10,000 rows"
    assert rival == "PyKrige: 500 rows (target: 20×)"
    shown = kriging.table({"units": units})
    assert "| jura | 500 | `bo_scale` | 0.9 | 1 | 95.0% | 4 | 0.900 | 1.000 | 1.5 s | 3 |" in shown
    assert "- malaria, n = 10,000, PyKrige: TimeoutError: not done in 300 s" in shown


def test_a_child_is_ended_at_its_limit() -> None:
    with pytest.raises(TimeoutError, match=r"not done in 0\.2 s"):
        in_child_within(0.2, 1000, time.sleep, 60)
