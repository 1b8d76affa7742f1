"""The knowledge gradient at a target fidelity: how much a cheaper evaluation tells about the best value there."""

import math
from collections.abc import Callable
from typing import Any

import torch
from botorch.acquisition.acquisition import AcquisitionFunction
from botorch.models.model import Model
from botorch.utils.transforms import t_batch_mode_transform
from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from bo_scale.gp.linalg.dense import cholesky

NOTHING = -1e6
"""The logarithm of the gain of an evaluation that tells nothing."""
FLOOR = 1e-8
"""Variances are resolved to this share of the largest one: below it, their ratios are rounding errors."""


class LogKnowledgeGradient(AcquisitionFunction):
    """log(E[max_j μ'(a_j)] − max_j μ(a_j)): what an evaluation at x adds to the highest posterior mean at the target.

    After the evaluation the mean is μ'(a) = μ(a) + σ(a) Z, with Z standard normal, σ(a) = k(a, x) / √(k(x, x) + λ), k
    the posterior covariance given the pending points, and λ the variance of the noise. The points a_j are given ones at
    the target, and x moved there. The logarithm has gradients where the gain is tiny.

    A value computes the posterior of m + p + 2 points, and O(m²) operations.

    Args:
        model: A model of one outcome with joint Gaussian posteriors.
        points: Points `m × d` at the target that may be best.
        project: Moves points `b × q × d` to the target.
        X_pending: Points `p × d` that are being evaluated.

    References:
        P. Frazier, W. Powell, S. Dayanik. The knowledge-gradient policy for correlated normal beliefs. INFORMS Journal
        on Computing, 2009.
        M. Poloczek, J. Wang, P. Frazier. Multi-information source optimization. NeurIPS 2017.
    """

    def __init__(
        self,
        model: Model,
        points: Float[Tensor, "m d"],
        project: Callable[[Tensor], Tensor],
        X_pending: Tensor | None = None,
    ) -> None:
        super().__init__(model)
        self.points, self.project = points, project
        self.set_X_pending(X_pending)

    @override
    @t_batch_mode_transform(expected_q=1)  # type: ignore[arg-type]
    def forward(self, X: Float[Tensor, "*b 1 d"]) -> Float[Tensor, "*b"]:
        """Return the values `b` at X, `b × 1 × d`."""
        pending = self.points[:0] if self.X_pending is None else self.X_pending
        measured = torch.cat([pending.expand(*X.shape[:-2], -1, -1), X], -2)
        compared = torch.cat([self.project(X), self.points.expand(*X.shape[:-2], -1, -1)], -2)
        count = measured.shape[-2]
        joint: Any = self.model.posterior(torch.cat([measured, compared], -2))
        mean, covariance = joint.mean.squeeze(-1)[..., count:], joint.distribution.covariance_matrix
        floor = FLOOR * covariance.diagonal(dim1=-2, dim2=-1).amax(-1, keepdim=True)
        root = cholesky(covariance[..., :count, :count] + (self._noise(measured) + floor).diag_embed())
        # the last row of L⁻¹K is the covariance with x, given the pending points, over the deviation of x
        slopes = torch.linalg.solve_triangular(root, covariance[..., :count, count:], upper=False)[..., -1, :]
        return log_gain(mean, slopes)

    def _noise(self, X: Float[Tensor, "*b c d"]) -> Float[Tensor, "*b c"]:
        """Return the variance of the noise of observations."""
        noisy: Any = self.model.posterior(X, observation_noise=True)
        exact: Any = self.model.posterior(X)
        return (noisy.variance - exact.variance).squeeze(-1).clamp_min(0.0)


def log_gain(mean: Float[Tensor, "*b m"], slope: Float[Tensor, "*b m"]) -> Float[Tensor, "*b"]:
    """Return log(E[max_j (a_j + b_j Z)] − max_j a_j) for means a, slopes b and a standard normal Z.

    The largest line changes at points c_i, where its slope rises by Δ_i. The gain: Σ_i Δ_i (φ(c_i) − |c_i| Φ(−|c_i|)).
    Line j is the largest from max_{b_i < b_j} (a_i − a_j) / (b_j − b_i) to min_{b_i > b_j} (a_j − a_i) / (b_i − b_j).
    O(m²).
    """
    ahead = mean.unsqueeze(-2) - mean.unsqueeze(-1)  # a_i − a_j in row j and column i
    rise = slope.unsqueeze(-1) - slope.unsqueeze(-2)  # b_j − b_i
    crossing = ahead / rise.where(rise != 0, 1.0)
    start, before = crossing.where(rise > 0, -torch.inf).max(-1)
    end = crossing.where(rise < 0, torch.inf).amin(-1)
    first = torch.arange(mean.shape[-1], device=mean.device)
    lower = (rise == 0) & ((ahead > 0) | ((ahead == 0) & (first < first.unsqueeze(-1))))  # parallel to a larger line
    largest = (start < end) & start.isfinite() & ~lower.any(-1)
    change = rise.gather(-1, before.unsqueeze(-1)).squeeze(-1)
    gains = change.where(largest, 1.0).log() + _log_loss(start.where(largest, 0.0).abs())
    return gains.where(largest, NOTHING).logsumexp(-1)


def _log_loss(c: Float[Tensor, "*b"]) -> Float[Tensor, "*b"]:
    """Return log(φ(c) − c Φ(−c)) = log φ(c) + log(1 − c R(c)) for c ≥ 0, with Mills' ratio R(c) ≈ 1/c − 1/c³."""
    near = c.clamp_max(1e4)
    left = torch.log1p(-near * math.sqrt(math.pi / 2) * torch.special.erfcx(near / math.sqrt(2)))
    far = -2 * c.clamp_min(1e4).log()
    return -0.5 * c.square() - 0.5 * math.log(2 * math.pi) + torch.where(c < 1e4, left, far)
