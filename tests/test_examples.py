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


@pytest.mark.filterwarnings("ignore::bo_scale.errors.InterpolationWarning")  # of the model that forgets nothing
def test_drift_runs_and_forgetting_follows_better(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.setattr(sys, "argv", ["drift.py", "--out", str(tmp_path), "--steps", "16", "--decay", "0.9"])
    import drift

    drift.main()
    runs = json.loads((tmp_path / "drift.json").read_text())["runs"]
    assert [run["decay"] for run in runs] == [1.0, 0.9]
    assert runs[0]["effective_count"][-1] == 72
    assert runs[1]["effective_count"][-1] == pytest.approx(10, rel=1e-3)
    assert all(len(run["value"]) == len(run["error"]) == len(run["x"]) == 16 for run in runs)
    assert sum(runs[1]["error"][8:]) < sum(runs[0]["error"][8:])
    assert (tmp_path / "drift.png").exists()
    assert "mean true value" in capsys.readouterr().out
