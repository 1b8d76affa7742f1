"""The surrogate of several outcomes: a model for each, updated as for one."""

from dataclasses import dataclass
from typing import Any

import torch
from botorch.models.model import Model
from jaxtyping import Float
from torch import Tensor

from bo_scale.loop.surrogate.builder import Surrogate, SurrogateBuilder
from bo_scale.models.shell.any_units import IndependentModels


@dataclass(frozen=True)
class SeveralBuilder:
    """A `SurrogateBuilder` for each of several outcomes; their models form a ModelListGP.

    Attributes:
        single: Builds the model of one outcome.
    """

    single: SurrogateBuilder

    @property
    def device(self) -> torch.device:
        """The device of the models."""
        return self.single.device

    def advance(
        self,
        before: Surrogate | None,
        X: Float[Tensor, "n d"],
        Y: Float[Tensor, "n m"],
        Yvar: Float[Tensor, "n m"] | None,
        ask: int,
    ) -> Surrogate:
        """Do the same as `SurrogateBuilder` for each outcome."""
        parts = _parts(before, Y.shape[-1])
        made = [self.single.advance(part, X, *each, ask) for part, each in zip(parts, _columns(Y, Yvar), strict=True)]
        same = before is not None and all(one is other for one, other in zip(made, parts, strict=True))
        return before if before is not None and same else _together(made)

    def conditioned(
        self,
        before: Surrogate,
        X: Float[Tensor, "n d"],
        Y: Float[Tensor, "n m"],
        Yvar: Float[Tensor, "n m"] | None,
    ) -> Surrogate:
        """Do the same as `SurrogateBuilder` for each outcome."""
        if len(X) == before.count:
            return before
        parts = zip(_parts(before, Y.shape[-1]), _columns(Y, Yvar), strict=True)
        return _together([self.single.conditioned(part, X, *each) for part, each in parts if part is not None])

    def snapshot(self, surrogate: Surrogate) -> dict[str, Any]:
        """Do the same as `SurrogateBuilder` for each outcome."""
        numbers = {"count": surrogate.count, "fitted": surrogate.fitted}
        parts = surrogate.parts
        return {**numbers, "outcomes": [self.single.snapshot(part) for part in parts]}

    def restored(
        self,
        state: dict[str, Any],
        X: Float[Tensor, "n d"],
        Y: Float[Tensor, "n m"],
        Yvar: Float[Tensor, "n m"] | None,
    ) -> Surrogate:
        """Do the same as `SurrogateBuilder` for each outcome."""
        parts = zip(state["outcomes"], _columns(Y, Yvar), strict=True)
        return _together([self.single.restored(part, X, *each) for part, each in parts])


def _columns(Y: Tensor, Yvar: Tensor | None) -> list[tuple[Tensor, Tensor | None]]:
    variances = [None] * Y.shape[-1] if Yvar is None else Yvar.split(1, -1)
    return list(zip(Y.split(1, -1), variances, strict=True))


def _parts(surrogate: Surrogate | None, outcomes: int) -> list[Surrogate | None]:
    if surrogate is None:
        return [None] * outcomes
    return [*surrogate.parts]


def _together(parts: list[Surrogate]) -> Surrogate:
    models: list[Any] = [part.model for part in parts]
    model: Model = IndependentModels(*models)
    return Surrogate(model.eval(), parts[0].count, max(part.fitted for part in parts), parts=tuple(parts))
