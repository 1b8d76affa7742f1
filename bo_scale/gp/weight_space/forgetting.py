"""Exponential forgetting: each new observation reduces the weight of all earlier ones."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

OLDEST = 1e-200
"""Smallest weight of an observation: far below rounding, far above underflow."""


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
        """Weights of n observations just after the last one arrived; None if nothing is forgotten."""
        if not self.forgets:
            return None
        ages = torch.arange(n - 1, -1, -1, dtype=torch.float64, device=device)
        return (self.factor**ages).clamp_min(OLDEST)

    def after(self, count: int) -> float:
        """Factor on the weights of earlier observations after `count` more arrive."""
        return max(self.factor**count, OLDEST)

    def noise_of(self, D: Float[Tensor, "n m"]) -> Float[Tensor, "n m"]:
        """D/ω of all rows: a posterior takes a smaller weight as larger noise."""
        weights = self.weights(len(D), D.device)
        return D if weights is None else D / weights.unsqueeze(-1)


KEEPS_ALL = Forgetting()
