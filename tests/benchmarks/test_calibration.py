"""The benchmark of calibration, on a data set of its own."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import calibration


def test_it_measures_and_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    X = rng.random((120, 2)) * [1.0, 1e4]
    y = 5 + np.sin(6 * X[:, 0]) + 0.1 * rng.standard_normal(120)
    np.savez(tmp_path / "mine.npz", X=X, y=y)
    for name, value in (("DATA_SETS", ("mine",)), ("SIZES", (50, 200)), ("FOLDS", {50: 2})):
        monkeypatch.setattr(calibration, name, value)
    units = {name: unit() for name, unit in calibration.units(tmp_path).items()}
    assert len(units) == 3 * len(calibration.MODELS)
    for unit in units.values():
        assert unit["rmse"] < 0.6
        assert 0.7 < unit["coverage"][-1] <= 1
        assert 0 < unit["width"] < 3.9
    assert units["mine n=50 choose split 0"]["chosen"].startswith("exact GP")
    result = {"case": "calibration", "units": units}
    shown = calibration.table(result)
    assert "| 50 | choose |" in shown
    assert "| mine | 200 |" in shown
    ((_, ours, rival),) = calibration.headline(result)
    assert "choose" in ours
    assert "SingleTaskGP" in rival


def test_it_says_how_far_behind_the_best_model_in_hindsight() -> None:
    def unit(data: str, model: str, fold: int, rmse: float, nll: float, seconds: float) -> dict[str, Any]:
        coverage = [0.5, 0.8, 0.9 if data == "a" else 0.97]
        shared = {"width": 2.0, "chosen": None, "inputs": 2, "rows": 50, "n": 50}
        return {**shared, "data": data, "model": model, "fold": fold, "rmse": rmse, "nll": nll, "seconds": seconds} | {
            "coverage": coverage
        }

    units = [
        unit("a", "choose", 0, 0.5, 1.0, 4.0),
        unit("a", "choose", 1, 0.6, 1.2, 4.0),
        unit("a", "CaGP", 0, 0.5, 0.9, 2.0),
        unit("a", "CaGP", 1, 0.5, 1.1, 2.0),
        unit("a", "GRIEF", 0, 0.4, 7.0, 1.0),
        unit("b", "choose", 0, 0.3, 0.0, 1.0),
        unit("b", "choose", 1, 0.3, 0.0, 1.0),
        unit("b", "CaGP", 0, 0.3, 8.0, 1.0),
        unit("b", "CaGP", 1, 0.3, 1.0, 1.0),
    ]
    row = calibration._beside_the_best(50, units)
    assert row == ["50", "2", "5.0 % (10.0 %)", "0.050 (0.10)", "90 to 97 %", "1.5"]
    assert calibration._beside_the_best(50, units[2:4]) == []


def test_every_data_set_counts_once_whatever_its_number_of_splits() -> None:
    unit = {"nll": 0.0, "coverage": [0.5, 0.8, 0.95], "width": 1.0}
    units = [{**unit, "data": "a", "fold": fold, "rmse": 0.2, "seconds": 1.0} for fold in range(5)]
    units += [{**unit, "data": name, "fold": 0, "rmse": 0.5, "seconds": 9.0} for name in ("b", "c")]
    row = calibration._means(units, {(unit["data"], unit["fold"]): unit for unit in units})
    assert row == ["0.400", "0.00", "0.00 (0.00)", "50 %", "80 %", "95 %", "1.00", "9.0 s"]


def test_a_log_normal_prediction_is_scored_by_its_own_density_and_quantiles() -> None:
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(300, 2, generator=generator, dtype=torch.float64)
    y = torch.exp(4 * X[:, 0] + 0.5 * torch.randn(300, generator=generator, dtype=torch.float64))
    logs, plain = (calibration.evaluated(X, y, 100, model, 0) for model in (calibration.LOG_TARGETS, "choose"))
    assert logs["chosen"].startswith("exact GP of log targets")
    assert logs["nll"] < plain["nll"] - 0.5
    assert 0.85 < logs["coverage"][-1] < 1
    assert logs["width"] < plain["width"]
