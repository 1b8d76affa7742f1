"""Hyperparameters of a model of a map, and its inputs at places."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from pyproj import CRS

from bo_scale.errors import SurveyError
from bo_scale.survey.geography.globe import in_space
from bo_scale.survey.mapping.anisotropy import Stretch
from bo_scale.survey.mapping.divides import divided
from bo_scale.survey.mapping.kernels import Box
from bo_scale.survey.mapping.temporal import Time
from bo_scale.survey.mapping.trend import Trend

Array = npt.NDArray[np.float64]
Beside = Callable[[Array], Array]
ADDED = ("trend", "time", "stretch", "divides")
"""Attributes of fits that are saved only where they are not None."""


@dataclass(frozen=True)
class Fit:
    """Hyperparameters of a model, as JSON can hold them.

    Attributes:
        kernel: Its name, one of `KERNELS` but "auto".
        count: Sites they were fitted to.
        box: Bounds of the map.
        offset: Mean of the transformed values at the fit.
        unit: Their standard deviation.
        grids: Points a dimension, for every summand; on the globe points in all; none for the exact model.
        values: Parameters by name.
        nugget: Variance that measurements have beyond their known errors, in squared model units over `unit²`.
        isotropic: Whether there is one lengthscale for all directions.
        globe: Well-known text of the map of the world that places are on; None for a map that is true to scale.
        nearest: A `Nearest`, by which maps of many sites are made; None where the model itself makes them.
        settled: Digest of the counts and of their stand-ins at these hyperparameters; empty for other measurements.
        trend: A `Trend` in covariates; None without any.
        time: A `Time`; None for a field without time.
        stretch: Ratio and angle of a `Stretch`, under which the field is isotropic; None for an isotropic field, or one
            with lengthscales of its own to the east and to the north.
        divides: Well-known text of the polygons that correlation goes around; None without any.
        beside: Function that returns covariates at places, `n × q` for `n × 2` metres, NaN where there is none; with
            time, the time that is predicted before them. It is not saved.
    """

    kernel: str
    count: int
    box: Box
    offset: float
    unit: float
    grids: list[list[int]]
    values: dict[str, list[float]]
    nugget: float = 0.0
    isotropic: bool = False
    globe: str | None = None
    nearest: dict[str, Any] | None = None
    settled: str = ""
    trend: dict[str, Any] | None = None
    time: dict[str, Any] | None = None
    stretch: tuple[float, float] | None = None
    divides: str | None = None
    beside: Beside | None = field(default=None, compare=False, repr=False)

    @classmethod
    def of(cls, saved: dict[str, Any], beside: Beside | None = None) -> "Fit":
        """Return the fit that JSON holds, with a function that returns covariates."""
        stretch = saved.get("stretch")
        return cls(
            **{
                **saved,
                "box": tuple(saved["box"]),
                "beside": beside,
                "stretch": None if stretch is None else tuple(stretch),
            }
        )

    @property
    def saved(self) -> dict[str, Any]:
        """The fit as JSON can hold it; without what only surveys with covariates have, if there are none."""
        kept = {name: value for name, value in vars(self).items() if name not in ("beside", *ADDED)}
        return kept | {name: getattr(self, name) for name in ADDED if getattr(self, name) is not None}

    def in_space(self, xy: Array) -> Array:
        """Return places, `n × 2`, in the inputs of the model: stretched, or in more dimensions.

        On the globe they are `n × 3`, as in `globe`; with divides they have further coordinates, as in `divides`.
        """
        if self.divides is not None:
            return np.concatenate([xy, divided(self.divides, self.box).coordinates(xy)], 1)
        if self.stretch is not None:
            return Stretch(*self.stretch).undone(xy)
        return xy if self.globe is None else in_space(xy, CRS.from_wkt(self.globe))

    @property
    def within(self) -> Box:
        """Bounds of the map in the inputs of the model."""
        if self.stretch is None:
            return self.box
        west, south, east, north = self.box
        corners = self.in_space(np.array([[west, south], [west, north], [east, south], [east, north]]))
        (left, bottom), (right, top) = corners.min(0), corners.max(0)
        return float(left), float(bottom), float(right), float(top)

    def columns(self, xy: Array, covariates: Array | None = None) -> Array:
        """Return the columns of the trend at places, `n × p`; none without a trend.

        Args:
            xy: Places, metres.
            covariates: Covariates there, `n × q`, behind the time if there is one, if they are known already.

        Raises:
            SurveyError: if there are places without covariates.
        """
        if self.trend is None:
            return np.empty((len(xy), 0))
        covariates = self.looked_up(xy, covariates)
        found = Trend(**self.trend).columns(covariates if self.time is None else covariates[:, 1:])
        if missing := int((~np.isfinite(found).all(1)).sum()):
            names = ", ".join(self.trend["names"])
            raise SurveyError(
                f"{names}: {missing:,} of {len(xy):,} places have no value, so nothing is predicted there."
            )
        return found

    def looked_up(self, xy: Array, covariates: Array | None) -> Array:
        """Return covariates of places, behind the time if there is one, that may be known already."""
        if covariates is not None:
            return covariates
        assert self.beside is not None, "a trend and a time come with what is known beside places"
        return self.beside(xy)

    def in_space_and_time(self, xy: Array, covariates: Array | None = None) -> Array:
        """Return places as `in_space`, with their times behind them if there are some."""
        if self.time is None:
            return self.in_space(xy)
        return np.concatenate([self.in_space(xy), self.looked_up(xy, covariates)[:, :1]], 1)

    def inputs(self, xy: Array, covariates: Array | None = None) -> Array:
        """Return the inputs of the model at places: where they are, the time, and the columns of the trend."""
        if self.trend is None and self.time is None:
            return self.in_space(xy)
        covariates, parts = self.looked_up(xy, covariates), [self.in_space(xy)]
        if self.time is not None:
            parts.append(Time(**self.time).scaled(covariates[:, :1]))
        return np.concatenate([*parts, self.columns(xy, covariates)], 1)

    def known(self, xy: Array) -> npt.NDArray[np.bool_]:
        """Return which places have all covariates."""
        if self.beside is None:
            return np.ones(len(xy), dtype=np.bool_)
        return np.asarray(np.isfinite(self.beside(xy)).all(1))

    @property
    def width(self) -> int:
        """Number of inputs that say where a place is."""
        if self.divides is not None:
            return 2 + divided(self.divides, self.box).width
        return 2 if self.globe is None else 3

    @property
    def lies_in_space(self) -> bool:
        """Whether places have more than two inputs, so that grids and directions of a plane are of no use."""
        return self.globe is not None or self.divides is not None

    @property
    def first(self) -> int:
        """Number of inputs before the columns of the trend."""
        return self.width + (self.time is not None)

    @property
    def others(self) -> int:
        """Number of inputs beside those that say where a place is."""
        columns = 0 if self.trend is None else sum(map(len, Trend(**self.trend).groups))
        return self.first - self.width + columns
