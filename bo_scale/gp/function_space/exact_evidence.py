"""The log evidence of an exact GP, with its gradient in closed form."""

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable
from typing_extensions import override

from bo_scale.gp.function_space.process import Kernel, Profile
from bo_scale.gp.linalg import in_place
from bo_scale.gp.linalg.dense import cholesky, quadratic_and_logdet


def exact_log_evidence(
    kernel: Kernel, X: Float[Tensor, "n d"], y: Float[Tensor, " n"], variance: Float[Tensor, " n"]
) -> Float[Tensor, ""]:
    """Log N(y; 0, K + V), differentiable in the kernel, y and V. O(n³ + n²d), about twice a Cholesky factorisation.

    The matrix is whitened by the noise, which makes jitter unnecessary: with W = V^(−½) K V^(−½) and b = V^(−½)y the
    result is −½ [bᵀ(I + W)⁻¹b + log|I + W| + log|2πV|].

    C. E. Rasmussen, C. K. I. Williams. Gaussian processes for machine learning. MIT Press, 2006: equation 2.30.

    Args:
        kernel: k. Functions of scaled distance have their gradient in closed form, others by automatic differentiation.
        X: Inputs.
        y: Observations, less the mean.
        variance: Noise variances, the diagonal of V.
    """
    radial = kernel.radial()
    if radial is None:
        H = variance.rsqrt()
        quadratic, logdet = quadratic_and_logdet(H.unsqueeze(-1) * kernel(X, X) * H, H * y)
        return -0.5 * (quadratic + logdet + (2 * math.pi * variance).log().sum())
    Z = (X - X.mean(0)) / radial.lengthscale  # distances are differences of squares: small ones keep their digits
    evidence: Tensor = _RadialEvidence.apply(Z, radial.scale, y, variance, radial.profile)  # type: ignore[no-untyped-call]
    return evidence


@torch.no_grad()
def leave_one_out(
    kernel: Kernel, X: Float[Tensor, "n d"], y: Float[Tensor, " n"], variance: Float[Tensor, " n"]
) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
    """Return errors y_i − μ_i and variances σ_i² of the predictions of each observation from all others. O(n³).

    With A = K + V: y_i − μ_i = [A⁻¹y]_i/[A⁻¹]_ii and σ_i² = 1/[A⁻¹]_ii, which includes the noise. Not differentiable.

    C. E. Rasmussen, C. K. I. Williams. Gaussian processes for machine learning. MIT Press, 2006: equation 5.12.
    """
    H, Lam = variance.rsqrt(), _whitened(kernel, X, variance)
    A = Lam.numpy() if Lam.device.type == "cpu" and torch.get_num_threads() == 1 else None
    if A is not None and in_place.factorise_(A):
        solved = torch.from_numpy(in_place.solve(A, (H * y).numpy()))
        precision = torch.from_numpy(in_place.inverse_diagonal_(A))
    else:
        C = cholesky(_whitened(kernel, X, variance), "K + V of leave-one-out, whitened by the noise")
        solved = torch.cholesky_solve((H * y).unsqueeze(-1), C).squeeze(-1)
        precision = torch.cholesky_inverse(C).diagonal()
    precision = precision * H.square()
    return H * solved / precision, 1 / precision


def _whitened(kernel: Kernel, X: Float[Tensor, "n d"], variance: Float[Tensor, " n"]) -> Float[Tensor, "n n"]:
    """Return I + V^(−½) K V^(−½)."""
    H = variance.rsqrt()
    Lam = (H.unsqueeze(-1) * kernel(X, X) * H).contiguous()
    Lam.diagonal().add_(1.0)
    return Lam


def radial_evidence(
    Z: Float[Tensor, "n d"],
    scale: Float[Tensor, ""],
    y: Float[Tensor, " n"],
    variance: Float[Tensor, " n"],
    profile: Profile,
) -> tuple[Float[Tensor, ""], tuple[Tensor, ...]]:
    """Return log N(y; 0, sκ(‖z − z'‖²) + V), and what its gradients need. One Cholesky factorisation, O(n³ + n²d).

    Args:
        Z: Scaled inputs z, around 0: small distances then keep their digits.
        scale: Variance s of the kernel.
        y: Observations, less the mean.
        variance: Noise variances, the diagonal of V.
        profile: κ.
    """
    squares = Z.square().sum(-1)
    distances = torch.addmm(squares, Z, Z.mT, alpha=-2.0).add_(squares.unsqueeze(-1)).clamp_min_(0.0)
    distances.fill_diagonal_(0.0)
    K, slope = profile(distances, True)
    assert slope is not None, "asked for"
    H = variance.rsqrt()
    Lam = K * (scale * H) * H.unsqueeze(-1)
    Lam.diagonal().add_(1.0)
    C = cholesky(Lam, "K + V of the exact evidence, whitened by the noise")
    b = H * y
    u = torch.cholesky_solve(b.unsqueeze(-1), C).squeeze(-1)
    value = -0.5 * (b @ u + 2 * C.diagonal().log().sum() + (2 * math.pi * variance).log().sum())
    return value, (Z, scale, H, K, slope, C, u)


def radial_gradients(
    Z: Tensor, scale: Tensor, H: Tensor, K: Tensor, slope: Tensor, C: Tensor, u: Tensor
) -> tuple[Float[Tensor, "n d"], Float[Tensor, ""], Float[Tensor, " n"], Float[Tensor, " n"]]:
    """Return the gradients of `radial_evidence` in Z, s, y and V. O(n³ + n²d).

    With A = K + V, α = A⁻¹y and Ḡ = ½(ααᵀ − A⁻¹), they are z̄ = 4(M1 ∘ z − Mz) with M = s Ḡ∘κ', Σ Ḡ∘κ, −α, and the
    diagonal of Ḡ: equation 5.9 of Rasmussen and Williams (2006) for one parameter, by the chain rule for all points at
    once.
    """
    G = torch.cholesky_inverse(C).neg_().addr_(u, u).mul_(0.5 * H).mul_(H.unsqueeze(-1))
    g_scale, g_variance = (G * K).sum(), G.diagonal().clone()
    M = G.mul_(slope).mul_(scale)
    g_Z = 4 * (M.sum(-1, keepdim=True) * Z - M @ Z)
    return g_Z, g_scale, -(H * u), g_variance


class _RadialEvidence(torch.autograd.Function):
    """`radial_evidence` for automatic differentiation."""

    @staticmethod
    @override
    def forward(ctx: Any, Z: Tensor, scale: Tensor, y: Tensor, variance: Tensor, profile: Profile) -> Tensor:
        value, saved = radial_evidence(Z, scale, y, variance, profile)
        ctx.save_for_backward(*saved)
        return value

    @staticmethod
    @override
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return *(grads[0] * each for each in radial_gradients(*ctx.saved_tensors)), None
