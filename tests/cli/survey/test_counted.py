from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from commands import run


def test_rates_are_mapped(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"x": 4e5 + rng.uniform(0, 1e4, 40), "y": 5.6e6 + rng.uniform(0, 1e4, 40)})
    people = rng.integers(10, 500, 40)
    table.assign(cases=rng.poisson(0.02 * people), people=people).to_csv("cases.csv", index=False)
    run(capsys, "init cases.csv --count cases --exposure people --crs EPSG:25832 --kernel matern32 --out c.gpkg")
    said = run(capsys, "predict c.gpkg --cells 100 --threshold 0.02 --out map.csv")
    assert "Above 0.02, with 90 % intervals" in said
    assert (pd.read_csv("map.csv")["mean"] > 0).all()
