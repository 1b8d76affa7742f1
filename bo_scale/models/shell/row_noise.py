"""Known noise variances for a likelihood, read from the training rows."""

from typing import Any

import gpytorch
import torch
from gpytorch.likelihoods.noise_models import FixedGaussianNoise
from gpytorch.settings import min_fixed_noise
from jaxtyping import Float
from torch import Tensor

from bo_scale.gp.waiting import holds
from bo_scale.models.errors import UnsupportedError
from bo_scale.models.shell.rows import Rows, followed_by

SMALLEST = 1e-6
"""Variance of fantasies without noise, BoTorch's smallest."""


class RowNoise(FixedGaussianNoise):
    """FixedGaussianNoise that reads its variances D from a model's rows, so streaming copies nothing.

    Without rows (data not kept) it returns the mean variance, set by the model. Variances of fantasies follow.
    """

    fantasies: tuple[Tensor, torch.Size] | None = None
    """D of fantasised values `f × b × q × m`, and the batch shape of the model that holds them."""

    def __init__(self, rows: Rows | None) -> None:
        gpytorch.Module.__init__(self)
        self.rows = rows
        self.mean: Tensor | None = None

    @property
    def noise(self) -> Tensor:
        """The variances, shaped like `train_targets`."""
        if self.fantasies is None:
            return self.observed
        D, batch = self.fantasies
        m = D.shape[-1]
        rows = D.new_empty(0, m) if self.rows is None else self.rows.D
        several = followed_by(rows, D, batch)
        return several.squeeze(-1) if m == 1 else several.mT

    @property
    def observed(self) -> Tensor:
        """The variances of observed values: n, or m n for several outputs."""
        if self.rows is None:
            assert self.mean is not None
            return self.mean
        return self.rows.D.squeeze(-1) if self.rows.D.shape[-1] == 1 else self.rows.D.mT

    def _apply(self, fn: Any, recurse: bool = True) -> "RowNoise":
        self.mean = None if self.mean is None else fn(self.mean)
        return torch.nn.Module._apply(self, fn, recurse)


def relative_noise(
    Y: Float[Tensor, "*f q m"], noise: Tensor | None, scale: Float[Tensor, " m"] | None
) -> Float[Tensor, "*e r m"]:
    """Return D of observations from their noise variances; one row for all if none are given.

    Args:
        Y: Observed values.
        noise: Their noise variances, in transformed units.
        scale: The learned noise variance, relative to which D is; None if noise is known.

    Raises:
        UnsupportedError: if noise is known and none is given.
    """
    if noise is None and scale is None:
        raise UnsupportedError(
            "noise: this model was given train_Yvar. Pass the noise variances of the new values too."
        )
    if noise is None:
        return torch.ones_like(Y[..., :1, :], dtype=torch.float64)
    if scale is None and noise.is_cuda and holds(noise >= min_fixed_noise.value(noise.dtype)):
        return noise.to(torch.float64)
    if scale is None:  # the smallest variance and the warning of BoTorch's own models
        return FixedGaussianNoise(noise).noise.to(torch.float64)
    return torch.where(noise > 0, noise, SMALLEST).to(torch.float64) / scale
