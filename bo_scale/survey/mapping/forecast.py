"""Forecasts of the quantity at places, in the user's units: of one scale, or of presence and amount."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
from scipy.special import expit, log_expit, ndtr, ndtri

from bo_scale.survey.mapping.scales import NODES, Scale

Array = npt.NDArray[np.float64]
HALVINGS = 60
"""Steps by which quantiles are enclosed: to rounding."""


@runtime_checkable
class Forecast(Protocol):
    """Distributions of the quantity at places, without measurement error, in the user's units."""

    def moments(self) -> tuple[Array, Array]:
        """Return means and standard deviations."""

    def exceedance(self, threshold: float) -> Array:
        """Return the probabilities of more than a threshold."""

    def quantile(self, share: float) -> Array:
        """Return the values below which the quantity is with a probability."""


@dataclass(frozen=True)
class Scaled:
    """A quantity that is normal on a scale.

    Attributes:
        scale: The scale.
        mean: Means on the scale.
        sd: Standard deviations on the scale.
    """

    scale: Scale
    mean: Array
    sd: Array

    def moments(self) -> tuple[Array, Array]:
        """Return means and standard deviations."""
        return self.scale.moments(self.mean, self.sd)

    def exceedance(self, threshold: float) -> Array:
        """Return the probabilities of more than a threshold."""
        return self.scale.exceedance(self.mean, self.sd, threshold)

    def quantile(self, share: float) -> Array:
        """Return the values below which the quantity is with a probability."""
        return self.scale.backward(self.mean + ndtri(share) * self.sd)

    def below(self, value: Array) -> Array:
        """Return the probabilities of less than a value of each place."""
        return np.asarray(
            ndtr((self.scale.forward(value) - self.mean) / np.maximum(self.sd, np.finfo(np.float64).tiny))
        )


@dataclass(frozen=True)
class TwoPart:
    """θ = p a: the probability that the quantity is present, times its amount where it is.

    logit p and log a are independent normal variables. The conditional and the marginal part of a hurdle model: J. G.
    Cragg. Some statistical models for limited dependent variables. Econometrica 39, 1971.

    Attributes:
        amount: Means and standard deviations of log a.
        presence: Means and standard deviations of logit p.
    """

    amount: tuple[Array, Array]
    presence: tuple[Array, Array]

    def moments(self) -> tuple[Array, Array]:
        """Return means and standard deviations: E θ^k = E p^k E a^k, and E a^k = exp(k μ + k² σ²/2)."""
        mean, sd = self.amount
        shares, weights = self._shares()
        first, second = np.exp(shares) @ weights, np.exp(2 * shares) @ weights
        middle = first * np.exp(mean + np.square(sd) / 2)
        with np.errstate(divide="ignore"):  # where it is never present
            ratio = np.log(second) - 2 * np.log(first) + np.square(sd)
        return middle, middle * np.sqrt(np.maximum(np.expm1(ratio), 0.0))

    def exceedance(self, threshold: float) -> Array:
        """Return the probabilities of more than a threshold above zero: Σ_k w_k P(log a > log t − log p_k)."""
        return 1.0 - self._below(np.full(len(self.amount[0]), np.log(threshold)))

    def quantile(self, share: float) -> Array:
        """Return the values below which the quantity is with a probability, by bisection."""
        mean, sd = self.amount
        shares, _ = self._shares()
        reach = 40 * np.maximum(sd, 1e-12)
        low, high = mean + shares.min(-1) - reach, mean + shares.max(-1) + reach
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            under = self._below(middle) < share
            low, high = np.where(under, middle, low), np.where(under, high, middle)
        return np.exp((low + high) / 2)

    def _below(self, log_value: Array) -> Array:
        """Return the probabilities of less than exp(log value)."""
        mean, sd = self.amount
        shares, weights = self._shares()
        sd = np.maximum(sd, np.finfo(np.float64).tiny)
        return np.asarray(ndtr((log_value[:, None] - shares - mean[:, None]) / sd[:, None]) @ weights)

    def _shares(self) -> tuple[Array, Array]:
        """Return log p at the nodes of Gauss-Hermite quadrature, `m × k`, and their weights."""
        nodes, weights = np.polynomial.hermite_e.hermegauss(NODES)
        mean, sd = self.presence
        return np.asarray(log_expit(mean[:, None] + nodes * sd[:, None])), weights / weights.sum()


def slopes(amount: Array, presence: Array) -> tuple[Array, Array]:
    """Return ∂θ/∂log a = p a and ∂θ/∂logit p = p (1 − p) a at given log a and logit p."""
    p, a = np.asarray(expit(presence)), np.exp(amount)
    return p * a, p * (1 - p) * a
