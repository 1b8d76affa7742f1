"""What is measured at a point: objectives, and outcomes that constraints are about."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from bo_scale.errors import InvalidDataError
from bo_scale.loop.history.observations import rows_where
from bo_scale.loop.problem.linear_constraints import Linear

Direction = Literal["maximize", "minimize"]


@dataclass(frozen=True)
class Outcomes:
    """m outcomes, the objectives first. Inside, larger is better of every objective.

    Attributes:
        names: None for a single value without a name.
        signs: Of each outcome, −1 where it is minimised.
        objectives: How many of them are objectives.
        constraints: On outcomes, in raw units.
        reference: For several objectives the values beyond which they count, in raw units; None to infer one.
    """

    names: tuple[str, ...] | None
    signs: tuple[float, ...]
    objectives: int = 1
    constraints: tuple[Linear, ...] = ()
    reference: tuple[float | None, ...] | None = None

    @classmethod
    def of(
        cls,
        objective: Direction | None,
        objectives: Mapping[str, Direction] | None,
        constraints: Sequence[str | Linear],
        reference_point: Mapping[str, float | int] | None,
    ) -> "Outcomes":
        """Outcomes from the arguments of an Optimizer.

        Raises:
            ValueError: naming the argument that does not fit.
        """
        if objectives is None:
            if constraints or reference_point:
                raise ValueError("constraints, reference_point: need names; give objectives={'name': 'maximize'} too.")
            return cls(None, (_sign("objective", objective or "maximize"),))
        if objective is not None or not objectives:
            raise ValueError("objective, objectives: give one of them; objectives={'loss': 'minimize', …}.")
        read = tuple(Linear.of(constraint) for constraint in constraints)
        others = dict.fromkeys(name for each in read for name in each.weights if name not in objectives)
        if not all(isinstance(name, str) for name in others):
            raise ValueError(f"constraints: {list(others)} are no names of outcomes.")
        signs = [_sign(f"objectives[{name!r}]", direction) for name, direction in objectives.items()]
        return cls(
            (*objectives, *map(str, others)),
            (*signs, *(1.0 for _ in others)),
            len(objectives),
            read,
            _reference(list(objectives), reference_point),
        )

    @property
    def several(self) -> bool:
        """Whether there are several objectives."""
        return self.objectives > 1

    @property
    def plain(self) -> bool:
        """Whether there is one objective and nothing else."""
        return len(self.signs) == 1 and not self.constraints

    def read(self, argument: str, values: Any, n: int) -> Float[Tensor, "n m"]:
        """What a user tells of n points, in raw units.

        Args:
            argument: Its name, for messages.
            values: n numbers of a single outcome; n dictionaries (of one point, one) or rows of several.
            n: How many points.

        Raises:
            InvalidDataError: for another shape, outcomes that are missing or unknown, NaN and inf.
        """
        if self.names is not None:
            values = self._in_order(argument, values)
        table = torch.as_tensor(values, dtype=torch.float64).detach().cpu()
        m = len(self.signs)
        if (m == 1 and table.ndim == 0) or (m > 1 and table.shape == (m,) and n == 1):
            table = table.reshape(1, m)
        if table.numel() == n * m == 0:
            return table.reshape(0, m)
        if table.shape not in (((n,), (n, 1)) if m == 1 else ((n, m),)):
            each = "one for each point" if m == 1 else f"one of {list(self.names or [])} each for every point"
            raise InvalidDataError(f"{argument}: shape {tuple(table.shape)}; expected {n * m} values, {each}.")
        table = table.reshape(n, m)
        bad = rows_where((~torch.isfinite(table)).any(-1))
        if bad:
            raise InvalidDataError(
                f"{argument}: NaN or inf in rows {bad[:5]}{'…' if len(bad) > 5 else ''}; nothing was recorded. Leave "
                f"these rows out, and give failed points to abandon()."
            )
        return table

    def _in_order(self, argument: str, values: Any) -> Any:
        if isinstance(values, Mapping):
            values = [values]
        if not (isinstance(values, Sequence) and len(values) > 0 and isinstance(values[0], Mapping)):
            return values
        names = self.names or ()
        for row, each in enumerate(values):
            missing, unknown = [name for name in names if name not in each], sorted(set(each) - set(names))
            if missing or unknown:
                raise InvalidDataError(
                    f"{argument}: row {row} lacks outcomes {missing} and has unknown ones {unknown}; nothing was "
                    f"recorded. All outcomes of a point are told together; give points without to abandon()."
                )
        return [[float(each[name]) for name in names] for each in values]

    def inner(self, values: Float[Tensor, "n m"]) -> Float[Tensor, "n m"]:
        """Raw values so that larger is better; and back."""
        return values * values.new_tensor(self.signs)

    def shown(self, values: Float[Tensor, "n m"]) -> list[Any]:
        """Raw values for a journal: numbers of a single outcome, rows of several."""
        return values.squeeze(-1).tolist() if len(self.signs) == 1 else values.tolist()

    def named(self, values: Float[Tensor, "n m"]) -> Float[Tensor, " n"] | list[dict[str, float]]:
        """Raw values as `read` takes them: numbers, or dictionaries of outcomes with names."""
        if self.names is None:
            return values.squeeze(-1)
        return [dict(zip(self.names, row, strict=True)) for row in values.tolist()]

    def goal(self, Y: Float[Tensor, "n m"]) -> "Goal":
        """What an acquisition function is to reach, given all inner values that were told."""
        spread = Y.std(0) if len(Y) > 1 else torch.ones_like(Y[0])
        scale = torch.where(spread > 0, spread, torch.ones_like(spread))
        weights = Y.new_zeros(len(self.constraints), Y.shape[-1])
        for row, constraint in enumerate(self.constraints):
            for name, weight in constraint.weights.items():
                j = (self.names or ()).index(str(name))
                weights[row, j] = weight * self.signs[j]
        upper = Y.new_tensor([constraint.upper for constraint in self.constraints])
        reference = None
        if self.reference is not None:
            given = [float("nan") if value is None else value for value in self.reference]
            reference = Y.new_tensor(given) * Y.new_tensor(self.signs[: self.objectives])
        return Goal(self.objectives, scale, weights, upper, reference)

    def describe(self) -> Any:
        """What a journal keeps: of a single value, in which direction it is better."""
        if self.names is None:
            return _DIRECTIONS[self.signs[0]]
        return {
            "objectives": [[name, _DIRECTIONS[sign]] for name, sign in zip(self.names[: self.objectives], self.signs)],
            "constraints": [constraint.describe() for constraint in self.constraints],
            "reference_point": self.reference and list(self.reference),
        }


@dataclass(frozen=True)
class Goal:
    """Objectives and constraints as functions of inner outcomes, everything in units of its spread.

    Attributes:
        objectives: How many of the outcomes are.
        scale: The spread of each outcome.
        weights: Of the constraints Σ weight · outcome ≤ upper.
        upper: Their bounds.
        reference: For several objectives, where they begin to count; NaN where that is to be inferred; None everywhere.
    """

    objectives: int
    scale: Float[Tensor, " m"]
    weights: Float[Tensor, "c m"]
    upper: Float[Tensor, " c"]
    reference: Float[Tensor, " k"] | None

    def to(self, device: torch.device) -> "Goal":
        """On a device."""
        reference = None if self.reference is None else self.reference.to(device)
        moved = self.scale.to(device), self.weights.to(device), self.upper.to(device)
        return Goal(self.objectives, *moved, reference)

    def value(self, outcomes: Tensor, X: Tensor | None = None) -> Tensor:
        """The first objective of outcomes `… m`: an objective of BoTorch's."""
        return outcomes[..., 0] / self.scale[0]

    def values(self, outcomes: Tensor, X: Tensor | None = None) -> Tensor:
        """The objectives of outcomes `… m`: a multi-output objective of BoTorch's."""
        return outcomes[..., : self.objectives] / self.scale[: self.objectives]

    @property
    def inequalities(self) -> list[Callable[[Tensor], Tensor]] | None:
        """Functions of outcomes `… m` that are at most zero where the constraints hold; None for none."""
        return [self._inequality(row) for row in range(len(self.upper))] or None

    def _inequality(self, row: int) -> Callable[[Tensor], Tensor]:
        unit = (self.weights[row] * self.scale).norm()
        return lambda outcomes: (outcomes @ self.weights[row].to(outcomes) - self.upper[row]) / unit

    def violation(self, outcomes: Float[Tensor, "n m"]) -> Float[Tensor, " n"]:
        """By how much constraints are violated, added up; 0 where all hold."""
        if self.inequalities is None:
            return outcomes.new_zeros(len(outcomes))
        return torch.stack([each(outcomes).clamp_min(0.0) for each in self.inequalities]).sum(0)

    def merits(self, outcomes: Float[Tensor, "n m"]) -> Float[Tensor, " n"]:
        """What ranks points: objectives where constraints hold, below all of these violations where they do not."""
        violation, total = self.violation(outcomes), self.values(outcomes).sum(-1)
        holds = violation <= 0
        least = total[holds].min() if bool(holds.any()) else total.new_zeros(())
        return torch.where(holds, total, least - violation)

    def front(self, outcomes: Float[Tensor, "n m"]) -> Bool[Tensor, " n"]:
        """Points where constraints hold and that no other such is better than in every objective."""
        front = self.violation(outcomes) <= 0
        front[front.clone()] = non_dominated(self.values(outcomes)[front])
        return front


def non_dominated(values: Float[Tensor, "n k"]) -> Bool[Tensor, " n"]:
    """Which rows no other is at least as good as in all columns and better in one. Of equal rows all count.

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


_DIRECTIONS = {1.0: "maximize", -1.0: "minimize"}


def _sign(argument: str, direction: str) -> float:
    for sign, name in _DIRECTIONS.items():
        if name == direction:
            return sign
    raise ValueError(f"{argument}={direction!r}: choose 'maximize' or 'minimize'.")


def _reference(
    objectives: list[str], reference_point: Mapping[str, float | int] | None
) -> tuple[float | None, ...] | None:
    if reference_point is None:
        return None
    unknown = sorted(set(reference_point) - set(objectives))
    if unknown or len(objectives) < 2:
        raise ValueError(f"reference_point: {unknown or 'one objective'}; give values of several objectives.")
    return tuple(None if name not in reference_point else float(reference_point[name]) for name in objectives)
