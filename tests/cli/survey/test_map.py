from pathlib import Path

import pytest
from commands import run


def test_a_map_has_its_title(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "Written: m.html, " in run(capsys, "map s.gpkg --cells 30 --title Blei --out m.html")
    assert "Blei" in Path("m.html").read_text()
