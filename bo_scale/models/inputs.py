"""Transforms of inputs, learned once from data."""

from collections.abc import Callable

import torch
from botorch.models.transforms.input import InputTransform
from jaxtyping import Bool, Float
from torch import Tensor
from typing_extensions import override

from bo_scale.errors import InvalidDataError
from bo_scale.models.shell.door import require_finite, require_given

SMALLEST = 1e-3
"""Standard deviation along an axis, relative to the largest, below which rounding would be blown up; such an axis is
scaled like the largest."""
STEEPNESS = tuple(10 ** (i / 2) for i in range(17))
"""Values of a that are tried for a logarithmic scale, from one that is nearly linear to one of eight decades."""
SKEWED = 0.5
"""Least skewness of an input on a logarithmic scale. A triangular density that falls to zero has .57, an exponential
one 2. On 23 data sets with 50 and 200 rows, .5 rather than 1 gains .01 nats more on half of them, and nothing on the
others."""
MANY_VALUES = 10
"""Least number of different values of such an input: fewer are classes, or levels of a design."""
ENOUGH_ROWS = 1000
"""Maximum number of rows by which scales are judged."""


class PrincipalAxes(InputTransform, torch.nn.Module):
    """An input transform to principal axes of standardised inputs, with unit variance: z = Λ^(−½) Vᵀ (x − μ)/σ.

    Inputs that are strongly correlated, or lie near a plane, fill a small part of a grid in their own coordinates. In
    these coordinates they spread over all of it. Every direction is kept, so points away from the data stay away.

    Args:
        X: Inputs `n × d` from which μ, σ, V and Λ are computed, once. O(n d²).

    Examples:
        GRIEF(X, Y, input_transform=PrincipalAxes(X))
    """

    mean: Float[Tensor, " d"]
    matrix: Float[Tensor, "d d"]

    def __init__(self, X: Tensor) -> None:
        super().__init__()
        _require_table(X)
        self.transform_on_train = self.transform_on_eval = self.transform_on_fantasize = True
        mean = X.mean(0)
        spread = X.std(0, unbiased=False)
        spread = torch.where(spread > 0, spread, 1.0)
        standard = ((X - mean) / spread).double()
        variances, axes = torch.linalg.eigh(standard.mT @ standard / len(X))
        largest = variances[-1] if variances[-1] > 0 else torch.ones_like(variances[-1])  # of rows that do not vary
        scale = torch.where(variances > SMALLEST**2 * largest, variances, largest).rsqrt()
        self.register_buffer("mean", mean)
        self.register_buffer("matrix", ((axes * scale) / spread.double().unsqueeze(-1)).to(X))

    @override
    def transform(self, X: Tensor) -> Tensor:
        """Return inputs `… × d` in principal axes."""
        if X.shape[-1] != len(self.mean):
            raise InvalidDataError(f"X: {X.shape[-1]} columns, but the principal axes are of {len(self.mean)} inputs.")
        z: Tensor = (X - self.mean.to(X)) @ self.matrix.to(X)
        return z

    @override
    def untransform(self, X: Tensor) -> Tensor:
        """Return raw inputs from principal axes."""
        raw: Tensor = torch.linalg.solve(self.matrix.to(X).mT, X.unsqueeze(-1)).squeeze(-1) + self.mean.to(X)
        return raw


class LogScales(InputTransform, torch.nn.Module):
    """An input transform that puts skewed inputs on logarithmic scales: v = log(1 + a u) / log(1 + a).

    Here u = (x − lower)/(upper − lower) in the rows given, or from the other end if the input is skewed to the left.
    Every input keeps its range, and lengthscales keep their units. Beyond it a scale is linear, as steep as at the end,
    so that points away from the rows stay away.

    The steepness a of each input is that of a grid with which its skewness is nearest to zero: (1 + a) is the ratio of
    the ends for values spread evenly over decades. Inputs of a skewness below `SKEWED`, or with fewer values than
    `MANY_VALUES`, stay as they are. Transformations are often chosen by the density of a normal distribution (G. Box,
    D. Cox. An analysis of transformations. JRSS B 1964). Values spread evenly over decades are the more similar to one
    the longer the tail is that a steeper scale gives them, and end far below the others.

    Args:
        X: Inputs `n × d`, from which ranges and steepness are computed, once. O(n d).

    Examples:
        GRIEF(X, Y, input_transform=LogScales(X))
    """

    lower: Float[Tensor, " d"]
    extent: Float[Tensor, " d"]
    steepness: Float[Tensor, " d"]
    mirrored: Bool[Tensor, " d"]

    def __init__(self, X: Tensor) -> None:
        super().__init__()
        _require_table(X)
        self.transform_on_train = self.transform_on_eval = self.transform_on_fantasize = True
        lower, extent = X.amin(0), X.amax(0) - X.amin(0)
        extent = torch.where(extent > 0, extent, 1.0)
        shares = ((X[:: 1 + (len(X) - 1) // ENOUGH_ROWS] - lower) / extent).double()
        skewness = _skewness(shares)
        mirrored = skewness < 0
        values = 1 + (shares.sort(0).values.diff(dim=0) > 0).sum(0)
        some = (skewness.abs() > SKEWED) & (values >= MANY_VALUES)
        steepness = _steepness(torch.where(mirrored, 1 - shares, shares))
        self.register_buffer("lower", lower)
        self.register_buffer("extent", extent)
        self.register_buffer("steepness", (steepness * some).to(X))
        self.register_buffer("mirrored", mirrored & some)

    @property
    def inputs(self) -> list[int]:
        """The inputs on logarithmic scales."""
        return self.steepness.nonzero().flatten().tolist()

    @override
    def transform(self, X: Tensor) -> Tensor:
        """Return inputs `… × d` on their scales."""
        return self._scaled(X, _logarithmic)

    @override
    def untransform(self, X: Tensor) -> Tensor:
        """Return raw inputs."""
        return self._scaled(X, _exponential)

    def _scaled(self, X: Tensor, scale: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        if X.shape[-1] != len(self.lower):
            raise InvalidDataError(f"X: {X.shape[-1]} columns, but the scales are of {len(self.lower)} inputs.")
        a = self.steepness.to(X)
        u = (X - self.lower.to(X)) / self.extent.to(X)
        v = scale(torch.where(self.mirrored, 1 - u, u), torch.where(a > 0, a, 1.0))
        scaled: Tensor = self.lower.to(X) + self.extent.to(X) * torch.where(self.mirrored, 1 - v, v)
        return torch.where(a > 0, scaled, X)


def _require_table(X: Tensor) -> None:
    """Refuse what is no table of finite numbers."""
    require_given(X=X)
    require_finite(X=X)
    if X.ndim != 2 or len(X) == 0:
        raise InvalidDataError(f"X: shape {tuple(X.shape)}, expected n × d with at least one row.")


def _logarithmic(u: Float[Tensor, "*n d"], a: Float[Tensor, " d"]) -> Float[Tensor, "*n d"]:
    """Return log(1 + a u) / log(1 + a) for u in [0, 1], and its tangents beyond."""
    inside = u.clamp(0.0, 1.0)
    return ((a * inside).log1p() + a * (u - inside) / (1 + a * inside)) / a.log1p()


def _exponential(v: Float[Tensor, "*n d"], a: Float[Tensor, " d"]) -> Float[Tensor, "*n d"]:
    """Return ((1 + a)^v − 1) / a for v in [0, 1], and its tangents beyond: the inverse of `_logarithmic`."""
    inside = v.clamp(0.0, 1.0)
    grown = (inside * a.log1p()).expm1()
    return (grown + (v - inside) * a.log1p() * (1 + grown)) / a


def _steepness(shares: Float[Tensor, "n d"]) -> Float[Tensor, " d"]:
    """Return the steepness of `STEEPNESS` with which each input has the least absolute skewness."""
    found = [_skewness(_logarithmic(shares, shares.new_full(shares.shape[1:], a))) for a in STEEPNESS]
    return torch.tensor(STEEPNESS).to(shares)[torch.stack(found).abs().argmin(0)]


def _skewness(values: Float[Tensor, "n d"]) -> Float[Tensor, " d"]:
    """Return the mean of ((v − mean)/deviation)³ of each input; 0 if it is constant."""
    away = values - values.mean(0)
    spread = away.square().mean(0).sqrt()
    return (away / torch.where(spread > 0, spread, 1.0)).pow(3).mean(0)
