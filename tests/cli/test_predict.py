from pathlib import Path

import pandas as pd
import pytest
from commands import run


def test_a_threshold_of_ones_own_counts(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "predict s.gpkg --cells 30 --threshold 0 --out g.csv")
    assert pd.read_csv("g.csv").iloc[:, -1].min() > 0.99
