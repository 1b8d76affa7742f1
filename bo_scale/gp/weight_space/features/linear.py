"""Features that are columns of the inputs: a linear trend with a Gaussian prior on its coefficients."""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from linear_operator import LinearOperator
from linear_operator.operators import DiagLinearOperator
from torch import Tensor
from typing_extensions import override

from bo_scale.gp.weight_space.features.base import FeatureMap, SparsePrior
from bo_scale.gp.weight_space.features.projection import ProjectedFeatures


@dataclass(frozen=True)
class LinearFeatures(FeatureMap):
    """φ(x) = some columns of x, with independent weights N(0, s_j): f(x) = Σ_j w_j x_j.

    Attributes:
        columns: Places of the columns among the inputs.
        variances: s, one for each.
    """

    columns: tuple[int, ...]
    variances: Float[Tensor, " p"]

    @property
    @override
    def num_features(self) -> int:
        return len(self.columns)

    @override
    def depends_on(self) -> tuple[Any, ...]:
        return ("linear", *self.columns)

    @override
    def __call__(self, X: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b n p"]:
        return X[..., list(self.columns)].to(torch.float64)

    @override
    def prior_root(self) -> LinearOperator:
        return DiagLinearOperator(self.variances.sqrt())

    @override
    def kernel_variance(self, X: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b n"]:
        return self(X).square() @ self.variances

    @override
    def prior_variance(self, X: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b n"]:
        return self.kernel_variance(X)


@dataclass(frozen=True)
class FirstColumns:
    """A projection to the first inputs.

    Attributes:
        count: Number of them.
    """

    count: int

    def __call__(self, X: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b n k"]:
        """Return the first columns."""
        return X[..., : self.count]


@dataclass(frozen=True)
class OnFirstColumns(ProjectedFeatures):
    """Features of the first inputs alone, whose prior may have a sparse precision."""

    @override
    def depends_on(self) -> tuple[Any, ...]:
        return self.base.depends_on()

    @override
    def sparse_prior(self) -> SparsePrior | None:
        found = self.base.sparse_prior()
        if found is None or found.rest is not None:
            return None
        return SparsePrior(self, found.size, found.values, found.logdet)

    @override
    def reduced(self, root: LinearOperator) -> FeatureMap | None:
        reduced = self.base.reduced(root)
        return None if reduced is None else OnFirstColumns(reduced, self.projection)

    @override
    def whitened(self, root: LinearOperator) -> FeatureMap:
        return OnFirstColumns(self.base.whitened(root), self.projection)
