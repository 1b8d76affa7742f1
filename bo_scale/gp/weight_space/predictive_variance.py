"""Predictive variance beyond that of the weights, for the part of the kernel that features cannot represent."""

from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from bo_scale.gp.weight_space.features.base import FeatureMap
from bo_scale.gp.weight_space.features.grid.features import grid_parts
from bo_scale.gp.weight_space.features.projection import unprojected


@runtime_checkable
class PredictiveVariance(Protocol):
    """A rule that says how much white noise e(x) to add to predictions."""

    def applies(self, count: float, features: FeatureMap) -> bool:
        """Whether anything is added after `count` observations."""

    def at(self, features: FeatureMap, X: Float[Tensor, "*b q d"]) -> Float[Tensor, "*b q"]:
        """Variance at transformed points."""


class NothingAdded:
    """No extra variance: predictions use the weights alone."""

    def applies(self, count: float, features: FeatureMap) -> bool:
        """Always false."""
        return False

    def at(self, features: FeatureMap, X: Float[Tensor, "*b q d"]) -> Float[Tensor, "*b q"]:
        """Zeros."""
        return X.new_zeros(X.shape[:-1])

    @override
    def __reduce__(self) -> str:
        return "NOTHING_ADDED"


NOTHING_ADDED = NothingAdded()


class DistanceVariance:
    """Prior variance that features lose with distance from where they represent the kernel. Nothing near the data."""

    def applies(self, count: float, features: FeatureMap) -> bool:
        """Always true."""
        return True

    def at(self, features: FeatureMap, X: Float[Tensor, "*b q d"]) -> Float[Tensor, "*b q"]:
        """Variance at transformed points."""
        return features.distance_variance(X)


class MissingVariance:
    """The diagonal correction of FITC: k(x, x) − φ(x)ᵀ S φ(x), where positive.

    Args:
        few: Whether to apply it only while observations do not outnumber the rank of the prior.
    """

    def __init__(self, few: bool) -> None:
        self.few = few

    def applies(self, count: float, features: FeatureMap) -> bool:
        """Whether anything is added after `count` observations."""
        return not self.few or count <= features.max_rank

    def at(self, features: FeatureMap, X: Float[Tensor, "*b q d"]) -> Float[Tensor, "*b q"]:
        """Variance at transformed points."""
        return features.missing_variance(X)


class InterpolationVariance:
    """Mean squared error of the interpolation at each point, summed over grids. A conservative choice."""

    def applies(self, count: float, features: FeatureMap) -> bool:
        """Always true."""
        return True

    def at(self, features: FeatureMap, X: Float[Tensor, "*b q d"]) -> Float[Tensor, "*b q"]:
        """Variance at transformed points."""
        features, X = unprojected(features, X)
        return torch.stack([phi.interpolation_variance(X) for phi in grid_parts(features)]).sum(0)
