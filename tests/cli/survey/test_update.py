from pathlib import Path

import pytest
from commands import run


def test_rows_that_are_there_are_taken_once_more_only_if_wanted(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "Left out because the survey has them already: 24 " in run(capsys, "update s.gpkg sites.csv")
    said = run(capsys, "update s.gpkg sites.csv --repeats")
    assert "Measurements added: 24." in said
    assert "Left out" not in said
