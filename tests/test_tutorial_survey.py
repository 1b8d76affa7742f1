"""The tutorial's script, run in its short form; the sections that its page includes."""

import json
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SCRIPT, PAGE = ROOT / "examples" / "tutorial_survey.py", ROOT / "docs" / "tutorials" / "survey.md"


def test_the_map_gains_from_a_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(SCRIPT.parent)
    monkeypatch.setattr(sys, "argv", [SCRIPT.name, "--short", "--out", str(tmp_path)])
    import tutorial_survey

    tutorial_survey.main()
    told = json.loads((tmp_path / "tutorial_survey.json").read_text())
    before, after = told["history"]
    assert (before["sites"], after["sites"]) == (60, 66)
    assert after["sd"] < before["sd"]
    assert after["rmse"] < 1.1 * before["rmse"]
    assert all(0.8 < each["coverage"] <= 1 for each in (before, after))
    low, mean, high = told["share_above"]
    assert 0 <= low <= mean <= high <= 1
    assert low < high
    assert list(tutorial_survey.Survey(tmp_path / "malaria.gpkg").planned.status) == ["measured"] * 6
    for name in ("before.png", "after.html", "after.png", "after.tif", "next.csv"):
        assert (tmp_path / name).stat().st_size > 200
    said = capsys.readouterr().out
    assert "Measured: P1, P2, P3, P4, P5, P6." in said
    assert "Above 0.3, with 90 % intervals: " in said


def test_its_page_includes_every_section() -> None:
    made = re.findall(r"# --8<-- \[start:(\w+)\]", SCRIPT.read_text())
    ended = re.findall(r"# --8<-- \[end:(\w+)\]", SCRIPT.read_text())
    shown = re.findall(r'--8<-- "examples/tutorial_survey.py:(\w+)"', PAGE.read_text())
    assert made == ended
    assert sorted(made) == sorted(shown)
