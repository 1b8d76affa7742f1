"""The goal of a decision: objectives and constraints as functions of outcomes."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor


@dataclass(frozen=True)
class Goal:
    """Objectives and constraints as functions of inner outcomes, everything in units of its spread.

    Attributes:
        objectives: The number of objectives among the outcomes.
        scale: The spread of each outcome.
        weights: The weights of the constraints Σ weight · outcome ≤ upper.
        upper: Their bounds.
        reference: For several objectives, where they begin to count; NaN where that is to be inferred; None everywhere.
    """

    objectives: int
    scale: Float[Tensor, " m"]
    weights: Float[Tensor, "c m"]
    upper: Float[Tensor, " c"]
    reference: Float[Tensor, " k"] | None

    def to(self, device: torch.device) -> "Goal":
        """Return the goal on a device."""
        reference = None if self.reference is None else self.reference.to(device)
        moved = self.scale.to(device), self.weights.to(device), self.upper.to(device)
        return Goal(self.objectives, *moved, reference)

    def with_floor(self, level: float) -> "Goal":
        """Return the goal with one more outcome, which must be at least `level`."""
        row = torch.zeros(1, self.weights.shape[-1] + 1).to(self.weights)
        row[0, -1] = -1.0
        weights = torch.cat([torch.nn.functional.pad(self.weights, (0, 1)), row])
        upper = torch.cat([self.upper, self.upper.new_tensor([-level])])
        return Goal(self.objectives, torch.cat([self.scale, self.scale.new_ones(1)]), weights, upper, self.reference)

    def value(self, outcomes: Tensor, X: Tensor | None = None) -> Tensor:
        """Return the first objective of outcomes `… m`: an objective for BoTorch."""
        return outcomes[..., 0] / self.scale[0]

    def values(self, outcomes: Tensor, X: Tensor | None = None) -> Tensor:
        """Return the objectives of outcomes `… m`: a multi-output objective for BoTorch."""
        return outcomes[..., : self.objectives] / self.scale[: self.objectives]

    @property
    def inequalities(self) -> list[Callable[[Tensor], Tensor]] | None:
        """Functions of outcomes `… m` that are at most zero where the constraints hold; None for none."""
        return [self._inequality(row) for row in range(len(self.upper))] or None

    def _inequality(self, row: int) -> Callable[[Tensor], Tensor]:
        unit = (self.weights[row] * self.scale).norm()
        return lambda outcomes: (outcomes @ self.weights[row].to(outcomes) - self.upper[row]) / unit

    def violation(self, outcomes: Float[Tensor, "n m"]) -> Float[Tensor, " n"]:
        """Return the sum of constraint violations; 0 where all hold."""
        if self.inequalities is None:
            return outcomes.new_zeros(len(outcomes))
        return torch.stack([each(outcomes).clamp_min(0.0) for each in self.inequalities]).sum(0)

    def merits(self, outcomes: Float[Tensor, "n m"]) -> Float[Tensor, " n"]:
        """Rank points: by objectives where constraints hold, and below all of these by violation where they do not."""
        violation, total = self.violation(outcomes), self.values(outcomes).sum(-1)
        holds = violation <= 0
        least = total[holds].min() if bool(holds.any()) else total.new_zeros(())
        return torch.where(holds, total, least - violation)

    def front(self, outcomes: Float[Tensor, "n m"]) -> Bool[Tensor, " n"]:
        """Return which points satisfy the constraints and are dominated by no other that does."""
        front = self.violation(outcomes) <= 0
        front[front.clone()] = non_dominated(self.values(outcomes)[front])
        return front


def non_dominated(values: Float[Tensor, "n k"]) -> Bool[Tensor, " n"]:
    """Return which rows no other row dominates. Equal rows all count.

    O(n · front), by what each survivor dominates, the best in sum first.
    """
    order = values.sum(-1).argsort(descending=True, stable=True)
    left, kept = order, torch.zeros(len(values), dtype=torch.bool, device=values.device)
    while len(left) > 0:
        head = values[left[0]]
        kept[left[0]] = True
        rest = left[1:]
        dominated = (values[rest] <= head).all(-1) & (values[rest] < head).any(-1)
        left = rest[~dominated]
    return kept
