"""Log evidence from sufficient statistics, whitened."""

import math
from typing import Any

import torch
from jaxtyping import Float
from linear_operator import LinearOperator
from torch import Tensor
from torch.autograd.function import once_differentiable
from typing_extensions import override

from bo_scale.errors import InvalidDataError
from bo_scale.gp.linalg.dense import cholesky, kernel_evidence, quadratic_and_logdet
from bo_scale.gp.weight_space.statistics import SufficientStatistics


def log_evidence(
    root: LinearOperator,
    stats: SufficientStatistics,
    noise: Float[Tensor, ""],
    constant: Float[Tensor, ""],
) -> Float[Tensor, ""]:
    """Log p(y) = −½ [σ⁻²(c − 2μh + μ²k) − aᵀa + log|Λ| + n log σ² + log|D| + n log 2π].

    With weighted observations it is log ∫ Π_i N(y_i | f(x_i), σ²D_i)^ω_i dp(f), and Σω_i replaces n.

    O(s³) and free of n. Differentiable in the root, the noise and the constant. Cancellation costs about
    log10(c/(σ²Q)) digits of the quadratic form Q: relative error 5e-10 at σ² = 1e-6.

    Args:
        root: R.
        stats: Statistics of one output.
        noise: σ².
        constant: μ.
    """
    if stats.gram.dense_for(root) and not stats.gram.values.requires_grad:
        found: Tensor = _DenseEvidence.apply(root.to_dense(), noise, constant, stats)  # type: ignore[no-untyped-call]
        return found
    explained, logdet = quadratic_and_logdet(*_whiten(root, stats, noise, constant))
    return 0.5 * (explained - logdet - unexplained(stats, noise, constant))


class _DenseEvidence(torch.autograd.Function):
    """Log p(y) from a dense root, with its gradient in closed form: a fifth of the operations that autograd asks for.

    With e = r − μg, v = Λ⁻¹b, b = σ⁻²Rᵀe and Q = c − 2μh + μ²k, μ measured from the statistics' centre:

    ∂R = σ⁻²[(e − GRv)vᵀ − GRΛ⁻¹],   ∂σ² = ½σ⁻²[s − tr Λ⁻¹ − vᵀv − bᵀv + σ⁻²Q − n],   ∂μ = σ⁻²(h − μk − gᵀRv).
    """

    @staticmethod
    @override
    def forward(ctx: Any, R: Tensor, noise: Tensor, constant: Tensor, stats: SufficientStatistics) -> Tensor:
        e, GR = residual(stats, constant), stats.gram.to_dense() @ R
        Lam, b = R.mT @ GR / noise, R.mT @ e / noise
        Lam.diagonal().add_(1.0)
        C = cholesky(Lam, "Λ = I + W of the evidence")
        v = torch.cholesky_solve(b.unsqueeze(-1), C).squeeze(-1)
        explained = b @ v
        ctx.save_for_backward(R, noise, constant, e, GR, C, v, explained)
        ctx.stats = stats
        return 0.5 * (explained - unexplained(stats, noise, constant)) - C.diagonal().log().sum()

    @staticmethod
    @override
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        R, noise, constant, e, GR, C, v, explained = ctx.saved_tensors
        stats, scale = ctx.stats, grads[0] / noise
        inverse = torch.cholesky_inverse(C)
        g_R = torch.addr(GR @ inverse, e - GR @ v, v, beta=-1).mul_(scale)
        lost = inverse.trace() + v @ v + explained
        g_noise = 0.5 * scale * (_square(stats, constant) / noise - stats.effective_count + len(C) - lost)
        slope = torch.addcmul(stats.target_sum.squeeze(), _from_centre(stats, constant), stats.weight_sum, value=-1)
        return g_R, g_noise, scale * (slope - stats.feature_sum @ (R @ v)), None


def log_evidence_of_kernel(
    S: Float[Tensor, "p p"],
    stats: SufficientStatistics,
    noise: Float[Tensor, ""],
    constant: Float[Tensor, ""],
) -> Float[Tensor, ""]:
    """The same log p(y) from S instead of its root. Differentiable in S, the statistics, the noise and the constant.

    O(p³), free of n. Meant for priors without structure: S needs no root and may be singular.
    """
    explained, logdet = kernel_evidence(S, stats.gram.to_dense(), residual(stats, constant), noise)
    return 0.5 * (explained - logdet - unexplained(stats, noise, constant))


def log_density(
    K: Float[Tensor, "n n"],
    y: Float[Tensor, " n"],
    D: Float[Tensor, " n"],
    noise: Float[Tensor, ""],
    constant: Float[Tensor, ""],
    weights: Float[Tensor, " n"] | None = None,
) -> Float[Tensor, ""]:
    """Log N(y; μ, K + σ²D): the evidence of n observations from their n×n kernel matrix. O(n³).

    Equals `log_evidence`, and is cheaper while n is below the rank of the prior. Whitening by the noise makes jitter
    unnecessary: with H = (Ω/σ²D)^½, W = H K H and b = H(y − μ) the result is
    −½ [bᵀ(I + W)⁻¹b + log|I + W| + Σ ω_i log 2πσ²D_i]. Observations have weights ω_i, which default to 1.
    """
    variance = noise * D
    omega = torch.ones_like(D) if weights is None else weights
    scale = omega.sqrt() * variance.rsqrt()
    quadratic, logdet = quadratic_and_logdet(scale.unsqueeze(-1) * K * scale, scale * (y - constant))
    return -0.5 * (quadratic + logdet + (omega * (2 * math.pi * variance).log()).sum())


def _whiten(
    R: LinearOperator, stats: SufficientStatistics, noise: Float[Tensor, ""], constant: Float[Tensor, ""]
) -> tuple[Float[Tensor, "s s"], Float[Tensor, " s"]]:
    """σ⁻²RᵀGR and σ⁻²Rᵀ(r − μg), with μ measured from the statistics' centre."""
    b = residual(stats, constant)
    return stats.gram.congruence(R, 1 / noise), R.mT.matmul(b.unsqueeze(-1)).squeeze(-1) / noise


def residual(stats: SufficientStatistics, constant: Float[Tensor, ""]) -> Float[Tensor, " p"]:
    """The statistics r − μg of y − μ, with μ measured from the statistics' centre."""
    mu = _from_centre(stats, constant)
    return torch.addcmul(stats.projection.squeeze(-1), mu, stats.feature_sum, value=-1)


def unexplained(
    stats: SufficientStatistics, noise: Float[Tensor, ""], constant: Float[Tensor, ""]
) -> Float[Tensor, ""]:
    """σ⁻²(c − 2μh + μ²k) + n log 2πσ² + log|D|: −2 log p(y) if f is the constant μ."""
    logdet = torch.addcmul(stats.log_noise, stats.effective_count, (2 * math.pi * noise).log())
    return _square(stats, constant) / noise + logdet


def _square(stats: SufficientStatistics, constant: Float[Tensor, ""]) -> Float[Tensor, ""]:
    """Q = c − 2μh + μ²k, with μ measured from the statistics' centre."""
    mu = _from_centre(stats, constant)
    return torch.addcmul(stats.square.squeeze(), mu, mu * stats.weight_sum - 2 * stats.target_sum.squeeze())


def _from_centre(stats: SufficientStatistics, constant: Float[Tensor, ""]) -> Float[Tensor, ""]:
    """μ measured from the statistics' centre."""
    if stats.square.numel() != 1:
        raise InvalidDataError(f"expected the statistics of one output, got {stats.square.numel()}.")
    return constant - stats.center.squeeze()
