"""The Gram matrix of local interpolation, kept as a stencil over the grid.

A sum of φφᵀ with φ = ⊗_l φ_l is symmetric in every single dimension: entry (r, c) depends on min(r_l, c_l) and
|r_l − c_l| only. So 4^d numbers per node replace 7^d non-zeros per row.
"""

import math
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import Any

import torch
from jaxtyping import Float, Int
from linear_operator import LinearOperator
from torch import Tensor
from torch.autograd.function import once_differentiable
from typing_extensions import override

from bo_scale.gp.linalg.banded import REACH, stencil_matmul
from bo_scale.gp.linalg.kronecker import KroneckerColumns, rowwise_kronecker
from bo_scale.gp.weight_space.features.sparse_rows import SparseRows
from bo_scale.gp.weight_space.gram import Gram

WIDTH = REACH + 1
"""Number of offsets {0…3} in one dimension: nodes of the same cubic are at most three apart."""
PRODUCTS = 1 << 23
"""Largest number of entries in a table of column products: 64 MB."""
PAIRS = 8_000_000
"""Products of nodes that are added at once, at most."""
CROWDED = 16
"""Points a cell, at least, of rows that are summed cell by cell."""
DENSE = 2048
"""Number of nodes up to which G is a dense matrix in products on a GPU: they are faster than the plan for fewer."""
WORTH_GROUPING = 10_000_000
"""Number of multiplications from which it pays to contract groups of prefixes separately."""


@dataclass(frozen=True)
class StencilGram(Gram):
    """G over a grid m_1×⋯×m_d: entries of nodes i and i ± δ, δ ∈ {0…3}^d, with any signs.

    Attributes:
        values: Entries, with axes i_1 δ_1 ⋯ i_d δ_d, i the smaller node. 4^d p numbers.
        size: m_1, …, m_d.
    """

    values: Float[Tensor, "..."]
    size: tuple[int, ...]

    @classmethod
    def zeros(cls, size: tuple[int, ...], device: torch.device | None = None) -> "StencilGram":
        """Empty Gram matrix."""
        axes = [a for m in size for a in (m, WIDTH)]
        return cls(torch.zeros(axes, dtype=torch.float64, device=device), size)

    @override
    def add_rows(self, features: SparseRows, weights: Float[Tensor, " n"]) -> "StencilGram":
        """Add rows in O(10^d n): in each dimension, a pair of a point's four nodes maps to one place of the stencil.

        Many rows on the CPU are summed cell by cell, by products of matrices, before they are added to the stencil.
        """
        summed, values = _by_cells(features, weights, self.size), self.values.flatten()
        if summed is not None:
            return StencilGram(
                values.index_add(0, summed[0].flatten(), summed[1].flatten()).view_as(self.values), self.size
            )
        for start in range(0, len(weights), count := max(1, PAIRS // 10 ** len(self.size))):
            part = slice(start, start + count)
            some = SparseRows(features.values[part], features.columns[part], features.width)
            places, pairs = stencil_pairs(some, self.size)
            values = values.index_add(0, places.flatten(), (pairs * weights[part].unsqueeze(-1)).flatten())
        return StencilGram(values.view_as(self.values), self.size)

    @override
    def combine(self, other: "StencilGram", sign: float) -> "StencilGram":
        return StencilGram(torch.add(self.values, other.values, alpha=sign), self.size)

    @override
    def scale(self, factor: float | Float[Tensor, ""]) -> "StencilGram":
        return StencilGram(factor * self.values, self.size)

    @override
    def matmul(self, M: Float[Tensor, "p t"]) -> Float[Tensor, "p t"]:
        """G M in O(7^d p t)."""
        return stencil_matmul(self.values, self.size, M)

    @override
    def congruence(self, root: LinearOperator, scale: Float[Tensor, ""]) -> Float[Tensor, "s s"]:
        """Scale · Rᵀ G R for chosen columns R of ⊗ R_l, one dimension at a time.

        Dimension l maps node and offset to a pair of columns (a, b) by R_l[i, a] R_l[i + δ, b], symmetrised. Only pairs
        of prefixes that occur in R's columns are kept, each extended only by columns that follow it. With u_l prefixes
        of length l: O(Σ_l u_l² 4^(d−l+1) m_l⋯m_d). No p×s matrix is formed.
        """
        if self.dense_for(root):
            R = root.to_dense()
            return (scale * R).mT @ (self.to_dense() @ R)
        order = sorted(range(len(self.size)), key=lambda axis: root.factors[axis].shape[-1])  # few columns first
        axes = [a for axis in order for a in (2 * axis, 2 * axis + 1)]
        X = scale * self.values.permute(axes).reshape(1, -1)  # rows: pairs u ≤ v of prefixes
        prefixes = torch.zeros(len(root.index), dtype=torch.long, device=root.index.device)
        count = 1
        for axis in order:
            R = root.factors[axis]
            codes, longer = (prefixes * R.shape[-1] + root.index[:, axis]).unique(return_inverse=True)
            X = X.unflatten(-1, (self.size[axis] * WIDTH, -1))
            table = self.size[axis] * WIDTH
            blocks = _blocks(codes // R.shape[-1], codes % R.shape[-1], count, table, X[0].numel())
            prefixes, count = longer, len(codes)
            contraction: Any = _Contraction.apply
            X = contraction(X, R, blocks, count * (count + 1) // 2)
        pairs = _pair_index(prefixes.unsqueeze(-1), prefixes)
        whole = X.flatten().index_select(0, pairs.flatten()).view(pairs.shape)
        return whole if bool((root.weight == 1).all()) else root.weight.unsqueeze(-1) * whole * root.weight

    @override
    def dense_for(self, root: LinearOperator) -> bool:
        """Whether both are multiplied as dense matrices: in one dimension, and on a GPU if they are small."""
        small = self.values.is_cuda and math.prod(self.size) <= DENSE
        return not isinstance(root, KroneckerColumns) or len(self.size) == 1 or small

    @override
    def to_dense(self) -> Float[Tensor, "p p"]:
        if self.values.is_cuda and math.prod(self.size) <= DENSE:
            places = _dense_places(self.size, self.values.device)
            entries = torch.cat([self.values.flatten(), self.values.new_zeros(1)])
            return entries.index_select(0, places.flatten()).view(places.shape)
        return self.matmul(torch.eye(math.prod(self.size), dtype=torch.float64, device=self.values.device))


@lru_cache(maxsize=16)
def _dense_places(size: tuple[int, ...], device: torch.device) -> Int[Tensor, "p p"]:
    """Place in the stencil of every entry of the dense matrix; one beyond the last where nodes are too far apart."""
    places, near = torch.zeros(1, 1, dtype=torch.long), torch.ones(1, 1, dtype=torch.bool)
    for m in size:
        i = torch.arange(m)
        smaller, apart = torch.minimum(i.unsqueeze(-1), i), (i.unsqueeze(-1) - i).abs()
        own = smaller * WIDTH + apart.clamp_max(REACH)
        places = (places[:, None, :, None] * (m * WIDTH) + own[None, :, None, :]).flatten(2).flatten(0, 1)
        near = (near[:, None, :, None] & (apart <= REACH)[None, :, None, :]).flatten(2).flatten(0, 1)
    return torch.where(near, places, math.prod(m * WIDTH for m in size)).to(device)


def stencil_pairs(features: SparseRows, size: tuple[int, ...]) -> tuple[Int[Tensor, "n k"], Float[Tensor, "n k"]]:
    """Places in the stencil of the products of each point's features, and these products: 10^d a point."""
    pairs = reduce(rowwise_kronecker, _axis_pairs(features, len(size)))
    return _places(features.columns[:, :1], size), pairs


def _axis_pairs(features: SparseRows, d: int) -> list[Float[Tensor, "n 10"]]:
    """Return the products of each point's weights in every single dimension.

    Grid features are products ⊗_l φ_l of weights that sum to one, so φ_l is their sum over the other dimensions.
    """
    a, b = _triangle(features.columns.device)
    weights, found = features.values.reshape(-1, *[WIDTH] * d), []
    for axis in range(d):
        w = weights.movedim(1 + axis, 1).flatten(2).sum(-1) if d > 1 else weights
        found.append(w[:, a] * w[:, b])
    return found


def _places(corner: Int[Tensor, "c 1"], size: tuple[int, ...]) -> Int[Tensor, "c k"]:
    """Return the places in the stencil of the pairs of a point's nodes, the first of which is given."""
    own, pairs = _place_tables(size, corner.device)
    return own[corner] + pairs


@lru_cache(maxsize=16)
def _place_tables(size: tuple[int, ...], device: torch.device) -> tuple[Int[Tensor, " p"], Int[Tensor, " k"]]:
    """Return the place of every node with itself, and what is added to it for the pairs of a point's nodes."""
    a, b = torch.triu_indices(WIDTH, WIDTH)
    own, pairs = torch.zeros(2, 1, dtype=torch.long)
    for m in size:
        own = (own.unsqueeze(-1) * (m * WIDTH) + torch.arange(m) * WIDTH).flatten()
        pairs = (pairs.unsqueeze(-1) * (m * WIDTH) + a * WIDTH + b - a).flatten()
    return own.to(device), pairs.to(device)


@lru_cache(maxsize=16)
def _triangle(device: torch.device) -> Int[Tensor, "2 10"]:
    """Return the pairs of nodes of one dimension."""
    return torch.triu_indices(WIDTH, WIDTH).to(device)


def _by_cells(
    features: SparseRows, weights: Float[Tensor, " n"], size: tuple[int, ...]
) -> tuple[Int[Tensor, "c k"], Float[Tensor, "c k"]] | None:
    """Return places and sums of products of points in one cell; None for few points a cell, and on a GPU.

    Points of a cell have the same nodes, so the sum of ⊗_l q_l over a block of them is a product of two matrices.
    """
    values, d = features.values, len(size)
    if d == 1 or values.is_cuda or values.requires_grad or len(values) < CROWDED:
        return None
    corner, order = features.columns[:, 0].sort(stable=True)
    cells, counts = corner.unique_consecutive(return_counts=True)
    if len(cells) * CROWDED > len(values):
        return None
    size_of_block = 1 << (len(values) // len(cells)).bit_length() - 1
    blocks = (counts + size_of_block - 1) // size_of_block  # of a cell, the last filled up with zeros
    ends, starts = counts.cumsum(0), (blocks.cumsum(0) - blocks) * size_of_block
    shift = torch.repeat_interleave(starts - ends + counts, counts)
    places = torch.arange(len(values), device=shift.device) + shift
    whole = int(blocks.sum()), size_of_block

    def filled(rows: Float[Tensor, "n 10"]) -> Float[Tensor, "r 10"]:
        return rows.new_zeros(math.prod(whole), rows.shape[-1]).index_copy_(0, places, rows[order])

    *first, last = _axis_pairs(features, d)
    left, right = filled(first[0]), filled(last * weights.unsqueeze(-1))
    for of_axis in first[1:]:
        left = rowwise_kronecker(left, filled(of_axis))
    sums = left.unflatten(0, whole).mT @ right.unflatten(0, whole)
    return _places(torch.repeat_interleave(cells, blocks).unsqueeze(-1), size), sums.flatten(1)


@dataclass(frozen=True)
class _Block:
    """Pairs of prefixes that the same pairs of columns extend.

    Attributes:
        pairs: Numbers of the pairs of prefixes.
        columns: Pairs of columns, a over b.
        kept: Products (columns, pairs) that are pairs of longer prefixes, each counted once.
        places: Numbers of these pairs of longer prefixes.
    """

    pairs: Int[Tensor, " t"]
    columns: Int[Tensor, "2 c"]
    kept: Int[Tensor, " k"]
    places: Int[Tensor, " k"]


def _blocks(
    parent: Int[Tensor, " u"], column: Int[Tensor, " u"], num_parents: int, size: int, entries: int
) -> list[_Block]:
    """Plan to extend pairs of prefixes by one column: longer prefix j is parent[j] followed by column[j].

    Parents are grouped by the number of columns that follow them, so that a pair of groups computes little that is not
    needed. Pairs of columns are taken in chunks, so that their products, `size` numbers each, stay small.

    Args:
        parent: Parent of every longer prefix.
        column: Column that it adds.
        num_parents: Number of parents.
        size: Numbers in the product of a pair of columns.
        entries: Numbers in a pair of prefixes.
    """
    width = int(column.max()) + 1
    child = parent.new_full((num_parents, width), -1)
    child[parent, column] = torch.arange(len(parent), device=parent.device)
    following = (child >= 0).long().mul(torch.arange(1, width + 1, device=child.device)).amax(-1)
    work = (num_parents * width) ** 2 * entries
    groups = (following - 1).clamp_min(1).log2().ceil() if work > WORTH_GROUPING else torch.zeros_like(following)
    members = [(groups == g).nonzero().squeeze(-1) for g in groups.unique()]
    widths = [int(following[group].max()) for group in members]
    blocks = []
    for i, (group, b) in enumerate(zip(members, widths)):
        u, v = torch.triu_indices(len(group), len(group), 1, device=group.device)
        found = [
            (group, group, torch.triu_indices(b, b, device=group.device)),
            (group[u], group[v], torch.cartesian_prod(*[torch.arange(b, device=group.device)] * 2).mT),
        ]
        for other, a in zip(members[:i], widths[:i]):
            one, two = torch.cartesian_prod(other, group).unbind(-1)
            ranges = [torch.arange(w, device=group.device) for w in (a, b)]
            found.append((one, two, torch.cartesian_prod(*ranges).mT))
        for one, two, columns in found:
            for part in columns.split(max(1, PRODUCTS // size), -1) if len(one) > 0 else ():
                left, right = child[one, part[0].unsqueeze(-1)], child[two, part[1].unsqueeze(-1)]
                kept = ((left >= 0) & (right >= 0)).flatten().nonzero().squeeze(-1)
                blocks.append(_Block(_pair_index(one, two), part, kept, _pair_index(left, right).flatten()[kept]))
    return blocks


class _Contraction(torch.autograd.Function):
    """One dimension of RᵀGR: entry (u a, v b) is Σ_iδ P[iδ, ab] X[uv, iδ] with P[iδ, ab] symmetric in a and b.

    P[iδ, ab] = R[i, a] R[i + δ, b] + R[i + δ, a] R[i, b], the second term only for δ > 0. Gradients are two products of
    the same size. The tables P are recomputed instead of kept.
    """

    @staticmethod
    @override
    def forward(ctx: Any, X: Tensor, R: Tensor, blocks: list[_Block], count: int) -> Tensor:
        X = X.transpose(0, 1).contiguous()  # k t r
        r = X.shape[-1]
        out = X.new_empty(count, r)
        for block in blocks:
            P = _Table.of(R, block.columns).products()
            found = P.mT @ X.index_select(1, block.pairs).flatten(1)
            out.index_copy_(0, block.places, found.view(-1, r).index_select(0, block.kept))
        ctx.save_for_backward(X, R)
        ctx.blocks = blocks
        return out

    @staticmethod
    @override
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        X, R = ctx.saved_tensors
        g_X = torch.zeros_like(X) if ctx.needs_input_grad[0] else None
        g_R = torch.zeros_like(R)
        for block in ctx.blocks:
            c, t, r = block.columns.shape[-1], len(block.pairs), X.shape[-1]
            g = X.new_zeros(c * t, r).index_copy_(0, block.kept, grads[0].index_select(0, block.places)).view(c, -1)
            table = _Table.of(R, block.columns)
            if g_X is not None:
                g_X.index_add_(1, block.pairs, (table.products() @ g).view(-1, t, r))
            table.pull_back(X.index_select(1, block.pairs).flatten(1) @ g.mT, g_R)
        return (None if g_X is None else g_X.transpose(0, 1)), g_R, None, None


@dataclass(frozen=True)
class _Table:
    """Products P[iδ, c] of pairs of columns of R.

    Attributes:
        columns: Pairs (a, b).
        here: R[i, a] and R[i, b].
        shifted: R[i + δ, a] for δ > 0, 0 for δ = 0; and R[i + δ, b].
    """

    columns: Int[Tensor, "2 c"]
    here: tuple[Float[Tensor, "m c"], Float[Tensor, "m c"]]
    shifted: tuple[Float[Tensor, "m w c"], Float[Tensor, "m w c"]]

    @classmethod
    def of(cls, R: Float[Tensor, "m s"], columns: Int[Tensor, "2 c"]) -> "_Table":
        """Gather the columns from R."""
        shifted = torch.nn.functional.pad(R, (0, 0, 0, REACH)).unfold(0, WIDTH, 1).mT  # i δ s
        (a, b), up = columns, (torch.arange(WIDTH, device=R.device) > 0).unsqueeze(-1)
        return cls(columns, (R[:, a], R[:, b]), (shifted[:, :, a] * up, shifted[:, :, b]))

    def products(self) -> Float[Tensor, "k c"]:
        """P."""
        (L, R), (down, up) = self.here, self.shifted
        return (L.unsqueeze(1) * up).addcmul_(down, R.unsqueeze(1)).flatten(0, 1)

    def pull_back(self, g: Float[Tensor, "k c"], g_R: Float[Tensor, "m s"]) -> None:
        """Add the gradient in R that corresponds to a gradient in P, in place."""
        (L, R), (down, up), (a, b) = self.here, self.shifted, self.columns
        G = g.unflatten(0, (-1, WIDTH))
        g_R.index_add_(1, a, (G * up).sum(1)).index_add_(1, b, (G * down).sum(1))
        for delta in range(WIDTH):
            n = len(g_R) - delta
            g_R[delta:].index_add_(1, b, G[:n, delta] * L[:n])
            if delta > 0:
                g_R[delta:].index_add_(1, a, G[:n, delta] * R[:n])


def _pair_index(u: Int[Tensor, "*a"], v: Int[Tensor, "*b"]) -> Int[Tensor, "*c"]:
    """Number of the unordered pair {u, v} among all such pairs."""
    larger = torch.maximum(u, v)
    return larger * (larger + 1) // 2 + torch.minimum(u, v)
