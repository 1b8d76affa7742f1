from pathlib import Path

import numpy as np
import pytest
import torch

from bo_scale.datasets import load_malaria
from bo_scale.errors import InvalidDataError


def test_the_shipped_sample_is_what_it_says() -> None:
    data = load_malaria()
    assert data.X.shape == (12_000, 2)
    assert data.Y.shape == data.sd.shape == (12_000, 1)
    assert data.X.dtype == data.Y.dtype == torch.float64
    assert 11 < data.X[:, 0].min() < data.X[:, 0].max() < 36
    assert -14 < data.X[:, 1].min() < data.X[:, 1].max() < 6
    assert 0 <= data.Y.min() < data.Y.max() < 1
    assert data.X.unique(dim=0).shape == data.X.shape
    assert (data.sd > 0).float().mean() > 0.95


def test_a_file_of_the_full_set_is_read(tmp_path: Path) -> None:
    X, y = np.random.default_rng(0).random((5, 2)), np.arange(5.0)
    np.savez(tmp_path / "full.npz", X=X, y=y, ci95_width=np.full(5, 3.92))
    data = load_malaria(tmp_path / "full.npz")
    assert torch.equal(data.Y, torch.arange(5.0).double().unsqueeze(-1))
    torch.testing.assert_close(data.sd, torch.ones(5, 1).double())


def test_what_is_not_there_is_said_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(InvalidDataError, match="Leave path out"):
        load_malaria(tmp_path / "none.npz")
    np.savez(tmp_path / "other.npz", X=np.zeros((1, 2)), y=np.zeros(1))
    with pytest.raises(InvalidDataError, match="ci95_width"):
        load_malaria(tmp_path / "other.npz")
