"""Files of Arrow's inter-process format serve as Parquet files do."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from made_rows import rows_of, same, wiski

from bo_scale.distributed import Columns, accumulate, fit_many, predict_many, propose_rows
from bo_scale.distributed.fit import bounds_of, sample_of
from bo_scale.distributed.tables import TableFile
from bo_scale.errors import InvalidArgumentError, InvalidDataError

arrow = pytest.importorskip("pyarrow")
from pyarrow import feather, ipc, parquet  # noqa: E402

COLUMNS = Columns(["a", "b"], "y")


def written(folder: Path, ending: str, change: Any = lambda y: y) -> Path:
    """Three files in batches of 120 rows; two of them compressed if they are Arrow's."""
    folder.mkdir()
    for k in range(3):
        X, Y = (values.numpy() for values in rows_of(k))
        table = arrow.table({"word": ["w"] * len(X), "y": change(Y[:, 0]), "b": X[:, 1], "a": X[:, 0]})
        path = folder / f"{k}.{ending}"
        if ending == "parquet":
            parquet.write_table(table, path, row_group_size=120)
        elif k == 0:
            with ipc.new_file(path, table.schema) as writer:
                writer.write_table(table, 120)
        else:
            feather.write_feather(table, path, compression="lz4", chunksize=120)
    return folder


def files(folder: Path) -> list[TableFile]:
    return [TableFile(str(path), COLUMNS) for path in sorted(folder.iterdir())]


@pytest.mark.parametrize("ending", ["arrow", "feather"])
def test_both_formats_are_read_alike(ending: str, tmp_path: Path) -> None:
    one, other = written(tmp_path / "parquet", "parquet"), written(tmp_path / ending, ending)
    found = [accumulate(wiski(), each, columns=COLUMNS, rows=120, progress=False) for each in (one, other)]
    assert same(*found)
    assert torch.equal(bounds_of(files(one)), bounds_of(files(other)))
    for a, b in zip(sample_of(files(one), 50, 0)[:2], sample_of(files(other), 50, 0)[:2], strict=True):
        assert torch.equal(a, b)
    assert files(other)[0].numeric() == ["y", "b", "a"]
    best = [propose_rows(found[0], each, 2, columns=COLUMNS, progress=False) for each in (one, other)]
    assert [(row.row, row.value) for row in best[0]] == [(row.row, row.value) for row in best[1]]
    paths = [predict_many(found[0], each, tmp_path / f"{each.name}-out", columns=COLUMNS) for each in (one, other)]
    assert [path.name for path in paths[1]] == ["0.parquet", "1.parquet", "2.parquet"]
    for a, b in zip(*paths, strict=True):
        tables = [parquet.read_table(path) for path in (a, b)]
        assert tables[0].column_names == tables[1].column_names
        for name in ("a", "y", "y_mean", "y_sd"):  # of other batches, so equal up to rounding
            np.testing.assert_allclose(*(table[name] for table in tables), rtol=1e-10)
    options = {"columns": COLUMNS, "model": "wiski", "size": 10, "sample": 100, "progress": False}
    fitted = [fit_many(each, **options).model for each in (one, other)]
    torch.testing.assert_close(*[each.posterior(rows_of(9)[0]).mean for each in fitted], rtol=1e-9, atol=1e-9)


def test_what_is_wrong_with_an_arrow_file_is_named(tmp_path: Path) -> None:
    folder = written(tmp_path / "rows", "arrow", lambda y: np.where(np.arange(len(y)) == 250, np.nan, y))
    with pytest.raises(InvalidDataError, match=r"number 0 \(.*0\.arrow\): Y: NaN or inf in rows \[250\]"):
        accumulate(wiski(), folder, columns=COLUMNS, progress=False)
    with pytest.raises(InvalidDataError, match="no column depth; there are word, y, b, a"):
        accumulate(wiski(), folder, columns=Columns(["a", "depth"], "y"), progress=False)
    parquet.write_table(arrow.table({"a": [1.0]}), folder / "0.parquet")
    with pytest.raises(InvalidArgumentError, match="two files have one name"):
        predict_many(wiski(), folder, tmp_path / "out", columns=COLUMNS)
    (folder / "1.arrow").write_bytes((folder / "1.arrow").read_bytes()[:200])
    with pytest.raises(InvalidDataError, match=r"1\.arrow\): cannot be read as Arrow"):
        accumulate(wiski(), [folder / "1.arrow"], columns=COLUMNS, progress=False)
