"""Points of the unit cube on linear equalities, such as the mixtures a + b + c = 1."""

from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from typing_extensions import override

from bo_scale.decisions.candidates import TOLERANCE, Admissible
from bo_scale.errors import SpaceError

ROUNDING = 1e-12
"""Weights below it are none, after elimination."""
TURNS = 4
"""As often are projections repeated: bounds of what is solved for meet other constraints in acute angles."""


@dataclass(frozen=True)
class Reduction:
    """Equalities solved for some inputs, the pivots: u[pivots] = constants − slopes u.

    Attributes:
        pivots: p continuous inputs, one for each equality that can be solved.
        slopes: Zero in the columns of pivots.
        constants: Values of the pivots where all others are 0.
        rows: Numbers of the equalities that are left over, with no continuous input to solve them for.
        weights: What is left of these, weights u = targets.
        targets: Their right sides.
    """

    pivots: list[int]
    slopes: Float[Tensor, "p d"]
    constants: Float[Tensor, " p"]
    rows: list[int]
    weights: Float[Tensor, "k d"]
    targets: Float[Tensor, " k"]

    @classmethod
    def of(cls, weights: Float[Tensor, "e d"], targets: Float[Tensor, " e"], free: Bool[Tensor, " d"]) -> "Reduction":
        """Solve equalities by Gauss-Jordan elimination, each time for the free input of largest weight. O(e² d).

        Equalities that follow from others are dropped. A contradiction is left over, as 0 u = target.

        Args:
            weights: Rows of length one.
            targets: Their right sides.
            free: Inputs that may become pivots.
        """
        system = torch.cat([weights, targets.unsqueeze(-1)], -1)
        left, solved, pivots = [*range(len(system))], list[int](), list[int]()
        while left:
            sizes = system[left][:, :-1].abs() * free
            place = int(sizes.argmax())
            if sizes.flatten()[place] <= TOLERANCE:
                break
            row, pivot = left.pop(place // len(free)), place % len(free)
            system[row] /= system[row, pivot].clone()
            others = torch.arange(len(system)) != row
            system[others] -= system[others, pivot].unsqueeze(-1) * system[row]
            system[others, pivot] = 0.0
            solved.append(row)
            pivots.append(pivot)
        slopes = system[solved][:, :-1].clone()
        slopes[:, pivots] = 0.0
        rest = torch.where(system[left].abs() > TOLERANCE, system[left], 0.0)
        said = rest.any(-1)
        rows = [row for row, each in zip(left, said.tolist(), strict=True) if each]
        return cls(pivots, slopes, system[solved][:, -1], rows, rest[said][:, :-1], system[rows][:, -1])

    def complete(self, unit: Float[Tensor, "*b d"]) -> Float[Tensor, "*b d"]:
        """Return points with the pivots that the other inputs ask for. Gradients flow through."""
        whole = unit.clone()
        whole[..., self.pivots] = self.constants.to(unit) - unit @ self.slopes.to(unit).mT
        return whole


@dataclass(frozen=True)
class Slice(Admissible):
    """Admissible points on linear equalities E u = e.

    One continuous input of each equality follows from the others. Points are sought over these, where equalities are
    gone and the bounds of the inputs that follow are inequalities.

    Attributes:
        equalities: E, whose rows have length one.
        targets: e.
    """

    equalities: Float[Tensor, "e d"] = field(kw_only=True)
    targets: Float[Tensor, " e"] = field(kw_only=True)

    @property
    def _fields(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in fields(Admissible)}

    @cached_property
    def _movable(self) -> Bool[Tensor, " d"]:
        """Inputs that are continuous, those included that equalities determine."""
        return Admissible(**self._fields).free

    @cached_property
    def reduction(self) -> Reduction:
        """The equalities, solved for continuous inputs."""
        return Reduction.of(self.equalities, self.targets, self._movable)

    @cached_property
    def _rest(self) -> Admissible:
        """The points without equalities and with zeros for pivots. Their excess is that of completed points."""
        solved = self.reduction
        weights = [solved.slopes, -solved.slopes, solved.weights, -solved.weights]
        limits = [solved.constants, 1 - solved.constants, solved.targets, -solved.targets]
        if self.weights is not None and self.limits is not None:
            part = self.weights[:, solved.pivots]
            weights.append(torch.where(self._pivotal, 0.0, self.weights - part @ solved.slopes))
            limits.append(self.limits - part @ solved.constants)
        W, w = torch.cat(weights), torch.cat(limits)
        W = torch.where(W.abs() > ROUNDING, W, 0.0)
        said = W.any(-1) | (w < -TOLERANCE)
        held = {**self.held, **dict.fromkeys(solved.pivots, 0.0)}
        limited = {"weights": W[said], "limits": w[said]} if bool(said.any()) else {"weights": None, "limits": None}
        return Admissible(**{**self._fields, **limited, "held": held})

    @property
    def _pivotal(self) -> Bool[Tensor, " d"]:
        found = torch.zeros(self.dimension, dtype=torch.bool)
        found[self.reduction.pivots] = True
        return found

    @cached_property
    @override
    def free(self) -> Bool[Tensor, " d"]:
        """Inputs that are continuous; none if equalities determine all of them."""
        return self._movable & self._rest.free.any()

    @property
    @override
    def count(self) -> float | int:
        """The number of points, inequalities ignored; inf with a continuous input that equalities leave open."""
        return self._rest.count

    @cached_property
    @override
    def points(self) -> Float[Tensor, "n d"] | None:
        """All points if they are few, else None."""
        points = self._rest.points
        return None if points is None else self.reduction.complete(points)

    @override
    def excess(self, unit: Float[Tensor, "*b d"]) -> Float[Tensor, "*b"]:
        """Return the largest violation of a constraint or a bound, as a distance; 0 if all hold."""
        missed = (unit @ self.equalities.to(unit).mT - self.targets.to(unit)).abs()
        return torch.cat([super().excess(unit).unsqueeze(-1), missed, -unit, unit - 1], -1).amax(-1)

    @override
    def nearest(self, unit: Float[Tensor, "*b d"]) -> Float[Tensor, "*b d"]:
        """Return the nearest points on the equalities, then moved into the inequalities where projections do it."""
        snapped = self.snap(unit)
        return self.repair((snapped + self._correction(snapped, self._movable.to(unit.device))).clamp(0.0, 1.0))

    @override
    def settled(self, unit: Float[Tensor, "*b d"]) -> Float[Tensor, "*b d"]:
        """Return admissible points with what is within rounding of a bound on it, and equalities exact to rounding."""
        movable = self._movable.to(unit.device)
        low, high = movable & (unit < TOLERANCE), movable & (unit > 1 - TOLERANCE)
        near = torch.where(low, 0.0, torch.where(high, 1.0, unit))
        near = (near + self._correction(near, movable & ~low & ~high)).clamp(0.0, 1.0)
        return torch.where((self.excess(near) <= self.excess(unit)).unsqueeze(-1), near, unit)

    def _correction(self, unit: Float[Tensor, "*b d"], movable: Bool[Tensor, "*m d"]) -> Float[Tensor, "*b d"]:
        """Return the shortest steps in inputs that are movable, for all points or each, that reach the equalities."""
        missed = self.targets.to(unit) - unit @ self.equalities.to(unit).mT
        inverse = torch.linalg.pinv(self.equalities.to(unit) * movable.unsqueeze(-2))
        return (inverse @ missed.unsqueeze(-1)).squeeze(-1)

    @override
    def retract(self, unit: Float[Tensor, "*b d"], start: Float[Tensor, "*b d"]) -> Float[Tensor, "*b d"]:
        return self.reduction.complete(self._rest.retract(unit, start))

    @override
    def repair(self, unit: Float[Tensor, "*b d"]) -> Float[Tensor, "*b d"]:
        for _ in range(TURNS):
            unit = self._rest.repair(unit)  # at once where nothing is to be done
        return self.reduction.complete(unit)

    @override
    def equations(self, like: Float[Tensor, "n d"]) -> list[tuple[Tensor, Tensor, float]]:
        solved = self.reduction
        found = []
        for pivot, slopes, constant in zip(solved.pivots, solved.slopes.to(like), solved.constants.tolist()):
            row = slopes.clone()
            row[pivot] = 1.0
            found.append((row.nonzero().squeeze(-1), row[row != 0], constant))
        return found

    @override
    def sample(self, n: int, seed: int, first: int = 0) -> Float[Tensor, "n d"]:
        try:
            return self.reduction.complete(self._rest.sample(n, seed, first))
        except SpaceError as error:
            held = f", and {len(self.held)} inputs are held" if self.held else ""
            raise SpaceError(
                f"parameter_constraints: no admissible point was found. The constraints contradict each other, or "
                f"leave almost no room{held}. Loosen them."
            ) from error
