"""The benchmark of calibration, on a data set of its own."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks import calibration


def test_it_measures_and_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    X = rng.random((120, 2)) * [1.0, 1e4]
    y = 5 + np.sin(6 * X[:, 0]) + 0.1 * rng.standard_normal(120)
    np.savez(tmp_path / "mine.npz", X=X, y=y)
    for name, value in (("DATA_SETS", ("mine",)), ("SIZES", (50, 200)), ("FOLDS", {})):
        monkeypatch.setattr(calibration, name, value)
    units = {name: unit() for name, unit in calibration.units(tmp_path).items()}
    assert len(units) == 2 * len(calibration.MODELS)
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
