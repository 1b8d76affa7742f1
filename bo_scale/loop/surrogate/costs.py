"""The cost of an evaluation: a GP of its logarithm, or a guess from the fidelity."""

import math
from collections.abc import Mapping

import torch
from botorch.models.deterministic import DeterministicModel
from botorch.models.gp_regression import SingleTaskGP
from gpytorch.mlls import ExactMarginalLogLikelihood
from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from bo_scale.loop.problem.parameters import Integer, Parameter, Real
from bo_scale.loop.problem.space import Space
from bo_scale.loop.surrogate.side_fit import fit_or_keep
from bo_scale.random import seeded

ROWS = 400
"""Rows that the model is fitted to."""
FEWEST = 4
"""Costs of so many observations are needed for a model of them."""
FIXED_COST = 0.1
"""The part of a cost that is the same at any fidelity, as a share of what the highest value of one fidelity adds."""


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


class FidelityCost(DeterministicModel):
    """The logarithm of the cost of a point, for want of told ones: log(0.1 + Σ_i share of parameter i).

    The share of a number is v / upper where all values are above zero, else v's place between the bounds. It falls from
    1 to 0 instead if the target is the lowest value, as for a step size. Of the k values of a choice the i-th costs
    i / k, counted from the end that is not the target. Choices with an input for each value cost the same.

    Args:
        space: The space.
        target: The inputs of the fidelity, and their values at the target.
    """

    def __init__(self, space: Space, target: Mapping[int, float]) -> None:
        super().__init__()
        self._num_outputs = 1
        self._shares: list[tuple[int, float, float, float]] = []
        start = 0
        for parameter in space.parameters:
            if parameter.inputs == 1 and start in target:
                self._shares.append((start, *_scale(parameter, target[start])))
            start += parameter.inputs

    @override
    def forward(self, X: Float[Tensor, "*b q d"]) -> Float[Tensor, "*b q 1"]:
        """Return the logarithm of the cost of points of the unit cube."""
        cost = torch.full_like(X[..., 0], FIXED_COST if self._shares else 1.0)
        for column, offset, slope, rate in self._shares:
            u = X[..., column]
            cost = cost + offset + slope * (u if rate == 0 else (rate * u).expm1())
        return cost.log().unsqueeze(-1)


def _scale(parameter: Parameter, target: float) -> tuple[float, float, float]:
    """Return a, b and r of the share of a parameter at its place u: a + b u, or a + b (exp(r u) − 1) if r is not 0."""
    downward = target == 0.0
    if not isinstance(parameter, Real | Integer):
        first = 0.0 if parameter.lattice is None else 1.0 / parameter.lattice.count
        return (1.0, first - 1.0, 0.0) if downward else (first, 1.0 - first, 0.0)
    low, high = float(parameter.lower), float(parameter.upper)
    rate = math.log(high / low) if parameter.log else 0.0
    step = low if parameter.log else high - low
    if downward:
        return 1.0, -step / (high - low), rate
    return (low / high, step / high, rate) if low > 0 else (0.0, 1.0, 0.0)
