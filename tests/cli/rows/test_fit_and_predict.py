"""`bo-scale fit` and `bo-scale predict`: from files to files."""

from pathlib import Path

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from bo_scale.cli import main


@pytest.fixture
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows").mkdir()
    for k in range(2):
        random = np.random.default_rng(k)
        X = random.uniform(0, 100, (300, 2))
        y = np.sin(X / 20).sum(-1) + 0.1 * random.normal(size=300)
        table = pyarrow.table({"a": X[:, 0], "b": X[:, 1], "y": y, "var": np.full(300, 0.01)})
        parquet.write_table(table, tmp_path / "rows" / f"{k}.parquet")
    return tmp_path


def refused(capsys: pytest.CaptureFixture[str], words: str) -> str:
    assert main(words.split()) == 1
    return capsys.readouterr().err


FIT = "fit rows --target y --inputs a,b --model wiski --size 12 --sample 300 --out m.pt"


def test_files_become_a_model_and_predictions(rows: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(f"{FIT} --folder sums".split()) == 0
    said = capsys.readouterr().out
    for part in ("Inputs: a, b. Target: y.", "Model: wiski of 600 rows", "Range of a: 0.", "Noise of y: sd 0.1"):
        assert part in said
    assert len(list((rows / "sums").iterdir())) == 2
    assert main(["predict", "m.pt", "rows/*.parquet", "--out", "new", "--prediction"]) == 0
    assert "Written: new/1.parquet" in capsys.readouterr().out
    table = parquet.read_table(rows / "new" / "1.parquet").to_pandas()
    assert list(table) == ["a", "b", "y", "var", "y_mean", "y_sd"]
    assert np.sqrt(np.mean((table.y - table.y_mean) ** 2)) < 0.13
    assert table.y_sd.between(0.08, 0.15).all()


def test_inputs_are_all_other_numbers_unless_named(rows: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fit = "fit rows/0.parquet --target y --noise var --model wiski --size 8 --sample 100 --out m.pt"
    assert main(fit.split()) == 0
    said = capsys.readouterr().out
    assert "Inputs: a, b." in said
    assert "Noise" not in said


def test_what_does_not_fit_is_refused_with_the_remedy(
    rows: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bo_scale.cli.executors.SECONDS", 0.3)
    assert "'none': no such Parquet or Arrow file" in refused(capsys, "fit none --target y --out m.pt")
    assert "no column z" in refused(capsys, "fit rows --target z --out m.pt")
    assert "--inputs: the target and the noise are none" in refused(capsys, "fit rows --target y --inputs a,y --out m")
    assert "--noise: 2 columns for 1 targets" in refused(capsys, "fit rows --target y --noise a,b --out m.pt")
    assert "--dask tcp://127.0.0.1:1: no scheduler answers" in refused(capsys, f"{FIT} --dask tcp://127.0.0.1:1")
    assert "m.pt: cannot be read" in refused(capsys, "predict m.pt rows --out new")
