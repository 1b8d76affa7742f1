from pathlib import Path

import pytest
from commands import run


def test_a_survey_says_what_there_is(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = run(capsys, "status s.gpkg")
    assert "Measurements: 24." in said
    assert "Plans: 0." in said
