"""Models of the rows of files: sampled, chosen, summed, saved and loaded."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
import torch
from pyarrow import parquet

from bo_scale.distributed import Columns, FileModel, fit_many, numeric_columns
from bo_scale.distributed.fit import bounds_of, sample_of
from bo_scale.distributed.tables import TableFile
from bo_scale.errors import InvalidArgumentError, InvalidDataError

COLUMNS = Columns(["east", "north"], "lead")


def truth(X: Any) -> Any:
    return 7 * np.sin(X / 40).sum(-1) + 300


def written(folder: Path, files: int = 3, rows: int = 400, statistics: bool = True, **more: Any) -> Path:
    """Files in raw units, with a column of words, in row groups of 150."""
    folder.mkdir(exist_ok=True)
    for k in range(files):
        random = np.random.default_rng(k)
        X = random.uniform(-50, 200, (rows, 2))
        y = truth(X) + 0.2 * random.normal(size=rows)
        columns = {"word": ["w"] * rows, "lead": y, "east": X[:, 0], "north": X[:, 1], "var": np.full(rows, 0.04)}
        table = pyarrow.table({**columns, **{name: make(rows) for name, make in more.items()}})
        parquet.write_table(table, folder / f"{k}.parquet", row_group_size=150, write_statistics=statistics)
    return folder


def error(found: FileModel) -> float:
    X = 200 * torch.rand(200, 2, dtype=torch.float64)
    mean = found.model.posterior(X).mean.detach().squeeze(-1).numpy()
    return float(np.sqrt(np.mean((mean - truth(X.numpy())) ** 2)))


def test_a_model_of_all_rows_is_in_the_units_of_the_files_and_is_the_same_once_loaded(tmp_path: Path) -> None:
    found = fit_many(written(tmp_path / "rows"), columns=COLUMNS, model="wiski", size=20, sample=500, progress=False)
    assert found.model.num_observations == 1200
    assert error(found) < 0.1
    assert found.noise_sds()[0] == pytest.approx(0.2, rel=0.15)
    found.save(tmp_path / "m.pt")
    again = FileModel.load(tmp_path / "m.pt")
    at = 150 * torch.rand(20, 2, dtype=torch.float64)
    for name in ("mean", "variance"):
        assert torch.equal(getattr(found.model.posterior(at), name), getattr(again.model.posterior(at), name))
    assert (again.columns.groups, again.kind, again.options) == (found.columns.groups, "wiski", {"grid_size": 20})
    assert torch.equal(again.bounds, found.bounds)


@pytest.mark.parametrize(("model", "size"), [("grief", 100), ("softki", 60)])
def test_models_that_learn_features_keep_those_of_the_sample(model: str, size: int, tmp_path: Path) -> None:
    folder, options = written(tmp_path / "rows"), {"sample": 300, "progress": False}
    found = fit_many(folder, columns=COLUMNS, model=model, size=size, **options)
    assert found.model.num_observations == 1200
    assert error(found) < 0.4
    found.save(tmp_path / "m.pt")
    at = 150 * torch.rand(5, 2, dtype=torch.float64)
    assert torch.equal(FileModel.load(tmp_path / "m.pt").model.posterior(at).mean, found.model.posterior(at).mean)


def test_the_model_is_chosen_by_rows_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scores = {"wiski": 1.0, "grief": 1.5, "softki": 1.505}
    monkeypatch.setattr("bo_scale.distributed.fit._score", lambda kind, *_: scores[kind])
    found = fit_many(written(tmp_path / "rows"), columns=COLUMNS, sample=200, progress=False)
    assert (found.kind, found.scores) == ("grief", scores)


def test_noise_variances_are_a_column(tmp_path: Path) -> None:
    known = Columns(COLUMNS.inputs, "lead", "var")
    found = fit_many(written(tmp_path / "rows"), columns=known, model="wiski", size=12, sample=200, progress=False)
    assert found.noise_sds() == []
    found.save(tmp_path / "m.pt")
    assert FileModel.load(tmp_path / "m.pt").columns.groups == (["east", "north"], ["lead"], ["var"])


def test_ranges_are_those_of_all_rows_with_and_without_statistics_of_the_files(tmp_path: Path) -> None:
    found = []
    for statistics in (True, False):
        folder = written(tmp_path / str(statistics), statistics=statistics)
        found.append(bounds_of([TableFile(str(path), COLUMNS) for path in sorted(folder.iterdir())]))
    assert torch.equal(*found)
    every = np.concatenate([np.random.default_rng(k).uniform(-50, 200, (400, 2)) for k in range(3)])
    np.testing.assert_array_equal(found[0].numpy(), [every.min(0), every.max(0)])


def test_samples_come_from_all_groups_and_leave_out_what_is_no_number(tmp_path: Path) -> None:
    folder = written(tmp_path / "rows", lead=lambda n: np.where(np.arange(n) % 4 == 0, np.nan, 1.0))
    files = [TableFile(str(path), COLUMNS) for path in sorted(folder.iterdir())]
    X, Y, noise = sample_of(files, 120, seed=0)
    assert noise is None
    assert 60 <= len(X) <= 130
    assert Y.isfinite().all()
    assert torch.equal(sample_of(files, 120, seed=0)[0], X)
    assert not torch.equal(sample_of(files, 120, seed=1)[0][:10], X[:10])
    assert len(sample_of(files, 10**6, seed=0)[0]) == 900


def test_a_constant_input_is_harmless(tmp_path: Path) -> None:
    folder = written(tmp_path / "rows", constant=lambda n: np.full(n, 3.0))
    columns = Columns(["east", "constant", "north"], "lead")
    found = fit_many(folder, columns=columns, model="grief", size=100, sample=300, progress=False)
    with torch.no_grad():
        mean = found.model.posterior(torch.tensor([[50.0, 3.0, 80.0]], dtype=torch.float64)).mean.item()
    assert mean == pytest.approx(truth(np.array([50.0, 80.0])), abs=0.5)


def test_columns_of_numbers_are_found(tmp_path: Path) -> None:
    assert numeric_columns(written(tmp_path / "rows")) == ["lead", "east", "north", "var"]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"model": "cagp"}, InvalidArgumentError, "model='cagp': choose 'auto', 'wiski'"),
        ({"size": 5}, InvalidArgumentError, "size=5: it belongs to a model"),
        ({"columns": Columns(["east", "depth"], "lead")}, InvalidDataError, "no column depth; there are word, lead"),
        ({"columns": Columns(["east", "word"], "lead")}, InvalidDataError, "column word holds string"),
        ({"columns": Columns(list("abcde"), "lead"), "model": "wiski"}, InvalidArgumentError, "serves 4 inputs, not 5"),
    ],
)
def test_what_does_not_fit_is_refused(options: Any, error: type[Exception], message: str, tmp_path: Path) -> None:
    with pytest.raises(error, match=message):
        fit_many(written(tmp_path / "rows", files=1), **{"columns": COLUMNS, "progress": False, **options})


def test_too_few_rows_infinite_ranges_and_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidDataError, match=r"5 rows without NaN\. A model needs 8"):
        fit_many(written(tmp_path / "few", files=1, rows=5), columns=COLUMNS, progress=False)
    for k, statistics in enumerate((True, False)):
        wrong = {"north": lambda n: np.where(np.arange(n) == 2, -math.inf, 1.0), "statistics": statistics}
        folder = written(tmp_path / f"inf{k}", files=1, **wrong)
        with pytest.raises(InvalidDataError, match="columns: north: no finite range"):
            fit_many(folder, columns=COLUMNS, progress=False)
    (tmp_path / "m.pt").write_bytes(b"no model")
    with pytest.raises(InvalidDataError, match=r"not a model that `fit_many` or `bo-scale fit` has saved \(\w+: "):
        FileModel.load(tmp_path / "m.pt")
    with pytest.raises(InvalidDataError, match="cannot be read"):
        FileModel.load(tmp_path / "none.pt")
