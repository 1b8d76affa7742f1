"""Products of a kernel matrix with actions, without the matrix: chunks of rows are recomputed for gradients."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint
from typing_extensions import override

from bo_scale.gp.function_space.kernel_products import keops
from bo_scale.gp.function_space.process import Kernel, Profile

ENTRIES, ENTRIES_ON_GPU = 2**18, 2**25
"""Number of kernel entries in a chunk: small enough for a processor's cache, and enough to keep a GPU busy."""
KEPT = 2**20
"""Number of entries up to which a product keeps its whole graph."""


def kernel_products(
    kernel: Kernel, Z: Float[Tensor, "q d"], points: Float[Tensor, "*p d"], entries: Float[Tensor, "*e"]
) -> Float[Tensor, "q i"]:
    """K(Z, X) S. q n kernel entries, O(q i) memory. Differentiable in Z, the points, the entries and the kernel.

    Args:
        kernel: k.
        Z: Points of the rows.
        points: X, `n × d`, or `i × k × d` for blocks.
        entries: S, dense `n × i`, or the entries `i × k` of disjoint blocks.
    """
    if len(Z) * points.shape[:-1].numel() <= KEPT:
        return _product(kernel(Z, points.reshape(-1, points.shape[-1])), points, entries)
    radial = kernel.radial()
    if radial is not None:
        scaled = [x.reshape(-1, x.shape[-1]) / radial.lengthscale for x in (Z, points)]
        centre = scaled[1].detach().mean(0)  # distances are differences of squares: small ones keep their digits
        by_keops = Z.is_cuda and keops.usable()
        apply: Any = keops.radial_products if by_keops else _RadialProducts.apply
        product: Tensor = apply(scaled[0] - centre, scaled[1] - centre, entries, points.ndim == 3, radial.profile)
        return radial.scale * product
    parts = []
    for z in Z.split(_rows_at_once(Z, points.shape[:-1].numel())):
        parts.append(checkpoint(_chunk, kernel, z, points, entries, use_reentrant=False))
    return torch.cat(parts)


def _rows_at_once(Z: Tensor, columns: int) -> int:
    return max(1, (ENTRIES_ON_GPU if Z.is_cuda else ENTRIES) // columns)


def _chunk(
    kernel: Kernel, z: Float[Tensor, "c d"], points: Float[Tensor, "*p d"], entries: Float[Tensor, "*e"]
) -> Float[Tensor, "c i"]:
    return _product(kernel(z, points.reshape(-1, points.shape[-1])), points, entries)


def _product(
    K: Float[Tensor, "c n"], points: Float[Tensor, "*p d"], entries: Float[Tensor, "*e"]
) -> Float[Tensor, "c i"]:
    """K S for dense or for block actions."""
    return K @ entries if points.ndim == 2 else torch.einsum("cik,ik->ci", K.unflatten(-1, entries.shape), entries)


class _RadialProducts(torch.autograd.Function):
    """κ(‖z − x‖²) S, with its gradient in closed form, chunk by chunk.

    With Ḡ the upstream gradient and M = Ḡ Sᵀ ∘ κ': S̄ = Kᵀ Ḡ, z̄ = 2(M1 ∘ z − M x), x̄ = 2(Mᵀ1 ∘ x − Mᵀ z).
    """

    @staticmethod
    @override
    def forward(ctx: Any, Z: Tensor, X: Tensor, S: Tensor, blocks: bool, profile: Profile) -> Tensor:
        ctx.save_for_backward(Z, X, S)
        ctx.blocks, ctx.profile = blocks, profile
        squares, product = X.square().sum(-1), Z.new_empty(len(Z), len(S) if blocks else S.shape[-1])
        size = _rows_at_once(Z, len(X))
        for z, out in zip(Z.split(size), product.split(size), strict=True):  # in place: small results between
            K, _ = profile(_square_distances(z, X, squares), False)  # large ones would leave holes in memory
            if blocks:
                torch.sum(K.view(len(z), *S.shape).mul_(S), -1, out=out)
            else:
                torch.mm(K, S, out=out)
        return product

    @staticmethod
    @override
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        Z, X, S = ctx.saved_tensors
        squares = X.square().sum(-1)
        g_Z, g_X, g_S = torch.empty_like(Z), torch.zeros_like(X), torch.zeros_like(S)
        size = _rows_at_once(Z, len(X))
        for z, g, out in zip(Z.split(size), grads[0].split(size), g_Z.split(size), strict=True):
            K, slope = ctx.profile(_square_distances(z, X, squares), True)
            if ctx.blocks:
                g_S += (K.view(len(z), *S.shape) * g.unsqueeze(-1)).sum(0)
                M = slope.view(len(z), *S.shape).mul_(g.unsqueeze(-1)).mul_(S).view(len(z), -1)
            else:
                g_S.addmm_(K.mT, g)
                M = slope.mul_(g @ S.mT)
            torch.sub(M.sum(-1, keepdim=True) * z, M @ X, out=out).mul_(2.0)
            g_X += 2 * (M.sum(0).unsqueeze(-1) * X - M.mT @ z)
        return g_Z, g_X, g_S, None, None


def _square_distances(
    Z: Float[Tensor, "c d"], X: Float[Tensor, "n d"], squares: Float[Tensor, " n"]
) -> Float[Tensor, "c n"]:
    """‖z − x‖² by one matrix product; never negative."""
    return torch.addmm(squares, Z, X.mT, alpha=-2.0).add_(Z.square().sum(-1, keepdim=True)).clamp_min_(0.0)
