"""The information from which an acquisition function is made."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from botorch.acquisition.acquisition import AcquisitionFunction
from botorch.models.model import Model
from botorch.sampling.normal import SobolQMCNormalSampler
from jaxtyping import Float
from torch import Tensor

from bo_scale.decisions.acquisition import SAMPLES, posterior_means
from bo_scale.decisions.candidates import Admissible
from bo_scale.decisions.goals import Goal

BASELINE = 64
"""The number of told points, those of highest posterior mean, that qLogNEI compares with."""


@dataclass(frozen=True)
class Fidelity:
    """The fidelity that counts, and the cost of an evaluation. Points are in the unit cube.

    Attributes:
        target: Inputs that say how faithful an evaluation is, and their values where it counts.
        log_cost: The model of the logarithm of the cost of a point.
    """

    target: Mapping[int, float]
    log_cost: Model

    def project(self, X: Float[Tensor, "*b d"]) -> Float[Tensor, "*b d"]:
        """Return points moved to the target."""
        moved = X.clone()
        for i, value in self.target.items():
            moved[..., i] = value
        return moved


@dataclass(frozen=True)
class Setting:
    """The model, and everything else from which an acquisition function is made. Points are in the unit cube.

    Attributes:
        model: The surrogate; larger values are better.
        observed: All told points. Moved to the target of the fidelity, unless the acquisition chooses the fidelity.
        pending: Pending and abandoned points; None for none.
        q: Number of points wanted.
        seed: Seed for samplers.
        options: The user's `acquisition_options`.
        admissible: The points of the unit cube that stand for points of the space; None if all do.
        goal: Objectives and constraints of several outcomes; None for a single outcome without constraints.
        held: Inputs that have a given value in every proposed point, and these values; None for none. Of a choice, all
            inputs or none.
        failed: Points that failed, which are not proposed again; None for none. Unlike pending points they do not enter
            the acquisition function: constraints of the goal speak of them.
        log_cost: The model of the logarithm of the cost by which values are divided; None if they are not.
        fidelity: The fidelity that counts, and the cost; None if there is none.
        known: Told points that are not proposed again while others are left, since their values are known; None for
            none.
    """

    model: Model
    observed: Float[Tensor, "n d"]
    pending: Float[Tensor, "p d"] | None
    q: int
    seed: int
    options: Mapping[str, Any] = field(default_factory=dict)
    admissible: Admissible | None = None
    goal: Goal | None = None
    held: Mapping[int, float] | None = None
    failed: Float[Tensor, "f d"] | None = None
    log_cost: Model | None = None
    fidelity: Fidelity | None = None
    known: Float[Tensor, "k d"] | None = None

    @cached_property
    def allowed(self) -> Admissible | None:
        """The points that may be proposed: admissible ones with the values that are held; None if all may."""
        if not self.held:
            return self.admissible
        return (self.admissible or Admissible(self.observed.shape[-1])).holding(self.held)

    @property
    def taken(self) -> Float[Tensor, "p d"]:
        """Pending and failed points as a tensor, which may be empty."""
        return torch.cat([self.observed[:0], *(each for each in (self.pending, self.failed) if each is not None)])

    @property
    def avoided(self) -> Float[Tensor, "a d"]:
        """The points that are not proposed while others are left: those taken, and those whose values are known."""
        return self.taken if self.known is None else torch.cat([self.taken, self.known.to(self.taken)])

    @cached_property
    def outcomes(self) -> Float[Tensor, "n m"]:
        """Posterior means of all outcomes at the told points."""
        return posterior_means(self.model, self.observed)

    @cached_property
    def means(self) -> Float[Tensor, " n"]:
        """The merit of each told point: its posterior mean, or for several outcomes its rank by the goal."""
        return self.outcomes.squeeze(-1) if self.goal is None else self.goal.merits(self.outcomes)

    @property
    def spread(self) -> float:
        """Standard deviation of the posterior means of some told points, the unit of values; 1 if it is zero."""
        if self.goal is not None:
            return 1.0  # which measures in units of spread
        some = posterior_means(self.model, self.observed[:: 1 + len(self.observed) // BASELINE])
        spread = some.std().item() if len(some) > 1 else 0.0
        return spread if spread > 0 else 1.0

    @property
    def bounds(self) -> Float[Tensor, "2 d"]:
        """The corners of the unit cube."""
        return torch.stack([torch.zeros_like(self.observed[0]), torch.ones_like(self.observed[0])])

    def at_target(self) -> "Setting":
        """Return the setting with told and pending points moved to the target of the fidelity, each once.

        There an acquisition that does not choose the fidelity compares them. O(n log n).
        """
        if self.fidelity is None:
            return self
        observed = self.fidelity.project(self.observed).unique(dim=0)
        inside = observed if self.admissible is None else observed[self.admissible.feasible(observed)]
        pending = None if self.pending is None else self.fidelity.project(self.pending).unique(dim=0)
        return replace(self, observed=inside if len(inside) else observed, pending=pending)

    def best(self, count: int) -> Float[Tensor, "c d"]:
        """Return the told points of highest posterior mean."""
        return self.observed[self.means.topk(min(count, len(self.observed))).indices]

    @property
    def baseline(self) -> Float[Tensor, "c d"]:
        """Up to `BASELINE` told points: those that no other dominates, then the best of the rest."""
        assert self.goal is not None
        ranks = self.means + self.goal.front(self.outcomes) * (self.means.max() - self.means.min() + 1)
        return self.observed[ranks.topk(min(BASELINE, len(ranks))).indices]

    def sampler(self, count: int = SAMPLES) -> SobolQMCNormalSampler:
        """Return a sampler of quasi-random draws, the same for every evaluation; `mc_samples` overrides the count."""
        return SobolQMCNormalSampler(torch.Size([self.options.get("mc_samples", count)]), seed=self.seed)


Acquisition = Callable[[Setting], AcquisitionFunction | Tensor]
"""Makes from a setting an acquisition function to be maximised, or the points `q × d` themselves."""
