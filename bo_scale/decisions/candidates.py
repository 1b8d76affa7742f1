"""The points of the unit cube that stand for points of a space: lattices, one-hot choices, conditions, constraints."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import repeat

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.quasirandom import SobolEngine
from typing_extensions import override

from bo_scale.decisions.conditions import Condition, Places, on_places, settle
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
class SomePlaces(Lattice):
    """Some of the places of a lattice.

    Attributes:
        positions: The places.
    """

    positions: tuple[float, ...] = ()

    @override
    def position(self, index: Int[Tensor, "*b"]) -> Float[Tensor, "*b"]:
        return torch.tensor(self.positions, dtype=torch.float64, device=index.device)[index]

    @override
    def index(self, unit: Float[Tensor, "*b"]) -> Int[Tensor, "*b"]:
        places = torch.tensor(self.positions, dtype=torch.float64, device=unit.device)
        return (unit.double().unsqueeze(-1) - places).abs().argmin(-1)


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
        conditions: Inputs that stand idle at some of the points. No constraint is on them.
    """

    dimension: int
    lattices: Mapping[int, Lattice] = field(default_factory=dict)
    choices: tuple[tuple[int, ...], ...] = ()
    weights: Float[Tensor, "c d"] | None = None
    limits: Float[Tensor, " c"] | None = None
    held: Mapping[int, float] = field(default_factory=dict)
    conditions: tuple[Condition, ...] = ()

    def holding(self, held: Mapping[int, float]) -> "Admissible":
        """Return those of the points that have given values in some inputs; of a choice, in all its inputs or none.

        Where these inputs are idle they have no value, so the points are those where they are active.

        Raises:
            SpaceError: if they are active nowhere.
        """
        found = self._with_held(held)
        for condition in self.conditions:
            if condition.inputs[0] in held:
                for inputs, places in condition.tests:
                    found = found.among(inputs, places)
        return found.decided()

    def _with_held(self, held: Mapping[int, float]) -> "Admissible":
        lattices = {i: lattice for i, lattice in self.lattices.items() if i not in held}
        choices = tuple(choice for choice in self.choices if choice[0] not in held)
        return replace(self, lattices=lattices, choices=choices, held={**self.held, **held})

    def among(self, inputs: tuple[int, ...], places: Places) -> "Admissible":
        """Return those of the points whose inputs of one parameter, which is discrete, take one of some places."""
        now = self._places(inputs)
        kept = now[on_places(now, places)]
        if len(kept) == len(now):
            return self
        if len(kept) == 0:
            raise SpaceError("held: some inputs have a value where they are idle.")
        if len(kept) == 1:
            return self._with_held(dict(zip(inputs, kept[0].tolist(), strict=True)))
        if len(inputs) == 1:
            places_left = SomePlaces(len(kept), None, tuple(kept[:, 0].tolist()))
            return replace(self, lattices={**self.lattices, inputs[0]: places_left})
        left = tuple(i for i, used in zip(inputs, (kept > 0).any(0).tolist(), strict=True) if used)
        choices = tuple(left if set(choice) <= set(inputs) else choice for choice in self.choices)
        return replace(self, choices=choices, held={**self.held, **{i: 0.0 for i in inputs if i not in left}})

    def _places(self, inputs: tuple[int, ...]) -> Float[Tensor, "v p"]:
        """Return the places of the inputs of one discrete parameter."""
        if len(inputs) == 1 and inputs[0] in self.lattices:
            lattice = self.lattices[inputs[0]]
            return lattice.position(torch.arange(lattice.count)).unsqueeze(-1)
        places = torch.eye(len(inputs), dtype=torch.float64)
        fits = [all(self.held.get(i, value) == value for i, value in zip(inputs, row)) for row in places.tolist()]
        if len(inputs) > 1:
            return places[torch.tensor(fits)]
        return torch.tensor([[self.held[i] for i in inputs]], dtype=torch.float64)

    def decided(self) -> "Admissible":
        """Return the same points, without conditions that hold at all of them or at none."""
        found, left = self, []
        for condition in self.conditions:
            active = condition.decided(self.held)
            if active is None:
                left.append(condition)
            elif not active:
                found = found._with_held(dict.fromkeys(condition.inputs, condition.idle))
        return replace(found, conditions=tuple(left))

    def take_other_choices(self, unit: Float[Tensor, "*b d"], than: Float[Tensor, " d"]) -> Bool[Tensor, "*b"]:
        """Return whether points differ from one in an unordered choice; an idle one differs from an active one."""
        return ((unit - than)[..., self.choice_inputs].abs() > 0.25).any(-1)

    def settle(self, unit: Float[Tensor, "*b d"]) -> Float[Tensor, "*b d"]:
        """Return points whose inactive inputs stand idle; no gradient flows through these."""
        return settle(unit, self.conditions)

    def keeps(self, unit: Float[Tensor, "*b d"], held: Mapping[int, float]) -> Bool[Tensor, "*b"]:
        """Return which admissible points have given values in some inputs, and are where these are active."""
        inputs = list(held)
        same = (unit[..., inputs] - unit.new_tensor([held[i] for i in inputs])).abs() <= TOLERANCE
        found = same.all(-1)
        for condition in self.conditions:
            if condition.inputs[0] in held:
                found = found & condition.active(unit)
        return found

    @property
    def discrete(self) -> bool:
        """Whether any input is discrete."""
        return bool(self.lattices or self.choices)

    @cached_property
    def choice_inputs(self) -> list[int]:
        """Inputs of unordered choices. One of two values has a single input, as whatever has two values."""
        of_two = [i for i, lattice in self.lattices.items() if lattice.count == 2]
        return [i for choice in self.choices for i in choice] + of_two

    @cached_property
    def free(self) -> Bool[Tensor, " d"]:
        """Inputs that are continuous."""
        others = {*self.lattices, *(i for choice in self.choices for i in choice), *self.held}
        return torch.tensor([i not in others for i in range(self.dimension)])

    @property
    def count(self) -> float | int:
        """The number of points, constraints ignored; inf with a continuous input.

        Where they are more than `ENUMERATED`, idle inputs are counted as if they were active.
        """
        if bool(self.free.any()):
            return math.inf
        if self.conditions and self._every is not None:
            return len(self._every)
        return math.prod([each.count for each in self.lattices.values()] + [len(each) for each in self.choices])

    @cached_property
    def points(self) -> Float[Tensor, "n d"] | None:
        """All points if they are few, else None."""
        return None if self._every is None else self._every[self.feasible(self._every)]

    @cached_property
    def _every(self) -> Float[Tensor, "n d"] | None:
        """All points, constraints ignored, if they are few."""
        if bool(self.free.any()):
            return None
        every, conditions = self._holding(1), {each.inputs[0]: each for each in self.conditions}
        coordinates = [*((i,) for i in self._single), *self.choices]
        for inputs in sorted(coordinates, key=lambda each: each[0] in conditions and len(conditions[each[0]].tests)):
            condition = conditions.get(inputs[0])
            active = torch.ones(len(every), dtype=torch.bool) if condition is None else condition.active(every)
            count = self.lattices[inputs[0]].count if inputs[0] in self.lattices else len(inputs)
            if int(active.sum()) * count + int((~active).sum()) > ENUMERATED:
                return None
            every = self._with_every_place(every, active, inputs)
        return self.settle(every)

    def _with_every_place(
        self, points: Float[Tensor, "n d"], active: Bool[Tensor, " n"], inputs: tuple[int, ...]
    ) -> Float[Tensor, "m d"]:
        """Return active points with every place of a discrete coordinate in turn, and the others as they are."""
        places, count = self._places(inputs), int(active.sum())
        copies = torch.where(active, len(places), 1)
        found, varies = points.repeat_interleave(copies, 0), active.repeat_interleave(copies)
        for column, i in enumerate(inputs):
            found[varies, i] = places[:, column].repeat(count)
        return found

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
        return self.settle(snapped)

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
        for condition in self.conditions:
            moved = torch.where(condition.idle_inputs(start), start, moved)
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
        """Return the points that differ in one discrete coordinate; where a lattice ends, its last place.

        A coordinate that was idle becomes active: those on which it depends change with it. One that becomes active
        because another changed is in the middle, and a choice at its first value.
        """
        found = []
        for i, lattice in self.lattices.items():
            index = lattice.index(unit[..., i])
            for stride in lattice.strides():
                moved = unit.clone()
                moved[..., i] = lattice.position((index + stride).clamp(0, lattice.count - 1)).to(unit)
                found.append(self._activated(moved, i))
        for choice in self.choices:
            for i in choice:
                moved = unit.clone()
                moved[..., torch.tensor(choice, device=unit.device)] = 0.0
                moved[..., i] = 1.0
                found.append(self._activated(moved, i))
        return torch.stack(found, -2) if found else unit.new_empty(*unit.shape[:-1], 0, self.dimension)

    def _activated(self, moved: Float[Tensor, "*b d"], i: int) -> Float[Tensor, "*b d"]:
        """Return points with a changed input, at admissible places: where the input was idle, it is active."""
        for condition in self.conditions:
            if i in condition.inputs:
                for inputs, places in condition.tests:
                    moved = _moved_onto(moved, list(inputs), places)
        return self.snap(moved) if self.conditions else moved

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
            new = self._unseen(block, seen) if self.count < math.inf or self.conditions else block
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
        return self.settle(unit)

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


def _moved_onto(unit: Float[Tensor, "*b d"], inputs: list[int], places: Places) -> Float[Tensor, "*b d"]:
    """Return points whose values in some inputs are the nearest of some places."""
    table = unit.new_tensor(places)
    nearest = (unit[..., inputs].unsqueeze(-2) - table).abs().sum(-1).argmin(-1)
    moved = unit.clone()
    moved[..., inputs] = table[nearest]
    return moved


def already(points: Float[Tensor, "n d"], taken: Float[Tensor, "t d"]) -> Bool[Tensor, " n"]:
    """Return which points are among those taken."""
    if len(taken) == 0:
        return torch.zeros(len(points), dtype=torch.bool, device=points.device)
    return torch.cdist(points, taken.to(points), p=math.inf).amin(-1) <= TOLERANCE
