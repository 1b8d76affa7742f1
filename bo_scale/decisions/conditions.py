"""Inputs that count only where other inputs take certain places: those of conditional parameters."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

NEAR = 1e-6
"""Distance within which an input is on a place."""

Places = tuple[tuple[float, ...], ...]
"""Places of some inputs, each with a value for every input."""


@dataclass(frozen=True)
class Condition:
    """Inputs that are active where all tests hold. Elsewhere they stand idle: points that differ there only are one.

    Attributes:
        inputs: The inputs of one parameter.
        idle: The value of all of them while they are idle.
        tests: Other inputs, each with the places of which they must take one: those of the parameter on which this one
            depends, and of the ones on which that one does. Without inputs a test holds if it has a place.
    """

    inputs: tuple[int, ...]
    idle: float
    tests: tuple[tuple[tuple[int, ...], Places], ...]

    def active(self, unit: Float[Tensor, "*b d"]) -> Bool[Tensor, "*b"]:
        """Return at which points the inputs are active."""
        found = torch.ones(unit.shape[:-1], dtype=torch.bool, device=unit.device)
        for inputs, places in self.tests:
            found = found & on_places(unit[..., list(inputs)], places)
        return found

    def idle_inputs(self, unit: Float[Tensor, "*b d"]) -> Bool[Tensor, "*b d"]:
        """Return which inputs of points are idle by this condition."""
        own = torch.zeros(unit.shape[-1], dtype=torch.bool, device=unit.device)
        own[list(self.inputs)] = True
        return own & ~self.active(unit).unsqueeze(-1)

    def decided(self, held: Mapping[int, float]) -> bool | None:
        """Return whether the inputs are active at all points with held values; None if that depends on the point."""
        known = [
            (tuple(held[i] for i in inputs), places) for inputs, places in self.tests if all(i in held for i in inputs)
        ]
        if not all(bool(on_places(torch.tensor(at, dtype=torch.float64), places)) for at, places in known):
            return False
        return True if len(known) == len(self.tests) else None


def on_places(at: Float[Tensor, "*b p"], places: Places) -> Bool[Tensor, "*b"]:
    """Return which values of p inputs are one of some places."""
    table = at.new_tensor(places).reshape(len(places), at.shape[-1])
    return ((at.unsqueeze(-2) - table).abs() <= NEAR).all(-1).any(-1)


def settle(unit: Float[Tensor, "*b d"], conditions: Iterable[Condition]) -> Float[Tensor, "*b d"]:
    """Return points whose inactive inputs stand idle; no gradient flows through these."""
    settled = unit
    for condition in conditions:
        settled = torch.where(condition.idle_inputs(unit), condition.idle, settled)
    return settled
