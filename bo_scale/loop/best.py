"""Find the best told point, and the trade-offs, as the model of a loop sees them."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from bo_scale.decisions.acquisition import posterior_means
from bo_scale.loop.history.records import Best, TradeOff
from bo_scale.loop.problem.outcomes import Outcomes
from bo_scale.loop.problem.space import Space


def best(
    space: Space, outcomes: Outcomes, model: Any, X: Float[Tensor, "n d"], Y: Float[Tensor, "n m"], device: torch.device
) -> Best:
    """Return the feasible told point of best posterior mean, with the best observed beside it.

    Args:
        space: The space of the points.
        outcomes: The outcomes; one is the objective.
        model: The model of all observations.
        X: Told points in the unit cube.
        Y: Their values, larger better.
        device: The model's device.
    """
    goal = outcomes.goal(Y)
    means = posterior_means(model, X.to(device)).cpu()
    row, seen = int(goal.merits(means).argmax()), int(goal.merits(Y).argmax())
    (estimates,) = _estimates(outcomes, model, X[row : row + 1].to(device))
    return Best(
        space.decode(X[row : row + 1])[0],
        *estimates[0],
        space.decode(X[seen : seen + 1])[0],
        outcomes.signs[0] * Y[seen, 0].item(),
        {} if outcomes.names is None else dict(zip(outcomes.names, estimates, strict=True)),
        bool(goal.violation(means[row : row + 1]) <= 0),
    )


def trade_offs(
    space: Space, outcomes: Outcomes, model: Any, X: Float[Tensor, "n d"], Y: Float[Tensor, "n m"], device: torch.device
) -> list[TradeOff]:
    """Return the feasible told points that no other dominates, by posterior means; arguments as for `best`."""
    means = posterior_means(model, X.to(device)).cpu()
    front = X[outcomes.goal(Y).front(means)]
    points = space.decode(front)
    estimates = _estimates(outcomes, model, front.to(device))
    return [TradeOff(x, dict(zip(outcomes.names or (), each, strict=True))) for x, each in zip(points, estimates)]


def _estimates(outcomes: Outcomes, model: Any, X: Float[Tensor, "n d"]) -> list[list[tuple[float, float]]]:
    """Return posterior mean and standard deviation of every outcome in raw units, at every point."""
    found = []
    for x in X.split(1):
        with torch.no_grad():
            posterior = model.posterior(x)
        mean = outcomes.inner(posterior.mean.cpu())[0]
        sd = posterior.variance.clamp_min(0).sqrt()[0]  # of a model not ours: below zero by rounding
        found.append(list(zip(mean.tolist(), sd.tolist())))
    return found
