"""Base class of weight-space methods: a feature map and the root of the prior over its weights."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from linear_operator import LinearOperator
from linear_operator.operators import IdentityLinearOperator
from torch import Tensor
from typing_extensions import override

from bo_scale.gp.moving import Movable
from bo_scale.gp.weight_space.features.sparse_rows import Features
from bo_scale.gp.weight_space.gram import DenseGram, Gram


@dataclass(frozen=True)
class SparsePrior:
    """A prior over weights w_1 ~ N(0, Q⁻¹) of a grid, where Q couples near nodes only, and w_2 = Rz of any other parts.

    Attributes:
        grid: Features with weights w_1.
        size: Number of nodes in each dimension.
        values: Q as a stencil of `bo_scale.gp.linalg.banded`.
        logdet: log|Q|.
        place: Index of the grid among the parts of a sum.
        rest: Other features.
        root: R.
    """

    grid: "FeatureMap"
    size: tuple[int, ...]
    values: Float[Tensor, "..."]
    logdet: Float[Tensor, ""]
    place: int = 0
    rest: "FeatureMap | None" = None
    root: LinearOperator | None = None


class FeatureMap(Movable, ABC):
    """A map φ from inputs to p features, with weights w ~ N(0, R Rᵀ). A new method implements the abstract members.

    Everything is float64, whatever the dtype of the inputs.
    """

    @property
    @abstractmethod
    def num_features(self) -> int:
        """Number of features, p."""

    @property
    def max_rank(self) -> int:
        """Upper limit of the prior's rank."""
        return self.num_features

    @property
    def free_of_prior(self) -> bool:
        """Whether φ depends on no hyperparameters of the prior, so that outputs with different priors can share it."""
        return True

    @abstractmethod
    def __call__(self, X: Float[Tensor, "*b n d"]) -> Features:
        """Φ, dense or in sparse rows. Differentiable in X."""

    @abstractmethod
    def prior_root(self) -> LinearOperator:
        """R of shape p s with S = R Rᵀ, in units of f. Differentiable in the hyperparameters."""

    def reduced(self, root: LinearOperator) -> "FeatureMap | None":
        """ψ = Rᵀφ as a map of its own, with weights N(0, I_s), if R is too large to keep; otherwise None."""
        return None

    def whitened(self, root: LinearOperator) -> "FeatureMap":
        """ψ = Rᵀφ, dense, with weights N(0, I_s)."""
        return WhitenedFeatures(self, root.to_dense())

    def sparse_prior(self) -> SparsePrior | None:
        """Prior with a sparse precision matrix, if it has one that is cheaper than a root; otherwise None."""
        return None

    def prior_matrix(self) -> Float[Tensor, "p p"] | None:
        """S, if it is a dense matrix without structure, from which a root would have to be computed; otherwise None."""
        return None

    @abstractmethod
    def kernel_variance(self, X: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b n"]:
        """k(x, x) of the kernel that φ(x)ᵀ S φ(x') approximates."""

    def prior_covariance(self, X: Float[Tensor, "n d"]) -> Float[Tensor, "n n"]:
        """Φ S Φᵀ of n points. Differentiable in the hyperparameters. O(n² s)."""
        F = self(X) @ self.prior_root().to_dense()
        return F @ F.mT

    def prior_variance(self, X: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b n"]:
        """φ(x)ᵀ S φ(x). Differentiable in X. O(p s) a point."""
        return (self(X) @ self.prior_root().to_dense()).square().sum(-1)

    def missing_variance(self, X: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b n"]:
        """Diagonal correction (FITC): prior variance that weights cannot represent, k(x, x) − φ(x)ᵀ S φ(x) or 0."""
        return (self.kernel_variance(X) - self.prior_variance(X)).clamp_min(0.0)

    def distance_variance(self, X: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b n"]:
        """Prior variance that is lost with distance from the region where features represent the kernel; 0 within."""
        return X.new_zeros(X.shape[:-1])

    def depends_on(self) -> tuple[Any, ...]:
        """Tensors, numbers and names that determine φ: sums of statistics of other features are refused. () for any."""
        return ()

    def empty_gram(self, device: torch.device | None = None) -> Gram:
        """Empty Gram matrix ΦᵀD⁻¹Φ."""
        return DenseGram.zeros(self.num_features, device)

    def chunk_size(self) -> int:
        """Number of points per chunk in a pass over data, for about 100 MB of scratch memory."""
        return max(1, 10_000_000 // self.num_features)

    def summed_at_once(self) -> int:
        """Return the number of rows that are summed at once, of which no gradient is asked."""
        return self.chunk_size()


@dataclass(frozen=True)
class Whitened(FeatureMap):
    """ψ = Rᵀφ of a feature map φ, with weights N(0, I_s). Abstract: subclasses implement the product.

    Attributes:
        base: φ.
        root: R.
    """

    base: FeatureMap
    root: Any

    @property
    @override
    def free_of_prior(self) -> bool:
        return False

    @property
    @override
    def num_features(self) -> int:
        return int(self.root.shape[-1])

    @abstractmethod
    @override
    def __call__(self, X: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b n s"]:
        """Ψ, dense."""

    @override
    def prior_root(self) -> LinearOperator:
        return IdentityLinearOperator(self.num_features, dtype=torch.float64, device=self.root.device)

    @override
    def kernel_variance(self, X: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b n"]:
        return self.base.kernel_variance(X)

    @override
    def prior_variance(self, X: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b n"]:
        return self(X).square().sum(-1)


@dataclass(frozen=True)
class WhitenedFeatures(Whitened):
    """Whitened features by a dense root: O(p s) a point.

    Attributes:
        base: φ.
        root: R.
    """

    root: Float[Tensor, "p s"]

    @override
    def __call__(self, X: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b n s"]:
        return self.base(X) @ self.root
