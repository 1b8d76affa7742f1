"""Gram matrices and statistics gathered on another grid, carried over by interpolation."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from linear_operator import LinearOperator
from torch import Tensor
from typing_extensions import override

from bo_scale.gp.linalg.kronecker import KroneckerColumns, kronecker_matmul
from bo_scale.gp.weight_space.features.base import FeatureMap
from bo_scale.gp.weight_space.features.grid.interpolation import Basis, Grid, axis_weights, prefilter
from bo_scale.gp.weight_space.features.grid.stencil import StencilGram
from bo_scale.gp.weight_space.features.sparse_rows import SparseRows
from bo_scale.gp.weight_space.gram import Gram
from bo_scale.gp.weight_space.statistics import SufficientStatistics

Transfer = tuple[Float[Tensor, "_ _"], ...]
"""P_l of every dimension: maps coefficients on a grid to coefficients on its predecessor."""


@dataclass(frozen=True)
class InheritedGram(Gram):
    """G + Σ_k P_kᵀ G_k P_k: data summed on this grid, and data summed on earlier grids only.

    An earlier grid represents f by φ_k(x)ᵀT_k f(U_k): it interpolates the values at its nodes. Here f is a function on
    this grid, so T_k f(U_k) = P_k w. No row is needed, and old data keep the information and the interpolation error
    they had. P_k = ⊗ P_kl, so congruences with Kronecker roots keep their structure.

    Attributes:
        values: Entries of G, then of G_1, G_2, ….
        parts: Empty Gram matrices that define the layout of `values`.
        transfers: P_1, P_2, ….
    """

    parts: tuple[StencilGram, ...]
    transfers: tuple[Transfer, ...]

    @classmethod
    def zeros(cls, parts: Sequence[StencilGram], transfers: Sequence[Transfer]) -> "InheritedGram":
        """Empty Gram matrix of this grid and of all earlier ones."""
        return cls(torch.cat([part.values.flatten() for part in parts]), tuple(parts), tuple(transfers))

    @classmethod
    def along(cls, line: Sequence[Grid], basis: Basis, device: torch.device | None = None) -> "InheritedGram":
        """Empty Gram matrix of the first of several grids, of which each inherits the data of the next. O(Σ m_l³)."""
        transfers: list[Transfer] = []
        for new, old in itertools.pairwise(line):
            step = transfer(old, new, basis, device)
            transfers.append(step if not transfers else tuple(s @ t for s, t in zip(step, transfers[-1], strict=True)))
        return cls.zeros([StencilGram.zeros(grid.size, device) for grid in line], transfers)

    @property
    def grams(self) -> tuple[StencilGram, ...]:
        """G, G_1, G_2, …."""
        entries = self.values.split([part.values.numel() for part in self.parts])
        return tuple(replace(part, values=e.view_as(part.values)) for part, e in zip(self.parts, entries, strict=True))

    @override
    def add_rows(self, features: SparseRows, weights: Float[Tensor, " n"]) -> "InheritedGram":
        own, *earlier = self.grams
        grams = [own.add_rows(features, weights), *earlier]
        return replace(self, values=torch.cat([gram.values.flatten() for gram in grams]))

    @override
    def combine(self, other: "InheritedGram", sign: float) -> "InheritedGram":
        return replace(self, values=torch.add(self.values, other.values, alpha=sign))

    @override
    def scale(self, factor: float | Float[Tensor, ""]) -> "InheritedGram":
        return replace(self, values=factor * self.values)

    @override
    def matmul(self, M: Float[Tensor, "p t"]) -> Float[Tensor, "p t"]:
        own, *earlier = self.grams
        out = own.matmul(M)
        for gram, P in zip(earlier, self.transfers, strict=True):
            out = out + kronecker_matmul([p.mT for p in P], gram.matmul(kronecker_matmul(P, M)))
        return out

    @override
    def congruence(self, root: LinearOperator, scale: Float[Tensor, ""]) -> Float[Tensor, "s s"]:
        own, *earlier = self.grams
        if not isinstance(root, KroneckerColumns):
            R = root.to_dense()
            return (scale * R).mT @ self.matmul(R)
        out = own.congruence(root, scale)
        for gram, P in zip(earlier, self.transfers, strict=True):
            seen = [p @ R for p, R in zip(P, root.factors, strict=True)]
            out = out + gram.congruence(KroneckerColumns(root.weight, *seen, index=root.index), scale)
        return out

    @override
    def to_dense(self) -> Float[Tensor, "p p"]:
        p = math.prod(self.parts[0].size)
        return self.matmul(torch.eye(p, dtype=torch.float64, device=self.values.device))


def transfer(old: Grid, new: Grid, basis: Basis, device: torch.device | None = None) -> Transfer:
    """P_l = T_old φ_new(U_old): coefficients on the old grid of a function on the new one."""
    return tuple(  # outside the new margin by rounding only
        prefilter(m, basis, device) @ axis_weights(new, basis, nodes, axis).to_dense()
        for axis, (m, nodes) in enumerate(zip(old.size, old.nodes(device), strict=True))
    )


def inherited(stats: SufficientStatistics, features: FeatureMap) -> SufficientStatistics:
    """Carry statistics from the latest ancestor of a grid over to the grid, without a pass over rows.

    r = Pᵀr_1 and g = Pᵀg_1. Sums over targets and noise do not change.
    """
    empty = features.empty_gram(stats.square.device)
    assert isinstance(empty, InheritedGram), "features with ancestors"
    back = [P.mT for P in empty.transfers[0]]
    own = torch.zeros_like(empty.parts[0].values).flatten()
    return replace(
        stats,
        gram=replace(empty, values=torch.cat([own, stats.gram.values.flatten()])),
        projection=kronecker_matmul(back, stats.projection),
        feature_sum=kronecker_matmul(back, stats.feature_sum.unsqueeze(-1)).squeeze(-1),
        features=features.depends_on(),
    )
