"""Find the best told point, and the trade-offs, as the model of a loop sees them."""

import math
from collections.abc import Mapping, Set
from dataclasses import replace
from typing import Any

import torch
from botorch.acquisition.analytic import PosteriorMean
from jaxtyping import Bool, Float
from torch import Tensor

from bo_scale.decisions.acquisition import posterior_means
from bo_scale.decisions.candidates import Admissible
from bo_scale.decisions.propose import propose
from bo_scale.decisions.setting import Setting
from bo_scale.loop.history.records import Best, TradeOff
from bo_scale.loop.problem.outcomes import Outcomes
from bo_scale.loop.problem.space import Space
from bo_scale.random import seeded

CANDIDATES = 1024
"""Random points among which the best with some values fixed is looked for."""


def best(
    space: Space,
    outcomes: Outcomes,
    model: Any,
    X: Float[Tensor, "n d"],
    Y: Float[Tensor, "n m"],
    device: torch.device,
    suspected: Set[int] = frozenset(),
) -> Best:
    """Return the feasible told point of best posterior mean, with the best observed beside it.

    Args:
        space: The space of the points.
        outcomes: The outcomes; one is the objective.
        model: The model of all observations.
        X: Told points in the unit cube.
        Y: Their values, larger better.
        device: The model's device.
        suspected: Rows whose values may be errors.
    """
    goal = outcomes.goal(Y)
    means = posterior_means(model, X.to(device)).cpu()
    row, seen = int(goal.merits(means).argmax()), int(goal.merits(Y).argmax())
    feasible = bool(goal.violation(means[row : row + 1]) <= 0)
    (estimates,) = _estimates(outcomes, model, X[row : row + 1].to(device))
    found = _record(space, outcomes, X[row : row + 1], estimates, feasible, X[seen : seen + 1], Y[seen, 0].item())
    return replace(found, suspect=not suspected.isdisjoint({row, seen}))


def best_at(
    space: Space,
    outcomes: Outcomes,
    model: Any,
    X: Float[Tensor, "n d"],
    Y: Float[Tensor, "n m"],
    device: torch.device,
    held: Mapping[int, float],
    seed: int,
    suspected: Set[int] = frozenset(),
) -> Best:
    """Return the feasible point of best posterior mean among all with some inputs held, told or not.

    Args:
        space: The space of the points.
        outcomes: The outcomes; one is the objective.
        model: The model of all observations.
        X: Told points in the unit cube.
        Y: Their values, larger better.
        device: The model's device.
        held: Inputs that are held, and their values.
        seed: Seed of the search.
        suspected: Rows whose values may be errors.
    """
    goal = outcomes.goal(Y)
    points = _candidates(space, outcomes, model, X, device, held, seed)
    means = posterior_means(model, points.to(device)).cpu()
    row = int(goal.merits(means).argmax())
    (estimates,) = _estimates(outcomes, model, points[row : row + 1].to(device))
    same = having(space, X, held).nonzero().squeeze(-1)
    seen = same[goal.merits(Y[same]).argmax()].unsqueeze(0) if len(same) else same
    y = Y[seen, 0].item() if len(seen) else math.nan
    feasible = bool(goal.violation(means[row : row + 1]) <= 0)
    found = _record(space, outcomes, points[row : row + 1], estimates, feasible, X[seen], y)
    return replace(found, suspect=not suspected.isdisjoint(seen.tolist()))


def having(space: Space, X: Float[Tensor, "n d"], held: Mapping[int, float]) -> Bool[Tensor, " n"]:
    """Return which points have given values in some inputs."""
    return (space.admissible or Admissible(space.dimension)).keeps(X, held)


def _moved(space: Space, X: Float[Tensor, "n d"], held: Mapping[int, float]) -> Float[Tensor, "k d"]:
    """Return the points that are admissible with given values in some inputs, each once, in the order of the first."""
    admissible = (space.admissible or Admissible(space.dimension)).holding(held)
    moved = X.clone()
    for i, value in held.items():
        moved[:, i] = value
    if space.conditions:  # what was idle may be active
        moved = admissible.snap(moved)
    moved = admissible.repair(moved)
    rows = list({tuple(row): number for number, row in reversed([*enumerate(moved.tolist())])}.values())
    moved = moved[sorted(rows)]
    return moved[admissible.feasible(moved)]


def _record(
    space: Space,
    outcomes: Outcomes,
    x: Float[Tensor, "1 d"],
    estimates: list[tuple[float, float]],
    feasible: bool,
    observed: Float[Tensor, "e d"],
    y: float,
) -> Best:
    """Return the record of a point and its estimates, and of the best observation, if there is one."""
    return Best(
        space.decode(x)[0],
        *estimates[0],
        space.decode(observed)[0] if len(observed) else None,
        outcomes.signs[0] * y,
        {} if outcomes.names is None else dict(zip(outcomes.names, estimates, strict=True)),
        feasible,
    )


def _candidates(
    space: Space,
    outcomes: Outcomes,
    model: Any,
    X: Float[Tensor, "n d"],
    device: torch.device,
    held: Mapping[int, float],
    seed: int,
) -> Float[Tensor, "p d"]:
    """Return points with inputs held, among which the best is looked for: told ones moved there, and others."""
    admissible = (space.admissible or Admissible(space.dimension)).holding(held)
    found = [_moved(space, X, held), admissible.sample(CANDIDATES, seed)]
    if outcomes.plain:
        setting = Setting(model, X.to(device), None, 1, seed, {}, space.admissible, held=held)
        with seeded(seed, device, 5):
            found.append(propose(lambda given: PosteriorMean(given.model), setting).cpu())
    return torch.cat(found)


def trade_offs(
    space: Space,
    outcomes: Outcomes,
    model: Any,
    X: Float[Tensor, "n d"],
    Y: Float[Tensor, "n m"],
    device: torch.device,
    target: Mapping[int, float],
) -> list[TradeOff]:
    """Return the feasible told points that no other dominates, by posterior means; arguments as for `best`.

    With a target, they are moved to these values of some inputs, and each counts once.
    """
    X = _moved(space, X, target) if target else X
    if len(X) == 0:
        return []
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
