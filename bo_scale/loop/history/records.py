"""The records that a loop reports: its steps, and the best points."""

from dataclasses import dataclass, field

from torch import Tensor

from bo_scale.loop.problem.space import Point


@dataclass(frozen=True)
class Step:
    """One ask, and how long its parts took.

    Attributes:
        ask: Its number, from 0.
        n: Observations it was based on.
        q: Points it proposed.
        fitted: Whether hyperparameters were fitted; False for a conditioning update, or quasi-random first points.
        model_seconds: Fitting or conditioning.
        acquisition_seconds: Choosing the points.
    """

    ask: int
    n: int
    q: int
    fitted: bool
    model_seconds: float
    acquisition_seconds: float


@dataclass(frozen=True, eq=False)
class Best:
    """The best told point as the model sees it, and as it was observed. Values in raw units.

    Attributes:
        x: The told point of best posterior mean: what to use when observations are noisy.
        mean: The posterior mean there.
        sd: The posterior standard deviation of the function there, without the noise.
        observed_x: The told point of best observed value.
        observed_y: That value: under noise, optimistic.
        outcomes: Posterior mean and standard deviation there of every outcome that has a name.
        feasible: Whether posterior means satisfy the constraints there. If they do nowhere, x violates them least.
    """

    x: Tensor | Point
    mean: float
    sd: float
    observed_x: Tensor | Point
    observed_y: float
    outcomes: dict[str, tuple[float, float]] = field(default_factory=dict)
    feasible: bool = True


@dataclass(frozen=True, eq=False)
class TradeOff:
    """A told point where no other is better in every objective, as the model sees it.

    Attributes:
        x: The point.
        outcomes: Posterior mean and standard deviation of every outcome there, in raw units.
    """

    x: Tensor | Point
    outcomes: dict[str, tuple[float, float]]
