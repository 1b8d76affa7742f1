"""Kronecker and Khatri-Rao products, and the largest eigenvalues of a Kronecker product."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from linear_operator import LinearOperator
from torch import Tensor
from typing_extensions import override


def top_kronecker_eigenvalues(
    eigenvalues: Sequence[Float[Tensor, " _"]], tolerance: float = 0.0, limit: int | None = None
) -> tuple[Float[Tensor, " s"], Int[Tensor, "s d"]]:
    """Largest products λ_{i1}⋯λ_{id} of one eigenvalue per dimension, without forming them all.

    [GRIEF] algorithm 1 with a threshold as well as a limit (`top_sums` has the limit alone). Factors are divided by
    their largest and so are at most 1: a partial product below the threshold, or beyond the limit, is dropped at once.
    O(d m̄ s) time for m̄ eigenvalues per dimension.

    Args:
        eigenvalues: Eigenvalues of each dimension.
        tolerance: Smallest product to keep, as a share of the largest.
        limit: Largest number of products to keep.

    Returns:
        The products, largest first, and their multi-indices.
    """
    values = eigenvalues[0].new_ones(1)
    index = torch.zeros(1, 0, dtype=torch.long, device=values.device)
    scale = values.new_ones(())
    for lam in eigenvalues:
        scale = scale * lam.max()
        products = values.unsqueeze(-1) * (lam / lam.max()).clamp_min(0.0)
        kept = (products.flatten() > tolerance).nonzero().squeeze(-1)
        order = products.flatten()[kept].sort(descending=True, stable=True).indices
        kept = kept[order][:limit]
        values = products.flatten()[kept]
        rows, last = kept // len(lam), kept % len(lam)
        index = torch.cat([index[rows], last.unsqueeze(-1)], -1)
    return values * scale, index


def top_sums(terms: Sequence[Int[Tensor, " _"]], limit: int) -> Int[Tensor, "s d"]:
    """Multi-indices of the largest sums of one term per dimension, largest first. [GRIEF] algorithm 1, O(d m̄ s).

    Terms are whole numbers, so equal sums compare as equal and keep the order of their indices. Which of them are
    within the limit does not depend on the machine.
    """
    values = terms[0].new_zeros(1)
    index = torch.zeros(1, 0, dtype=torch.long, device=values.device)
    for term in terms:
        sums = (values.unsqueeze(-1) + term).flatten()
        order = sums.sort(descending=True, stable=True).indices[:limit]
        values, rows, last = sums[order], order // len(term), order % len(term)
        index = torch.cat([index[rows], last.unsqueeze(-1)], -1)
    return index


class KroneckerColumns(LinearOperator):
    """Chosen columns of R_1 ⊗ ⋯ ⊗ R_d: column c is weight[c] ⊗_l R_l[:, index[c, l]]. Shape p s, p = Π m_l.

    Columns must be distinct: products put each in a place of its own.
    """

    def __init__(
        self,
        weight: Float[Tensor, " s"],
        *factors: Float[Tensor, "_ _"],
        index: Int[Tensor, "s d"],
        transposed: bool = False,
    ) -> None:
        super().__init__(weight, *factors, index=index, transposed=transposed)
        self.weight = weight
        self.factors = factors
        self.index = index
        self.transposed = transposed

    @property
    def num_rows(self) -> int:
        """Number of grid points, p."""
        return math.prod(len(R) for R in self.factors)

    def _flat_index(self) -> Int[Tensor, " s"]:
        flat = torch.zeros_like(self.index[:, 0])
        for R, i in zip(self.factors, self.index.unbind(-1)):
            flat = flat * R.shape[-1] + i
        return flat

    @override
    def _matmul(self, rhs: Tensor) -> Tensor:
        M = rhs.unsqueeze(-1) if rhs.ndim == 1 else rhs
        flat = self._flat_index()
        if self.transposed:
            out = self.weight.unsqueeze(-1) * kronecker_matmul([R.mT for R in self.factors], M)[flat]
        else:
            width = math.prod(R.shape[-1] for R in self.factors)
            full = M.new_zeros(width, M.shape[-1]).index_copy(0, flat, self.weight.unsqueeze(-1) * M)
            out = kronecker_matmul(self.factors, full)
        return out.squeeze(-1) if rhs.ndim == 1 else out

    @override
    def _size(self) -> torch.Size:
        shape = (self.num_rows, len(self.index))
        return torch.Size(shape[::-1] if self.transposed else shape)

    @override
    def _transpose_nonbatch(self) -> "KroneckerColumns":
        return KroneckerColumns(self.weight, *self.factors, index=self.index, transposed=not self.transposed)

    @override
    def to_dense(self) -> Tensor:
        """Dense matrix, by a column-wise Khatri-Rao product. O(p s)."""
        columns = [R[:, i] for R, i in zip(self.factors, self.index.unbind(-1))]
        dense = columns[0]
        for column in columns[1:]:
            dense = (dense.unsqueeze(1) * column.unsqueeze(0)).flatten(0, 1)
        dense = dense * self.weight
        return dense.mT if self.transposed else dense


def kronecker_matmul(factors: Sequence[Float[Tensor, "_ _"]], M: Float[Tensor, "p t"]) -> Float[Tensor, "q t"]:
    """(A_1 ⊗ ⋯ ⊗ A_d) M, one dimension at a time. O(t p Σ m_l)."""
    X = M.reshape(*[A.shape[-1] for A in factors], M.shape[-1])
    for A in factors:  # contracts the first dimension and appends the new one, so that t ends up first
        X = torch.tensordot(X, A, dims=([0], [1]))
    return X.movedim(0, -1).reshape(-1, M.shape[-1])


def rowwise_kronecker(A: Float[Tensor, "*b n i"], B: Float[Tensor, "*b n j"]) -> Float[Tensor, "*b n k"]:
    """Row-wise Khatri-Rao product: row r is A[r] ⊗ B[r]. O(n i j)."""
    return (A.unsqueeze(-1) * B.unsqueeze(-2)).flatten(-2)
