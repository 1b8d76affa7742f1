"""Where to search: a box today, in raw units outside and as the unit cube inside."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from bo_scale.errors import InvalidDataError, SpaceError

Point = dict[str, float]
Points = Tensor | list[Point]
"""Several points: a tensor `n × d`, or for a space with names one dictionary a point."""


@dataclass(frozen=True)
class Space:
    """A box of d parameters. Models and acquisition functions see it as the unit cube.

    `encode` and `decode` are the only ways in and out, so that parameters of other kinds need no other change.

    Attributes:
        lower: The smallest value of each parameter, in raw units.
        upper: The largest.
        names: Their names; None for a space whose points are rows of a tensor.
    """

    lower: tuple[float, ...]
    upper: tuple[float, ...]
    names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if len(self.lower) == 0:
            raise SpaceError("space: no parameters.")
        for i, (lo, hi) in enumerate(zip(self.lower, self.upper, strict=True)):
            if not (-float("inf") < lo < hi < float("inf")):
                name = i if self.names is None else repr(self.names[i])
                raise SpaceError(
                    f"space: parameter {name} has bounds ({lo}, {hi}); they must be finite and lower < upper."
                )

    @classmethod
    def of(cls, space: "Space | Mapping[str, Sequence[float]] | Sequence[Sequence[float]] | Tensor") -> "Space":
        """A space from what a user writes.

        Args:
            space: `{"x": (0.0, 1.0), …}`; or pairs `[(0.0, 1.0), …]`; or BoTorch's `2 × d` tensor (or array) of bounds.
        """
        if isinstance(space, Space):
            return space
        if isinstance(space, np.ndarray):
            space = torch.as_tensor(space)
        if isinstance(space, Mapping):
            pairs, names = list(space.values()), tuple(str(name) for name in space)
        elif isinstance(space, Tensor):
            if space.ndim != 2 or len(space) != 2:
                raise SpaceError(
                    f"space: a tensor of shape {tuple(space.shape)}; expected 2 × d, lower and upper bounds."
                )
            pairs, names = space.mT.tolist(), None
        else:
            pairs, names = list(space), None
        try:
            bounds = [(float(lower), float(upper)) for lower, upper in pairs]
        except (TypeError, ValueError) as error:
            raise SpaceError(f"space: every parameter needs a pair (lower, upper) of numbers; got {pairs}.") from error
        return cls(tuple(lo for lo, _ in bounds), tuple(hi for _, hi in bounds), names)

    @property
    def dimension(self) -> int:
        """d, the number of inputs a model sees."""
        return len(self.lower)

    @property
    def _corner(self) -> Float[Tensor, " d"]:
        return torch.tensor(self.lower, dtype=torch.float64)

    @property
    def _extent(self) -> Float[Tensor, " d"]:
        return torch.tensor(self.upper, dtype=torch.float64) - self._corner

    def encode(self, points: Any, slack: float = 0.0) -> Float[Tensor, "n d"]:
        """Raw points as rows in the unit cube.

        Args:
            points: A tensor, array or nested list `n × d`; one point as a row of d numbers; for a space with names also
                one dictionary or a list of them.
            slack: How far outside a point may lie, as a share of the range.

        Raises:
            InvalidDataError: naming rows with NaN or inf, or a wrong number of columns.
            SpaceError: naming rows outside the space, or parameters that are missing or unknown.
        """
        raw = self.rows(points)
        bad = (~torch.isfinite(raw)).any(-1).nonzero().squeeze(-1).tolist()
        if bad:
            raise InvalidDataError(f"X: NaN or inf in rows {_some(bad)}.")
        unit = (raw - self._corner) / self._extent
        outside = ((unit < -slack) | (unit > 1 + slack)).any(-1).nonzero().squeeze(-1).tolist()
        if outside:
            raise SpaceError(
                f"X: rows {_some(outside)} lie outside the space, lower {self.lower}, upper {self.upper}; "
                f"row {outside[0]} is {raw[outside[0]].tolist()}."
            )
        return unit

    def decode(self, unit: Float[Tensor, "n d"]) -> Points:
        """Rows of the unit cube in raw units: dictionaries where the parameters have names."""
        raw = self.raw(unit)
        return raw if self.names is None else [dict(zip(self.names, row, strict=True)) for row in raw.tolist()]

    def raw(self, unit: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        """Rows of the unit cube in raw units, never outside by rounding."""
        upper = torch.tensor(self.upper, dtype=torch.float64)
        return torch.minimum(torch.maximum(self._corner + self._extent * unit, self._corner), upper)

    def describe(self) -> dict[str, Any]:
        """What a journal keeps of the space, to recognise it."""
        return {
            "kind": "box",
            "lower": list(self.lower),
            "upper": list(self.upper),
            "names": self.names and list(self.names),
        }

    def rows(self, points: Any) -> Float[Tensor, "n d"]:
        """Raw points in any of the forms `encode` takes, as rows of numbers."""
        if isinstance(points, Mapping):
            points = [points]
        if isinstance(points, Sequence) and len(points) > 0 and isinstance(points[0], Mapping):
            points = [self._in_order(i, point) for i, point in enumerate(points)]
        raw = torch.as_tensor(points, dtype=torch.float64).detach().cpu()
        if raw.ndim == 1 and len(raw) == self.dimension:
            raw = raw.unsqueeze(0)
        if raw.numel() == 0:
            return raw.reshape(0, self.dimension)
        if raw.ndim != 2 or raw.shape[-1] != self.dimension:
            raise InvalidDataError(f"X: shape {tuple(raw.shape)}; expected n × {self.dimension}, a point a row.")
        return raw

    def _in_order(self, row: int, point: Mapping[str, float]) -> list[float]:
        if self.names is None:
            raise SpaceError("X: dictionaries, but the space has no names; give rows of numbers, or name parameters.")
        missing, unknown = sorted(set(self.names) - set(point)), sorted(set(point) - set(self.names))
        if missing or unknown:
            raise SpaceError(f"X: row {row} lacks parameters {missing} and has unknown ones {unknown}.")
        return [float(point[name]) for name in self.names]


def _some(rows: list[int], shown: int = 5) -> str:
    """The first few row numbers."""
    return f"{rows[:shown]}{'…' if len(rows) > shown else ''}"
