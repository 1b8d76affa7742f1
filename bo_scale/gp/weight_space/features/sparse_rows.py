"""Rows with a fixed number of non-zeros, in which a grid's features are kept."""

import functools
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from typing_extensions import override

from bo_scale.gp.moving import Movable


class _SparseProduct(torch.autograd.Function):
    """Φ M with Φ in compressed rows. The gradient in Φ's values is ⟨Ȳ_n, M_k⟩, at its non-zeros only."""

    @staticmethod
    @override
    def forward(values: Tensor, columns: Tensor, M: Tensor) -> Tensor:
        return _compressed(values, columns, len(M)) @ M

    @staticmethod
    @override
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    @override
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, None, Tensor | None]:
        values, columns, M = ctx.saved_tensors
        g_values = g_M = None
        if ctx.needs_input_grad[0] and values.numel() <= GATHERED:  # torch.func batches no sparse products
            g_values = (M[columns] @ grads[0].unsqueeze(-1)).squeeze(-1)
        elif ctx.needs_input_grad[0]:
            pattern = _compressed(torch.zeros_like(values), columns, len(M))
            g_values = torch.sparse.sampled_addmm(pattern, grads[0].contiguous(), M.mT).values().view_as(values)
        if ctx.needs_input_grad[2]:
            g_M = torch.zeros_like(M)
            for k in range(columns.shape[-1]):
                g_M.index_add_(0, columns[:, k], values[:, k : k + 1] * grads[0])
        return g_values, None, g_M


@functools.cache
def _hear_out_beta_warning() -> None:
    """Trigger and silence PyTorch's warning, given once per process, that compressed rows are in beta."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
        torch.sparse_csr_tensor([0, 1], [0], [1.0], size=(1, 1), check_invariants=False)


def _compressed(values: Tensor, columns: Tensor, width: int) -> Tensor:
    _hear_out_beta_warning()
    n, k = values.shape
    starts = torch.arange(0, n * k + 1, k, device=values.device)
    return torch.sparse_csr_tensor(
        starts, columns.reshape(-1), values.reshape(-1), size=(n, width), check_invariants=False
    )


GATHERED = 256
"""Number of non-zeros up to which a product gathers rows, which is faster than compressing so few."""


@dataclass(frozen=True)
class SparseRows(Movable):
    """A matrix of `width` columns with k non-zeros a row, columns in ascending order.

    Attributes:
        values: Non-zeros.
        columns: Column of each non-zero.
        width: Number of columns.
    """

    values: Float[Tensor, "*b n k"]
    columns: Int[Tensor, "*b n k"]
    width: int

    def __matmul__(self, M: Float[Tensor, "p s"]) -> Float[Tensor, "*b n s"]:
        """Product with a dense matrix, O(n k s)."""
        k = self.values.shape[-1]
        if self.values.numel() == 0:
            return M.new_zeros(*self.values.shape[:-1], M.shape[-1])
        if self.values.numel() <= GATHERED and not self.values.requires_grad:
            rows = M.index_select(0, self.columns.reshape(-1)).unflatten(0, self.columns.shape)
            return (self.values.unsqueeze(-2) @ rows).squeeze(-2)
        product: Any = _SparseProduct.apply
        out: Tensor = product(self.values.reshape(-1, k), self.columns.reshape(-1, k), M)
        return out.reshape(*self.values.shape[:-1], M.shape[-1])

    def dot(self, w: Float[Tensor, "*w p"]) -> Float[Tensor, "*c n"]:
        """Product with a vector, or with a batch of vectors that broadcasts against b. O(n k) each."""
        if w.ndim == 1:  # no batch to broadcast
            return (self.values * w[self.columns]).sum(-1)
        batch = torch.broadcast_shapes(self.values.shape[:-2], w.shape[:-1])
        if self.values.shape[:-2].numel() == 1 and w.shape[:-1].numel() > 1:
            rows = SparseRows(self.values.flatten(0, -2), self.columns.flatten(0, -2), self.width)
            return (rows @ w.reshape(-1, self.width).mT).mT.reshape(*batch, -1)
        n, k = self.values.shape[-2:]
        gathered = w.expand(*batch, -1).gather(-1, self.columns.expand(*batch, n, k).flatten(-2)).unflatten(-1, (n, k))
        return (self.values * gathered).sum(-1)

    def transpose_matmul(self, Y: Float[Tensor, "n m"]) -> Float[Tensor, "p m"]:
        """Product of the transpose with a dense matrix, for rows without a batch shape. O(n k m)."""
        out = Y.new_zeros(self.width, Y.shape[-1])
        weighted = self.values.unsqueeze(-1) * Y.unsqueeze(-2)
        return out.index_add_(0, self.columns.reshape(-1), weighted.flatten(0, 1))

    def reshape(self, *batch: int) -> "SparseRows":
        """The same rows in another batch shape."""
        k = self.values.shape[-1]
        return SparseRows(self.values.reshape(*batch, k), self.columns.reshape(*batch, k), self.width)

    def __getitem__(self, index: Int[Tensor, " i"]) -> "SparseRows":
        """Rows at these indices of the first dimension."""
        return SparseRows(self.values[index], self.columns[index], self.width)

    def to_dense(self) -> Float[Tensor, "*b n p"]:
        """Dense matrix, zeros included."""
        zeros = self.values.new_zeros(*self.values.shape[:-1], self.width)
        return zeros.scatter_add(-1, self.columns, self.values)


@dataclass(frozen=True)
class BlockRows(Movable):
    """A matrix [Φ_1, Φ_2, …] whose blocks of columns are each dense or sparse.

    Attributes:
        parts: Dense matrices and sparse rows.
    """

    parts: tuple[Tensor | SparseRows, ...]

    @property
    def widths(self) -> list[int]:
        """Number of columns of every part."""
        return [part.shape[-1] if isinstance(part, Tensor) else part.width for part in self.parts]

    def __matmul__(self, M: Float[Tensor, "p s"]) -> Float[Tensor, "*b n s"]:
        """Product with a dense matrix."""
        return torch.stack([part @ rows for part, rows in zip(self.parts, M.split(self.widths), strict=True)]).sum(0)

    def dot(self, w: Float[Tensor, "*w p"]) -> Float[Tensor, "*c n"]:
        """Product with a vector, or with a batch of vectors that broadcasts against b."""
        return torch.stack([dot(part, v) for part, v in zip(self.parts, w.split(self.widths, -1), strict=True)]).sum(0)

    def transpose_matmul(self, Y: Float[Tensor, "n m"]) -> Float[Tensor, "p m"]:
        """Product of the transpose with a dense matrix."""
        return torch.cat([transpose_matmul(part, Y) for part in self.parts])

    def to_dense(self) -> Float[Tensor, "*b n p"]:
        """Dense matrix, zeros included."""
        return torch.cat([part if isinstance(part, Tensor) else part.to_dense() for part in self.parts], -1)


Features = Float[Tensor, "*b n p"] | SparseRows | BlockRows
"""Features of n points: a dense matrix, sparse rows, or blocks of these."""


def transpose_matmul(features: Features, Y: Float[Tensor, "n m"]) -> Float[Tensor, "p m"]:
    """Φᵀ Y for any form of features."""
    return features.mT @ Y if isinstance(features, Tensor) else features.transpose_matmul(Y)


def dot(features: Features, w: Float[Tensor, "*w p"]) -> Float[Tensor, "*c n"]:
    """Φ w for any form of features, w broadcast against their batch shape."""
    return (features @ w.unsqueeze(-1)).squeeze(-1) if isinstance(features, Tensor) else features.dot(w)
