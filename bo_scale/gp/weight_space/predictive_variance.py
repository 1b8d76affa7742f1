"""Variance that predictions have beyond the weights': what features cannot represent of the kernel."""

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
        """Whether anything is added after so many observations."""

    def at(self, features: FeatureMap, X: Float[Tensor, "*b q d"]) -> Float[Tensor, "*b q"]:
        """The variance at transformed points."""


class NothingAdded:
    """No white noise: predictions are those of the weights."""

    def applies(self, count: float, features: FeatureMap) -> bool:
        """Never."""
        return False

    def at(self, features: FeatureMap, X: Float[Tensor, "*b q d"]) -> Float[Tensor, "*b q"]:
        """Zeros."""
        return X.new_zeros(X.shape[:-1])

    @override
    def __reduce__(self) -> str:
        return "NOTHING_ADDED"


NOTHING_ADDED = NothingAdded()


class MissingVariance:
    """The diagonal correction of FITC: k(x, x) − φ(x)ᵀ S φ(x), where positive.

    Args:
        few: Only while there are not more observations than the prior has rank.
    """

    def __init__(self, few: bool) -> None:
        self._few = few

    def applies(self, count: float, features: FeatureMap) -> bool:
        """Whether anything is added after so many observations."""
        return not self._few or count <= features.max_rank

    def at(self, features: FeatureMap, X: Float[Tensor, "*b q d"]) -> Float[Tensor, "*b q"]:
        """The variance at transformed points."""
        return features.missing_variance(X)


class InterpolationVariance:
    """The interpolation's mean squared error at each point, summed over grids: a conservative choice."""

    def applies(self, count: float, features: FeatureMap) -> bool:
        """Always."""
        return True

    def at(self, features: FeatureMap, X: Float[Tensor, "*b q d"]) -> Float[Tensor, "*b q"]:
        """The variance at transformed points."""
        features, X = unprojected(features, X)
        return torch.stack([phi.interpolation_variance(X) for phi in grid_parts(features)]).sum(0)
