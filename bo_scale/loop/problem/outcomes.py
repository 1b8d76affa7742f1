"""The outcomes measured at a point: objectives, and outcomes with constraints."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from bo_scale.decisions.goals import Goal
from bo_scale.errors import InvalidArgumentError, InvalidDataError
from bo_scale.gp.waiting import LARGEST, in_range
from bo_scale.loop.history.observations import rows_where
from bo_scale.loop.problem.linear_constraints import Linear
from bo_scale.loop.problem.rows import mismatch, records_of
from bo_scale.spelling import suggestion

Direction = Literal["maximize", "minimize"]


@dataclass(frozen=True)
class Outcomes:
    """m outcomes, the objectives first. Inside the loop larger is better for every objective.

    Attributes:
        names: None for a single value without a name.
        signs: The sign of each outcome, −1 where it is minimised.
        objectives: The number of objectives.
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
        """Make outcomes from the arguments of an Optimizer.

        Raises:
            InvalidArgumentError: naming the argument that does not fit.
        """
        if objectives is None:
            if constraints or reference_point:
                raise InvalidArgumentError(
                    "constraints, reference_point: they need names. Pass objectives={'name': 'maximize'} too."
                )
            return cls(None, (_sign("objective", objective or "maximize"),))
        if objective is not None or not objectives or not isinstance(objectives, Mapping):
            raise InvalidArgumentError(
                "objective, objectives: pass one of the two. With names: objectives={'loss': 'minimize', …}."
            )
        read = tuple(Linear.of(constraint) for constraint in constraints)
        for constraint in read:
            if constraint.equal:
                raise InvalidArgumentError(
                    f"constraints: {constraint}: a measured value meets an equality by chance only. Give a range by "
                    f"two constraints, as in 'cost >= 2.9' and 'cost <= 3.1'. Equalities on parameters belong to "
                    f"parameter_constraints."
                )
        others = dict.fromkeys(name for each in read for name in each.weights if name not in objectives)
        if not all(isinstance(name, str) for name in others):
            raise InvalidArgumentError(f"constraints: {list(others)} are not names of outcomes. Use strings.")
        signs = [_sign(f"objectives[{name!r}]", direction) for name, direction in objectives.items()]
        return cls(
            (*objectives, *map(str, others)),
            (*signs, *(1.0 for _ in others)),
            len(objectives),
            read,
            _reference(list(objectives), reference_point),
        )

    @classmethod
    def described(cls, description: Any) -> "Outcomes":
        """Return outcomes from what `describe` returned of them.

        Raises:
            KeyError, TypeError, ValueError: if it is no such description.
        """
        if isinstance(description, str):
            return cls(None, (_sign("objective", description),))
        objectives: dict[str, Any] = dict(map(tuple, description["objectives"]))
        limits = [Linear.described(each) for each in description["constraints"]]
        values = description["reference_point"]
        reference = values and {name: value for name, value in zip(objectives, values) if value is not None}
        return cls.of(None, objectives, limits, reference)

    @property
    def several(self) -> bool:
        """Whether there are several objectives."""
        return self.objectives > 1

    @property
    def plain(self) -> bool:
        """Whether there is one objective and nothing else."""
        return len(self.signs) == 1 and not self.constraints

    def read(self, argument: str, values: Any, n: int, partly: bool = False) -> Float[Tensor, "n m"]:
        """Read the values that a user tells of n points, in raw units.

        Args:
            argument: Its name, for messages.
            values: n numbers of a single outcome, or a Series; n dictionaries (of one point, one) or rows of several,
                or a DataFrame.
            n: The number of points.
            partly: Whether some may be None or NaN, and are returned as NaN.

        Raises:
            InvalidDataError: for another shape, outcomes that are missing or unknown, NaN, inf, and values whose
                squares overflow.
        """
        values, m = self._in_order(argument, values), len(self.signs)
        try:
            values = _nan_for_none(values) if partly else values
            table = torch.as_tensor(values, dtype=torch.float64).detach().cpu()
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidDataError(
                f"{argument}: not numbers ({error}); nothing was recorded. Give a number for each point, and pass "
                f"failed points to abandon()."
            ) from error
        if (m == 1 and table.ndim == 0) or (m > 1 and table.shape == (m,) and n == 1):
            table = table.reshape(1, m)
        if table.numel() == n * m == 0:
            return table.reshape(0, m)
        if table.shape not in (((n,), (n, 1)) if m == 1 else ((n, m),)):
            each = "one for each point" if m == 1 else f"one for each of {list(self.names or [])} at every point"
            raise InvalidDataError(f"{argument}: shape {tuple(table.shape)}; expected {n * m} values, {each}.")
        table = table.reshape(n, m)
        bad = rows_where((~(in_range(table) | (table.isnan() & partly))).any(-1))
        if bad:
            what = f"values beyond ±{LARGEST:g}" if bool(table[bad].isfinite().all()) else "NaN or inf"
            raise InvalidDataError(
                f"{argument}: {what} in rows {bad[:5]}{'…' if len(bad) > 5 else ''}; nothing was recorded. Leave "
                f"these rows out, and pass failed points to abandon()."
            )
        return table

    def _in_order(self, argument: str, values: Any) -> Any:
        table = hasattr(values, "columns")
        values = records_of(values)
        if self.names is None:
            values = [list(each.values()) for each in values] if table else values
            return [_plain(each) for each in values] if isinstance(values, list | tuple) else values
        if isinstance(values, Mapping):
            values = [values]
        if not (isinstance(values, Sequence) and len(values) > 0 and isinstance(values[0], Mapping)):
            return values
        names = self.names or ()
        for row, each in enumerate(values):
            missing, unknown = [name for name in names if name not in each], sorted(set(each) - set(names))
            if missing or unknown:
                raise InvalidDataError(
                    f"{argument}: row {row} {mismatch('outcomes', missing, unknown)}; nothing was recorded. Tell all "
                    f"outcomes of a point together. If one is missing for good, call abandon() with the point."
                    f"{suggestion(unknown, names)}"
                )
        return [[_plain(each[name]) for name in names] for each in values]

    def inner(self, values: Float[Tensor, "n m"]) -> Float[Tensor, "n m"]:
        """Convert raw values to ones of which larger is better, or back."""
        return values * (self.signs[0] if len(self.signs) == 1 else values.new_tensor(self.signs))

    def shown(self, values: Float[Tensor, "n m"]) -> list[Any]:
        """Return raw values for a journal: numbers for a single outcome, rows for several."""
        return values.squeeze(-1).tolist() if len(self.signs) == 1 else values.tolist()

    def named(self, values: Float[Tensor, "n m"]) -> Float[Tensor, " n"] | list[dict[str, float]]:
        """Return raw values as `read` takes them: numbers, or dictionaries of outcomes with names."""
        if self.names is None:
            return values.squeeze(-1)
        return [dict(zip(self.names, row, strict=True)) for row in values.tolist()]

    def goal(self, Y: Float[Tensor, "n m"]) -> "Goal":
        """Return the goal of an acquisition function, given all inner values that were told."""
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
        """Return the outcomes as a journal keeps them; a single value is its direction."""
        if self.names is None:
            return _DIRECTIONS[self.signs[0]]
        return {
            "objectives": [[name, _DIRECTIONS[sign]] for name, sign in zip(self.names[: self.objectives], self.signs)],
            "constraints": [constraint.describe() for constraint in self.constraints],
            "reference_point": self.reference and list(self.reference),
        }


_DIRECTIONS = {1.0: "maximize", -1.0: "minimize"}


def _sign(argument: str, direction: str) -> float:
    for sign, name in _DIRECTIONS.items():
        if name == direction:
            return sign
    raise InvalidArgumentError(f"{argument}={direction!r}: choose 'maximize' or 'minimize'.")


def _reference(
    objectives: list[str], reference_point: Mapping[str, float | int] | None
) -> tuple[float | None, ...] | None:
    if reference_point is None:
        return None
    unknown = sorted(set(reference_point) - set(objectives))
    if len(objectives) < 2:
        raise InvalidArgumentError("reference_point: there is one objective. It needs several; leave it out.")
    if unknown:
        raise InvalidArgumentError(f"reference_point: {unknown} are not objectives. Choose from {objectives}.")
    return tuple(None if name not in reference_point else float(reference_point[name]) for name in objectives)


def _nan_for_none(values: Any) -> Any:
    """Return nested lists with NaN for None; anything else as it is."""
    if isinstance(values, list | tuple):
        return [_nan_for_none(each) for each in values]
    return math.nan if values is None else values


def _plain(value: Any) -> Any:
    """Return the number in an array or tensor of one; anything else as it is."""
    one = hasattr(value, "item") and getattr(value, "shape", None) is not None and math.prod(value.shape) == 1
    return value.item() if one else value
