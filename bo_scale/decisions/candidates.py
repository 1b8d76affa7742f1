"""The points of the unit cube that stand for points of a space: lattices, one-hot choices, linear constraints."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import repeat

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.quasirandom import SobolEngine

from bo_scale.decisions.polytope import uniform_within
from bo_scale.errors import SpaceError

TOLERANCE = 1e-9
"""Distance in the unit cube by which constraints may be missed, and within which two points are one."""
ENUMERATED = 1024
"""Spaces of up to so many points are looked at as a whole."""
BLOCK, BLOCKS = 1024, 64
"""Draws at a time, and so many times in a row without a new admissible point before giving up."""
PROJECTIONS = 8
"""Rounds onto the constraints, one after the other."""
RARE = 1 / 64
"""Admissible share of the cube below which points come from random walks within the constraints."""


@dataclass(frozen=True)
class Lattice:
    """The places that an input may take: evenly spaced from 0 to 1, or integers evenly spaced in their logarithm.

    Attributes:
        count: The number of places, at least two.
        first: The first of `count` successive integers on a logarithmic scale; None for even spacing.
    """

    count: int
    first: int | None = None

    def position(self, index: Int[Tensor, "*b"]) -> Float[Tensor, "*b"]:
        """Return places in the unit interval by index."""
        if self.first is None:
            return index.double() / (self.count - 1)
        return (index.double() / self.first).log1p() / math.log1p((self.count - 1) / self.first)

    def index(self, unit: Float[Tensor, "*b"]) -> Int[Tensor, "*b"]:
        """Return the index of the place nearest in the parameter's own unit."""
        unit = unit.double().clamp(0.0, 1.0)
        if self.first is None:
            return (unit * (self.count - 1)).round().long()
        steps = self.first * (unit * math.log1p((self.count - 1) / self.first)).expm1()
        return steps.round().long().clamp(0, self.count - 1)

    @property
    def gap(self) -> float:
        """The smallest distance of two places."""
        last = self.position(torch.tensor([self.count - 2, self.count - 1]))
        return float(last[1] - last[0])

    def strides(self) -> list[int]:
        """Return the steps of a local search: to every other place if they are few, else by powers of two."""
        reach = range(1, self.count) if self.count <= 16 else [2**k for k in range((self.count - 1).bit_length())]
        return [sign * step for step in reach for sign in (1, -1)]


@dataclass(frozen=True)
class Admissible:
    """Points of the unit cube that stand for points of a space.

    Inputs that are in no lattice and no choice and are not held are continuous.

    Attributes:
        dimension: d, the number of inputs.
        lattices: Inputs that take places of a lattice.
        choices: Inputs of which exactly one is 1, for each unordered choice.
        weights: W of the constraints W u ≤ w, whose rows have length one.
        limits: w.
        held: Inputs that have the same value in every point, and these values; see `holding`.
    """

    dimension: int
    lattices: Mapping[int, Lattice] = field(default_factory=dict)
    choices: tuple[tuple[int, ...], ...] = ()
    weights: Float[Tensor, "c d"] | None = None
    limits: Float[Tensor, " c"] | None = None
    held: Mapping[int, float] = field(default_factory=dict)

    def holding(self, held: Mapping[int, float]) -> "Admissible":
        """Return those of the points that have given values in some inputs; of a choice, in all its inputs or none."""
        lattices = {i: lattice for i, lattice in self.lattices.items() if i not in held}
        choices = tuple(choice for choice in self.choices if choice[0] not in held)
        return replace(self, lattices=lattices, choices=choices, held={**self.held, **held})

    @property
    def discrete(self) -> bool:
        """Whether any input is discrete."""
        return bool(self.lattices or self.choices)

    @cached_property
    def free(self) -> Bool[Tensor, " d"]:
        """Inputs that are continuous."""
        others = {*self.lattices, *(i for choice in self.choices for i in choice), *self.held}
        return torch.tensor([i not in others for i in range(self.dimension)])

    @property
    def count(self) -> float | int:
        """The number of points, constraints ignored; inf with a continuous input."""
        if bool(self.free.any()):
            return math.inf
        return math.prod([each.count for each in self.lattices.values()] + [len(each) for each in self.choices])

    @cached_property
    def points(self) -> Float[Tensor, "n d"] | None:
        """All points if they are few, else None."""
        if self.count > ENUMERATED:
            return None
        places = [[*range(int(count))] for count in self._counts]
        grid = torch.zeros(1, 0, dtype=torch.long)  # everything is held
        if places:
            grid = torch.cartesian_prod(*[torch.tensor(each) for each in places]).reshape(-1, len(places))
        every = self._placed(grid)
        return every[self.feasible(every)]

    @property
    def _counts(self) -> list[float | int]:
        """Values of each coordinate that is not held: inputs on their own, then choices; inf for a continuous one."""
        return [
            *(self.lattices[i].count if i in self.lattices else math.inf for i in self._single),
            *map(len, self.choices),
        ]

    @cached_property
    def _single(self) -> list[int]:
        others = {*self.held, *(i for choice in self.choices for i in choice)}
        return [i for i in range(self.dimension) if i not in others]

    def _holding(self, n: int) -> Float[Tensor, "n d"]:
        """Return n points with the values that are held, and zeros elsewhere."""
        unit = torch.zeros(n, self.dimension, dtype=torch.float64)
        for i, value in self.held.items():
            unit[:, i] = value
        return unit

    def _placed(self, index: Int[Tensor, "n k"]) -> Float[Tensor, "n d"]:
        """Return points from their indices in every coordinate, all discrete."""
        placed = self._holding(len(index))
        for column, i in enumerate(self._single):
            placed[:, i] = self.lattices[i].position(index[:, column])
        for column, choice in enumerate(self.choices, start=len(self._single)):
            placed[torch.arange(len(index)), torch.tensor(choice)[index[:, column]]] = 1.0
        return placed

    # ------------------------------------------------------------------ points

    def snap(self, unit: Float[Tensor, "*b d"]) -> Float[Tensor, "*b d"]:
        """Return the nearest points that lattices, choices and held values allow. Constraints are ignored."""
        snapped = unit.clone()
        for i, value in self.held.items():
            snapped[..., i] = value
        for i, lattice in self.lattices.items():
            snapped[..., i] = lattice.position(lattice.index(unit[..., i])).to(unit)
        for choice in self.choices:
            inputs = torch.tensor(choice, device=unit.device)
            one = torch.nn.functional.one_hot(unit[..., inputs].argmax(-1), len(choice))
            snapped[..., inputs] = one.to(unit)
        return snapped

    def nearest(self, unit: Float[Tensor, "*b d"]) -> Float[Tensor, "*b d"]:
        """Return points on the places and the equalities, near given ones; without equalities see `snap`."""
        return self.snap(unit)

    def settled(self, unit: Float[Tensor, "*b d"]) -> Float[Tensor, "*b d"]:
        """Return admissible points with equalities exact to rounding; without equalities as they are."""
        return unit

    def feasible(self, unit: Float[Tensor, "*b d"]) -> Bool[Tensor, "*b"]:
        """Return whether points satisfy the constraints."""
        return self.excess(unit) <= TOLERANCE

    def excess(self, unit: Float[Tensor, "*b d"]) -> Float[Tensor, "*b"]:
        """Return the largest violation of a constraint, as a distance; 0 if all hold."""
        if self.weights is None or self.limits is None:
            return unit.new_zeros(unit.shape[:-1])
        return (unit @ self.weights.to(unit).mT - self.limits.to(unit)).amax(-1).clamp_min(0.0)

    def inequalities(self, like: Float[Tensor, "n d"]) -> list[tuple[Tensor, Tensor, float]] | None:
        """Return the constraints for BoTorch's optimisers: inputs, weights and bounds of Σ weight · u ≥ bound."""
        if self.weights is None or self.limits is None:
            return None
        rows = zip(self.weights.to(like), self.limits.tolist(), strict=True)
        return [(row.nonzero().squeeze(-1), -row[row != 0], -limit) for row, limit in rows]

    def equations(self, like: Float[Tensor, "n d"]) -> list[tuple[Tensor, Tensor, float]]:
        """Return independent equalities for BoTorch's optimisers: inputs, weights, values of Σ weight · u = value."""
        return []

    def retract(self, unit: Float[Tensor, "*b d"], start: Float[Tensor, "*b d"]) -> Float[Tensor, "*b d"]:
        """Move points into the constraints, with discrete inputs as they are at feasible starts.

        Where projections do not reach them, as far as constraints allow on the way from the start. A function of these
        points may be climbed as one over the cube: gradients flow through, and along the constraints.
        """
        moved = torch.where(self.free.to(unit.device), unit, start)
        if self.weights is None or self.limits is None:
            return moved
        way = self.repair(moved) - start
        weights = self.weights.to(unit)
        room = (self.limits.to(unit) - start @ weights.mT).clamp_min(0.0)
        rise = way @ weights.mT
        rising = rise > TOLERANCE * 1e-3
        shares = torch.where(rising, room / torch.where(rising, rise, torch.ones_like(rise)), torch.ones_like(rise))
        return start + shares.amin(-1, keepdim=True).clamp_max(1.0) * way

    def repair(self, unit: Float[Tensor, "*b d"]) -> Float[Tensor, "*b d"]:
        """Move the continuous inputs of points to satisfy the constraints where possible, by projections in turn."""
        if self.weights is None or self.limits is None:
            return unit
        weights = self.weights.to(unit)
        movable = weights * self.free.to(unit.device)
        for _ in range(PROJECTIONS):
            if bool(self.feasible(unit).all()):
                break
            for whole, part, limit in zip(weights, movable, self.limits.to(unit)):
                over = ((unit * whole).sum(-1, keepdim=True) - limit).clamp_min(0.0)
                held = ((unit <= 0) & (part > 0)) | ((unit >= 1) & (part < 0))
                pull = torch.where(held, torch.zeros_like(unit), part)
                step = over * pull / pull.square().sum(-1, keepdim=True).clamp_min(TOLERANCE)
                unit = (unit - step).clamp(0.0, 1.0)
        return unit

    def neighbours(self, unit: Float[Tensor, "*b d"]) -> Float[Tensor, "*b k d"]:
        """Return the points that differ in one discrete coordinate; where a lattice ends, its last place."""
        found = []
        for i, lattice in self.lattices.items():
            index = lattice.index(unit[..., i])
            for stride in lattice.strides():
                moved = unit.clone()
                moved[..., i] = lattice.position((index + stride).clamp(0, lattice.count - 1)).to(unit)
                found.append(moved)
        for choice in self.choices:
            for i in choice:
                moved = unit.clone()
                moved[..., torch.tensor(choice, device=unit.device)] = 0.0
                moved[..., i] = 1.0
                found.append(moved)
        return torch.stack(found, -2) if found else unit.new_empty(*unit.shape[:-1], 0, self.dimension)

    # ------------------------------------------------------------------ samples

    def sample(self, n: int, seed: int, first: int = 0) -> Float[Tensor, "n d"]:
        """Draw quasi-random admissible points, distinct as far as there are enough.

        Args:
            n: The number of points.
            seed: The seed of the sequence.
            first: Points of the sequence to leave out.

        Raises:
            SpaceError: if none is found.
        """
        found: list[Tensor] = []
        seen: set[tuple[float, ...]] = set()
        count, idle = 0, 0
        for block in self._blocks(seed):
            new = self._unseen(block, seen) if self.count < math.inf else block
            found.append(new)
            count, idle = count + len(new), 0 if len(new) else idle + 1
            if count >= first + n or idle >= (BLOCKS if count == 0 else 4):
                break
        if count == 0:
            held = f", and {len(self.held)} inputs are held" if self.held else ""
            raise SpaceError(
                f"parameter_constraints: no admissible point among {BLOCK * BLOCKS:,} draws. The constraints "
                f"contradict each other, or leave almost no room{held}. Loosen them, and write an equality with ==."
            )
        points = torch.cat(found)
        return points[torch.arange(first, first + n) % len(points)]  # all there are, again and again

    @staticmethod
    def _unseen(points: Float[Tensor, "n d"], seen: set[tuple[float, ...]]) -> Float[Tensor, "m d"]:
        rows = []
        for row, point in enumerate(map(tuple, points.tolist())):
            if point not in seen:
                seen.add(point)
                rows.append(row)
        return points[rows]

    def _blocks(self, seed: int) -> Iterator[Float[Tensor, "m d"]]:
        """Yield the admissible points of one block of draws after another."""
        if not self._counts:  # everything is held
            one = self._holding(1)
            yield from repeat(one[self.feasible(one)], BLOCKS)
            return
        engine = SobolEngine(len(self._counts), scramble=True, seed=seed)
        number, chain = 0, False
        while True:
            block = self._at(engine.draw(BLOCK, dtype=torch.float64))
            if chain:
                block = self._within(block, seed + number)
            block = block[self.feasible(block)]
            if number == 0 and len(block) < RARE * BLOCK:
                more = self._within(self._at(engine.draw(BLOCK, dtype=torch.float64)), seed)
                more = more[self.feasible(more)]
                chain = len(more) > 0  # no room between lattices' places: go on with draws
                block = torch.cat([block, more])
            number += 1
            yield block

    def _at(self, share: Float[Tensor, "n k"]) -> Float[Tensor, "n d"]:
        """Map the unit cube to points; all places of a lattice, and all values of a choice, get equal shares."""
        unit = self._holding(len(share))
        for column, i in enumerate(self._single):
            unit[:, i] = share[:, column]
            if i in self.lattices:
                count = self.lattices[i].count
                unit[:, i] = self.lattices[i].position((share[:, column] * count).long().clamp(0, count - 1))
        for column, choice in enumerate(self.choices, start=len(self._single)):
            index = (share[:, column] * len(choice)).long().clamp(0, len(choice) - 1)
            unit[torch.arange(len(share)), torch.tensor(choice)[index]] = 1.0
        return unit

    def _within(self, unit: Float[Tensor, "n d"], seed: int) -> Float[Tensor, "m d"]:
        """Redraw the constrained inputs of points from within the constraints, then snap to lattices."""
        assert self.weights is not None
        assert self.limits is not None
        bound = self.weights.abs().amax(0) > 0
        bound[list(self.held)] = False
        limits = self.limits - self.weights @ self._holding(1)[0]
        rows = self.weights[:, bound].abs().amax(-1) > 0 if bool(bound.any()) else bound[:0]
        if len(rows) == 0 or not bool((limits[~rows] >= -TOLERANCE).all()):  # what is held violates a constraint
            return unit[:0]
        try:
            inside = uniform_within(self.weights[rows][:, bound], limits[rows], len(unit), seed)
        except ValueError:  # no interior
            return unit[:0]
        moved = unit.clone()
        moved[:, bound] = inside.to(unit)
        return self.snap(moved)


def already(points: Float[Tensor, "n d"], taken: Float[Tensor, "t d"]) -> Bool[Tensor, " n"]:
    """Return which points are among those taken."""
    if len(taken) == 0:
        return torch.zeros(len(points), dtype=torch.bool, device=points.device)
    return torch.cdist(points, taken.to(points), p=math.inf).amin(-1) <= TOLERANCE
