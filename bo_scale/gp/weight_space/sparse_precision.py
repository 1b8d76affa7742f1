"""Weight-space posteriors from a sparse precision of the prior: Matérn-1/2 kernels on a grid, alone or in a sum.

The weights are w ~ N(0, Q⁻¹) of a grid, where Q couples near nodes only, and z ~ N(0, I) of the other parts of the
sum: f(x) = μ + φ(x)ᵀw + ψ(x)ᵀz with ψ = Rᵀφ_2. Given the blocks of the statistics G and b = r − μg, their posterior
precision has the blocks

    A = Q + σ⁻²G_11      U = σ⁻²G_12R      V = I + σ⁻²RᵀG_22R

and w is eliminated first: A by banded Cholesky, then D Dᵀ = V − UᵀZ with Z = A⁻¹U. Eigenvalues of D Dᵀ are at least 1.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from bo_scale.gp.linalg.banded import BandedCholesky, banded_quadratic
from bo_scale.gp.linalg.dense import cholesky, quadratic_and_logdet, solve_lower
from bo_scale.gp.processes import Located, join_rows
from bo_scale.gp.weight_space.evidence import residual, unexplained
from bo_scale.gp.weight_space.features.base import FeatureMap, SparsePrior
from bo_scale.gp.weight_space.features.grid.stencil import StencilGram, stencil_pairs
from bo_scale.gp.weight_space.features.sparse_rows import SparseRows, dot
from bo_scale.gp.weight_space.features.sums import BlockGram, SumFeatures
from bo_scale.gp.weight_space.posterior import WeightProcess, join_features
from bo_scale.gp.weight_space.statistics import SufficientStatistics

CHUNK = 1 << 25
"""Largest number of half-solved feature entries at once: 256 MB."""


@dataclass(frozen=True)
class PrecisionLocated(Located):
    """Points of a `PrecisionPosterior`: cov = FFᵀ with F = [(L⁻¹φ)ᵀ, (D⁻¹(ψ − Zᵀφ))ᵀ], A = LLᵀ.

    Attributes:
        mean: Posterior mean.
        features: φ.
        corner: Second part of F.
        process: Process of the points.
    """

    mean: Float[Tensor, "*b q"]
    features: SparseRows
    corner: Float[Tensor, "*b q s"]
    process: "PrecisionPosterior"

    @cached_property
    def root(self) -> Float[Tensor, "*b q r"]:
        """F. O(p b) a point, for b nodes in a block of A."""
        return torch.cat([_half_solved(self.features, self.process.factor), self.corner], -1)

    @override
    def covariance(self, other: "PrecisionLocated") -> Float[Tensor, "*b q r"]:
        if other is not self:
            return self.root @ other.root.mT
        (*batch, q), width = self.mean.shape, self.features.width
        if q == 1:
            return self.variance().unsqueeze(-1)
        count = math.prod(batch)
        rows, corner = self.features.reshape(count, q), self.corner.reshape(count, q, self.corner.shape[-1])
        blocks = []
        for part in torch.arange(count, device=corner.device).split(max(1, CHUNK // max(1, q * width))):
            half = _half_solved(rows[part], self.process.factor)
            blocks.append(half @ half.mT + corner[part] @ corner[part].mT)
        return torch.cat(blocks).reshape(*self.corner.shape[:-1], q) if blocks else self.corner @ self.corner.mT

    @override
    def variance(self) -> Float[Tensor, "*b q"]:
        """Posterior variance from the entries of A⁻¹ at each point's nodes: O(10^d) a point, no solve."""
        flat = self.features.reshape(-1)
        places, pairs = stencil_pairs(flat, self.process.factor.blocks.size)
        near = (pairs * self.process.stencil.flatten()[places]).sum(-1)
        return near.reshape(self.mean.shape) + self.corner.square().sum(-1)

    @override
    def join(self, other: "PrecisionLocated") -> "PrecisionLocated":
        mean = join_rows(self.mean.unsqueeze(-1), other.mean.unsqueeze(-1)).squeeze(-1)
        features = join_features(self.features, other.features)
        assert isinstance(features, SparseRows)
        return PrecisionLocated(mean, features, join_rows(self.corner, other.corner), self.process)


@dataclass(frozen=True)
class PrecisionPosterior(WeightProcess):
    """f(x) = μ + φ(x)ᵀw + ψ(x)ᵀz, with the posterior of (w, z) given by factors of its precision.

    Attributes:
        features: Features of the whole function.
        grid: φ.
        rest: ψ; None if there is no other part.
        factor: L of A = LLᵀ.
        stencil: A⁻¹ summed over every place of the stencil, as needed for variances at points.
        coupling: Z = A⁻¹U.
        corner: D.
        weights: Posterior means of w and z.
        constant: μ.
    """

    features: FeatureMap
    grid: FeatureMap
    rest: FeatureMap | None
    factor: BandedCholesky
    stencil: Float[Tensor, "..."]
    coupling: Float[Tensor, "p s"]
    corner: Float[Tensor, "s s"]
    weights: Float[Tensor, " r"]
    constant: Float[Tensor, ""]

    @classmethod
    def from_statistics(
        cls,
        features: FeatureMap,
        prior: SparsePrior,
        stats: SufficientStatistics,
        noise: Float[Tensor, ""],
        constant: Float[Tensor, ""],
    ) -> "PrecisionPosterior":
        """The posterior of `WeightSpacePosterior.from_statistics` without truncation. O(p b² + p b s + s³), free of n.

        Args:
            features: Features of the whole function.
            prior: Prior of their weights.
            stats: Statistics of one output under the same features.
            noise: σ².
            constant: μ.
        """
        A, H, W, b = _system(prior, stats, noise, constant)
        factor = BandedCholesky.of(A, prior.size)
        solved = factor.solve(H)
        first, Z = solved[:, 0], solved[:, 1:]
        D = cholesky(torch.eye(len(W), dtype=W.dtype, device=W.device) + W - H[:, 1:].mT @ Z, "V − UᵀZ")
        z = torch.cholesky_solve((b - H[:, 1:].mT @ first).unsqueeze(-1), D).squeeze(-1)
        rest = None if prior.rest is None or prior.root is None else prior.rest.whitened(prior.root)
        weights = torch.cat([first - Z @ z, z])
        return cls(features, prior.grid, rest, factor, factor.inverse_stencil(), Z, D, weights, constant)

    @property
    @override
    def batch_shape(self) -> torch.Size:
        """Batch shape, always empty."""
        return torch.Size([])

    @property
    @override
    def rank(self) -> int:
        return len(self.weights)

    @property
    @override
    def weighted_features(self) -> FeatureMap:
        return self.grid if self.rest is None else SumFeatures((self.grid, self.rest))

    @override
    def locate(self, X: Float[Tensor, "*b q d"]) -> PrecisionLocated:
        Phi, p = self.grid(X), len(self.coupling)
        assert isinstance(Phi, SparseRows), "grids have local features"
        mean = self.constant + dot(Phi, self.weights[:p])
        if self.rest is None:
            return PrecisionLocated(mean, Phi, Phi.values.new_zeros(*Phi.values.shape[:-1], 0), self)
        psi = self.rest(X)
        assert isinstance(psi, Tensor), "whitened features are dense"
        corner = solve_lower(self.corner, (psi - Phi @ self.coupling).mT).mT
        return PrecisionLocated(mean + psi @ self.weights[p:], Phi, corner, self)

    @override
    def mean(self, X: Float[Tensor, "*b q d"]) -> Float[Tensor, "*c q"]:
        return self.constant + dot(self.weighted_features(X), self.weights)

    @override
    def spread(self, z: Float[Tensor, "*s r"]) -> Float[Tensor, "*s r"]:
        """L⁻ᵀz_1 − Z D⁻ᵀz_2, followed by D⁻ᵀz_2."""
        p = len(self.coupling)
        near, far = z.reshape(-1, z.shape[-1]).tensor_split((p,), -1)
        far = torch.linalg.solve_triangular(self.corner, far, upper=False, left=False)
        near = self.factor.spread(near.mT).mT - far @ self.coupling.mT
        return torch.cat([near, far], -1).reshape(z.shape)


def sparse_prior_of(features: FeatureMap) -> SparsePrior | None:
    """Sparse prior to compute a posterior from, if its root would be truncated; otherwise None."""
    return features.sparse_prior() if features.num_features > features.max_rank else None


def log_evidence_of_precision(
    prior: SparsePrior, stats: SufficientStatistics, noise: Float[Tensor, ""], constant: Float[Tensor, ""]
) -> Float[Tensor, ""]:
    """The log p(y) of `evidence.log_evidence` from a sparse precision. O(p b² + p b s + s³), free of n.

    log|Λ| = log|A| − log|Q| + log|V − UᵀZ|. Differentiable in the prior, the noise and the constant.
    """
    A, H, W, b = _system(prior, stats, noise, constant)
    logdet, M = banded_quadratic(A, prior.size, H)
    explained, logdet_rest = quadratic_and_logdet(W - M[1:, 1:], b - M[1:, 0])
    logdet = logdet - prior.logdet + logdet_rest
    return 0.5 * (M[0, 0] + explained - logdet - unexplained(stats, noise, constant))


def _system(
    prior: SparsePrior, stats: SufficientStatistics, noise: Float[Tensor, ""], constant: Float[Tensor, ""]
) -> tuple[Tensor, Float[Tensor, "p t"], Float[Tensor, "s s"], Float[Tensor, " s"]]:
    """A as a stencil, [σ⁻²b_1, U], V − I and σ⁻²Rᵀb_2."""
    b = residual(stats, constant)
    gram, R = stats.gram, prior.root
    if R is None:
        assert isinstance(gram, StencilGram), "the statistics of a grid"
        none = b.new_zeros(0)
        return prior.values + gram.values / noise, b.unsqueeze(-1) / noise, b.new_zeros(0, 0), none
    assert isinstance(gram, BlockGram), "the statistics of a sum"
    G, coupling, rest = gram.split(prior.place)
    assert isinstance(G, StencilGram), "the statistics of a grid"
    (first, second), p = gram.split_vector(b, prior.place), len(coupling)
    U = R.mT.matmul(coupling.mT).mT
    H = torch.cat([first.view(p, 1), U], -1) / noise
    return prior.values + G.values / noise, H, rest.congruence(R, 1 / noise), R.mT.matmul(second) / noise


def _half_solved(rows: SparseRows, factor: BandedCholesky) -> Float[Tensor, "*b q p"]:
    """(L⁻¹φ)ᵀ of every row."""
    flat = rows.reshape(-1)
    return factor.half_solve(flat.to_dense().mT).mT.reshape(*rows.values.shape[:-1], rows.width)
