"""Forecasts of new measurements at places: the quantity there, and what a measurement varies about it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
from scipy.special import bdtr, expit, ndtr, ndtri, pdtr
from typing_extensions import override

from bo_scale.survey.mapping.forecast import Forecast, Scaled, TwoPart
from bo_scale.survey.mapping.likelihoods import NODES, Poisson
from bo_scale.survey.mapping.scales import Amounts, Scale
from bo_scale.survey.mapping.surface import Surface

Array = npt.NDArray[np.float64]
LEVELS = 200
"""Quantiles by which the score of a distribution is computed: of a normal one it is right to 0.1 %."""
RARE = 1e-12
"""Probability of larger counts than those among which quantiles are sought."""


@runtime_checkable
class Measurement(Forecast, Protocol):
    """Distributions of new measurements at places, in the user's units."""

    def below(self, value: Array) -> Array:
        """Return the probabilities of less than each place's value, and half of that of the value itself."""


@dataclass(frozen=True)
class MeasuredAmount(Measurement):
    """A measurement that is zero where the quantity is absent: 0 with probability 1 − p, else log y ~ N(μ, σ²).

    Attributes:
        present: p, its mean over what is not known of it.
        mean: μ.
        sd: σ, with the error of the measurement.
    """

    present: Array
    mean: Array
    sd: Array

    @classmethod
    def of(cls, amount: tuple[Array, Array], presence: tuple[Array, Array]) -> "MeasuredAmount":
        """Return the forecast of normal log amounts and normal logits of presence; means and deviations of each."""
        return cls(_averaged(lambda z: np.asarray(expit(z)), *presence), *amount)

    @override
    def moments(self) -> tuple[Array, Array]:
        square = np.square(self.sd)
        middle = self.present * np.exp(self.mean + square / 2)
        second = self.present * np.exp(2 * self.mean + 2 * square)
        return middle, np.sqrt(np.maximum(second - np.square(middle), 0.0))

    @override
    def exceedance(self, threshold: float) -> Array:
        return 1 - self._up_to(np.full(len(self.mean), threshold))

    @override
    def quantile(self, share: float) -> Array:
        within = (share - (1 - self.present)) / np.maximum(self.present, 1e-300)
        with np.errstate(invalid="ignore"):
            return np.where(within > 0, np.exp(self.mean + self.sd * ndtri(np.clip(within, 0.0, 1.0))), 0.0)

    @override
    def below(self, value: Array) -> Array:
        return np.where(value > 0, self._up_to(value), (1 - self.present) / 2)

    def _up_to(self, value: Array) -> Array:
        with np.errstate(divide="ignore"):
            return np.asarray(1 - self.present * (1 - ndtr((np.log(value) - self.mean) / np.maximum(self.sd, 1e-300))))


@dataclass(frozen=True)
class MeasuredCount(Measurement):
    """A share k/n or a rate y/e that is counted: z ~ N(μ, σ²), and k ~ Bin(n, expit z), or y ~ Poisson(e exp z).

    Attributes:
        mean: μ.
        sd: σ, with what places vary beyond the map.
        of: n, or e.
        exposed: Whether these are exposures.
    """

    mean: Array
    sd: Array
    of: Array
    exposed: bool

    @override
    def moments(self) -> tuple[Array, Array]:
        first = _averaged(self._mean, self.mean, self.sd)
        second = _averaged(lambda z: np.square(self._mean(z)) + self._own(z), self.mean, self.sd)
        return first, np.sqrt(np.maximum(second - np.square(first), 0.0))

    @override
    def exceedance(self, threshold: float) -> Array:
        return 1 - self._up_to(_counts(threshold, self.of))

    @override
    def quantile(self, share: float) -> Array:
        """Return the least shares or rates that at most so many exceed, by bisection among the counts."""
        low, high = np.full(len(self.mean), -1.0), self._most()
        while (high - low > 1).any():
            middle = np.floor((low + high) / 2)
            enough = self._up_to(middle) >= share
            low, high = np.where(enough, low, middle), np.where(enough, middle, high)
        return high / self.of

    @override
    def below(self, value: Array) -> Array:
        up_to, less = _counts(value, self.of), -_counts(-value, self.of) - 1
        return (np.where(less >= 0, self._up_to(np.maximum(less, 0.0)), 0.0) + self._up_to(up_to)) / 2

    def _most(self) -> Array:
        """Return counts that are hardly ever exceeded."""
        if not self.exposed:
            return np.floor(self.of)
        largest = self.of * np.exp(np.minimum(self.mean + 8 * self.sd, 60.0))
        return np.ceil(largest - np.log(RARE) + 8 * np.sqrt(largest))

    def _mean(self, z: Array) -> Array:
        return np.exp(z) if self.exposed else np.asarray(expit(z))

    def _own(self, z: Array) -> Array:
        """Return the variance of a share or a rate where z is known."""
        mean = self._mean(z)
        return mean / self.of if self.exposed else mean * (1 - mean) / self.of

    def _up_to(self, count: Array) -> Array:
        """Return the probabilities of so many or fewer."""
        if self.exposed:
            return _averaged(lambda z: np.asarray(pdtr(count, self.of * np.exp(z))), self.mean, self.sd)
        whole = np.maximum(np.floor(self.of), 1.0)
        kept = np.minimum(count, whole)
        return _averaged(lambda z: np.asarray(bdtr(kept, whole.astype(np.int64), expit(z))), self.mean, self.sd)


def crps(forecast: Measurement, value: Array, levels: int = LEVELS) -> Array:
    """Return the continuous ranked probability score of each place, in the units of the values; lower is better.

    It is twice the mean of the quantile scores (y − q_τ)(τ − 1[y < q_τ]) over τ (T. Gneiting, A. E. Raftery. Strictly
    proper scoring rules, prediction, and estimation. JASA 102, 2007).

    Args:
        forecast: Distributions.
        value: What was measured.
        levels: Number of quantiles.
    """
    total = np.zeros(len(value))
    for share in (np.arange(levels) + 0.5) / levels:
        off = value - forecast.quantile(float(share))
        total += off * (share - (off < 0))
    return np.asarray(2 * total / levels)


def held(forecast: Measurement, value: Array, share: float) -> npt.NDArray[np.bool_]:
    """Return which values are inside the central intervals of a probability; at their ends rounding does not matter."""
    slack = 1e-9 * np.maximum(np.abs(value), 1.0)
    lower, upper = forecast.quantile((1 - share) / 2), forecast.quantile((1 + share) / 2)
    return np.asarray((lower - slack <= value) & (value <= upper + slack))


def _averaged(of: Callable[[Array], Array], mean: Array, sd: Array) -> Array:
    """Return the expectation of a function of normal variables, by Gauss-Hermite quadrature."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(NODES)
    parts = (weight * of(mean + node * sd) for node, weight in zip(nodes, weights / weights.sum(), strict=True))
    return np.asarray(sum(parts))


def _counts(value: float | Array, of: Array) -> Array:
    """Return the largest counts whose share or rate is at most a value; rounding does not matter."""
    count = value * of
    return np.floor(count + 1e-9 * (1 + np.abs(count)))


def measured_about(
    known: Forecast, surface: Surface, presence: Surface | None, told: Array | None = None, typical: float = 1.0
) -> Measurement:
    """Return forecasts of new measurements where the quantity is known so far.

    Args:
        known: What is known of the quantity at the places.
        surface: The model of the quantity; of two parts, that of its amount.
        presence: The model of its presence, if that is modelled apart.
        told: Standard deviation of the error of each measurement, in the user's units; of counts, the number examined
            or the exposure. NaN for the typical one, None for all typical.
        typical: Number examined, or exposure, where it is not told.
    """
    likelihood = surface.sites.likelihood
    if isinstance(known, TwoPart):
        assert presence is not None, "of two parts"
        (amount, spread), (logit, sd) = known.amount, known.presence
        noise = surface.noise + _errors(surface, Amounts(), amount, told)
        there = logit, np.sqrt(np.square(sd) + presence.noise)
        return MeasuredAmount.of((amount, np.sqrt(np.square(spread) + noise)), there)
    assert isinstance(known, Scaled), "of one part"
    if likelihood is not None and likelihood.counted:
        of = np.full(len(known.mean), typical) if told is None else np.where(np.isnan(told), typical, told)
        sd = np.sqrt(np.square(known.sd) + surface.noise)
        return MeasuredCount(known.mean, sd, of, isinstance(likelihood, Poisson))
    noise = surface.noise + _errors(surface, known.scale, known.mean, told)
    return Scaled(known.scale, known.mean, np.sqrt(np.square(known.sd) + noise))


def _errors(surface: Surface, scale: Scale, mean: Array, told: Array | None) -> Array:
    """Return the variances of known errors on the model's scale, the typical one where none is told."""
    typical = np.full(len(mean), surface.typical_error)
    if told is None:
        return typical
    return np.where(np.isnan(told), typical, scale.variance(scale.backward(mean), np.nan_to_num(told)))
