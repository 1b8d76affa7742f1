"""Predictions at points in the user's units."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any

import torch
from botorch.models.model import Model, ModelList
from jaxtyping import Float
from torch import Tensor

from bo_scale.errors import InvalidArgumentError
from bo_scale.loop.problem.outcomes import Outcomes
from bo_scale.loop.problem.space import Point, Space
from bo_scale.models.shell.model import ScalableModel

AT_ONCE, AT_ONCE_EXACT = 4096, 256
"""Points of one posterior, by models of ours and by others, which compute the covariance of all of them."""


@dataclass(frozen=True)
class Estimate:
    """A prediction of one outcome at a point, in raw units.

    Attributes:
        mean: Posterior mean.
        sd: Posterior standard deviation of the function.
        lower: Lower end of an interval of the probability asked for: of the function, or of an observation if asked.
        upper: Upper end.
        observation_sd: Standard deviation of an observation, noise included; None unless asked for.
    """

    mean: float
    sd: float
    lower: float
    upper: float
    observation_sd: float | None = None


@dataclass(frozen=True, eq=False)
class Prediction(Estimate):
    """A prediction at a point: that of the first outcome, and of all outcomes with names.

    Attributes:
        x: The point.
        outcomes: The prediction of every outcome with a name.
    """

    x: Tensor | Point = field(default_factory=dict)
    outcomes: dict[str, Estimate] = field(default_factory=dict)


def predict(
    space: Space,
    outcomes: Outcomes,
    model: Model,
    points: Any,
    *,
    observation: bool = False,
    probability: float | int = 0.95,
    slack: float = 0.0,
) -> list[Prediction]:
    """Return predictions at points, in chunks: thousands of points cost one evaluation of a posterior for each chunk.

    Args:
        space: The space of the points.
        outcomes: The outcomes.
        model: The model of all observations.
        points: Points as for `tell`.
        observation: Whether intervals are those of an observation, noise included; otherwise of the function.
        probability: Probability of the intervals, between 0 and 1.
        slack: Share of the range by which a point may lie outside the space.

    Raises:
        InvalidArgumentError: for a probability that is none.
        SpaceError: for points outside the space.
    """
    if not 0 < probability < 1:
        raise InvalidArgumentError(f"probability={probability}: choose a number between 0 and 1, such as 0.95.")
    X = space.encode(points, slack)
    mean, variance = moments(model, X)
    noisy = moments(model, X, observation=True)[1] if observation else None
    centre, sd = outcomes.inner(mean), variance.sqrt()
    observed = None if noisy is None else noisy.sqrt()
    half = NormalDist().inv_cdf(0.5 + probability / 2) * (sd if observed is None else observed)
    extra = [[None] * sd.shape[-1]] * len(sd) if observed is None else observed.tolist()
    columns = [each.tolist() for each in (centre, sd, centre - half, centre + half)]
    located = space.points(space.settled(points))
    names = outcomes.names or ()
    found = []
    for x, *values in zip(located, *columns, extra, strict=True):
        every = [Estimate(*each) for each in zip(*values, strict=True)]
        found.append(Prediction(**vars(every[0]), x=x, outcomes=dict(zip(names, every))))
    return found


@torch.no_grad()
def moments(
    model: Model, X: Float[Tensor, "n d"], observation: bool = False
) -> tuple[Float[Tensor, "n m"], Float[Tensor, "n m"]]:
    """Return means and variances at points, on the CPU; for an ensemble, those of the mixture.

    Args:
        model: The model; a list of models gives one column for each.
        X: Points in the unit cube, on any device.
        observation: Whether variances include the noise.
    """
    if isinstance(model, ModelList):
        members: list[Any] = list(model.models)
        every = [moments(each, X, observation) for each in members]
        return torch.cat([mean for mean, _ in every], -1), torch.cat([variance for _, variance in every], -1)
    X = X.to(next((each.device for each in model.parameters()), X.device))
    found = list(_moments_of_chunks(model, X, observation))
    mean, variance = (torch.cat(parts) for parts in zip(*found, strict=True))
    return mean, variance.clamp_min(0.0)  # of a model not ours: below zero by rounding


def _moments_of_chunks(model: Model, X: Float[Tensor, "n d"], observation: bool) -> Iterator[tuple[Tensor, Tensor]]:
    for part in X.split(AT_ONCE if isinstance(model, ScalableModel) else AT_ONCE_EXACT):
        posterior: Any = model.posterior(part, observation_noise=observation)
        if hasattr(posterior, "mixture_mean"):
            yield posterior.mixture_mean.double().cpu(), posterior.mixture_variance.double().cpu()
        else:
            yield posterior.mean.double().cpu(), posterior.variance.double().cpu()
