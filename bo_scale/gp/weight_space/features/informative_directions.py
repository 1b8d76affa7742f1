"""Directions along which targets vary, in closed form, as the start for learning a projection."""

import torch
from jaxtyping import Float
from torch import Tensor

from bo_scale.gp.linalg.dense import cholesky


def informative_directions(Z: Float[Tensor, "n d"], Y: Float[Tensor, "n m"], k: int) -> Float[Tensor, "k d"]:
    """Unit directions: first those of least squares, then those of largest curvature in the residuals.

    Let C = ZᵀZ/n + (d/n) I = L Lᵀ, and R the residuals of the regression. First come left singular vectors of
    L⁻¹ZᵀY/n, at most k − 1 of them unless k is 1. Then come eigenvectors of Σ_j H_j² orthogonal to them, with
    H_j = L⁻¹ Zᵀ diag(R_j) Z L⁻ᵀ/n: the principal Hessian directions. O(n d² m + d³).

    K.-C. Li. On principal Hessian directions for data visualization and dimension reduction. JASA 1992.

    Args:
        Z: Standardised inputs, at least two rows.
        Y: Targets.
        k: Number of directions; at most d differ.
    """
    n, d = Z.shape
    scale = Y.std(0, correction=0)
    Y = (Y - Y.mean(0)) / torch.where(scale > 0, scale, 1.0)
    ridge = (d / n) * torch.eye(d, dtype=Z.dtype, device=Z.device)
    L = cholesky(Z.mT @ Z / n + ridge, "covariance of the inputs")
    W = torch.linalg.solve_triangular(L, Z.mT, upper=False).mT
    B = W.mT @ Y / n
    steep = torch.linalg.svd(B, full_matrices=False).U[:, : max(1, min(Y.shape[-1], k - 1))]
    others = torch.eye(d, dtype=Z.dtype, device=Z.device) - steep @ steep.mT
    curvature = torch.zeros_like(others)
    for residual in (Y - W @ B).mT:
        H = others @ ((W.mT * residual) @ W / n) @ others
        curvature = curvature + H @ H
    curved = torch.linalg.eigh(curvature).eigenvectors.flip(-1)
    chosen = torch.cat([steep, curved[:, : max(0, k - steep.shape[-1])]], -1)[:, :k]
    chosen = torch.nn.functional.pad(chosen, (0, k - chosen.shape[-1]), value=1.0)  # k > d: there are no others
    directions = torch.linalg.solve_triangular(L.mT, chosen, upper=True).mT
    return directions / directions.norm(dim=-1, keepdim=True)
