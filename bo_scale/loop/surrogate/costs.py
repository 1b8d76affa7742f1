"""The cost of an evaluation: a GP of its logarithm."""

import torch
from botorch.models.gp_regression import SingleTaskGP
from gpytorch.mlls import ExactMarginalLogLikelihood
from jaxtyping import Float
from torch import Tensor

from bo_scale.loop.surrogate.side_fit import fit_or_keep
from bo_scale.random import seeded

ROWS = 400
"""Rows that the model is fitted to."""
FEWEST = 4
"""Costs of so many observations are needed for a model of them."""


def log_cost_model(X: Float[Tensor, "n d"], costs: Float[Tensor, " n"], seed: int) -> SingleTaskGP | None:
    """Return a GP of log cost; None where fewer than `FEWEST` are known. One fit of an exact GP of up to `ROWS` rows.

    Args:
        X: Told points in the unit cube.
        costs: What each cost; NaN where that is not known.
        seed: Seed of the fit.
    """
    known = costs.isfinite().nonzero().squeeze(-1)
    if len(known) < FEWEST:
        return None
    kept = known[torch.linspace(0, len(known) - 1, min(len(known), ROWS), device=X.device).round().long()]
    with seeded(seed, X.device, 6):
        model = SingleTaskGP(X[kept], costs[kept].log().unsqueeze(-1))
        fit_or_keep(ExactMarginalLogLikelihood(model.likelihood, model), "costs")
    model.eval()
    return model
