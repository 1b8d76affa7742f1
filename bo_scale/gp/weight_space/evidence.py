"""Log evidence from sufficient statistics, whitened."""

import math

import torch
from jaxtyping import Float
from linear_operator import LinearOperator
from torch import Tensor

from bo_scale.errors import InvalidDataError
from bo_scale.gp.linalg.dense import kernel_evidence, quadratic_and_logdet
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
    explained, logdet = quadratic_and_logdet(*_whiten(root, stats, noise, constant))
    return 0.5 * (explained - logdet - unexplained(stats, noise, constant))


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
    return stats.projection.squeeze(-1) - _from_centre(stats, constant) * stats.feature_sum


def unexplained(
    stats: SufficientStatistics, noise: Float[Tensor, ""], constant: Float[Tensor, ""]
) -> Float[Tensor, ""]:
    """σ⁻²(c − 2μh + μ²k) + n log 2πσ² + log|D|: −2 log p(y) if f is the constant μ."""
    mu = _from_centre(stats, constant)
    square = stats.square.squeeze() - 2 * mu * stats.target_sum.squeeze() + mu.square() * stats.weight_sum
    return square / noise + stats.effective_count * (2 * math.pi * noise).log() + stats.log_noise


def _from_centre(stats: SufficientStatistics, constant: Float[Tensor, ""]) -> Float[Tensor, ""]:
    """μ measured from the statistics' centre."""
    if stats.square.numel() != 1:
        raise InvalidDataError(f"expected the statistics of one output, got {stats.square.numel()}.")
    return constant - stats.center.squeeze()
