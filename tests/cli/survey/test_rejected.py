from pathlib import Path

import pytest
from commands import sites

from bo_scale.cli import main


def test_many_rows_kept_aside_are_counted(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    frame = sites().astype(object)
    frame.loc[0:21, "pb"] = "?"
    frame.to_csv("t.csv", index=False)
    assert main(["survey", "update", "s.gpkg", "t.csv"]) == 1  # nothing was added
    said = capsys.readouterr().out
    assert "'aside': 22." in said
    assert "row 21: pb is not a number: ?" in said
    assert "row 22:" not in said
    assert "and 2 more" in said
