from pathlib import Path

import numpy as np
import pytest
import torch

from bo_scale.datasets import load_wind
from bo_scale.errors import InvalidDataError


def test_the_readings_are_whole_and_plausible() -> None:
    data = load_wind()
    assert len(data) == 18_973
    assert data.X.shape == (18_973, 2)
    assert data.time.shape == (18_973,)
    assert data.Y.shape == (18_973, 1)
    assert data.X.dtype == data.time.dtype == data.Y.dtype == torch.float64
    assert 0 <= data.X[:, 0].min() < data.X[:, 0].max() <= 360
    assert -67 < data.X[:, 1].min() < data.X[:, 1].max() < 67
    assert -0.2 < data.Y.min() < data.Y.max() < 22
    assert "NOAA" in data.source


def test_they_are_in_the_order_of_time_and_along_a_track() -> None:
    data = load_wind()
    seconds = data.time.diff()
    assert (seconds > 0).all()
    assert seconds.median().item() == pytest.approx(10.19, abs=0.05)
    assert 5.5 * 86_400 < data.time[-1] - data.time[0] < 6.5 * 86_400
    next_one = seconds < 11
    assert (data.X[1:, 1] - data.X[:-1, 1])[next_one].abs().max() < 1


def test_a_file_of_other_readings_is_read(tmp_path: Path) -> None:
    X, y = np.array([[1.0, 2.0, 10.0], [3.0, 4.0, 20.0]]), np.array([5.0, 6.0])
    np.savez(tmp_path / "track.npz", X=X, y=y)
    data = load_wind(tmp_path / "track.npz")
    assert data.X.tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert data.time.tolist() == [10.0, 20.0]
    assert data.Y.tolist() == [[5.0], [6.0]]


def test_what_is_not_there_is_said_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(InvalidDataError, match="Leave path out"):
        load_wind(tmp_path / "none.npz")
    np.savez(tmp_path / "other.npz", X=np.zeros((1, 3)))
    with pytest.raises(InvalidDataError, match="no array y"):
        load_wind(tmp_path / "other.npz")
    np.savez(tmp_path / "narrow.npz", X=np.zeros((2, 2)), y=np.zeros(2))
    with pytest.raises(InvalidDataError, match="expected n×3"):
        load_wind(tmp_path / "narrow.npz")
    np.savez(tmp_path / "mixed.npz", X=np.array([[0.0, 0.0, 2.0], [0.0, 0.0, 1.0]]), y=np.zeros(2))
    with pytest.raises(InvalidDataError, match="order of time"):
        load_wind(tmp_path / "mixed.npz")
