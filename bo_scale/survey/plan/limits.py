"""Rasters that limit a plan: where no site may be, and what a site costs."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from pyproj import CRS

from bo_scale.survey.geography.sampling import require_raster, values_at

Array = npt.NDArray[np.float64]
CONDITION = re.compile(r"(.+?)\s*([<>])\s*(-?[\d.]+(?:[eE][-+]?\d+)?)$")


@dataclass(frozen=True)
class Screen:
    """A raster of places where no site may be.

    Attributes:
        file: The raster.
        sign: "<" or ">" if places below or above a limit are excluded; empty if all with a value other than 0 are.
        limit: The limit.
    """

    file: str
    sign: str = ""
    limit: float = 0.0

    @classmethod
    def parsed(cls, text: str | os.PathLike[str]) -> "Screen":
        """Return the screen that a text such as `lakes.tif` or `slope.tif>30` means.

        Raises:
            SurveyError: if there is no such raster.
        """
        text = os.fspath(text)
        match = None if Path(text).exists() else CONDITION.match(text)
        file, sign, limit = (text, "", "0") if match is None else match.groups()
        require_raster(file)
        return cls(file, sign, float(limit))

    def allows(self, xy: Array, crs: CRS) -> npt.NDArray[np.bool_]:
        """Return which places are not excluded. Where the raster has no value, nothing is."""
        values = values_at(self.file, xy, crs)
        if self.sign == "":
            return np.asarray(np.isnan(values) | (values == 0))
        return np.asarray(~(values < self.limit) if self.sign == "<" else ~(values > self.limit))


@dataclass(frozen=True)
class Costs:
    """A raster of what a site costs; where it has no value above zero, no site may be.

    Attributes:
        file: The raster.
    """

    file: str

    @classmethod
    def parsed(cls, path: str | os.PathLike[str]) -> "Costs":
        """Return the costs in a raster.

        Raises:
            SurveyError: if there is no such raster.
        """
        require_raster(path)
        return cls(os.fspath(path))

    def at(self, xy: Array, crs: CRS) -> Array:
        """Return the costs of places that are allowed."""
        return values_at(self.file, xy, crs)

    def allows(self, xy: Array, crs: CRS) -> npt.NDArray[np.bool_]:
        """Return which places have a cost."""
        return np.asarray(self.at(xy, crs) > 0)
