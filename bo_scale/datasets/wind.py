"""Wind speeds along the track of the satellite Jason-3, six days of August 2016 (NOAA, public domain)."""

import os
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from torch import Tensor

from bo_scale.datasets.arrays import doubles, read_arrays, shipped
from bo_scale.errors import InvalidDataError

_SAMPLE = "jason3_wind.npz"


@dataclass(frozen=True)
class TrackData:
    """Readings in the order of time, each at the place where the satellite was.

    Attributes:
        X: Longitude, 0 to 360, and latitude in degrees.
        time: Seconds, increasing.
        Y: Wind speed in m/s; some of the lowest are slightly negative in the source.
        source: Source to credit.
    """

    X: Float[Tensor, "n 2"]
    time: Float[Tensor, " n"]
    Y: Float[Tensor, "n 1"]
    source: str = "Jason-3, NOAA, public domain"

    def __len__(self) -> int:
        return len(self.X)


def load_wind(path: str | os.PathLike[str] | None = None) -> TrackData:
    """Load wind speeds over the oceans, one about every ten seconds, with gaps where the satellite was over land.

    Args:
        path: An npz file with the arrays X (longitude, latitude and time in seconds) and y; None for the shipped
            readings, all 18,973 of the source.

    Raises:
        InvalidDataError: if the file does not exist, lacks an array, or is not in the order of time.
    """
    if path is None:
        with shipped(_SAMPLE) as npz:
            levels = np.stack([npz[name] for name in ("longitude", "latitude", "wind")], -1)
            values = npz["lower"] + levels * npz["quantum"]
            return _track(values[:, :2], npz["start"] + npz["ticks"].cumsum() * npz["tick"], values[:, 2])
    instead = (
        "Leave path out for the shipped readings, or save others there as npz with the arrays X (n×3 longitude, "
        "latitude, time in seconds) and y; the source is jason3 in the R package GpGp."
    )
    X, y = read_arrays(path, ("X", "y"), instead)
    if X.ndim != 2 or X.shape[1] != 3 or y.shape != X.shape[:1]:
        raise InvalidDataError(f"path: X and y in {path} have shapes {X.shape} and {y.shape}, expected n×3 and n.")
    if (np.diff(X[:, 2]) < 0).any():
        raise InvalidDataError(f"path: the rows of {path} are not in the order of time; sort them by it.")
    return _track(X[:, :2], X[:, 2], y)


def _track(places: np.ndarray, time: np.ndarray, wind: np.ndarray) -> TrackData:
    return TrackData(doubles(places), doubles(time), doubles(wind).unsqueeze(-1))
