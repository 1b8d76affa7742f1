"""The probability that points give a value."""

from typing import Any

import torch

from bo_scale.loop.history.history import History
from bo_scale.loop.surrogate.success import LEVEL, success_model


def success(history: History, points: Any, seed: int) -> list[float]:
    """Return the probability that each point gives a value, learned from all that did and that failed.

    It is that of a label above `LEVEL`. Without failures it is 1. One fit of an exact GP.

    Args:
        history: What was told.
        points: Points as for `tell`.
        seed: Seed of the fit.

    Raises:
        SpaceError: for points outside the space.
    """
    with history.lock:
        unit = history.space.encode(points, slack=history.share)
        X, failures = history.told.first(history.told.count)[0], history.failures
    if len(failures) == 0:
        return [1.0] * len(unit)
    model = success_model(X, failures, seed)
    with torch.no_grad():
        posterior = model.posterior(unit.unsqueeze(1))
    z = (posterior.mean - LEVEL) / posterior.variance.clamp_min(1e-12).sqrt()
    return torch.special.ndtr(z).reshape(-1).tolist()
