from pathlib import Path

import numpy as np
import pytest
import torch

from bo_scale.datasets import load_protein
from bo_scale.errors import InvalidDataError


def test_the_sample_is_whole_and_plausible() -> None:
    data = load_protein()
    assert len(data) == 25_000
    assert data.X.shape == (25_000, 9)
    assert data.Y.shape == (25_000, 1)
    assert data.X.dtype == data.Y.dtype == torch.float64
    assert 0.4 < data.Y.min() < 1 < 20 < data.Y.max() < 21
    assert (data.X.mean(0).abs() < 0.05 * data.X.std(0)).all()
    assert data.X.unique(dim=0).shape == data.X.shape
    assert (data.X[1:, 7] >= data.X[:-1, 7]).all()
    assert "CC BY 4.0" in data.source


def test_its_levels_are_fine_enough() -> None:
    data = load_protein()
    for column in data.X.T:
        steps = column.unique().diff()
        assert steps.min() / 2 < 1e-4 * column.std() or len(steps) < 400  # F8 is a count


def test_a_file_of_the_full_set_is_read(tmp_path: Path) -> None:
    X, rmsd = np.random.default_rng(0).random((5, 9)), np.arange(5.0)
    np.savez(tmp_path / "full.npz", X=X, rmsd=rmsd)
    data = load_protein(tmp_path / "full.npz")
    assert torch.equal(data.X, torch.from_numpy(X))
    assert torch.equal(data.Y, torch.arange(5.0).double().unsqueeze(-1))


def test_what_is_not_there_is_said_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(InvalidDataError, match="Leave path out"):
        load_protein(tmp_path / "none.npz")
    np.savez(tmp_path / "other.npz", X=np.zeros((1, 9)))
    with pytest.raises(InvalidDataError, match="no array rmsd"):
        load_protein(tmp_path / "other.npz")
    np.savez(tmp_path / "narrow.npz", X=np.zeros((2, 8)), rmsd=np.zeros(2))
    with pytest.raises(InvalidDataError, match="expected n×9"):
        load_protein(tmp_path / "narrow.npz")
