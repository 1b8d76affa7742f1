from pathlib import Path

import pytest
from commands import refused, run


def test_several_files_have_the_same_cells(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = run(capsys, "predict s.gpkg --size 1000 --out a.csv b.tif")
    assert said.count(" cells of 1000 m") == 2


def test_files_are_judged_before_the_work_is_done(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "sites.csv: this file exists and is not a table of predictions" in refused(
        capsys, "predict s.gpkg --out g.csv sites.csv"
    )
    assert not Path("g.csv").exists()
