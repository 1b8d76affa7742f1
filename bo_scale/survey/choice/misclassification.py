"""The area on the wrong side of a threshold, and how much of it a measurement is expected to put right."""

import torch
from jaxtyping import Float
from scipy.special import owens_t
from torch import Tensor

from bo_scale.survey.choice.design_state import DesignState

CERTAIN = 5.0
"""Standard deviations from the threshold, beyond which a cell is on the wrong side with a probability below 3e-7."""


def misclassification_reduction(state: DesignState, threshold: float) -> Float[Tensor, " M"]:
    """Return by how much a measurement at each point lowers the expected share of cells on the wrong side."""
    weights, mean, variance, cross = state.cells()
    near = (mean - threshold).abs() < CERTAIN * variance.sqrt()
    weights, mean, variance, cross = weights[near], mean[near], variance[near], cross[:, near]
    explained = cross.square() / (state.variances() + state.noise).unsqueeze(-1)
    now = expected_misclassification(mean, variance, torch.zeros_like(explained[:1]), threshold) @ weights
    return now - expected_misclassification(mean, variance, explained, threshold) @ weights


def expected_misclassification(
    mean: Float[Tensor, " N"], variance: Float[Tensor, " N"], explained: Float[Tensor, "M N"], threshold: float
) -> Float[Tensor, "M N"]:
    """Return E[min(p, 1 − p)] of p = P(f(z) > t), once a measurement has explained r² of the variance s² of f(z).

    It is 2 T(|m − t|/s, √(s² − r²)/r) with Owen's T: the posterior mean will be N(m, r²), its variance s² − r², and
    E Φ(−|M|/s') = P(s'U > |M|) is an orthant probability. Φ(−|m − t|/s) for r = 0.
    """
    s = variance.clamp_min(1e-300).sqrt()
    r = explained.clamp_min(0.0).sqrt()
    left = (variance - r.square()).clamp_min(0.0).sqrt()
    h = ((mean - threshold).abs() / s).expand_as(r)
    ratio = torch.where(r > 0, left / r.clamp_min(1e-300), torch.inf)
    return torch.from_numpy(2 * owens_t(h.numpy(), ratio.numpy()))
