"""The records that a loop reports: its steps, and the best points."""

from dataclasses import dataclass, field, fields
from typing import Any

from torch import Tensor
from typing_extensions import override

from bo_scale.loop.problem.space import Point, Points


@dataclass(frozen=True)
class Step:
    """The record of one ask, with the times that its parts took.

    Attributes:
        ask: Number of the ask, from 0.
        n: Number of observations that the model had.
        q: Number of points proposed.
        fitted: Whether hyperparameters were fitted. False if the model was conditioned, and for quasi-random points.
        model_seconds: Time to fit or condition the model.
        acquisition_seconds: Time to choose the points.
    """

    ask: int
    n: int
    q: int
    fitted: bool
    model_seconds: float
    acquisition_seconds: float


@dataclass(frozen=True, eq=False)
class Attempt:
    """An evaluation that failed.

    Attributes:
        points: The points.
        reason: What was raised, in short.
        time: When, in ISO 8601.
    """

    points: Points
    reason: str
    time: str


@dataclass(frozen=True, eq=False)
class Best:
    """The told point with the best posterior mean, and the one with the best observation. Values are in raw units.

    Shown with six digits; the attributes are exact.

    Attributes:
        x: The told point with the best posterior mean. Use this one if observations are noisy.
        mean: Posterior mean at x.
        sd: Posterior standard deviation of the function at x, without noise.
        observed_x: The told point with the best observation.
        observed_y: The best observation. Under noise it is optimistic.
        outcomes: Posterior mean and standard deviation at x of every outcome with a name.
        feasible: Whether the posterior means at x satisfy the constraints. If they do at no point, x violates them
            least.
        suspect: Whether the value at x or `observed_x` may be an error: it is far from what the others predict, as
            `suspects()` says.
    """

    x: Tensor | Point
    mean: float
    sd: float
    observed_x: Tensor | Point | None
    observed_y: float
    outcomes: dict[str, tuple[float, float]] = field(default_factory=dict)
    feasible: bool = True
    suspect: bool = False

    @override
    def __repr__(self) -> str:
        """Return the attributes, rounded to six digits."""
        return _shown(self)


@dataclass(frozen=True, eq=False)
class TradeOff:
    """A told point that no other dominates, by posterior means: one of the best trade-offs between objectives.

    Shown with six digits; the attributes are exact.

    Attributes:
        x: The point.
        outcomes: Posterior mean and standard deviation of every outcome there, in raw units.
    """

    x: Tensor | Point
    outcomes: dict[str, tuple[float, float]]

    @override
    def __repr__(self) -> str:
        """Return the attributes, rounded to six digits."""
        return _shown(self)


def _shown(record: Best | TradeOff) -> str:
    """Write a record with its numbers rounded to six significant digits."""
    values = ", ".join(f"{each.name}={_rounded(getattr(record, each.name))!r}" for each in fields(record))
    return f"{type(record).__name__}({values})"


def _rounded(value: Any) -> Any:
    """Return a value with all floats within it rounded."""
    match value:
        case float():
            return float(f"{value:.6g}")
        case Tensor():
            return _rounded(value.tolist())
        case dict():
            return {name: _rounded(each) for name, each in value.items()}
        case tuple() | list():
            return type(value)(map(_rounded, value))
    return value
