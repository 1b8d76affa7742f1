"""The examples, run in a short form."""

import json
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


def test_malaria_runs_and_leaves_its_plots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.setattr(sys, "argv", ["malaria.py", "--out", str(tmp_path), "--batches", "2", "--grid-size", "12"])
    import malaria

    malaria.main()
    runs = json.loads((tmp_path / "malaria.json").read_text())["runs"]
    assert [run["strategy"] for run in runs] == ["nipv", "random"]
    assert runs[0]["counts"] == [10, 16, 22]
    assert len(set(runs[0]["sites"])) == 22
    assert all(0 < error < 0.3 for run in runs for error in run["rmse"])
    assert {"maps.png", "rmse.png"} <= {p.name for p in tmp_path.iterdir()}
    assert "nipv" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore::bo_scale.errors.InterpolationWarning")  # twelve observations of a rough function
def test_levy_runs_and_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    arguments = ["levy.py", "--out", str(tmp_path), "--batches", "4", "--journal", str(tmp_path / "run")]
    monkeypatch.setattr(sys, "argv", arguments)
    import levy

    levy.main()
    assert json.loads((tmp_path / "levy.json").read_text())["n"] == [3, 6, 9, 12]
    levy.main()
    assert json.loads((tmp_path / "levy.json").read_text())["n"] == [15, 18, 21, 24]
    assert (tmp_path / "levy.png").exists()
    assert "Seconds a batch" in capsys.readouterr().out
