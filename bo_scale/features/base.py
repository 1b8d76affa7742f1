"""What a weight-space method is: a feature map and the root of the prior over its weights."""

from abc import ABC, abstractmethod

import torch
from jaxtyping import Float
from linear_operator import LinearOperator
from torch import Tensor

from bo_scale.features.sparse import SparseRows
from bo_scale.gram import DenseGram, Gram


class FeatureMap(ABC):
    """φ: inputs to p features, with w ~ N(0, R Rᵀ). A new method implements the abstract members.

    Everything is float64, whatever the dtype of the inputs.
    """

    @property
    @abstractmethod
    def num_features(self) -> int:
        """P."""

    @abstractmethod
    def __call__(self, X: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b n p"] | SparseRows:
        """Φ, dense or in sparse rows. Differentiable in X."""

    @abstractmethod
    def prior_root(self) -> LinearOperator:
        """R of shape p s with S = R Rᵀ, in units of f. Differentiable in the hyperparameters."""

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
