"""Likelihoods of counts and of censored values, and the Gaussian measurements that stand for them.

The posterior of the quantity z on the model's scale is approximated by a Gaussian: a measurement y stands in it as a
Gaussian measurement of z, given the marginal N(m, v) of the quantity at the place.

Of counts it is the Gaussian of the smallest Kullback-Leibler divergence from the posterior (M. Opper, C. Archambeau.
The variational Gaussian approximation revisited. Neural Computation 21, 2009; M. E. Khan, W. Lin. Conjugate-computation
variational inference. AISTATS 2017), with

    variance 1/W, W = −E[∂² log p(y | z)], and value m + E[∂ log p(y | z)] / W.

Of censored values it has, with the rest of the data, the mean and variance of z under the likelihood itself:
expectation propagation (T. Minka. Expectation propagation for approximate Bayesian inference. UAI 2001).
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
from scipy.special import expit, log_ndtr
from typing_extensions import override

Array = npt.NDArray[np.float64]
NODES = 20
"""Nodes of Gauss-Hermite quadrature for expectations of a logit."""
REPLICATES = 2.0
"""Mean number examined from which counts tell how places differ from the map. With one at each place nothing does."""
LEAST = 1e-10
"""Least precision of a stand-in, for measurements that tell nothing."""
EXACTLY = 1e-6
"""Variance of values without known errors, in variances of all: the model learns their noise."""


class Likelihood(ABC):
    """Measurements at places that are not Gaussian.

    Attributes:
        counted: Whether they are counts. These tell little of smoothness, and plans are about their shares or rates.
    """

    counted: ClassVar[bool] = True

    @property
    @abstractmethod
    def units(self) -> tuple[float, float]:
        """Mean and standard deviation of the quantity, about, on the model's scale."""

    @property
    @abstractmethod
    def varies(self) -> bool:
        """Whether measurements tell how much they vary beyond the map."""

    @abstractmethod
    def start(self) -> tuple[Array, Array]:
        """Return first values and variances of stand-ins."""

    @abstractmethod
    def stand_ins(self, mean: Array, variance: Array, before: tuple[Array, Array]) -> tuple[Array, Array]:
        """Return values and variances of stand-ins.

        Args:
            mean: Means of the quantity at the places.
            variance: Its variances there.
            before: The stand-ins with which these were found.
        """


@dataclass(frozen=True)
class Binomial(Likelihood):
    """k positive of n, with probability expit(z).

    Attributes:
        positive: k.
        examined: n, at least 1.
    """

    positive: Array
    examined: Array

    @property
    @override
    def units(self) -> tuple[float, float]:
        some, none = self.positive.sum() + 0.5, (self.examined - self.positive).sum() + 0.5
        return float(np.log(some / none)), 1.0

    @property
    @override
    def varies(self) -> bool:
        return bool(self.examined.mean() >= REPLICATES)

    @override
    def start(self) -> tuple[Array, Array]:
        guess = np.log((self.positive + 0.5) / (self.examined - self.positive + 0.5))
        return self._at(guess, np.zeros_like(guess))

    @override
    def stand_ins(self, mean: Array, variance: Array, before: tuple[Array, Array]) -> tuple[Array, Array]:
        return self._at(mean, variance)

    def _at(self, mean: Array, variance: Array) -> tuple[Array, Array]:
        nodes, weights = np.polynomial.hermite_e.hermegauss(NODES)
        weights = weights / weights.sum()
        share, spread = np.zeros_like(mean), np.zeros_like(mean)
        for node, weight in zip(nodes, weights, strict=True):
            p = expit(mean + node * np.sqrt(variance))
            share += weight * p
            spread += weight * p * (1 - p)
        precision = np.maximum(self.examined * spread, LEAST)
        return mean + (self.positive - self.examined * share) / precision, 1 / precision


@dataclass(frozen=True)
class Poisson(Likelihood):
    """y cases at an exposure e, with mean e exp(z).

    Attributes:
        cases: y.
        exposure: e, above zero.
    """

    cases: Array
    exposure: Array

    @property
    @override
    def units(self) -> tuple[float, float]:
        return float(np.log((self.cases.sum() + 0.5) / self.exposure.sum())), 1.0

    @property
    @override
    def varies(self) -> bool:
        return True

    @override
    def start(self) -> tuple[Array, Array]:
        guess = np.log((self.cases + 0.5) / self.exposure)
        return self._at(guess, np.zeros_like(guess))

    @override
    def stand_ins(self, mean: Array, variance: Array, before: tuple[Array, Array]) -> tuple[Array, Array]:
        return self._at(mean, variance)

    def _at(self, mean: Array, variance: Array) -> tuple[Array, Array]:
        expected = np.maximum(self.exposure * np.exp(mean + variance / 2), LEAST)
        return mean + (self.cases - expected) / expected, 1 / expected


@dataclass(frozen=True)
class Censored(Likelihood):
    """Values with normal errors, some of which are only known to be below a limit.

    Attributes:
        value: Values on the model's scale, or limits.
        error: Known variances of errors; 0 where they are not known.
        below: 1 where the value is below the limit, else 0.
    """

    counted: ClassVar[bool] = False
    value: Array
    error: Array
    below: Array

    @property
    @override
    def units(self) -> tuple[float, float]:
        spread = float(self.value.std())
        return float(self.value.mean()), spread if spread > 1e-12 * (1 + abs(self.value).max()) else 1.0

    @property
    @override
    def varies(self) -> bool:
        return True

    @override
    def start(self) -> tuple[Array, Array]:
        """Half a standard deviation below a limit, more or less."""
        spread = self.units[1]
        own = np.maximum(self.error, EXACTLY * spread**2)
        hidden = self.below > 0
        return np.where(hidden, self.value - 0.5 * spread, self.value), np.where(hidden, spread**2, own)

    @override
    def stand_ins(self, mean: Array, variance: Array, before: tuple[Array, Array]) -> tuple[Array, Array]:
        """Halfway, in precisions, from the stand-ins before to those of which these marginals ask.

        Without its own stand-in the quantity is N(c, t). Given a limit l above it and its error e, with T = t + e,
        α = (l − c)/√T, λ = φ(α)/Φ(α) and κ = λ(λ + α), it has the mean c − λ t/√T and variance t − κ t²/T: the stand-in
        has the variance T/κ − t and the value c − λ (T/κ)/√T.
        """
        z, own = before
        rest = np.maximum(1 / variance - 1 / own, LEAST)
        t, c = 1 / rest, (mean / variance - z / own) / rest
        T = t + self.error
        alpha = (self.value - c) / np.sqrt(T)
        ratio = np.exp(-0.5 * np.square(alpha) - 0.5 * np.log(2 * np.pi) - log_ndtr(alpha))
        curvature = np.clip(ratio * (ratio + alpha), LEAST, 1 - EXACTLY)
        wide, middle = T / curvature - t, c - ratio * np.sqrt(T) / curvature
        precision = 0.5 / wide + 0.5 / own
        value = (0.5 * middle / wide + 0.5 * z / own) / precision
        hidden = self.below > 0
        return np.where(hidden, value, z), np.where(hidden, 1 / precision, own)
