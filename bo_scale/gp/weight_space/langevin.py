"""Metropolis-adjusted Langevin sampling in batched chains, with diagnostics of mixing."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from bo_scale.errors import InvalidArgumentError

ACCEPTANCE = 0.574
"""Optimal acceptance rate of Langevin proposals. Roberts, Rosenthal. JRSS B 1998."""
FORGETTING = 0.6
"""Decay of the adaptation: the log step moves by about t^−0.6 at iteration t. It can reach any value, and settles."""

Target = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Log density `c` and its gradient `c × k` at the states `c × k` of c chains."""


@dataclass(frozen=True)
class Chains:
    """States and statistics of chains after burn-in.

    Attributes:
        states: Thinned states of every chain.
        acceptance: Share of accepted proposals, by chain.
        step: Step size by chain, adapted during burn-in only.
    """

    states: Float[Tensor, "t c k"]
    acceptance: Float[Tensor, " c"]
    step: Float[Tensor, " c"]


def langevin(
    target: Target,
    start: Float[Tensor, "c k"],
    scale: Float[Tensor, " k"],
    iterations: int,
    burn: int,
    thin: int,
    generator: torch.Generator | None = None,
) -> Chains:
    """Run chains that leave a density invariant. Each iteration evaluates the target once, for all chains together.

    Proposal u' = u + ½ε²C∇ log p(u) + εC^½ξ with C = diag(scale²), accepted by Metropolis and Hastings.

    Args:
        target: Function that returns the log density, up to a constant, and its gradient.
        start: Initial states of the chains.
        scale: Expected standard deviations, used as preconditioner.
        iterations: Iterations of each chain, burn-in included.
        burn: Iterations during which the step adapts. Their states are discarded.
        thin: Interval between the states that are kept.
        generator: Source of randomness; None for torch's global one.

    Raises:
        InvalidArgumentError: if the density is not finite where a chain begins. Later, such proposals are rejected.
    """
    chains, k = start.shape
    u, (value, gradient) = start, target(start)
    if not value.isfinite().all():
        raise InvalidArgumentError("start: the log density is not finite there. Start elsewhere.")
    log_step = start.new_full((chains,), math.log(1.65 * k ** (-1 / 6)))
    accepted, kept = start.new_zeros(chains), []
    for t in range(1, iterations + 1):
        step = log_step.exp().unsqueeze(-1)
        noise = torch.randn(u.shape, generator=generator, dtype=u.dtype, device=u.device)
        forward = u + 0.5 * (step * scale).square() * gradient
        proposal = forward + step * scale * noise
        value_there, gradient_there = target(proposal)
        back = (u - proposal - 0.5 * (step * scale).square() * gradient_there) / (step * scale)
        log_ratio = value_there - value + 0.5 * (noise.square() - back.square()).sum(-1)
        log_ratio = log_ratio.nan_to_num(-math.inf)  # a far proposal that overflows is rejected
        probability = log_ratio.clamp_max(0.0).exp()
        accept = torch.rand(chains, generator=generator, dtype=u.dtype, device=u.device) < probability
        u = torch.where(accept.unsqueeze(-1), proposal, u)
        gradient = torch.where(accept.unsqueeze(-1), gradient_there, gradient)
        value = torch.where(accept, value_there, value)
        if t <= burn:
            log_step = log_step + (probability - ACCEPTANCE) * t**-FORGETTING
        else:
            accepted += accept
            if (t - burn) % thin == 0:
                kept.append(u)
    states = torch.stack(kept) if kept else start.new_empty(0, chains, k)
    return Chains(states, accepted / max(1, iterations - burn), log_step.exp())


def split_r_hat(values: Float[Tensor, "t c *q"]) -> Float[Tensor, "*q"]:
    """Split R̂: √(total variance / variance within halves of chains). It is 1 when chains have mixed.

    A. Gelman et al. Bayesian data analysis, 3rd edition, 2013: section 11.4.
    """
    half = len(values) // 2
    if half < 2:
        return torch.full(values.shape[2:], math.inf, dtype=values.dtype, device=values.device)  # nothing is known
    chains = torch.cat([values[:half], values[len(values) - half :]], 1)
    within = chains.var(0).mean(0)
    between = half * chains.mean(0).var(0)
    total = (half - 1) / half * within + between / half
    stuck = torch.where(between > 0, math.inf, 1.0).to(within)  # of chains that never moved
    return torch.where(within > 0, (total / within.clamp_min(1e-300)).sqrt(), stuck)


def effective_size(values: Float[Tensor, "t c *q"]) -> Float[Tensor, "*q"]:
    """Effective sample size t c / (1 + 2 Σ autocorrelations), by Geyer's initial sequence.

    C. J. Geyer. Practical Markov chain Monte Carlo. Statistical Science 1992.
    """
    t, c = values.shape[:2]
    centred = values - values.mean(0)
    spectrum = torch.fft.rfft(centred, n=2 * t, dim=0).abs().square()
    covariance = torch.fft.irfft(spectrum, n=2 * t, dim=0)[:t].mean(1) / t
    within = covariance[0] * t / max(1, t - 1)
    total = covariance[0] + (values.mean(0).var(0) if c > 1 else torch.zeros_like(covariance[0]))
    correlation = 1 - (within - covariance) / total.clamp_min(1e-300)
    pairs = correlation[: 2 * (t // 2)].unflatten(0, (-1, 2)).sum(1)
    positive = (pairs > 0).cumprod(0)
    monotone = (pairs * positive).cummin(0).values.clamp_min(0.0)
    return (t * c / (2 * monotone.sum(0) - 1).clamp_min(1 / (t * c))).clamp_max(float(t * c))
