"""Additive sufficient statistics: everything a weight-space posterior needs from the data."""

import math
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from bo_scale.errors import InvalidDataError
from bo_scale.gp.moving import Movable
from bo_scale.gp.waiting import holds
from bo_scale.gp.weight_space.features.base import FeatureMap
from bo_scale.gp.weight_space.features.sparse_rows import Features, transpose_matmul
from bo_scale.gp.weight_space.gram import Gram

ROUNDING = 1e-6
"""Relative difference up to which features are the same: parameters may have been kept in single precision."""


@dataclass(frozen=True)
class SufficientStatistics(Movable):
    """Sums over n observations of m outputs that share inputs and noise weights D, under one feature map.

    Statistics form a commutative monoid, stats(A) + stats(B) = stats(A ∪ B): chunking, streaming, merging and
    distributing are all `+`, and removing data is `-`. Always float64. Targets are centred, z = y − center, which keeps
    the digits of σ⁻²c − aᵀa when they have a large offset.

    Observations may have weights ω_i in (0, 1]. The likelihood is then tempered, Π_i N(y_i | f(x_i), σ²D_i)^ω_i, and
    every sum, including the sum of ones, has the factor ω_i. Noise variances D_i/ω_i are not equivalent: their density
    has another normaliser, so old data would seem fitted too well and the learned σ² would be too low.

    Attributes:
        gram: G = ΦᵀD⁻¹ΩΦ.
        projection: r = ΦᵀD⁻¹Ωz.
        square: c = zᵀD⁻¹Ωz.
        feature_sum: g = ΦᵀD⁻¹Ω1.
        target_sum: h = 1ᵀD⁻¹Ωz.
        weight_sum: k = 1ᵀD⁻¹Ω1.
        log_noise: Σ ω_i log D_i, which is log|D| if all weights are 1.
        noise_sum: Σ ω_i D_i, for the mean noise of a fixed-noise model.
        effective_count: Σ ω_i, the n of n log 2πσ².
        center: y₀, subtracted from every target.
        count: Number of observations, whatever their weights.
        features: What determines φ, `FeatureMap.depends_on()` at the first observation; () if that is unknown.
    """

    gram: Gram
    projection: Float[Tensor, "p m"]
    square: Float[Tensor, " m"]
    feature_sum: Float[Tensor, " p"]
    target_sum: Float[Tensor, " m"]
    weight_sum: Float[Tensor, ""]
    log_noise: Float[Tensor, ""]
    noise_sum: Float[Tensor, ""]
    effective_count: Float[Tensor, ""]
    center: Float[Tensor, " m"]
    count: int
    features: tuple[Any, ...] = ()

    @classmethod
    def empty(
        cls, features: FeatureMap, num_outputs: int, device: torch.device | None = None
    ) -> "SufficientStatistics":
        """Empty statistics, the identity of `+`."""

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.float64, device=device)

        p, m = features.num_features, num_outputs
        return cls(
            features.empty_gram(device),
            zeros(p, m),
            zeros(m),
            zeros(p),
            zeros(m),
            zeros(),
            zeros(),
            zeros(),
            zeros(),
            zeros(m),
            0,
            features.depends_on(),
        )

    @classmethod
    def from_data(
        cls,
        features: FeatureMap,
        X: Float[Tensor, "n d"],
        Y: Float[Tensor, "n m"],
        D: Float[Tensor, " n"] | None = None,
        weights: Float[Tensor, " n"] | None = None,
    ) -> "SufficientStatistics":
        """Sum over data in one pass, in chunks. O(n k²) for k non-zeros a row, O(n p²) for dense features.

        Args:
            features: The feature map.
            X: Inputs in the units of the feature map.
            Y: Targets.
            D: Relative noise variances; None for ones.
            weights: Weights of the observations, in (0, 1]; None for ones.
        """
        return cls.empty(features, Y.shape[-1], X.device).observe(features, X, Y, D, weights)

    def observe(
        self,
        features: FeatureMap,
        X: Float[Tensor, "n d"],
        Y: Float[Tensor, "n m"],
        D: Float[Tensor, " n"] | None = None,
        weights: Float[Tensor, " n"] | None = None,
        Phi: Features | None = None,
    ) -> "SufficientStatistics":
        """Add more data: equal to `self + from_data(…)`, without a second set of sums.

        Args:
            features: The feature map.
            X: Inputs in the units of the feature map.
            Y: Targets.
            D: Relative noise variances; None for ones.
            weights: Weights of the observations, in (0, 1]; None for ones.
            Phi: φ(X), if already computed.
        """
        if len(X) == 0:
            return self
        for name, values in (("X", X), ("Y", Y), ("D", D), ("weights", weights)):
            if values is not None and values.device != self.center.device:
                raise InvalidDataError(
                    f"{name}: on {values.device}, but the statistics are on {self.center.device}. Sum rows where they "
                    "are, move the sums by `to`, and add them."
                )
        Y = Y.to(torch.float64)
        D = torch.ones(len(X), dtype=torch.float64, device=X.device) if D is None else D.to(torch.float64)
        if not holds(D > 0):
            raise InvalidDataError("D: noise variances must be positive.")
        precision, log_noise, noise = 1 / D, D.log(), D
        count: int | Tensor = len(X)
        if weights is not None:
            weights = weights.to(torch.float64)
            if not holds((weights > 0) & (weights <= 1)):
                raise InvalidDataError("weights: must be above 0 and at most 1.")
            precision, log_noise, noise, count = weights / D, weights * log_noise, weights * D, weights.sum()
        center = (Y * precision.unsqueeze(-1)).sum(0) / precision.sum() if self.count == 0 else self.center
        gram, projection, feature_sum = self.gram, self.projection, self.feature_sum
        Z = Y - center
        with_ones = torch.nn.functional.pad(Z, (0, 1), value=1.0) * precision.unsqueeze(-1)
        size = features.summed_at_once() if Phi is None else len(X)
        for x, v, w in zip(X.split(size), with_ones.split(size), precision.split(size), strict=True):
            rows = features(x) if Phi is None else Phi
            gram = gram.add_rows(rows, w)
            sums = transpose_matmul(rows, v)
            projection, feature_sum = projection + sums[:, :-1], feature_sum + sums[:, -1]
        totals = with_ones.sum(0)
        return replace(
            self,
            gram=gram,
            projection=projection,
            square=self.square + (Z * with_ones[:, :-1]).sum(0),
            feature_sum=feature_sum,
            target_sum=self.target_sum + totals[:-1],
            weight_sum=self.weight_sum + totals[-1],
            log_noise=self.log_noise + log_noise.sum(),
            noise_sum=self.noise_sum + noise.sum(),
            effective_count=self.effective_count + count,
            center=center,
            count=self.count + len(X),
        )

    def __add__(self, other: "SufficientStatistics") -> "SufficientStatistics":
        """Statistics of the union of two data sets."""
        return self._combine(other, 1.0)

    def __sub__(self, other: "SufficientStatistics") -> "SufficientStatistics":
        """Statistics without some of their observations."""
        if other.count > self.count:
            raise InvalidDataError(f"cannot remove {other.count} observations from {self.count}.")
        return self._combine(other, -1.0)

    def _combine(self, other: "SufficientStatistics", sign: float) -> "SufficientStatistics":
        if other.center.device != self.center.device:
            raise InvalidDataError(
                f"statistics: one is on {self.center.device}, the other on {other.center.device}. Move one by `to`."
            )
        if self.count == 0 and sign > 0:
            return other
        if self.features and other.features and not _same(self.features, other.features):
            raise InvalidDataError(
                "statistics: the two are sums of different features. Add those of models with the same grid, points "
                "and hyperparameters of the features."
            )
        other = other.recenter(self.center)
        sums: dict[str, Any] = {
            name: torch.add(getattr(self, name), getattr(other, name), alpha=sign) for name in _SUMS
        }
        return replace(
            self, gram=self.gram.combine(other.gram, sign), count=self.count + int(sign) * other.count, **sums
        )

    def discounted(self, factor: float) -> "SufficientStatistics":
        """Multiply every observation's weight by a forgetting factor.

        `effective_count` shrinks, `count` stays. O(p m) plus the size of G.

        Args:
            factor: Forgetting factor, in (0, 1].
        """
        if not 0 < factor <= 1:
            raise InvalidDataError(f"factor={factor}: must be above 0 and at most 1.")
        return replace(self, gram=self.gram.scale(factor), **{name: factor * getattr(self, name) for name in _SUMS})

    def recenter(self, center: Float[Tensor, " m"]) -> "SufficientStatistics":
        """The same data measured from another center y₀. O(p m)."""
        shift = self.center - center
        return replace(
            self,
            projection=self.projection + torch.outer(self.feature_sum, shift),
            square=self.square + 2 * shift * self.target_sum + shift.square() * self.weight_sum,
            target_sum=self.target_sum + shift * self.weight_sum,
            center=center,
        )

    def affine(
        self, scale: Float[Tensor, " m"], offset: Float[Tensor, " m"], noise_scale: float = 1.0
    ) -> "SufficientStatistics":
        """Statistics of scale · y + offset, exactly, with D multiplied by noise_scale.

        Re-standardisation transforms targets this way. If variances are known, pass scale² as noise_scale.
        """
        w = 1 / noise_scale
        return replace(
            self,
            gram=self.gram if w == 1 else self.gram.scale(w),
            projection=w * scale * self.projection,
            square=w * scale.square() * self.square,
            feature_sum=w * self.feature_sum,
            target_sum=w * scale * self.target_sum,
            weight_sum=w * self.weight_sum,
            log_noise=self.log_noise + self.effective_count * math.log(noise_scale),
            noise_sum=noise_scale * self.noise_sum,
            center=scale * self.center + offset,
        )

    def outputs(self, indices: list[int]) -> "SufficientStatistics":
        """Statistics of some of the outputs."""
        chosen = {name: getattr(self, name)[..., indices] for name in _PER_OUTPUT}
        return replace(self, **chosen)

    def state(self) -> dict[str, Any]:
        """Plain tensors and numbers, for saving."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("gram", "features")}
        return {**values, "gram": self.gram.values}

    def restored(self, state: dict[str, Any]) -> "SufficientStatistics":
        """Restore statistics under the same features from a `state`. Older states have no weights: all are 1."""
        count = self.effective_count.new_tensor(float(state["count"]))
        return replace(self, **{"effective_count": count, **state, "gram": replace(self.gram, values=state["gram"])})


def _same(a: tuple[Any, ...], b: tuple[Any, ...]) -> bool:
    """Return whether the features are the same up to rounding."""
    return len(a) == len(b) and all(_equal(x, y) for x, y in zip(a, b, strict=True))


def _equal(a: Any, b: Any) -> bool:
    if not isinstance(a, Tensor) or not isinstance(b, Tensor):
        return bool(type(a) is type(b) and a == b)
    if a.shape != b.shape or a.numel() == 0:
        return a.shape == b.shape
    return torch.allclose(a, b.to(a), rtol=ROUNDING, atol=ROUNDING * float(a.abs().max()))


_SUMS = (
    "projection",
    "square",
    "feature_sum",
    "target_sum",
    "weight_sum",
    "log_noise",
    "noise_sum",
    "effective_count",
)
_PER_OUTPUT = ("projection", "square", "target_sum", "center")
