"""Malaria incidence in Central Africa, 2017 (Malaria Atlas Project, CC BY)."""

import os
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from torch import Tensor

from bo_scale.datasets.arrays import doubles, read_arrays, shipped

_SAMPLE = "malaria_central_africa_2017_sample.npz"
_SD_OF_CI95 = 1 / 3.92


@dataclass(frozen=True)
class SpatialData:
    """Values at places.

    Attributes:
        X: Longitude and latitude in degrees.
        Y: Cases per person and year.
        sd: Standard deviation of Y, from the 95 % interval of the source.
        source: Source to credit.
    """

    X: Float[Tensor, "n 2"]
    Y: Float[Tensor, "n 1"]
    sd: Float[Tensor, "n 1"]
    source: str = "Malaria Atlas Project, CC BY"

    def __len__(self) -> int:
        return len(self.X)


def load_malaria(path: str | os.PathLike[str] | None = None) -> SpatialData:
    """Load the estimated *Plasmodium falciparum* incidence of 2017.

    Args:
        path: An npz file of the full set with arrays X (longitude, latitude), y and ci95_width; None for the shipped
            sample of 12,000 pixels.

    Raises:
        InvalidDataError: if the file does not exist or lacks an array.
    """
    if path is None:
        with shipped(_SAMPLE) as npz:
            lon, lat = npz["origin"][0] + npz["column"] * npz["pitch"], npz["origin"][1] - npz["row"] * npz["pitch"]
            y, width = npz["incidence"] * npz["quantum"], npz["ci95_width"] * npz["quantum"]
            return _spatial(np.stack([lon, lat], -1), y, width)
    instead = (
        "Leave path out for the shipped sample, or save the full set there as npz with the arrays X (n×2 longitude, "
        "latitude), y and ci95_width; it is in the R package pixelate."
    )
    return _spatial(*read_arrays(path, ("X", "y", "ci95_width"), instead))


def _spatial(X: np.ndarray, y: np.ndarray, ci95_width: np.ndarray) -> SpatialData:
    return SpatialData(doubles(X), doubles(y).unsqueeze(-1), doubles(ci95_width).unsqueeze(-1) * _SD_OF_CI95)
