"""Noisy observations of one output, as function-space methods take them."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from bo_scale.gp.function_space.process import Kernel


@dataclass(frozen=True)
class Observations:
    """Observations y = f(X) + ε of one output, with f ~ GP(μ, k) and ε ~ N(0, N), N = σ²D.

    Attributes:
        kernel: k.
        X: Inputs.
        residual: y − μ.
        relative: Diagonal of D.
        scale: σ².
    """

    kernel: Kernel
    X: Float[Tensor, "n d"]
    residual: Float[Tensor, " n"]
    relative: Float[Tensor, " n"]
    scale: Float[Tensor, ""]

    @property
    def noise(self) -> Float[Tensor, " n"]:
        """Diagonal of N."""
        return self.scale * self.relative

    def part(self, rows: slice) -> "Observations":
        """Some of the observations."""
        return Observations(self.kernel, self.X[rows], self.residual[rows], self.relative[rows], self.scale)

    @torch.no_grad()
    def scaled(self) -> Float[Tensor, "n d"]:
        """Inputs in units of the lengthscales, or of their own spread for kernels without any. No gradient."""
        radial = self.kernel.radial()
        if radial is not None:
            return self.X / radial.lengthscale
        spread = self.X.std(0) if len(self.X) > 1 else torch.ones_like(self.X[0])
        return self.X / torch.where(spread > 0, spread, 1.0)
