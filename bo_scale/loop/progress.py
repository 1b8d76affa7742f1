"""The progress bar of a run: the number of observations, and the best one so far."""

from typing import Any

import torch
from tqdm.auto import tqdm

from bo_scale.loop.best import having


class Progress:
    """A progress bar that counts observations, and shows the best value observed of each objective.

    The best of what was told, whatever a model makes of it: an update costs nothing. Values that violate a constraint
    on outcomes do not count, nor those away from the target of a fidelity.

    Args:
        optimizer: The optimizer.
        total: Number of observations at the end.
        shown: Whether there is a bar at all.
    """

    def __init__(self, optimizer: Any, total: int, shown: bool) -> None:
        self._outcomes, self._shown = optimizer.outcomes, shown
        self._optimizer = optimizer
        self._best: list[float] = []
        n = optimizer.num_observations
        self._bar: Any = tqdm(total=total, initial=n, desc="optimise", unit="observation", disable=not shown)
        if shown and n > 0:
            X, Y, _ = optimizer.observations
            self._note(X, Y, n)

    def told(self, X: Any, Y: Any, n: int) -> None:
        """Take note of n new values, in a form that `tell` takes."""
        if self._shown:
            self._note(X, Y, n)
        self._bar.update(n)

    def _note(self, X: Any, Y: Any, n: int) -> None:
        outcomes = self._outcomes
        inner = outcomes.inner(outcomes.read("Y", Y, n))
        space, fidelity = self._optimizer.space, self._optimizer.settings.fidelity
        if fidelity:
            places = space.encode(X, slack=self._optimizer.history.share)
            inner = inner[having(space, places, space.held(fidelity))]
            if len(inner) == 0:
                return
        feasible = inner[outcomes.goal(inner).violation(inner) <= 0, : outcomes.objectives]
        if len(feasible) == 0:
            return
        highest = feasible.amax(0)
        if self._best:
            highest = torch.maximum(highest, highest.new_tensor(self._best))
        self._best = highest.tolist()
        names = outcomes.names or ("best",)
        best = [f"{name} {sign * value:.6g}" for name, sign, value in zip(names, outcomes.signs, self._best)]
        self._bar.set_postfix_str(("best " if outcomes.names else "") + ", ".join(best), refresh=False)

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.close()
