"""What a weight-space method is: a feature map and the root of the prior over its weights."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from linear_operator import LinearOperator
from linear_operator.operators import IdentityLinearOperator
from torch import Tensor
from typing_extensions import override

from bo_scale.gp.weight_space.features.sparse_rows import Features
from bo_scale.gp.weight_space.gram import DenseGram, Gram


@dataclass(frozen=True)
class SparsePrior:
    """A prior over weights w_1 ~ N(0, Q⁻¹) of a grid, Q coupling near nodes only, and w_2 = Rz of the rest, if any.

    Attributes:
        grid: The features that belong to w_1.
        size: Nodes a dimension.
        values: Q, as the stencil of `bo_scale.gp.linalg.banded`.
        logdet: log|Q|.
        place: Which part of a sum they are.
        rest: The other features.
        root: R.
    """

    grid: "FeatureMap"
    size: tuple[int, ...]
    values: Float[Tensor, "..."]
    logdet: Float[Tensor, ""]
    place: int = 0
    rest: "FeatureMap | None" = None
    root: LinearOperator | None = None


class FeatureMap(ABC):
    """φ: inputs to p features, with w ~ N(0, R Rᵀ). A new method implements the abstract members.

    Everything is float64, whatever the dtype of the inputs.
    """

    @property
    @abstractmethod
    def num_features(self) -> int:
        """P."""

    @property
    def max_rank(self) -> int:
        """The rank of the prior is never above this."""
        return self.num_features

    @property
    def free_of_prior(self) -> bool:
        """Whether φ depends on no hyperparameters of the prior: outputs that differ in these alone then share it."""
        return True

    @abstractmethod
    def __call__(self, X: Float[Tensor, "*b n d"]) -> Features:
        """Φ, dense or in sparse rows. Differentiable in X."""

    @abstractmethod
    def prior_root(self) -> LinearOperator:
        """R of shape p s with S = R Rᵀ, in units of f. Differentiable in the hyperparameters."""

    def reduced(self, root: LinearOperator) -> "FeatureMap | None":
        """ψ = Rᵀφ as a map of its own, with weights N(0, I_s), where R is too large to be kept; else None."""
        return None

    def whitened(self, root: LinearOperator) -> "FeatureMap":
        """ψ = Rᵀφ, dense, with weights N(0, I_s)."""
        return WhitenedFeatures(self, root.to_dense())

    def sparse_prior(self) -> SparsePrior | None:
        """The prior by a sparse precision matrix, where it has one that is cheaper than a root; else None."""
        return None

    def prior_matrix(self) -> Float[Tensor, "p p"] | None:
        """S itself where it is a dense matrix without structure, of which a root would only be made; else None."""
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
        """k(x, x) − φ(x)ᵀ S φ(x), where positive: prior variance of f that no weights can represent."""
        return (self.kernel_variance(X) - self.prior_variance(X)).clamp_min(0.0)

    def empty_gram(self, device: torch.device | None = None) -> Gram:
        """The Gram matrix ΦᵀD⁻¹Φ of no points."""
        return DenseGram.zeros(self.num_features, device)

    def chunk_size(self) -> int:
        """How many points to take at once when passing over data, for some 100 MB of scratch memory."""
        return max(1, 10_000_000 // self.num_features)


@dataclass(frozen=True)
class Whitened(FeatureMap):
    """ψ = Rᵀφ of a feature map φ, with weights N(0, I_s). Abstract: subclasses know how to multiply.

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
    """By a dense root: O(p s) a point.

    Attributes:
        base: φ.
        root: R.
    """

    root: Float[Tensor, "p s"]

    @override
    def __call__(self, X: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b n s"]:
        return self.base(X) @ self.root
