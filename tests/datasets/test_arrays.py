from pathlib import Path

import numpy as np
import pytest
import torch

from bo_scale.datasets.arrays import doubles, read_arrays, shipped
from bo_scale.errors import InvalidDataError


def test_a_file_that_ships_is_opened_by_its_name() -> None:
    with shipped("jason3_wind.npz") as npz:
        assert "longitude" in npz.files


def test_arrays_come_in_the_order_asked(tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", a=np.zeros(2), b=np.ones(3), c=np.zeros(1))
    b, a = read_arrays(tmp_path / "mine.npz", ("b", "a"), "Leave path out.")
    assert b.tolist() == [1, 1, 1]
    assert a.tolist() == [0, 0]


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidDataError, match=r"path: no file .*none.npz. Leave path out\."):
        read_arrays(tmp_path / "none.npz", ("a",), "Leave path out.")
    np.savez(tmp_path / "mine.npz", a=np.zeros(2))
    with pytest.raises(InvalidDataError, match=r"mine.npz has no array b, c\."):
        read_arrays(tmp_path / "mine.npz", ("c", "a", "b"), "")


@pytest.mark.parametrize("kind", [np.float32, np.int16, ">f8"])
def test_doubles_of_any_kind_of_number(kind: str) -> None:
    made = doubles(np.arange(4).astype(kind))
    assert made.dtype == torch.float64
    assert made.tolist() == [0, 1, 2, 3]
