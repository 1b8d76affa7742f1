"""Cholesky of matrices that couple near nodes of a grid: sums of Kronecker products of symmetric banded matrices.

Nodes r and c of a grid m_1×⋯×m_d (row-major, p = Π m_l) are coupled if |r_l − c_l| ≤ 3 in every dimension, and A[r, c]
depends on min(r_l, c_l) and |r_l − c_l| alone. The stencil of A holds each such number once, with axes
i_1 δ_1 ⋯ i_d δ_d and δ_l ∈ {0…3}: A[r, c] = values[min(r_1, c_1), |r_1 − c_1|, …]. Places with i_l + δ_l ≥ m_l are
ignored.
"""

import itertools
import math
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable
from typing_extensions import override

from bo_scale.errors import NotPositiveDefiniteError
from bo_scale.gp.moving import Movable

REACH = 3
"""Half bandwidth: largest distance of coupled nodes in each dimension."""
_WIDTH = REACH + 1
_NODES = 64
"""Smallest number of nodes in a block: smaller blocks cost more in calls than they save in operations."""


@dataclass(frozen=True)
class _Blocks:
    """A grid cut along its longest dimension into K blocks of g ≥ 3 planes, so that only neighbours are coupled.

    Identity rows pad the last block.

    Attributes:
        size: m_1, …, m_d.
        planes: g.
        count: K.
        inside: Two rows: places in a diagonal b×b block of A, and the places in the block's stencil that belong there.
        below: The same for the block below the diagonal.
    """

    size: tuple[int, ...]
    planes: int
    count: int
    inside: Int[Tensor, "2 _"]
    below: Int[Tensor, "2 _"]

    @classmethod
    def of(cls, size: tuple[int, ...], device: torch.device) -> "_Blocks":
        """Cut a grid into blocks of at least three planes, and about 64 nodes if the grid has that many."""
        m = max(size)
        wanted = max(REACH, math.ceil(_NODES * m / math.prod(size)))
        planes = max(REACH, math.ceil(m / math.ceil(m / wanted)))
        block = (planes, *_without(size, size.index(m)))
        return cls(size, planes, math.ceil(m / planes), _pairs(block, 0).to(device), _pairs(block, planes).to(device))

    @property
    def long(self) -> int:
        """Dimension that is cut."""
        return self.size.index(max(self.size))

    @property
    def nodes(self) -> int:
        """Number b of nodes in a block."""
        return self.planes * math.prod(_without(self.size, self.long))

    def split(self, B: Float[Tensor, "p t"]) -> Float[Tensor, "k b t"]:
        """Rows of the nodes, block by block, with zeros for planes beyond the grid."""
        rows = B.reshape(*self.size, -1).movedim(self.long, 0).reshape(len(B), -1)
        return self.pad(rows)

    def join(self, X: Float[Tensor, "k b t"]) -> Float[Tensor, "p t"]:
        """Inverse of `split`."""
        grid = self.unpad(X).view(max(self.size), *_without(self.size, self.long), -1)
        return grid.movedim(0, self.long).reshape(-1, X.shape[-1])

    def pad(self, rows: Float[Tensor, "p t"]) -> Float[Tensor, "k b t"]:
        """Rows in block order, reshaped into blocks and padded."""
        missing = self.count * self.nodes - len(rows)
        return torch.nn.functional.pad(rows, (0, 0, 0, missing)).view(self.count, self.nodes, -1)

    def unpad(self, X: Float[Tensor, "k b t"]) -> Float[Tensor, "p t"]:
        """Inverse of `pad`."""
        return X.flatten(0, 1)[: math.prod(self.size)]

    def expand(self, values: Float[Tensor, "..."]) -> tuple[Float[Tensor, "k b b"], Float[Tensor, "_ b b"]]:
        """Dense A_kk and A_{k+1,k} from a stencil. O(p b)."""
        m, (K, b) = max(self.size), (self.count, self.nodes)
        planes = values.movedim((2 * self.long, 2 * self.long + 1), (0, 1)).reshape(m, _WIDTH, -1)
        node, offset = torch.arange(m, device=values.device), torch.arange(_WIDTH, device=values.device)
        within = (node.unsqueeze(-1) + offset < m).unsqueeze(-1)
        padded = values.new_zeros(K * self.planes, *planes.shape[1:])
        padded[:m] = planes.where(within, 0.0)
        stencil = padded.view(K, -1)
        diagonal, below = values.new_zeros(K, b * b), values.new_zeros(K - 1, b * b)
        diagonal[:, self.inside[0]] = stencil[:, self.inside[1]]
        below[:, self.below[0]] = stencil[:-1, self.below[1]]
        diagonal = diagonal.view(K, b, b)
        beyond = K * b - math.prod(self.size)
        diagonal[-1].diagonal()[b - beyond :] = 1.0
        return diagonal, below.view(K - 1, b, b)

    def fold(self, diagonal: Float[Tensor, "k b b"], below: Float[Tensor, "_ b b"]) -> Float[Tensor, "..."]:
        """Adjoint of `expand`: Σ X[r, c] over all (r, c) of each place of the stencil, for a symmetric X."""
        sizes = (max(self.size), *_without(self.size, self.long))
        out = diagonal.new_zeros(self.count, self.planes * _WIDTH * math.prod(_WIDTH * m for m in sizes[1:]))
        out.index_add_(1, self.inside[1], diagonal.flatten(1)[:, self.inside[0]])
        out[:-1].index_add_(1, self.below[1], below.flatten(1)[:, self.below[0]], alpha=2.0)  # and the one above
        stencil = out.view(-1, *[a for m in sizes for a in (m, _WIDTH)][1:])[: sizes[0]]
        return stencil.movedim((0, 1), (2 * self.long, 2 * self.long + 1)).contiguous()


@dataclass(frozen=True)
class BandedCholesky(Movable):
    """A = LLᵀ by blocks: A is block tridiagonal, L has diagonal blocks L_k and, below them, U_kᵀ.

    L_kL_kᵀ = A_kk − U_{k−1}ᵀU_{k−1},   U_k = L_k⁻¹A_{k+1,k}ᵀ.

    Attributes:
        blocks: Blocks of the grid.
        diagonal: L_k.
        above: U_k.
    """

    blocks: _Blocks
    diagonal: Float[Tensor, "k b b"]
    above: Float[Tensor, "_ b b"]

    @classmethod
    @torch.no_grad()
    def of(cls, values: Float[Tensor, "..."], size: tuple[int, ...]) -> "BandedCholesky":
        """Factorise the matrix of a stencil, without autograd and without jitter.

        O(p b²) time and O(p b) memory, b = max(3P, about 64) for P nodes in a plane across the longest dimension.

        Args:
            values: Stencil of A.
            size: m_1, …, m_d.

        Raises:
            NotPositiveDefiniteError: if A is not finite, or a block has no factor.
        """
        if not torch.isfinite(values).all():
            raise NotPositiveDefiniteError("banded A has NaN or inf entries; check the data and the hyperparameters.")
        blocks = _Blocks.of(size, values.device)
        diagonal, above = blocks.expand(values)
        failed = torch.zeros(blocks.count, dtype=torch.int32, device=values.device)
        for k in range(blocks.count):
            if k > 0:
                above[k - 1] = torch.linalg.solve_triangular(diagonal[k - 1], above[k - 1].mT, upper=False)
                diagonal[k].addmm_(above[k - 1].mT, above[k - 1], alpha=-1.0)
            diagonal[k], failed[k] = torch.linalg.cholesky_ex(diagonal[k])
        if failed.any():
            raise NotPositiveDefiniteError(
                f"banded A has no Cholesky factor (block {int(failed.nonzero()[0]) + 1} of {blocks.count}); "
                "raise the noise floor, or bound the lengthscales from above."
            )
        return cls(blocks, diagonal, above)

    def logdet(self) -> Float[Tensor, ""]:
        """log|A| = 2 Σ log diag L."""
        return 2 * self.diagonal.diagonal(dim1=-2, dim2=-1).log().sum()

    def solve(self, B: Float[Tensor, "p t"]) -> Float[Tensor, "p t"]:
        """A⁻¹B. O(p b t)."""
        return self.blocks.join(self._backward(self._forward(self.blocks.split(B))))

    def half_solve(self, B: Float[Tensor, "p t"]) -> Float[Tensor, "p t"]:
        """L⁻¹B with rows in block order: (L⁻¹B)ᵀ(L⁻¹B') = BᵀA⁻¹B'. O(p b t)."""
        return self.blocks.unpad(self._forward(self.blocks.split(B)))

    def spread(self, Z: Float[Tensor, "p t"]) -> Float[Tensor, "p t"]:
        """L⁻ᵀZ: draws with covariance A⁻¹ if Z is standard normal, A⁻¹B if Z = L⁻¹B. O(p b t)."""
        return self.blocks.join(self._backward(self.blocks.pad(Z)))

    def inverse_stencil(self) -> Float[Tensor, "..."]:
        """Σ̂[i, δ] = Σ (A⁻¹)[r, c] over the (r, c) that share a place of the stencil: ∂ log|A| / ∂values.

        The selected inverse (Takahashi) of a block tridiagonal matrix computes only those blocks of Σ = A⁻¹ that A has:
        Σ_kk = (L_kL_kᵀ)⁻¹ + M_kᵀΣ_{k+1,k+1}M_k,  Σ_{k+1,k} = −Σ_{k+1,k+1}M_k,  M_kᵀ = L_k⁻ᵀU_k.   O(p b²).
        """
        Sigma = torch.cholesky_inverse(self.diagonal)
        Mt = torch.linalg.solve_triangular(self.diagonal[:-1].mT, self.above, upper=True)
        below = torch.empty_like(self.above)
        for k in reversed(range(len(below))):
            torch.mm(Sigma[k + 1], Mt[k].mT, out=below[k]).neg_()
            Sigma[k].addmm_(Mt[k], below[k], alpha=-1.0)
        return self.blocks.fold(Sigma, below)

    def _forward(self, B: Float[Tensor, "k b t"]) -> Float[Tensor, "k b t"]:
        """L⁻¹B: Y_k = L_k⁻¹(B_k − U_{k−1}ᵀY_{k−1})."""
        Y: list[Tensor] = []
        for k, L in enumerate(self.diagonal):
            rest = torch.addmm(B[k], self.above[k - 1].mT, Y[-1], alpha=-1.0) if Y else B[k]
            Y.append(torch.linalg.solve_triangular(L, rest, upper=False))
        return torch.stack(Y)

    def _backward(self, Y: Float[Tensor, "k b t"]) -> Float[Tensor, "k b t"]:
        """L⁻ᵀY: X_k = L_k⁻ᵀ(Y_k − U_kX_{k+1})."""
        X: list[Tensor] = []
        for k in reversed(range(len(Y))):
            rest = torch.addmm(Y[k], self.above[k], X[-1], alpha=-1.0) if X else Y[k]
            X.append(torch.linalg.solve_triangular(self.diagonal[k].mT, rest, upper=True))
        return torch.stack(X[::-1])


class _BandedQuadratic(torch.autograd.Function):
    """Terms l = log|A| and M = HᵀA⁻¹H from one factor, with gradients from its selected inverse.

    With Z = A⁻¹H and symmetrised M̄, ∂H = 2ZM̄,   ∂values[i, δ] = l̄ Σ̂[i, δ] − Σ_{(r, c) → (i, δ)} (ZM̄Zᵀ)[r, c].
    """

    @staticmethod
    @override
    def forward(ctx: Any, values: Tensor, H: Tensor, size: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        factor = BandedCholesky.of(values, size)
        V = factor.half_solve(H)
        ctx.blocks = factor.blocks
        ctx.save_for_backward(factor.diagonal, factor.above, V)
        return factor.logdet(), V.mT @ V

    @staticmethod
    @override
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        diagonal, above, V = ctx.saved_tensors
        factor, (l, M) = BandedCholesky(ctx.blocks, diagonal, above), grads
        Z = factor.spread(V)
        ZM = Z @ (0.5 * (M + M.mT))
        if not ctx.needs_input_grad[0]:
            return None, 2 * ZM, None
        left, right = ctx.blocks.split(ZM), ctx.blocks.split(Z).mT
        product = ctx.blocks.fold(left @ right, left[1:] @ right[:-1])
        return l * factor.inverse_stencil() - product, 2 * ZM, None


def banded_quadratic(
    values: Float[Tensor, "..."], size: tuple[int, ...], H: Float[Tensor, "p t"]
) -> tuple[Float[Tensor, ""], Float[Tensor, "t t"]]:
    """log|A| and HᵀA⁻¹H, with closed-form gradients in the stencil and H. O(p b (b + t)) for either pass.

    Raises:
        NotPositiveDefiniteError: if A is not finite, or a block has no factor.
    """
    logdet, quadratic = _BandedQuadratic.apply(values, H, size)  # type: ignore[no-untyped-call]
    return logdet, quadratic


def stencil_matmul(
    values: Float[Tensor, "..."], size: tuple[int, ...], B: Float[Tensor, "p t"]
) -> Float[Tensor, "p t"]:
    """AB, one offset c − r at a time: (AB)[r] = Σ_δ A[r, r + δ] B[r + δ]. O(7^d p t)."""
    X = B.reshape(*size, -1)
    out = torch.zeros_like(X)
    for offset in itertools.product(*[range(-min(REACH, m - 1), min(REACH, m - 1) + 1) for m in size]):
        place = tuple(a for m, o in zip(size, offset) for a in (slice(0, m - abs(o)), abs(o)))
        rows = tuple(slice(max(-o, 0), m - max(o, 0)) for m, o in zip(size, offset))
        columns = tuple(slice(max(o, 0), m - max(-o, 0)) for m, o in zip(size, offset))
        out[rows] += values[place].unsqueeze(-1) * X[columns]
    return out.reshape(B.shape)


def _without(size: tuple[int, ...], axis: int) -> tuple[int, ...]:
    """Sizes of the other dimensions."""
    return size[:axis] + size[axis + 1 :]


def _pairs(size: tuple[int, ...], shift: int) -> Int[Tensor, "2 n"]:
    """Coupled pairs of a block's nodes (columns) with the nodes `shift` planes further on (rows).

    Returns:
        Two rows: places in the dense b×b block, and places in the stencil of the columns' block.
    """
    row = column = place = torch.zeros(1, dtype=torch.long)
    for axis, m in enumerate(size):
        c = torch.arange(m)
        r = c + shift if axis == 0 else c
        i, j = ((r.unsqueeze(-1) - c).abs() <= REACH).nonzero(as_tuple=True)
        here = torch.minimum(r[i], c[j]) * _WIDTH + (r[i] - c[j]).abs()
        row, column = (row.unsqueeze(-1) * m + i).flatten(), (column.unsqueeze(-1) * m + j).flatten()
        place = (place.unsqueeze(-1) * (m * _WIDTH) + here).flatten()
    return torch.stack([row * math.prod(size) + column, place])
