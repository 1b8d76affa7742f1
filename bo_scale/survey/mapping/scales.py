"""The scale on which a quantity is modelled, and the way back to the user's units.

Skewed quantities are modelled by their logarithm, bounded ones by their logit; known errors follow by the delta method.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import expit, logit, ndtr
from typing_extensions import override

from bo_scale.errors import SurveyError

Array = npt.NDArray[np.float64]
NODES = 32
"""Nodes of Gauss-Hermite quadrature: for a logit with sd 2 moments are right to 1e-6."""


class Scale(ABC):
    """A strictly increasing map from the user's units to those of the model."""

    name: str

    @abstractmethod
    def usable(self, y: Array) -> npt.NDArray[np.bool_]:
        """Return which values the scale can hold."""

    @abstractmethod
    def requirement(self) -> str:
        """Say in words what values must be."""

    @abstractmethod
    def forward(self, y: Array) -> Array:
        """Convert values to the model's units."""

    @abstractmethod
    def backward(self, z: Array) -> Array:
        """Convert values to the user's units."""

    @abstractmethod
    def slope(self, y: Array) -> Array:
        """Return dz/dy."""

    def variance(self, y: Array, sd: Array) -> Array:
        """Return the variance of z for values with a standard deviation, by the delta method."""
        return np.square(sd * self.slope(y))

    def moments(self, mean: Array, sd: Array) -> tuple[Array, Array]:
        """Return mean and standard deviation, in the user's units, of a variable that is normal in the model's."""
        nodes, weights = np.polynomial.hermite_e.hermegauss(NODES)
        weights = weights / weights.sum()
        first, second = np.zeros_like(mean), np.zeros_like(mean)
        middle = self.backward(mean)
        for node, weight in zip(nodes, weights, strict=True):
            step = self.backward(mean + node * sd) - middle  # about the median: no difference of large squares
            first += weight * step
            second += weight * np.square(step)
        return middle + first, np.sqrt(np.maximum(second - np.square(first), 0.0))

    def require(self, threshold: float) -> None:
        """Refuse a threshold that the scale cannot hold.

        Raises:
            SurveyError: saying what it must be.
        """
        if not self.usable(np.asarray([threshold], dtype=np.float64)).all():
            raise SurveyError(f"threshold={threshold:g}: on the scale {self.name!r} it must be {self.requirement()}.")

    def exceedance(self, mean: Array, sd: Array, threshold: float) -> Array:
        """Return the probability of a value above a threshold in the user's units."""
        self.require(threshold)
        at = np.asarray([threshold], dtype=np.float64)
        return np.asarray(ndtr((mean - self.forward(at)) / np.maximum(sd, np.finfo(np.float64).tiny)))


@dataclass(frozen=True)
class Identity(Scale):
    """Values as they are."""

    name: str = "none"

    @override
    def usable(self, y: Array) -> npt.NDArray[np.bool_]:
        return np.isfinite(y)

    @override
    def requirement(self) -> str:
        return "a finite number"

    @override
    def forward(self, y: Array) -> Array:
        return y

    @override
    def backward(self, z: Array) -> Array:
        return z

    @override
    def slope(self, y: Array) -> Array:
        return np.ones_like(y)

    @override
    def moments(self, mean: Array, sd: Array) -> tuple[Array, Array]:
        return mean, sd


@dataclass(frozen=True)
class Log(Scale):
    """z = log(y + a), for positive quantities, or with a > 0 for quantities that may be zero.

    Attributes:
        offset: a.
    """

    offset: float = 0.0
    name: str = "log"

    def __post_init__(self) -> None:
        if not (np.isfinite(self.offset) and self.offset >= 0):
            raise SurveyError(f"offset={self.offset}: give a number that is not negative.")

    @override
    def usable(self, y: Array) -> npt.NDArray[np.bool_]:
        return np.isfinite(y) & (y > 0 if self.offset == 0 else y >= 0)

    @override
    def requirement(self) -> str:
        return "positive" if self.offset == 0 else "zero or above"

    @override
    def forward(self, y: Array) -> Array:
        return np.log(y + self.offset)

    @override
    def backward(self, z: Array) -> Array:
        return np.exp(z) if self.offset == 0 else np.maximum(np.exp(z) - self.offset, 0.0)

    @override
    def slope(self, y: Array) -> Array:
        return 1 / (y + self.offset)

    @override
    def moments(self, mean: Array, sd: Array) -> tuple[Array, Array]:
        """Return E = exp(μ + σ²/2) and sd = E √(exp σ² − 1); with an offset those of what is above zero."""
        if self.offset > 0:
            return super().moments(mean, sd)
        middle = np.exp(mean + np.square(sd) / 2)
        return middle, middle * np.sqrt(np.expm1(np.square(sd)))


@dataclass(frozen=True)
class Amounts(Scale):
    """z = log y of values above zero; zeros say where the quantity is absent, and are modelled apart."""

    name: str = "two-part"

    @override
    def usable(self, y: Array) -> npt.NDArray[np.bool_]:
        return np.isfinite(y) & (y >= 0)

    @override
    def requirement(self) -> str:
        return "zero or above"

    @override
    def require(self, threshold: float) -> None:
        if not (np.isfinite(threshold) and threshold > 0):
            raise SurveyError(f"threshold={threshold:g}: on the scale {self.name!r} it must be positive.")

    @override
    def forward(self, y: Array) -> Array:
        return np.log(y)

    @override
    def backward(self, z: Array) -> Array:
        return np.exp(z)

    @override
    def slope(self, y: Array) -> Array:
        return 1 / y


@dataclass(frozen=True)
class Logit(Scale):
    """z = log((y − a)/(b − y)), for quantities between a and b.

    Attributes:
        lower: a.
        upper: b.
    """

    lower: float = 0.0
    upper: float = 1.0
    name: str = "logit"

    def __post_init__(self) -> None:
        if not (np.isfinite([self.lower, self.upper]).all() and self.lower < self.upper):
            raise SurveyError(f"lower={self.lower}, upper={self.upper}: lower must be below upper, and both finite.")

    @override
    def usable(self, y: Array) -> npt.NDArray[np.bool_]:
        return np.isfinite(y) & (y > self.lower) & (y < self.upper)

    @override
    def requirement(self) -> str:
        return f"above {self.lower:g} and below {self.upper:g}"

    @override
    def forward(self, y: Array) -> Array:
        return np.asarray(logit((y - self.lower) / (self.upper - self.lower)))

    @override
    def backward(self, z: Array) -> Array:
        return self.lower + (self.upper - self.lower) * np.asarray(expit(z))

    @override
    def slope(self, y: Array) -> Array:
        return (self.upper - self.lower) / ((y - self.lower) * (self.upper - y))


SCALES = ("none", "log", "log1p", "two-part", "logit")


def scale_of(name: str, lower: float = 0.0, upper: float = 1.0, offset: float = 0.0) -> Scale:
    """Return a scale by name, with the bounds of a logit and the offset of a logarithm; of log1p it is 1.

    Raises:
        SurveyError: for another name, an offset of another scale, or numbers that the scale cannot have.
    """
    if name not in SCALES:
        raise SurveyError(f"transform={name!r}: choose one of {', '.join(SCALES)}.")
    if offset != 0 and name != "log":
        raise SurveyError(f"offset={offset:g}: only the scale log has one (--transform log --offset {offset:g}).")
    if name == "logit":
        return Logit(lower, upper)
    if name in ("none", "two-part"):
        return Identity() if name == "none" else Amounts()
    return Log(offset) if name == "log" else Log(1.0, name)
