"""The noise variance of observations that come without one, among others that have theirs."""

import math

import torch
from botorch.models.gp_regression import SingleTaskGP
from botorch.settings import validate_input_scaling
from gpytorch.likelihoods.gaussian_likelihood import _GaussianLikelihoodBase
from gpytorch.mlls import ExactMarginalLogLikelihood
from gpytorch.module import Module
from jaxtyping import Bool, Float
from linear_operator.operators import DiagLinearOperator
from torch import Tensor
from typing_extensions import override

from bo_scale.loop.surrogate.side_fit import fit_or_keep

ROWS = 400
"""Rows from which the variance is estimated: half of them with variances, half without."""
PRIOR = -4.0, 3.0
"""Mean and standard deviation of the log of the variance, in units of that of the values, before any is seen."""
LEAST = -14.0
"""Log of the smallest variance."""


class _PartlyKnown(Module):
    """Noise variances of rows: the known ones, and one learned for all others."""

    def __init__(self, known: Float[Tensor, " n"]) -> None:
        super().__init__()
        self.known = known
        self.register_parameter("log_variance", torch.nn.Parameter(known.new_tensor(PRIOR[0])))

    @override
    def forward(self, *inputs: Tensor, shape: torch.Size | None = None) -> DiagLinearOperator:
        variances = torch.where(self.known.isnan(), self.log_variance.clamp_min(LEAST).exp(), self.known)
        return DiagLinearOperator(variances)


class _Evidence(ExactMarginalLogLikelihood):
    """The evidence, and the prior of the variance."""

    @override
    def forward(self, function_dist: object, target: Tensor, *params: Tensor) -> Tensor:
        value: Tensor = super().forward(function_dist, target, *params)
        log_variance = self.likelihood.noise_covar.log_variance
        return value - 0.5 * ((log_variance - PRIOR[0]) / PRIOR[1]).square() / len(target)


def unknown_variance(X: Float[Tensor, "n d"], Y: Float[Tensor, "n 1"], Yvar: Float[Tensor, "n 1"]) -> float:
    """Return the noise variance, in squared units of Y, that makes values without one most probable.

    An exact GP of up to `ROWS` rows is fitted, with the variances that are known.

    Args:
        X: Points in the unit cube.
        Y: Their values.
        Yvar: Their noise variances, NaN where there is none.
    """
    unknown = Yvar[:, 0].isnan()
    rows = torch.cat([_spread(unknown), _spread(~unknown)])
    y, spread = Y[rows, 0], Y.std().item() if len(Y) > 1 else 0.0
    unit = spread if spread > 0 else 1.0
    scaled = ((y - y.mean()) / unit).unsqueeze(-1)
    likelihood = _GaussianLikelihoodBase(_PartlyKnown(Yvar[rows, 0] / unit**2))
    with validate_input_scaling(False):
        model = SingleTaskGP(X[rows], scaled, likelihood=likelihood, outcome_transform=None)
        fit_or_keep(_Evidence(likelihood, model), "unknown noise")
    return math.exp(max(LEAST, likelihood.noise_covar.log_variance.item())) * unit**2


def _spread(among: Bool[Tensor, " n"]) -> Tensor:
    """Return up to half of `ROWS` of the rows that are true, evenly spaced."""
    rows = among.nonzero().squeeze(-1)
    return rows[torch.linspace(0, len(rows) - 1, min(len(rows), ROWS // 2), device=rows.device).round().long()]
