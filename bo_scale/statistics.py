"""Additive sufficient statistics: all that a weight-space posterior needs to know of the data."""

import math
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from bo_scale.errors import InvalidDataError
from bo_scale.features.base import FeatureMap
from bo_scale.features.sparse import transpose_matmul
from bo_scale.gram import Gram


@dataclass(frozen=True)
class SufficientStatistics:
    """Sums over n observations of m outputs that share inputs and noise weights D, under one feature map.

    With z = y − center: a commutative monoid, stats(A) + stats(B) = stats(A ∪ B), so that chunking, streaming, merging
    and spreading over machines are all `+`, and forgetting is `-`. Always float64. Keeping y centred is what saves the
    digits of σ⁻²c − aᵀa when targets have a large offset.

    Attributes:
        gram: G = ΦᵀD⁻¹Φ.
        projection: r = ΦᵀD⁻¹z.
        square: c = zᵀD⁻¹z.
        feature_sum: g = ΦᵀD⁻¹1.
        target_sum: h = 1ᵀD⁻¹z.
        weight_sum: k = 1ᵀD⁻¹1.
        log_noise: log|D|.
        noise_sum: 1ᵀD1, for the mean noise of a fixed-noise model.
        center: y₀, subtracted from every target.
        count: n.
    """

    gram: Gram
    projection: Float[Tensor, "p m"]
    square: Float[Tensor, " m"]
    feature_sum: Float[Tensor, " p"]
    target_sum: Float[Tensor, " m"]
    weight_sum: Float[Tensor, ""]
    log_noise: Float[Tensor, ""]
    noise_sum: Float[Tensor, ""]
    center: Float[Tensor, " m"]
    count: int

    @classmethod
    def empty(
        cls, features: FeatureMap, num_outputs: int, device: torch.device | None = None
    ) -> "SufficientStatistics":
        """The statistics of no data: the identity of `+`."""

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
            zeros(m),
            0,
        )

    @classmethod
    def from_data(
        cls,
        features: FeatureMap,
        X: Float[Tensor, "n d"],
        Y: Float[Tensor, "n m"],
        D: Float[Tensor, " n"] | None = None,
    ) -> "SufficientStatistics":
        """One pass over data in chunks. O(n k²) for k non-zeros a row, O(n p²) for dense features.

        Args:
            features: The feature map.
            X: Inputs, as the feature map takes them.
            Y: Targets.
            D: Relative noise variances; None for ones.
        """
        return cls.empty(features, Y.shape[-1], X.device).observe(features, X, Y, D)

    def observe(
        self,
        features: FeatureMap,
        X: Float[Tensor, "n d"],
        Y: Float[Tensor, "n m"],
        D: Float[Tensor, " n"] | None = None,
    ) -> "SufficientStatistics":
        """These statistics and those of more data: `self + from_data(…)` without the second set of sums."""
        if len(X) == 0:
            return self
        Y = Y.to(torch.float64)
        D = torch.ones(len(X), dtype=torch.float64, device=X.device) if D is None else D.to(torch.float64)
        if not (D > 0).all():
            raise InvalidDataError("D: noise variances must be positive.")
        center = (Y / D.unsqueeze(-1)).sum(0) / (1 / D).sum() if self.count == 0 else self.center
        gram, projection, feature_sum = self.gram, self.projection, self.feature_sum
        Z = Y - center
        size = features.chunk_size()
        for x, z, d in zip(X.split(size), Z.split(size), D.split(size), strict=True):
            Phi, weights = features(x), 1 / d
            gram = gram.add_rows(Phi, weights)
            sums = transpose_matmul(Phi, torch.cat([z, z.new_ones(len(z), 1)], -1) * weights.unsqueeze(-1))
            projection, feature_sum = projection + sums[:, :-1], feature_sum + sums[:, -1]
        return SufficientStatistics(
            gram=gram,
            projection=projection,
            square=self.square + (Z.square() / D.unsqueeze(-1)).sum(0),
            feature_sum=feature_sum,
            target_sum=self.target_sum + (Z / D.unsqueeze(-1)).sum(0),
            weight_sum=self.weight_sum + (1 / D).sum(),
            log_noise=self.log_noise + D.log().sum(),
            noise_sum=self.noise_sum + D.sum(),
            center=center,
            count=self.count + len(X),
        )

    def __add__(self, other: "SufficientStatistics") -> "SufficientStatistics":
        """Statistics of the union of two data sets."""
        return self._combine(other, 1.0)

    def __sub__(self, other: "SufficientStatistics") -> "SufficientStatistics":
        """Statistics after removing observations that are part of these."""
        if other.count > self.count:
            raise InvalidDataError(f"cannot remove {other.count} observations from {self.count}.")
        return self._combine(other, -1.0)

    def _combine(self, other: "SufficientStatistics", sign: float) -> "SufficientStatistics":
        if self.count == 0 and sign > 0:
            return other
        other = other.recenter(self.center)
        sums = {name: torch.add(getattr(self, name), getattr(other, name), alpha=sign) for name in _SUMS}
        return replace(
            self, gram=self.gram.combine(other.gram, sign), count=self.count + int(sign) * other.count, **sums
        )

    def recenter(self, center: Float[Tensor, " m"]) -> "SufficientStatistics":
        """The same data seen from another center y₀. O(p m)."""
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
        """Statistics of scale · y + offset, exactly, with D times noise_scale.

        What a re-standardisation does to the data; known variances change with scale² (pass it as noise_scale).
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
            log_noise=self.log_noise + self.count * math.log(noise_scale),
            noise_sum=noise_scale * self.noise_sum,
            center=scale * self.center + offset,
        )

    def outputs(self, indices: list[int]) -> "SufficientStatistics":
        """The statistics of some of the outputs."""
        chosen = {name: getattr(self, name)[..., indices] for name in _PER_OUTPUT}
        return replace(self, **chosen)

    def to(self, device: torch.device) -> "SufficientStatistics":
        """The same on another device."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "count"}
        return replace(self, **{name: value.to(device) for name, value in values.items()})

    def state(self) -> dict[str, Any]:
        """Everything in plain tensors, for saving."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "gram"}
        return {**values, "gram": self.gram.values}

    def restored(self, state: dict[str, Any]) -> "SufficientStatistics":
        """Statistics under the same features, from what `state` gave."""
        return replace(self, **{**state, "gram": replace(self.gram, values=state["gram"])})


_SUMS = ("projection", "square", "feature_sum", "target_sum", "weight_sum", "log_noise", "noise_sum")
_PER_OUTPUT = ("projection", "square", "target_sum", "center")
