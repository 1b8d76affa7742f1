"""Gram matrices G = ΦᵀD⁻¹Φ: sums that the posterior uses instead of the data."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from linear_operator import LinearOperator
from linear_operator.operators import DiagLinearOperator
from torch import Tensor
from typing_extensions import override

from bo_scale.gp.moving import Movable


@dataclass(frozen=True)
class Gram(Movable, ABC):
    """A symmetric p×p sum over data. Immutable; float64.

    Attributes:
        values: Entries, in an order that each class chooses.
    """

    values: Tensor

    @abstractmethod
    def add_rows(self, features: Any, weights: Float[Tensor, " n"]) -> "Gram":
        """G + Σ_n weight_n φ_n φ_nᵀ."""

    @abstractmethod
    def combine(self, other: Any, sign: float) -> "Gram":
        """G + sign · G'."""

    @abstractmethod
    def scale(self, factor: float | Float[Tensor, ""]) -> "Gram":
        """Factor · G."""

    @abstractmethod
    def matmul(self, M: Float[Tensor, "p t"]) -> Float[Tensor, "p t"]:
        """G M."""

    @abstractmethod
    def congruence(self, root: LinearOperator, scale: Float[Tensor, ""]) -> Float[Tensor, "s s"]:
        """Scale · Rᵀ G R, differentiable in R and the scale."""

    def dense_for(self, root: LinearOperator) -> bool:
        """Whether G and this root are multiplied as dense matrices."""
        return False

    @abstractmethod
    def to_dense(self) -> Float[Tensor, "p p"]:
        """G as a dense matrix."""


@dataclass(frozen=True)
class DenseGram(Gram):
    """A Gram matrix kept whole, for features without structure. O(p²) memory.

    Attributes:
        values: G.
    """

    values: Float[Tensor, "p p"]

    @classmethod
    def zeros(cls, p: int, device: torch.device | None = None) -> "DenseGram":
        """Empty Gram matrix."""
        return cls(torch.zeros(p, p, dtype=torch.float64, device=device))

    @override
    def add_rows(self, features: Float[Tensor, "n p"], weights: Float[Tensor, " n"]) -> "DenseGram":
        return DenseGram(torch.addmm(self.values, features.mT * weights, features))

    @override
    def combine(self, other: "DenseGram", sign: float) -> "DenseGram":
        return DenseGram(torch.add(self.values, other.values, alpha=sign))

    @override
    def scale(self, factor: float | Float[Tensor, ""]) -> "DenseGram":
        return DenseGram(factor * self.values)

    @override
    def matmul(self, M: Float[Tensor, "p t"]) -> Float[Tensor, "p t"]:
        return self.values @ M

    @override
    def congruence(self, root: LinearOperator, scale: Float[Tensor, ""]) -> Float[Tensor, "s s"]:
        if isinstance(root, DiagLinearOperator):
            r: Tensor = root.diagonal()
            return scale * r.unsqueeze(-1) * self.values * r
        R = root.to_dense()
        return (scale * R).mT @ (self.values @ R)

    @override
    def to_dense(self) -> Float[Tensor, "p p"]:
        return self.values
