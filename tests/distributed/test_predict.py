"""Predictions for Parquet files: those of the model, whole or not there, and not made twice."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from made_rows import KillsOnce, rows_of

from bo_scale import WISKI, CaGP
from bo_scale.distributed import Columns, predict_many
from bo_scale.errors import InvalidArgumentError, InvalidDataError

arrow = pytest.importorskip("pyarrow")
from pyarrow import parquet  # noqa: E402

COLUMNS = Columns(["a", "b"], "y")
BOX = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
MODELS = {
    "WISKI": lambda: WISKI(*rows_of(0), grid_size=10, bounds=BOX),
    "CaGP": lambda: CaGP(*rows_of(0, 40), num_actions=10),
}


@pytest.fixture
def places(tmp_path: Path) -> Path:
    folder = tmp_path / "places"
    folder.mkdir()
    for k in range(3):
        X = rows_of(10 + k)[0].numpy()
        names = [f"{k}-{row}" for row in range(len(X))]
        parquet.write_table(arrow.table({"name": names, "b": X[:, 1], "a": X[:, 0]}), folder / f"{k}.parquet")
    return folder


@pytest.mark.parametrize("build", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("noise", [False, True])
def test_predictions_are_those_of_the_model(build: Any, noise: bool, places: Path, tmp_path: Path) -> None:
    model = build()
    found = predict_many(model, places, tmp_path / "out", columns=COLUMNS, observation_noise=noise, progress=False)
    assert [path.name for path in found] == ["0.parquet", "1.parquet", "2.parquet"]
    for k, path in enumerate(found):
        table = parquet.read_table(path)
        assert table.column_names == ["name", "b", "a", "y_mean", "y_sd"]
        assert table["name"][7].as_py() == f"{k}-7"
        expected = model.posterior(rows_of(10 + k)[0], observation_noise=noise)
        np.testing.assert_allclose(table["y_mean"], expected.mean[:, 0].detach(), rtol=1e-10)
        np.testing.assert_allclose(table["y_sd"], expected.variance[:, 0].sqrt().detach(), rtol=1e-6)


def test_only_what_has_changed_is_made_again(places: Path, tmp_path: Path) -> None:
    model, out = MODELS["WISKI"](), tmp_path / "out"

    def made(**options: Any) -> list[str]:
        before = {path.name: path.stat().st_mtime_ns for path in out.glob("*.parquet")}
        given = {"model": model, "columns": COLUMNS, "progress": False, **options}
        predict_many(given.pop("model"), places, out, **given)
        return sorted(path.name for path in out.glob("*.parquet") if path.stat().st_mtime_ns != before.get(path.name))

    every = ["0.parquet", "1.parquet", "2.parquet"]
    assert made() == every
    model.posterior(BOX)
    assert made() == []
    (out / "0.parquet").write_bytes(b"damaged")
    X = rows_of(5)[0].numpy()
    parquet.write_table(arrow.table({"a": X[:, 0], "b": X[:, 1]}), places / "2.parquet")
    assert made() == ["0.parquet", "2.parquet"]
    assert made(observation_noise=True) == every
    assert made(model=model.condition_on_observations(*rows_of(3))) == every


def test_predictions_are_the_same_although_a_process_is_killed(places: Path, tmp_path: Path) -> None:
    model = WISKI(*rows_of(0), grid_size=10, bounds=BOX, input_transform=KillsOnce(tmp_path / "killed"))
    found = predict_many(model, places, tmp_path / "out", columns=COLUMNS, executor=1, progress=False)
    assert (tmp_path / "killed").exists()
    alone = predict_many(model, places, tmp_path / "alone", columns=COLUMNS, progress=False)
    assert [parquet.read_table(path) for path in found] == [parquet.read_table(path) for path in alone]


def test_what_is_wrong_is_named(places: Path, tmp_path: Path) -> None:
    model, out = MODELS["WISKI"](), tmp_path / "out"
    with pytest.raises(InvalidArgumentError, match="it is the folder of the sources"):
        predict_many(model, places, places, columns=COLUMNS)
    with pytest.raises(InvalidArgumentError, match="1 inputs for a model of 2"):
        predict_many(model, places, out, columns=Columns(["a"], "y"))
    with pytest.raises(InvalidArgumentError, match="two files have one name"):
        predict_many(model, [places, places], out, columns=COLUMNS)
    X = rows_of(5)[0].numpy()
    X[[3, 250], 0] = np.nan
    parquet.write_table(arrow.table({"a": X[:, 0], "b": X[:, 1]}), places / "1.parquet")
    with pytest.raises(InvalidDataError, match=r"1\.parquet: X: NaN or inf in rows \[3, 250\]"):
        predict_many(model, places, out, columns=COLUMNS, progress=False)
    assert [path.name for path in out.iterdir()] == ["0.parquet"]
