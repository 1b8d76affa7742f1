"""The Gram matrix of local interpolation: 7^d non-zeros a row, kept as a stencil over the grid."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from linear_operator import LinearOperator
from torch import Tensor
from typing_extensions import override

from bo_scale.features.sparse import SparseRows
from bo_scale.gram import Gram
from bo_scale.linalg import KroneckerColumns

REACH = 3
"""Two points that share a cubic's four nodes are at most three nodes apart."""
WIDTH = 2 * REACH + 1


@dataclass(frozen=True)
class StencilGram(Gram):
    """G over a grid m_1×⋯×m_d: entry (i, i + δ) for every node i and offset δ ∈ {−3…3}^d.

    Attributes:
        values: Entries, with axes i_1 δ_1 ⋯ i_d δ_d. 7^d p numbers.
        size: m_1, …, m_d.
    """

    values: Float[Tensor, "..."]
    size: tuple[int, ...]

    @classmethod
    def zeros(cls, size: tuple[int, ...], device: torch.device | None = None) -> "StencilGram":
        """The Gram matrix of no points."""
        axes = [a for m in size for a in (m, WIDTH)]
        return cls(torch.zeros(axes, dtype=torch.float64, device=device), size)

    @override
    def add_rows(self, features: SparseRows, weights: Float[Tensor, " n"]) -> "StencilGram":
        """O(16^d n): every pair of the 4^d nodes of a point falls into one place of the stencil."""
        pairs = features.values.unsqueeze(-1) * (features.values * weights.unsqueeze(-1)).unsqueeze(-2)
        values = self.values.flatten().index_add(0, self._places(features.columns).flatten(), pairs.flatten())
        return StencilGram(values.view_as(self.values), self.size)

    def _places(self, columns: Int[Tensor, "n k"]) -> Int[Tensor, "n k k"]:
        """Where the pair (a, b) of a row's nodes stands among the stencil's values."""
        strides = [math.prod(self.size[axis + 1 :]) for axis in range(len(self.size))]
        place = torch.zeros((), dtype=torch.long, device=columns.device)
        for stride, m in zip(strides, self.size):
            node = columns // stride % m
            offset = node.unsqueeze(-2) - node.unsqueeze(-1) + REACH
            place = place * (m * WIDTH) + node.unsqueeze(-1) * WIDTH + offset
        return place

    @override
    def combine(self, other: "StencilGram", sign: float) -> "StencilGram":
        return StencilGram(torch.add(self.values, other.values, alpha=sign), self.size)

    @override
    def scale(self, factor: float | Float[Tensor, ""]) -> "StencilGram":
        return StencilGram(factor * self.values, self.size)

    @override
    def matmul(self, M: Float[Tensor, "p t"]) -> Float[Tensor, "p t"]:
        """O(7^d p t)."""
        return self._rows() @ M

    @override
    def congruence(self, root: LinearOperator, scale: Float[Tensor, ""]) -> Float[Tensor, "s s"]:
        """Scale · Rᵀ G R for R = ⊗ R_l, one dimension at a time, keeping only the index prefixes R has columns for.

        With s_l columns in dimension l, O(Σ_l (s_1⋯s_l)² 7^(d−l) m_l⋯m_d) instead of O(p² s); dimensions with few
        columns come first.
        """
        if not isinstance(root, KroneckerColumns):
            return (scale * root.to_dense()).mT @ self.matmul(root.to_dense())
        order = sorted(range(len(self.size)), key=lambda axis: root.factors[axis].shape[-1])  # few columns first
        axes = [a for axis in order for a in (2 * axis, 2 * axis + 1)]
        X = self.values.permute(axes).reshape(1, 1, -1)  # axes: prefix a, prefix b, the dimensions still to contract
        prefixes = torch.zeros(len(root.index), dtype=torch.long, device=root.index.device)
        for step, axis in enumerate(order):
            m, R, index = self.size[axis], root.factors[axis], root.index[:, axis]
            L, s = scale * R if step == 0 else R, R.shape[-1]
            padded = torch.nn.functional.pad(R, (0, 0, REACH, REACH))
            windows = padded.unfold(0, WIDTH, 1)  # i b δ: the rows of R that node i's offsets reach
            X = X.unflatten(-1, (m, WIDTH, -1))
            X = torch.einsum("uvidr,ibd->uvibr", X, windows)
            X = torch.einsum("uvibr,ia->uavbr", X, L)
            pairs, prefixes = (prefixes * s + index).unique(return_inverse=True)
            X = _select(X.flatten(0, 1).flatten(1, 2), pairs)
        whole = _select(X.squeeze(-1), prefixes)
        return whole if bool((root.weight == 1).all()) else root.weight.unsqueeze(-1) * whole * root.weight

    @override
    def to_dense(self) -> Float[Tensor, "p p"]:
        return self._rows().to_dense()

    @override
    def to(self, device: torch.device) -> "StencilGram":
        return StencilGram(self.values.to(device), self.size)

    def _rows(self) -> SparseRows:
        """The same matrix in rows. Offsets beyond the grid's edge are zero entries put on node 0 or m − 1."""
        d, device = len(self.size), self.values.device
        node_axes, offset_axes = range(0, 2 * d, 2), range(1, 2 * d, 2)
        values = self.values.permute(*node_axes, *offset_axes).reshape(math.prod(self.size), -1)
        columns = torch.zeros((1, 1), dtype=torch.long, device=device)
        for m in self.size:
            reached = torch.arange(m, device=device).unsqueeze(-1) + torch.arange(-REACH, REACH + 1, device=device)
            grid = columns[:, None, :, None] * m + reached.clamp(0, m - 1)[None, :, None, :]
            columns = grid.flatten(2, 3).flatten(0, 1)
        return SparseRows(values, columns, math.prod(self.size))


def _select(X: Float[Tensor, "a a *r"], kept: Int[Tensor, " k"]) -> Float[Tensor, "k k *r"]:
    """Some rows and the same columns; X itself where that is all of them in order."""
    if len(kept) == len(X) and bool((kept == torch.arange(len(X), device=kept.device)).all()):
        return X
    return X.index_select(0, kept).index_select(1, kept)
