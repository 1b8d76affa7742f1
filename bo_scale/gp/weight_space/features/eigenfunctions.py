"""Nyström eigenfunctions of a product kernel on a Cartesian grid that is never formed: the features of GP-GRIEF.

Let K_l = Q_l Λ_l Q_lᵀ be the kernel matrix of the g nodes of dimension l. The eigenpairs of K_UU = ⊗ K_l are products
of one-dimensional eigenpairs. Only the p largest of these g^d products are kept:

    φ_i(x) = Π_l λ_l^(−½) k_l(x_l, U_l) q_l,  each at column idx(i, l).              [GRIEF] eq. 3, theorem 2

Each factor is divided by √λ_l before the product. Its magnitude is then at most √k_l(x_l, x_l) = 1: products cannot
overflow at any d, and logarithms are not needed.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float, Int
from linear_operator.operators import DiagLinearOperator
from torch import Tensor
from typing_extensions import override

from bo_scale.gp.linalg.dense import symmetric_eigen
from bo_scale.gp.linalg.kronecker import top_sums
from bo_scale.gp.waiting import holds
from bo_scale.gp.weight_space.features.base import FeatureMap

EIGENVALUE_TOLERANCE = 1e-10
"""Relative size below which eigenvalues of one dimension count as zero."""

SLIGHT = 0.01
"""Share of the prior variance that may be lost outside the grid before variance is added."""
TIE = 1e-6
"""Relative difference below which eigenvalues count as equal. Equal lengthscales give many equal products."""

AxisFactors = Callable[[Float[Tensor, "*b n d"], Float[Tensor, "d g"]], Float[Tensor, "*b n d g"]]
"""Function from points and nodes to k_l(x_l, u_lj) of all dimensions l at once, with k_l(u, u) = 1."""


@dataclass(frozen=True)
class ProductPlan:
    """Plan for products of one row per dimension that forms each distinct partial product only once.

    Dimensions are joined in pairs, then pairs of pairs, and so on. Most of the p multi-indices agree in most
    dimensions, so early joins have few distinct rows. The total cost is a small multiple of the last join's p rows, not
    d times as much.

    Attributes:
        index: Row of each dimension's table that enters each product.
        levels: Rows of the two tables to multiply, for every level and every pair joined in it.
    """

    index: Int[Tensor, "p d"]
    levels: tuple[tuple[tuple[Int[Tensor, " _"], Int[Tensor, " _"]], ...], ...]

    @classmethod
    def of(cls, index: Int[Tensor, "p d"]) -> "ProductPlan":
        """Plan the products of given multi-indices. O(d p log p)."""
        codes, levels = list(index.unbind(-1)), []
        while len(codes) > 2:
            level, joined = [], []
            for a, b in zip(codes[::2], codes[1::2]):
                width = int(b.max()) + 1
                pairs, code = (a * width + b).unique(return_inverse=True)
                level.append((pairs // width, pairs % width))
                joined.append(code)
            codes = joined + codes[len(codes) & ~1 :]
            levels.append(tuple(level))
        levels.append(((codes[0], codes[1]),) if len(codes) == 2 else ())
        return cls(index, tuple(levels))

    def __call__(self, tables: Float[Tensor, "d r n"]) -> Float[Tensor, "p n"]:
        """Π_l tables[l, index[i, l]] for every i. O(p n) memory, with or without gradients."""
        parts = list(tables.unbind(0))
        if len(parts) == 1:
            return parts[0].index_select(0, self.index[:, 0])
        for level in self.levels:
            joined = [
                a.index_select(0, i) * b.index_select(0, j) for a, b, (i, j) in zip(parts[::2], parts[1::2], level)
            ]
            parts = joined + parts[len(parts) & ~1 :]
        return parts[0]


@dataclass(frozen=True)
class Eigenbasis:
    """The p largest eigenpairs of a product kernel on a grid, at one value of the hyperparameters.

    Attributes:
        nodes: Coordinates of each dimension's nodes. If all are equal, as for a constant input, the dimension has one
            eigenfunction, k_l(x, u), and uses up none of the limit.
        factors: One-dimensional factors of the kernel.
        limit: Largest number of eigenpairs.
    """

    nodes: Float[Tensor, "d g"]
    factors: AxisFactors = field(repr=False)
    limit: int

    def _eigen(self) -> tuple[Float[Tensor, "d g"], Float[Tensor, "d g g"]]:
        """λ_l and Q_l, largest first. Signs make each eigenvector's product with a fixed vector positive."""
        values, Q = symmetric_eigen(self.factors(self.nodes.mT, self.nodes).movedim(1, 0))
        generic = torch.cos(1.0 + torch.arange(Q.shape[-1], dtype=Q.dtype, device=Q.device).square())
        return values, torch.where((generic @ Q.detach() < 0).unsqueeze(-2), -Q, Q)

    @property
    def plan(self) -> ProductPlan:
        """Plan of the eigenvectors in each product, largest eigenvalue first: [GRIEF] algorithm 1. Computed once.

        Only eigenvalues above 1e-10 of their dimension's largest are used, so there may be fewer products than the
        limit.
        """
        if "_plan" not in self.__dict__:
            with torch.no_grad():
                values, _ = self._eigen()
                shares = values / values[:, :1]
                logs = [(share[share > EIGENVALUE_TOLERANCE].log() / TIE).round().long() for share in shares]
                self.__dict__["_plan"] = ProductPlan.of(top_sums(logs, self.limit))
        kept: ProductPlan = self.__dict__["_plan"]
        return kept

    @property
    def maps(self) -> Float[Tensor, "d g r"]:
        """Q_l Λ_l^(−½) of the leading eigenpairs, r in each dimension, that products use. Computed once if constant."""
        key = f"_maps_{torch.is_grad_enabled()}"
        if key in self.__dict__:
            kept: Tensor = self.__dict__[key]
            return kept
        values, Q = self._eigen()
        used = int(self.plan.index.max()) + 1
        positive = (values > EIGENVALUE_TOLERANCE * values[:, :1])[:, :used]
        scale = torch.where(positive, values[:, :used], 1.0).rsqrt()
        maps = torch.where(positive.unsqueeze(-2), Q[..., :used] * scale.unsqueeze(-2), 0.0)
        if not maps.requires_grad:
            self.__dict__[key] = maps
        return maps


@dataclass(frozen=True)
class EigenfunctionFeatures(FeatureMap):
    """Eigenfunctions with prior weights: k(x, x') ≈ Σ_i s w_i φ_i(x) φ_i(x'), [GRIEF] eqs. 3 and 16.

    With w = 1 this is the Nyström approximation of s Π_l k_l on the nodes of the grid. φ depends on the kernel's
    factors but not on its outputscale.

    Attributes:
        basis: φ.
        outputscale: s = k(x, x), in squared units of f.
        weights: w, at least p of them; None for ones.
    """

    basis: Eigenbasis
    outputscale: Float[Tensor, ""]
    weights: Float[Tensor, " _"] | None = None

    @property
    @override
    def num_features(self) -> int:
        return len(self.basis.plan.index)

    @override
    def __call__(self, X: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b n p"]:
        """Φ. O(n (d g r + p log d)), where r ≤ g eigenpairs are used in each dimension."""
        basis = self.basis
        K = basis.factors(X.to(torch.float64).reshape(-1, X.shape[-1]), basis.nodes)
        rows = basis.plan(basis.maps.mT @ K.permute(1, 2, 0))
        return rows.mT.reshape(*X.shape[:-1], len(rows))

    @override
    def depends_on(self) -> tuple[Any, ...]:
        return "eigenfunctions", self.basis.nodes, self.basis.plan.index, self.basis.maps.detach()

    @override
    def chunk_size(self) -> int:
        return max(1, 12_000_000 // (3 * self.num_features + 4 * self.basis.nodes.numel()))

    @override
    def prior_root(self) -> DiagLinearOperator:
        """R = diag √(s w)."""
        return DiagLinearOperator(self.weight_variances().sqrt())

    def weight_variances(self) -> Float[Tensor, " p"]:
        """Diagonal s w of S."""
        if self.weights is None:
            return self.outputscale.expand(self.num_features)
        return self.outputscale * self.weights[: self.num_features]

    @override
    def prior_covariance(self, X: Float[Tensor, "n d"]) -> Float[Tensor, "n n"]:
        """Φ S Φᵀ of n points. Differentiable in the hyperparameters. O(n² p)."""
        F = self(X) * self.weight_variances().sqrt()
        return F @ F.mT

    @override
    def prior_variance(self, X: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b n"]:
        """φ(x)ᵀ S φ(x). Differentiable in X. O(p) a point plus the features."""
        return self(X).square() @ self.weight_variances()

    @override
    def distance_variance(self, X: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b n"]:
        """Prior variance at the nearest point of the grid's box, less that here: eigenfunctions decay outside.

        One per cent of it is not counted, so that points a little outside are conditioned exactly.
        """
        nodes = self.basis.nodes
        nearest = X.to(nodes).maximum(nodes.amin(-1)).minimum(nodes.amax(-1))
        if holds(nearest == X):
            return nodes.new_zeros(X.shape[:-1])
        return ((1 - SLIGHT) * self.prior_variance(nearest) - self.prior_variance(X)).clamp_min(0.0)

    @override
    def kernel_variance(self, X: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b n"]:
        """k(x, x) = s of the approximated kernel."""
        return self.outputscale.expand(X.shape[:-1])
