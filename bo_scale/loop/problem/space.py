"""The space of a search: parameters in raw units outside, the unit cube inside."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from bo_scale.decisions.candidates import TOLERANCE, Admissible
from bo_scale.decisions.conditions import Condition
from bo_scale.decisions.equalities import Slice
from bo_scale.errors import InvalidDataError, SpaceError
from bo_scale.loop.problem.conditions import Links, conditions_of, existing, lacking, links_of, place_of
from bo_scale.loop.problem.linear_constraints import Linear
from bo_scale.loop.problem.parameters import Column, Parameter, Real, When, parameter_described, parameter_of
from bo_scale.loop.problem.rows import columns_of, rows_not_finite, some
from bo_scale.spelling import suggestion

Point = dict[str, Any]
Points = Tensor | list[Point]
"""Several points: a tensor `n × k`, or for a space with names one dictionary a point."""


@dataclass(frozen=True)
class Space:
    """A search space: parameters, and linear constraints on them.

    Models and acquisition functions see the unit cube. `encode` maps points into it, `decode` maps them back.

    Attributes:
        parameters: The k parameters.
        names: Names of the parameters. None if points are rows of a tensor.
        constraints: Constraints on Real and Integer parameters, and evenly spaced ordered choices, in raw units.

    Raises:
        SpaceError: for a parameter or a constraint that cannot be used.
    """

    parameters: tuple[Parameter, ...]
    names: tuple[str, ...] | None = None
    constraints: tuple[Linear, ...] = ()

    def __post_init__(self) -> None:
        if len(self.parameters) == 0:
            raise SpaceError("space: it has no parameters. Give at least one.")
        if self.dimension == 0:
            raise SpaceError("space: every parameter is Fixed, so there is nothing to search. Give one that varies.")
        self._require_conditions()
        if self.names is None and not all(parameter.numeric for parameter in self.parameters):
            raise SpaceError("space: some parameters are not numeric. Name all of them, as in {'x': Choice(…)}.")
        try:
            for constraint in self.constraints:
                constraint.require_known(self.labels, "parameters")
        except ValueError as error:
            raise SpaceError(f"parameter_constraints: {error}") from error
        for constraint in self.constraints:
            for name in constraint.weights:
                self._require_linear(name)
        self._require_solvable()

    @classmethod
    def of(
        cls,
        space: "Space | Mapping[str, Any] | Sequence[Any] | Tensor",
        constraints: Sequence[str | Linear] = (),
    ) -> "Space":
        """Make a space from the forms that `Optimizer` accepts.

        Args:
            space: `{"x": (0.0, 1.0), "n": Integer(1, 8), …}`, where a pair stands for `Real`; or a list of pairs and
                parameters; or BoTorch's `2 × d` tensor (or array) of bounds.
            constraints: On the parameters, as `"x + 2 * n <= 3"`, `"x + y == 1"` or `Linear`.
        """
        try:
            linear = tuple(Linear.of(constraint) for constraint in constraints)
        except ValueError as error:
            raise SpaceError(f"parameter_constraints: {error}") from error
        if isinstance(space, Space):
            return cls(space.parameters, space.names, space.constraints + linear) if linear else space
        if isinstance(space, np.ndarray):
            space = torch.as_tensor(space)
        names = None
        if isinstance(space, Mapping):
            entries, names = list(space.values()), tuple(str(name) for name in space)
        elif isinstance(space, Tensor):
            if space.ndim != 2 or len(space) != 2:
                raise SpaceError(
                    f"space: a tensor of shape {tuple(space.shape)}; expected 2 × d, lower and upper bounds."
                )
            entries = space.mT.tolist()
        else:
            entries = list(space)
        labels: Sequence[str | int] = names or range(len(entries))
        return cls(
            tuple(parameter_of(label, entry) for label, entry in zip(labels, entries, strict=True)), names, linear
        )

    @property
    def labels(self) -> list[str | int]:
        """The names of the parameters, or their columns."""
        return [*self.names] if self.names is not None else [*range(len(self.parameters))]

    @classmethod
    def described(cls, description: Mapping[str, Any]) -> "Space":
        """Return a space from what `describe` returned of it.

        Raises:
            KeyError, TypeError, ValueError: if it is no such description.
        """
        names = None if description["names"] is None else tuple(description["names"])
        if description["kind"] == "box":
            pairs = zip(description["lower"], description["upper"], strict=True)
            return cls(tuple(Real(lower, upper) for lower, upper in pairs), names)
        limits = [Linear.described(each) for each in description["constraints"]]
        return cls(tuple(map(parameter_described, description["parameters"])), names, tuple(limits))

    @property
    def dimension(self) -> int:
        """d, the number of inputs a model sees."""
        return sum(parameter.inputs for parameter in self.parameters)

    @property
    def num_initial(self) -> int:
        """The default number of quasi-random points: one more than parameters that vary, from 4 to 8."""
        varying = sum(parameter.inputs > 0 for parameter in self.parameters)
        return min(8, max(4, varying + 1))

    @property
    def is_box(self) -> bool:
        """Whether it has intervals only, on linear scales, and no constraints."""
        plain = all(isinstance(each, Real) and not each.log and each.digits is None for each in self.parameters)
        return plain and not self.constraints

    @property
    def lower(self) -> tuple[float, ...]:
        """The smallest value of each parameter that has bounds, in raw units."""
        return tuple(parameter.lower for parameter in self.parameters if hasattr(parameter, "lower"))

    @property
    def upper(self) -> tuple[float, ...]:
        """The largest value of each parameter that has bounds, in raw units."""
        return tuple(parameter.upper for parameter in self.parameters if hasattr(parameter, "upper"))

    @cached_property
    def admissible(self) -> Admissible | None:
        """The points of the unit cube that stand for points of the space; None if all do."""
        offsets = np.cumsum([0, *(parameter.inputs for parameter in self.parameters)]).tolist()
        lattices, choices = {}, []
        for start, parameter in zip(offsets, self.parameters):
            if parameter.lattice is not None:
                lattices[start] = parameter.lattice
            elif parameter.inputs > 1:
                choices.append(tuple(range(start, start + parameter.inputs)))
        if not lattices and not choices and not self.constraints and not self._never:
            return None
        weights, limits = self._limits(offsets)
        equal = torch.tensor([constraint.equal for constraint in self.constraints], dtype=torch.bool)
        W, w = (None, None) if bool(equal.all()) else (weights[~equal], limits[~equal])
        every = Admissible(self.dimension, lattices, tuple(choices), W, w, conditions=self.conditions)
        if bool(equal.any()):
            own = {each.name: getattr(every, each.name) for each in fields(Admissible)}
            every = Slice(**own, equalities=weights[equal], targets=limits[equal])
        return every.holding({}) if self.conditions else every

    @cached_property
    def conditions(self) -> tuple[Condition, ...]:
        """The conditions of parameters in the unit cube, in the order of the links."""
        return conditions_of(self.parameters, self._links)

    @cached_property
    def _links(self) -> Links:
        return links_of(self.parameters, self.labels)

    @property
    def _never(self) -> list[int]:
        """Inputs of parameters that exist at no point, as what they depend on is fixed at another value."""
        return [i for each in self.conditions if each.decided({}) is False for i in each.inputs]

    def _limits(self, offsets: list[int]) -> tuple[Float[Tensor, "c d"], Float[Tensor, " c"]]:
        """Return the constraints in the unit cube, every row of length one."""
        weights = torch.zeros(len(self.constraints), self.dimension, dtype=torch.float64)
        limits = torch.tensor([constraint.upper for constraint in self.constraints], dtype=torch.float64)
        for row, constraint in enumerate(self.constraints):
            for name, weight in constraint.weights.items():
                i = self.labels.index(name)
                low, high = self.parameters[i].span or (0.0, 0.0)
                weights[row, offsets[i]] += weight * (high - low)
                limits[row] -= weight * low
        lengths = weights.norm(dim=-1)
        return weights / lengths.unsqueeze(-1), limits / lengths

    # ------------------------------------------------------------------ in

    def encode(self, points: Any, slack: float = 0.0) -> Float[Tensor, "n d"]:
        """Return raw points as rows in the unit cube, integers and choices on their places.

        Args:
            points: A tensor, array or nested list `n × k`; one point as a row of k values; for a space with names also
                one dictionary or a list of them.
            slack: The distance by which a point may lie outside, as a share of the range.

        Raises:
            InvalidDataError: naming rows with NaN or inf, or a wrong number of columns.
            SpaceError: naming rows outside the space, or parameters that are missing or unknown. Conditional ones may
                be missing where they do not exist; values given there are ignored.
        """
        columns = self._columns(points)
        self._require_existing(columns)
        bad = sorted({row for column in columns for row in rows_not_finite(column)})
        if bad:
            raise InvalidDataError(f"X: NaN or inf in rows {some(bad)}. Leave these rows out.")
        unit, off = self._placed(columns)
        self._require_inside(off > slack, columns)
        if self.admissible is not None and bool((self.admissible.excess(unit) > slack + 1e-9).any()):
            rows = (self.admissible.excess(unit) > slack + 1e-9).nonzero().squeeze(-1).tolist()
            limits = "; ".join(map(str, self.constraints))
            missed = self._missed([_shown(column[rows[0]]) for column in columns], slack)
            first = f" Row {rows[0]}: {missed}" if missed else ""
            raise SpaceError(f"X: rows {some(rows)} violate parameter_constraints: {limits}.{first}")
        return unit

    def _missed(self, row: list[Any], slack: float) -> str:
        """Say by how much a point misses equalities; nothing if it does not."""
        said, point = [], dict(zip(self.labels, row, strict=True))
        for constraint in self.constraints:
            missed = constraint.value(point) - constraint.upper
            allowed = math.hypot(*(b - a for a, b in self._ends(constraint))) * (slack + TOLERANCE)
            if constraint.equal and abs(missed) > allowed:
                said.append(f"{constraint} is missed by {missed:.3g}, and {allowed:.2g} is allowed.")
        if said:
            said.append("Correct a value or its last digit, or pass a larger match_tolerance to the Optimizer.")
        return " ".join(said)

    def _ends(self, constraint: Linear) -> list[tuple[float, float]]:
        """Return each term of a constraint at both ends of its parameter's range."""
        spans = {name: self.parameters[self.labels.index(name)].span or (0.0, 0.0) for name in constraint.weights}
        return [(weight * spans[name][0], weight * spans[name][1]) for name, weight in constraint.weights.items()]

    def _placed(self, columns: list[Column]) -> tuple[Float[Tensor, "n d"], Float[Tensor, "n k"]]:
        """Return columns in the unit cube, and by which share of the range each value is outside."""
        placed = [parameter.encode(column) for parameter, column in zip(self.parameters, columns)]
        return torch.cat([places for places, _ in placed], -1), torch.stack([each for _, each in placed], -1)

    def holds(self, points: Any, slack: float = 0.0) -> Bool[Tensor, " n"]:
        """Return which raw points lie in the space; arguments as for `encode`."""
        unit, off = self._placed(self._columns(points))
        inside = (off <= slack).all(-1)
        return inside if self.admissible is None else inside & (self.admissible.excess(unit) <= slack + 1e-9)

    def tolerances(self, share: float) -> Float[Tensor, " d"]:
        """Return the distance within which points are the same in each input: a share of the range, below a step."""
        found = torch.full((self.dimension,), share, dtype=torch.float64)
        for place, lattice in ({} if self.admissible is None else self.admissible.lattices).items():
            found[place] = min(share, lattice.gap / 4)
        return found

    def held(self, fixed: Mapping[Any, Any], argument: str = "fixed") -> dict[int, float]:
        """Return the inputs of parameters that are held at given values, by column of the unit cube.

        Args:
            fixed: Values by the name of a parameter, by its number in a space without names. Any number of parameters.
                A conditional one exists at the points meant, so it limits those on which it depends.
            argument: Its name, for messages.

        Raises:
            SpaceError: for an unknown name, a value that a parameter does not take, or values that no point has that
                satisfies the constraints and conditions.
        """
        if not isinstance(fixed, Mapping):
            raise SpaceError(f"{argument}: {fixed!r} is no dictionary. Write {argument}={{name: value}}.")
        labels = self.labels
        unknown = [name for name in fixed if name not in labels]
        if unknown:
            meant = suggestion(unknown[:1], labels) or f" Choose from {labels}."
            raise SpaceError(f"{argument}: {unknown[0]!r} is no parameter.{meant}")
        found, start = dict[int, float](), 0
        for label, parameter in zip(labels, self.parameters):
            if label in fixed:
                places = place_of(parameter, fixed[label])
                if places is None or (isinstance(parameter, When) and fixed[label] is None):
                    raise SpaceError(f"{argument}: {label!r} takes {parameter}, and got {fixed[label]!r}.")
                found.update(zip(range(start, start + parameter.inputs), places))
            start += parameter.inputs
        if found:
            self._require_some(found, fixed, argument)
        return found

    def _require_some(self, held: Mapping[int, float], fixed: Mapping[Any, Any], argument: str) -> None:
        """Refuse held inputs that no point has."""
        if not held.keys().isdisjoint(self._never):
            raise SpaceError(self._unheld(fixed, argument))
        if self.admissible is not None and (self.constraints or self.conditions):
            try:
                self.admissible.holding(held).sample(1, 0)
            except SpaceError as error:
                raise SpaceError(self._unheld(fixed, argument)) from error

    def _unheld(self, fixed: Mapping[Any, Any], argument: str) -> str:
        """Say that no point has given values."""
        limits = "; ".join(map(str, self.constraints))
        satisfies = f" satisfies parameter_constraints: {limits}" if limits else " exists"
        given = [name for name in fixed if isinstance(self.parameters[self.labels.index(name)], When)]
        where = [f" {name!r} takes {self.parameters[self.labels.index(name)]}." for name in given]
        return f"{argument}: no point with {dict(fixed)}{satisfies}.{''.join(where)} Hold other values."

    def settled(self, points: Any) -> list[list[Any]]:
        """Return rows of values of the right types, rounded where necessary, as a journal keeps them."""
        columns = [parameter.settled(each) for parameter, each in zip(self.parameters, self._columns(points))]
        return [list(row) for row in zip(*columns)]

    def packed(self, rows: list[list[Any]]) -> list[list[float]]:
        """Return settled rows as numbers, from which `unpacked` recovers the very values."""
        return [[each.pack(value) for each, value in zip(self.parameters, row, strict=True)] for row in rows]

    def unpacked(self, packed: Sequence[float]) -> list[Any]:
        """Return a settled row from its numbers."""
        return [each.unpack(number) for each, number in zip(self.parameters, packed, strict=True)]

    def rows(self, points: Any) -> Float[Tensor, "n k"]:
        """Return raw points, in any of the forms that `encode` takes, as rows of numbers.

        Raises:
            SpaceError: if some parameters are not numeric.
        """
        if not all(parameter.numeric for parameter in self.parameters):
            raise SpaceError("rows: some parameters have values that are not numbers. Use the points themselves.")
        columns = [
            each if isinstance(each, Tensor) else torch.tensor([float(value) for value in each], dtype=torch.float64)
            for each in self._columns(points)
        ]
        return torch.stack(columns, -1)

    def _columns(self, points: Any) -> list[Column]:
        columns = columns_of(points, self.parameters, self.names)
        return existing(columns, self.parameters, self._links) if self._links else columns

    def lacking(self, points: Any) -> dict[str | int, list[int]]:
        """Return in which rows conditional parameters exist that have no value, by their names."""
        return {self.labels[i]: rows for i, rows in lacking(self._columns(points), self._links).items()}

    # ------------------------------------------------------------------ out

    def decode(self, unit: Float[Tensor, "n d"]) -> Points:
        """Return rows of the unit cube in raw units, never outside by rounding; dictionaries if there are names.

        Parameters that do not exist at a point are left out.
        """
        parts = unit.split([parameter.inputs for parameter in self.parameters], -1)
        columns = [parameter.decode(part) for parameter, part in zip(self.parameters, parts)]
        for i, condition in zip(self._links, self.conditions):
            exists = condition.active(unit).tolist()
            columns[i] = [value if here else None for here, value in zip(exists, columns[i])]
        return self.points([list(row) for row in zip(*columns)])

    def points(self, rows: list[list[Any]]) -> Points:
        """Return points from settled rows: a tensor, or dictionaries if parameters have names, without what is None."""
        if self.names is None:
            return torch.tensor(rows, dtype=torch.float64).reshape(len(rows), len(self.parameters))
        whole = [zip(self.names, row, strict=True) for row in rows]
        return [{name: value for name, value in each if value is not None} for each in whole]

    def describe(self) -> dict[str, Any]:
        """Return what a journal keeps of the space, to recognise it."""
        names = self.names and list(self.names)
        if self.is_box:
            return {"kind": "box", "lower": list(self.lower), "upper": list(self.upper), "names": names}
        return {
            "kind": "parameters",
            "names": names,
            "parameters": [parameter.describe() for parameter in self.parameters],
            "constraints": [constraint.describe() for constraint in self.constraints],
        }

    # ------------------------------------------------------------------ refusals

    def _require_inside(self, outside: Tensor, columns: list[Column]) -> None:
        rows = outside.any(-1).nonzero().squeeze(-1).tolist()
        if rows:
            first = [_shown(column[rows[0]]) for column in columns]
            i = int(outside[rows[0]].long().argmax())
            raise SpaceError(
                f"X: rows {some(rows)} lie outside the space; row {rows[0]} is {first}, "
                f"and parameter {self.labels[i]!r} takes {self.parameters[i]}."
            )

    def _require_solvable(self) -> None:
        """Refuse equalities that no point satisfies, that leave one point, or that only discrete values could meet."""
        found = self.admissible
        if not isinstance(found, Slice):
            return
        equalities = [constraint for constraint in self.constraints if constraint.equal]
        for constraint in equalities:
            self._require_reached(constraint)
        for row, weights in zip(found.reduction.rows, found.reduction.weights, strict=True):
            others = " with the other equalities" if len(equalities) > 1 else ""
            if not bool(weights.any()):
                raise SpaceError(f"parameter_constraints: {equalities[row]} contradicts the other equalities.")
            raise SpaceError(
                f"parameter_constraints: {equalities[row]}{others} leaves no continuous parameter to solve for. An "
                f"equality needs a Real of its own, without digits. Leave out one of the parameters in it and compute "
                f"it from the others, or give the sum a range by two inequalities."
            )
        if found.count == 1:
            raise SpaceError("parameter_constraints: the equalities leave one point, so there is nothing to search.")

    def _require_reached(self, constraint: Linear) -> None:
        """Refuse an equality that the bounds rule out."""
        low, high = (sum(map(end, self._ends(constraint))) for end in (min, max))
        if not low - TOLERANCE * (high - low) <= constraint.upper <= high + TOLERANCE * (high - low):
            raise SpaceError(
                f"parameter_constraints: {constraint}: within the bounds the left side is from {low:g} to {high:g}. "
                f"Widen the bounds, or mend the constraint."
            )

    def _require_existing(self, columns: list[Column]) -> None:
        """Refuse points without a parameter that exists there."""
        for i, rows in lacking(columns, self._links).items():
            when = self.parameters[i]
            raise SpaceError(
                f"X: rows {some(rows)} lack the parameter {self.labels[i]!r}, which exists there. It takes {when}."
            )

    def _require_conditions(self) -> None:
        if self.names is None and any(isinstance(each, When) for each in self.parameters):
            raise SpaceError("space: a When needs names. Name all parameters, as in {'x': When('solver', …)}.")
        if len(self._never) == self.dimension:
            raise SpaceError("space: every parameter is Fixed or exists at no point, so there is nothing to search.")

    def _require_linear(self, name: str | int) -> None:
        parameter = self.parameters[self.labels.index(name)]
        if isinstance(parameter, When):
            raise SpaceError(
                f"parameter_constraints: {name!r} exists only where {parameter.on!r} has certain values, so it cannot "
                f"be constrained. Take it out of {[str(each) for each in self.constraints if name in each.weights]}."
            )
        if parameter.span is None and not getattr(parameter, "log", False):
            raise SpaceError(
                f"parameter_constraints: {name!r} takes {parameter}. Only Real and Integer ones can be constrained, "
                f"and an ordered Choice of evenly spaced numbers."
            )
        if parameter.span is None:
            raise SpaceError(
                f"parameter_constraints: {name!r} is on a logarithmic scale, where a linear constraint is not linear. "
                f"Use a linear scale, or make the logarithm the parameter."
            )


def _shown(value: Any) -> Any:
    return value.item() if isinstance(value, Tensor) else value
