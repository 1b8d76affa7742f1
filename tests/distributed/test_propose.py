"""The best rows of files: exactly those of all rows in memory, for any executor."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow
import pytest
import torch
from botorch.acquisition import UpperConfidenceBound
from botorch.optim import optimize_acqf_discrete
from made_rows import rows_of, wiski
from pyarrow import parquet
from torch import Tensor

from bo_scale import CaGP
from bo_scale.decisions.thompson import draw_functions
from bo_scale.distributed import Columns, propose_rows
from bo_scale.errors import InvalidArgumentError, InvalidDataError, WrongTypeError
from bo_scale.random import seeded

COLUMNS, QUIET = Columns(["a", "b"], "y"), {"progress": False}


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, Tensor]:
    """Three files, read by parts of 100 rows, and all their rows."""
    monkeypatch.setattr("bo_scale.distributed.propose.ROWS", 100)
    parts = [rows_of(10 + k, 250)[0] for k in range(3)]
    for k, X in enumerate(parts):
        table = pyarrow.table({"name": [f"{k}-{i}" for i in range(250)], "a": X[:, 0].numpy(), "b": X[:, 1].numpy()})
        parquet.write_table(table, tmp_path / f"{k}.parquet", row_group_size=70)
    return str(tmp_path / "*.parquet"), torch.cat(parts)


@pytest.mark.parametrize("build", [wiski, lambda: CaGP(*rows_of(99, 60), num_actions=20)], ids=["WISKI", "CaGP"])
def test_each_row_is_the_best_of_all_for_a_function_of_the_posterior(build: Any, files: Any) -> None:
    model, (sources, every) = build().eval(), files
    found = propose_rows(model, sources, 5, columns=COLUMNS, seed=3, **QUIET)
    with seeded(3, torch.device("cpu")), torch.no_grad():
        values = draw_functions(model, 5)(every.unsqueeze(0)).reshape(5, -1)
    best = values.argmax(-1)
    taken = list[int]()
    for k, each in enumerate(found):
        place = (
            int(best[k])
            if int(best[k]) not in taken
            else next(i for i in values[k].argsort(descending=True).tolist() if i not in taken)
        )
        taken.append(place)
        assert torch.equal(each.x, every[place])
        assert each.value == pytest.approx(float(values[k, place]), rel=1e-9)
        assert (Path(each.path).name, each.row) == (f"{place // 250}.parquet", place % 250)
    with ThreadPoolExecutor(3) as threads:
        again = propose_rows(model, sources, 5, columns=COLUMNS, seed=3, executor=threads, **QUIET)
    assert [(each.path, each.row, each.value) for each in again] == [(e.path, e.row, e.value) for e in found]


def test_an_acquisition_function_chooses_as_if_all_rows_were_in_memory(files: Any) -> None:
    sources, every = files
    acquisition = UpperConfidenceBound(wiski().eval(), beta=4.0)
    (found,) = propose_rows(acquisition.model, sources, columns=COLUMNS, acquisition=acquisition, **QUIET)
    x, value = optimize_acqf_discrete(acquisition, 1, every)
    assert torch.equal(found.x, x[0])
    assert found.value == pytest.approx(float(value))
    others = propose_rows(
        acquisition.model, sources, columns=COLUMNS, acquisition=acquisition, avoid=found.x.unsqueeze(0), **QUIET
    )
    assert not torch.equal(others[0].x, found.x)


def test_a_batch_of_an_acquisition_function_is_that_of_all_rows(files: Any) -> None:
    from botorch.acquisition import qUpperConfidenceBound
    from botorch.sampling import SobolQMCNormalSampler

    sources, every = files
    sampler = SobolQMCNormalSampler(torch.Size([32]), seed=0)
    acquisition = qUpperConfidenceBound(wiski().eval(), 4.0, sampler=sampler)
    found = propose_rows(acquisition.model, sources, 3, columns=COLUMNS, acquisition=acquisition, **QUIET)
    X, _ = optimize_acqf_discrete(qUpperConfidenceBound(wiski().eval(), 4.0, sampler=sampler), 3, every)
    assert torch.equal(torch.stack([each.x for each in found]), X)


def test_equal_rows_are_proposed_once_and_too_few_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bo_scale.distributed.propose.ROWS", 8)
    table = pyarrow.table({"a": [0.5] * 20 + [0.2], "b": [0.5] * 20 + [0.7]})
    for name in ("0.parquet", "1.parquet"):
        parquet.write_table(table, tmp_path / name)
    found = propose_rows(wiski(), tmp_path, 2, columns=COLUMNS, **QUIET)
    assert sorted(each.row for each in found) == [0, 20]
    assert {Path(each.path).name for each in found} == {"0.parquet"}
    with pytest.raises(InvalidDataError, match="different rows that are not in avoid, for q=3"):
        propose_rows(wiski(), tmp_path, 3, columns=COLUMNS, **QUIET)


def test_what_does_not_fit_is_refused(files: Any, tmp_path: Path) -> None:
    sources, _ = files
    with pytest.raises(InvalidArgumentError, match="q=0"):
        propose_rows(wiski(), sources, 0, columns=COLUMNS, **QUIET)
    with pytest.raises(InvalidArgumentError, match="1 inputs for a model of 2"):
        propose_rows(wiski(), sources, columns=Columns(["a"], "y"), **QUIET)
    with pytest.raises(InvalidDataError, match=r"0\.parquet: no column c"):
        propose_rows(wiski(), sources, columns=Columns(["a", "c"], "y"), **QUIET)
    X, y = rows_of(1, 30)
    two = CaGP(X, torch.cat([y, y], -1), num_actions=5)
    with pytest.raises(WrongTypeError, match="2 outputs"):
        propose_rows(two, sources, columns=COLUMNS, **QUIET)
