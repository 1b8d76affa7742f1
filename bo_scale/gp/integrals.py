"""Integrated posterior variance in closed form: V₀ − tr(A⁻¹ M_q)."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from bo_scale.gp.conditioning import condition
from bo_scale.gp.linalg.dense import cholesky
from bo_scale.gp.processes import Located, PosteriorProcess
from bo_scale.gp.weight_space.gram import Gram
from bo_scale.gp.weight_space.posterior import WeightLocated, WeightSpacePosterior, kalman_factors


@dataclass(frozen=True)
class IntegratedVariance(ABC):
    """Σ_z ω_z Var[f(z) | data, X] as a function of X.

    Attributes:
        process: Posterior given the data.
        offset: Variance that measurements do not reduce.
    """

    process: PosteriorProcess
    offset: Float[Tensor, ""]

    @abstractmethod
    def total(self) -> Float[Tensor, "*b"]:
        """V₀, the integral before X is measured."""

    @abstractmethod
    def square(self, points: Located) -> Float[Tensor, "*b q q"]:
        """M_q = Σ_z ω_z k(X_q, z) k(z, X_q)."""

    @abstractmethod
    def after(
        self, X: Float[Tensor, "q d"], noise: Float[Tensor, "*s"], factor: Float[Tensor, " q"] | None = None
    ) -> "IntegratedVariance":
        """The integral after measuring X, with noise times a factor for each. It does not depend on measured values."""

    def __call__(
        self, X: Float[Tensor, "*b q d"], noise: Float[Tensor, "*s"], factor: Float[Tensor, "*b q"] | None = None
    ) -> Float[Tensor, "*c"]:
        """V₀ − tr(A⁻¹M_q), A = k(X_q, X_q) + σ²S, S = I or a factor for each. O(q³) plus the covariances at X."""
        points = self.process.locate(X)
        A = points.covariance(points)
        E = cholesky(A + torch.diag_embed(_variances(noise, A.shape[-1], factor)), "covariance of candidates")
        reduction = torch.cholesky_solve(self.square(points), E).diagonal(dim1=-2, dim2=-1).sum(-1)
        return self.total() - reduction


@dataclass(frozen=True)
class WeightSpaceIntegral(IntegratedVariance):
    """Integral for a weight-space process: M = Σ_z ω_z φ(z)φ(z)ᵀ is computed once, M_q = (Φ_q B BᵀMB) (Φ_q B)ᵀ.

    Attributes:
        inner: W = BᵀMB.
        root: A = B W.
    """

    inner: Float[Tensor, "s s"]
    root: Float[Tensor, "p s"]

    @classmethod
    def over(cls, process: WeightSpacePosterior, M: Gram, offset: Float[Tensor, ""]) -> "WeightSpaceIntegral":
        """Integrate against M. O(p s² + nnz(M) s), once."""
        W = process.root.mT @ M.matmul(process.root)
        return cls(process, offset, W, process.root @ W)

    @override
    def total(self) -> Float[Tensor, ""]:
        return self.inner.trace() + self.offset

    @override
    def square(self, points: Located) -> Float[Tensor, "*b q q"]:
        assert isinstance(points, WeightLocated)
        return (points.features @ self.root) @ points.root.mT

    @override
    def after(
        self, X: Float[Tensor, "q d"], noise: Float[Tensor, "*s"], factor: Float[Tensor, " q"] | None = None
    ) -> "WeightSpaceIntegral":
        """W' = JᵀWJ and A' = B J W' with J = I − G T: O(p s q), against O(p s²) from scratch."""
        assert isinstance(self.process, WeightSpacePosterior)
        B, W, A = self.process.root, self.inner, self.root
        points, variances = self.process.locate(X), _variances(noise, len(X), factor)
        _, G, T = kalman_factors(points.root, variances)
        WG = W @ G
        right = WG.mT - (G.mT @ WG) @ T  # GᵀWJ
        inner = W - WG @ T - T.mT @ right
        root = A - (A @ G) @ T - (B @ T.mT) @ right - (B @ G) @ (T @ inner)
        return WeightSpaceIntegral(self.process.update(points, points.mean, variances), self.offset, inner, root)


@dataclass(frozen=True)
class PointwiseIntegral(IntegratedVariance):
    """Integral for any process, from its covariances with the integration points. O(q N) an evaluation.

    Attributes:
        points: z.
        weights: ω, which sum to one.
        located: z, located in the process.
        trace: Σ_z ω_z k(z, z).
    """

    points: Float[Tensor, "N d"]
    weights: Float[Tensor, " N"]
    located: Located
    trace: Float[Tensor, "*b"]

    @classmethod
    def over(
        cls, process: PosteriorProcess, points: Float[Tensor, "N d"], weights: Float[Tensor, " N"], offset: Tensor
    ) -> "PointwiseIntegral":
        """Integrate over weighted points."""
        located = process.locate(points)
        return cls(process, offset, points, weights, located, (located.variance() * weights).sum(-1))

    @override
    def total(self) -> Float[Tensor, "*b"]:
        return self.trace + self.offset

    @override
    def square(self, points: Located) -> Float[Tensor, "*b q q"]:
        K = points.covariance(self.located)
        return (K * self.weights) @ K.mT

    @override
    def after(
        self, X: Float[Tensor, "q d"], noise: Float[Tensor, "*s"], factor: Float[Tensor, " q"] | None = None
    ) -> "PointwiseIntegral":
        process = condition(self.process, X, self.process.mean(X), _variances(noise, len(X), factor))
        return PointwiseIntegral.over(process, self.points, self.weights, self.offset)


def _variances(noise: Float[Tensor, "*s"], q: int, factor: Float[Tensor, "*b q"] | None) -> Float[Tensor, "*c q"]:
    """Noise variances of q measurements."""
    each = noise.unsqueeze(-1)
    return each.expand(*noise.shape, q) if factor is None else each * factor
