"""Sums of functions, each with its own feature map: φ = [φ_1, φ_2, …] with S block-diagonal."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from linear_operator import LinearOperator
from torch import Tensor
from typing_extensions import override

from bo_scale.gp.weight_space.features.base import FeatureMap, SparsePrior
from bo_scale.gp.weight_space.features.sparse_rows import BlockRows, Features, SparseRows, transpose_matmul
from bo_scale.gp.weight_space.gram import Gram


class StackedRoot(LinearOperator):
    """R_1 ⊕ R_2 ⊕ …: block-diagonal, with blocks of any shape."""

    def __init__(self, *roots: LinearOperator) -> None:
        super().__init__(*roots)
        self.roots = roots

    @override
    def _matmul(self, rhs: Tensor) -> Tensor:
        parts = rhs.split([root.shape[-1] for root in self.roots])
        return torch.cat([root.matmul(part) for root, part in zip(self.roots, parts, strict=True)])

    @override
    def _size(self) -> torch.Size:
        return torch.Size([sum(root.shape[i] for root in self.roots) for i in (-2, -1)])

    @override
    def _transpose_nonbatch(self) -> "StackedRoot":
        return StackedRoot(*[root.mT for root in self.roots])

    @override
    def to_dense(self) -> Tensor:
        """Dense matrix."""
        return torch.block_diag(*[root.to_dense() for root in self.roots])


@dataclass(frozen=True)
class BlockGram(Gram):
    """G of a sum: the Gram matrices of its parts, and dense couplings, Σ p_i p_j numbers.

    Attributes:
        values: Entries of the parts' Gram matrices, then of the couplings (1, 2), (1, 3), …, (2, 3), ….
        parts: Empty Gram matrices of the parts, which define the layout of their entries.
        widths: Number of features of every part.
    """

    parts: tuple[Gram, ...]
    widths: tuple[int, ...]

    @classmethod
    def zeros(cls, maps: Sequence[FeatureMap], device: torch.device | None = None) -> "BlockGram":
        """Empty Gram matrix."""
        parts, widths = tuple(phi.empty_gram(device) for phi in maps), tuple(phi.num_features for phi in maps)
        couplings = sum(a * b for a, b in itertools.combinations(widths, 2))
        entries = sum(part.values.numel() for part in parts) + couplings
        return cls(torch.zeros(entries, dtype=torch.float64, device=device), parts, widths)

    @property
    def diagonal(self) -> tuple[Gram, ...]:
        """G_ii."""
        entries = self._entries()
        return tuple(replace(part, values=next(entries).view_as(part.values)) for part in self.parts)

    @property
    def couplings(self) -> dict[tuple[int, int], Float[Tensor, "a b"]]:
        """G_ij for i < j."""
        entries, pairs = list(self._entries())[len(self.parts) :], itertools.combinations(range(len(self.parts)), 2)
        return {(i, j): block.view(self.widths[i], -1) for (i, j), block in zip(pairs, entries, strict=True)}

    def _entries(self) -> Iterator[Float[Tensor, " _"]]:
        own = [part.values.numel() for part in self.parts]
        return iter(self.values.split(own + [a * b for a, b in itertools.combinations(self.widths, 2)]))

    @override
    def add_rows(self, features: BlockRows | Tensor, weights: Float[Tensor, " n"]) -> "BlockGram":
        """Add rows to every part and to the couplings, the latter in O(k_i k_j n) for k_i non-zeros a row in part i."""
        rows = features.parts if isinstance(features, BlockRows) else features.split(self.widths, -1)
        entries = [gram.add_rows(part, weights).values.flatten() for gram, part in zip(self.diagonal, rows)]
        for (i, j), block in self.couplings.items():
            entries.append(_coupled(block, rows[i], rows[j], weights).flatten())
        return replace(self, values=torch.cat(entries))

    @override
    def combine(self, other: "BlockGram", sign: float) -> "BlockGram":
        return replace(self, values=torch.add(self.values, other.values, alpha=sign))

    @override
    def scale(self, factor: float | Float[Tensor, ""]) -> "BlockGram":
        return replace(self, values=factor * self.values)

    @override
    def matmul(self, M: Float[Tensor, "p t"]) -> Float[Tensor, "p t"]:
        blocks = M.split(self.widths)
        out = [gram.matmul(block) for gram, block in zip(self.diagonal, blocks, strict=True)]
        for (i, j), G in self.couplings.items():
            out[i], out[j] = out[i] + G @ blocks[j], out[j] + G.mT @ blocks[i]
        return torch.cat(out)

    @override
    def congruence(self, root: LinearOperator, scale: Float[Tensor, ""]) -> Float[Tensor, "s s"]:
        if not isinstance(root, StackedRoot):
            R = root.to_dense()
            return (scale * R).mT @ self.matmul(R)
        count = len(self.parts)
        found = {(i, i): gram.congruence(root.roots[i], scale) for i, gram in enumerate(self.diagonal)}
        for (i, j), G in self.couplings.items():
            found[i, j] = scale * root.roots[j].mT.matmul(root.roots[i].mT.matmul(G).mT).mT
            found[j, i] = found[i, j].mT
        return torch.cat([torch.cat([found[i, j] for j in range(count)], -1) for i in range(count)])

    @override
    def to_dense(self) -> Float[Tensor, "p p"]:
        return self.matmul(torch.eye(sum(self.widths), dtype=torch.float64, device=self.values.device))

    def split(self, place: int) -> tuple[Gram, Float[Tensor, "a b"], Gram]:
        """G_11, G_12 and G_22, where 1 is the part at `place` and 2 all others together."""
        others = [i for i in range(len(self.parts)) if i != place]
        blocks, diagonal = self.couplings, self.diagonal
        coupling = torch.cat([blocks[place, i] if place < i else blocks[i, place].mT for i in others], -1)
        if len(others) == 1:
            return diagonal[place], coupling, diagonal[others[0]]
        entries = [diagonal[i].values.flatten() for i in others]
        entries += [blocks[i, j].flatten() for i, j in itertools.combinations(others, 2)]
        parts, widths = tuple(self.parts[i] for i in others), tuple(self.widths[i] for i in others)
        return diagonal[place], coupling, BlockGram(torch.cat(entries), parts, widths)

    def split_vector(self, v: Float[Tensor, " p"], place: int) -> tuple[Float[Tensor, " a"], Float[Tensor, " b"]]:
        """Entries of the part at `place`, and of all others."""
        blocks = list(v.split(self.widths))
        return blocks.pop(place), torch.cat(blocks)


@dataclass(frozen=True)
class SumFeatures(FeatureMap):
    """φ = [φ_1, φ_2, …] with independent weights: f = f_1 + f_2 + …, whose kernel is the sum of the kernels.

    Attributes:
        parts: The feature maps, of any kind.
    """

    parts: tuple[FeatureMap, ...]

    def __post_init__(self) -> None:
        """Flatten a sum of sums into one sum."""
        parts = (phi.parts if isinstance(phi, SumFeatures) else (phi,) for phi in self.parts)
        object.__setattr__(self, "parts", tuple(itertools.chain.from_iterable(parts)))

    @property
    @override
    def num_features(self) -> int:
        return sum(phi.num_features for phi in self.parts)

    @override
    def depends_on(self) -> tuple[Any, ...]:
        every = [phi.depends_on() for phi in self.parts]
        return tuple(itertools.chain.from_iterable(every)) if all(every) else ()

    @property
    @override
    def free_of_prior(self) -> bool:
        return all(phi.free_of_prior for phi in self.parts)

    @property
    @override
    def max_rank(self) -> int:
        return sum(phi.max_rank for phi in self.parts)

    @override
    def __call__(self, X: Float[Tensor, "*b n d"]) -> Features:
        rows = tuple(phi(X) for phi in self.parts)
        dense = [part for part in rows if isinstance(part, Tensor)]
        if len(dense) == len(rows):
            return torch.cat(dense, -1)
        return BlockRows(tuple(part for part in rows if not isinstance(part, BlockRows)))

    @override
    def prior_root(self) -> LinearOperator:
        return StackedRoot(*[phi.prior_root() for phi in self.parts])

    @override
    def reduced(self, root: LinearOperator) -> FeatureMap | None:
        if not isinstance(root, StackedRoot) or all(p.reduced(R) is None for p, R in zip(self.parts, root.roots)):
            return None
        return self.whitened(root)

    @override
    def whitened(self, root: LinearOperator) -> FeatureMap:
        assert isinstance(root, StackedRoot), "the root of a sum"
        return SumFeatures(tuple(phi.whitened(R) for phi, R in zip(self.parts, root.roots, strict=True)))

    @override
    def sparse_prior(self) -> SparsePrior | None:
        """Sparse prior of the largest part that has one, with the other parts as the rest."""
        order = sorted(range(len(self.parts)), key=lambda i: -self.parts[i].num_features)
        for place in order:
            prior = self.parts[place].sparse_prior()
            if prior is not None:
                others = tuple(phi for i, phi in enumerate(self.parts) if i != place)
                roots = [phi.prior_root() for phi in others]
                rest, root = (others[0], roots[0]) if len(others) == 1 else (SumFeatures(others), StackedRoot(*roots))
                return replace(prior, place=place, rest=rest, root=root)
        return None

    @override
    def kernel_variance(self, X: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b n"]:
        return torch.stack([phi.kernel_variance(X) for phi in self.parts]).sum(0)

    @override
    def prior_covariance(self, X: Float[Tensor, "n d"]) -> Float[Tensor, "n n"]:
        return torch.stack([phi.prior_covariance(X) for phi in self.parts]).sum(0)

    @override
    def prior_variance(self, X: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b n"]:
        return torch.stack([phi.prior_variance(X) for phi in self.parts]).sum(0)

    @override
    def empty_gram(self, device: torch.device | None = None) -> BlockGram:
        return BlockGram.zeros(self.parts, device)

    @override
    def chunk_size(self) -> int:
        return max(1, min(phi.chunk_size() for phi in self.parts) // len(self.parts))


def _coupled(
    G: Float[Tensor, "a b"],
    one: Float[Tensor, "n a"] | SparseRows,
    two: Float[Tensor, "n b"] | SparseRows,
    weights: Float[Tensor, " n"],
) -> Float[Tensor, "a b"]:
    """G + Σ_n weight_n φ_1 φ_2ᵀ."""
    if isinstance(one, SparseRows) and isinstance(two, SparseRows):
        places = one.columns.unsqueeze(-1) * two.width + two.columns.unsqueeze(-2)
        products = (one.values * weights.unsqueeze(-1)).unsqueeze(-1) * two.values.unsqueeze(-2)
        return G.flatten().index_add(0, places.flatten(), products.flatten()).view_as(G)
    if isinstance(two, Tensor):
        return G + transpose_matmul(one, two * weights.unsqueeze(-1))
    assert isinstance(one, Tensor), "no sums among the parts"
    return G + transpose_matmul(two, one * weights.unsqueeze(-1)).mT
