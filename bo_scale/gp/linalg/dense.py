"""Dense linear algebra: a Cholesky that reports its jitter, eigenpairs, and terms of the evidence with gradients."""

import warnings
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable
from typing_extensions import override

from bo_scale.errors import JitterWarning, NotPositiveDefiniteError
from bo_scale.gp.waiting import holds

_JITTERS = (1e-12, 1e-10, 1e-8)
_ROUNDING = 1e-14


def cholesky(A: Float[Tensor, "*b n n"], name: str = "matrix") -> Float[Tensor, "*b n n"]:
    """Lower Cholesky factor. Jitter, relative to the mean diagonal, is added only if needed, with a warning.

    O(n³) time.

    Raises:
        NotPositiveDefiniteError: if A is not finite, or has no factor at a relative jitter of 1e-8.
    """
    L, info = torch.linalg.cholesky_ex(A)
    if holds(info == 0):
        return L
    if not torch.isfinite(A).all():
        raise NotPositiveDefiniteError(f"{name} has NaN or inf entries; check the data and the hyperparameters.")
    scale = A.diagonal(dim1=-2, dim2=-1).mean(-1).clamp_min(torch.finfo(A.dtype).tiny)
    for jitter in _JITTERS:
        added = (jitter * scale).unsqueeze(-1).expand(A.shape[:-1])
        L, info = torch.linalg.cholesky_ex(A + torch.diag_embed(added))
        if not info.any():
            warnings.warn(
                f"{name}: added {jitter:g} of the mean diagonal to factorise it.", JitterWarning, stacklevel=2
            )
            return L
    raise NotPositiveDefiniteError(
        f"{name} has no Cholesky factor, even with {_JITTERS[-1]:g} of its mean diagonal added; raise the noise floor."
    )


def solve_lower(L: Float[Tensor, "*b n n"], B: Float[Tensor, "*c n q"]) -> Float[Tensor, "*e n q"]:
    """L⁻¹B for a lower triangular L. An unbatched L is not copied along the batch of B. O(n² q) each."""
    if L.ndim > 2 or B.ndim == 2:
        return torch.linalg.solve_triangular(L, B, upper=False)
    columns = B.movedim(-2, 0)
    solved = torch.linalg.solve_triangular(L, columns.reshape(len(L), -1), upper=False)
    return solved.reshape(columns.shape).movedim(0, -2)


class _SymmetricEigen(torch.autograd.Function):
    """Eigenvalues and eigenvectors of a symmetric matrix, with a gradient that stays finite when eigenvalues meet.

    K̄ = Q (diag λ̄ + F ∘ (QᵀQ̄)) Qᵀ, F_ij = 1/(λ_j − λ_i), here Δ/(Δ² + ε²) with ε = 1e-13 of the largest |λ|.
    """

    @staticmethod
    @override
    def forward(K: Tensor) -> tuple[Tensor, Tensor]:
        eigenvalues, Q = torch.linalg.eigh(K)
        return eigenvalues, Q

    @staticmethod
    @override
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: tuple[Tensor, Tensor]) -> None:
        ctx.save_for_backward(*output)

    @staticmethod
    @override
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        eigenvalues, Q = ctx.saved_tensors
        g_values, g_Q = grads
        gap = eigenvalues.unsqueeze(-2) - eigenvalues.unsqueeze(-1)
        epsilon = 1e-13 * eigenvalues.abs().amax(-1)[..., None, None]
        F = gap / (gap.square() + epsilon.square())
        inner = F * (Q.mT @ g_Q) + torch.diag_embed(g_values)
        K_bar = Q @ inner @ Q.mT
        return 0.5 * (K_bar + K_bar.mT)


def symmetric_eigen(K: Float[Tensor, "*b n n"]) -> tuple[Float[Tensor, "*b n"], Float[Tensor, "*b n n"]]:
    """Eigenvalues, largest first, and eigenvectors of a symmetric matrix. O(n³), differentiable.

    If eigenvalues tie exactly (a periodic kernel whose period is a whole number of cells), the gradient omits the
    rotation between their eigenvectors.

    Raises:
        NotPositiveDefiniteError: if K has NaN or inf entries, on which LAPACK may hang.
    """
    if not torch.isfinite(K).all():
        raise NotPositiveDefiniteError("a kernel matrix has NaN or inf entries; check the hyperparameters.")
    eigenvalues, Q = _SymmetricEigen.apply(0.5 * (K + K.mT))  # type: ignore[no-untyped-call]
    return eigenvalues.flip(-1), Q.flip(-1)


class _QuadraticAndLogdet(torch.autograd.Function):
    """bᵀΛ⁻¹b and log|Λ| of Λ = I + W by one Cholesky. With u = Λ⁻¹b, gradients are −uuᵀ and Λ⁻¹ in W, 2u and 0 in b."""

    @staticmethod
    @override
    def forward(ctx: Any, W: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        Lam = W.clone()
        Lam.diagonal().add_(1.0)
        C = cholesky(Lam, "Λ = I + W of the evidence")
        u = torch.cholesky_solve(b.unsqueeze(-1), C).squeeze(-1)
        ctx.save_for_backward(C, u)
        return b @ u, 2 * C.diagonal().log().sum()

    @staticmethod
    @override
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        C, u = ctx.saved_tensors
        return torch.cholesky_inverse(C).mul_(grads[1]).addr_(-grads[0] * u, u), 2 * grads[0] * u


def quadratic_and_logdet(
    W: Float[Tensor, "s s"], b: Float[Tensor, " s"]
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """bᵀΛ⁻¹b and log|Λ| with Λ = I + W, the terms of an evidence. O(s³), with closed-form gradients."""
    quadratic, logdet = _QuadraticAndLogdet.apply(W, b)  # type: ignore[no-untyped-call]
    return quadratic, logdet


class _KernelEvidence(torch.autograd.Function):
    """Two terms of an evidence from S itself, by one LU of M = σ²I + GS.

    With u = M⁻¹b and v = Su,

    e = σ⁻²bᵀv:         ∂S = uuᵀ,     ∂G = −σ⁻²vvᵀ,  ∂b = 2σ⁻²v,  ∂σ² = −σ⁻²(e + vᵀu)
    l = log|M| − p log σ²:  ∂S = M⁻¹G,  ∂G = SM⁻¹,              ∂σ² = tr M⁻¹ − pσ⁻²
    """

    @staticmethod
    @override
    def forward(ctx: Any, S: Tensor, G: Tensor, b: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        M = torch.addmm(noise * torch.eye(len(S), dtype=S.dtype, device=S.device), G, S)
        LU, pivots, info = torch.linalg.lu_factor_ex(M)
        u = torch.linalg.lu_solve(LU, pivots, b.unsqueeze(-1)).squeeze(-1)
        v = S @ u
        explained, logdet = (b @ v) / noise, (LU.diagonal().abs() / noise).log().sum()
        swaps = pivots != torch.arange(1, len(S) + 1, dtype=pivots.dtype, device=S.device)
        negative = (LU.diagonal() < 0).sum() + swaps.sum()
        if info.any() or negative % 2 == 1 or not torch.isfinite(logdet + explained):
            raise NotPositiveDefiniteError(
                "σ²I + GS has no positive determinant, or is not finite; check the data, or raise the noise floor."
            )
        ctx.save_for_backward(S, G, noise, LU, pivots, u, v, explained)
        return explained, logdet

    @staticmethod
    @override
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        S, G, noise, LU, pivots, u, v, explained = ctx.saved_tensors
        (e, l), needs = grads, ctx.needs_input_grad
        inverse = torch.linalg.lu_solve(LU, pivots, torch.eye(len(S), dtype=S.dtype, device=S.device))
        g_S = torch.addr(l * (inverse @ G), u, u, alpha=e.item()) if needs[0] else None
        g_G = torch.addr(l * (S @ inverse), v, v, alpha=-(e / noise).item()) if needs[1] else None
        g_noise = l * (inverse.trace() - len(S) / noise) - e * (explained + v @ u) / noise
        return g_S, g_G, 2 * e / noise * v, g_noise


def kernel_evidence(
    S: Float[Tensor, "p p"], G: Float[Tensor, "p p"], b: Float[Tensor, " p"], noise: Float[Tensor, ""]
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """bᵀRΛ⁻¹Rᵀb σ⁻⁴ and log|Λ| with Λ = I + σ⁻²RᵀGR, from S = RRᵀ itself, which may be singular. O(p³).

    As accurate as with a root of S, cheaper than computing one, and its gradient never divides by eigenvalues of S.

    Raises:
        NotPositiveDefiniteError: if the factorisation has NaN or inf, or a determinant that rounding made negative.
    """
    explained, logdet = _KernelEvidence.apply(S, G, b, noise)  # type: ignore[no-untyped-call]
    return explained, logdet


def positive_root(K: Float[Tensor, "n n"]) -> Float[Tensor, "n s"]:
    """R with R Rᵀ = K to rounding, without jitter: the Cholesky factor, or eigenpairs above 1e-14 of the largest."""
    L, info = torch.linalg.cholesky_ex(K)
    if holds(info == 0):
        return L
    values, Q = symmetric_eigen(K)
    kept = int((values > _ROUNDING * values[0]).sum())
    return Q[:, :kept] * values[:kept].sqrt()
