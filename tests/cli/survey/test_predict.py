from pathlib import Path

import pandas as pd
import pytest
from commands import run

from bo_scale.cli import main


def test_a_threshold_of_ones_own_counts(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "predict s.gpkg --cells 30 --threshold 0 --out g.csv")
    assert pd.read_csv("g.csv").iloc[:, -1].min() > 0.99


def test_a_title_is_for_maps_alone(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["survey", "predict", "s.gpkg", "--cells", "30", "--out", "g.csv", "--title", "Lead"])
    assert end.value.code == 2
    assert "unrecognized arguments: --title Lead" in capsys.readouterr().err
    assert not Path("g.csv").exists()
