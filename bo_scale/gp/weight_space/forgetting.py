"""Exponential forgetting: observations count less with every one that comes after them."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

OLDEST = 1e-200
"""The least that an observation counts: far below rounding, far above underflow."""


@dataclass(frozen=True)
class Forgetting:
    """Weights ω_i = factor^(n−1−i) by order of arrival, in the likelihood Π_i N(y_i | f(x_i), σ²D_i)^ω_i.

    Attributes:
        factor: The forgetting factor λ, in (0, 1]; 1 forgets nothing.
    """

    factor: float = 1.0

    @property
    def forgets(self) -> bool:
        """Whether any observation loses weight."""
        return self.factor < 1.0

    def weights(self, n: int, device: torch.device) -> Float[Tensor, " n"] | None:
        """The weight of each of n observations when the last of them has just come; None where all count once."""
        if not self.forgets:
            return None
        ages = torch.arange(n - 1, -1, -1, dtype=torch.float64, device=device)
        return (self.factor**ages).clamp_min(OLDEST)

    def after(self, count: int) -> float:
        """The factor by which earlier observations lose weight when so many more come."""
        return max(self.factor**count, OLDEST)

    def noise_of(self, D: Float[Tensor, "n m"]) -> Float[Tensor, "n m"]:
        """D/ω of all rows: posteriors know observations that count less by their larger noise."""
        weights = self.weights(len(D), D.device)
        return D if weights is None else D / weights.unsqueeze(-1)


KEEPS_ALL = Forgetting()
