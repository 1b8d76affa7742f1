"""Acquisition functions by name, made from what a loop knows."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from botorch.acquisition.acquisition import AcquisitionFunction
from botorch.acquisition.active_learning import qNegIntegratedPosteriorVariance as SampledNIPV
from botorch.acquisition.knowledge_gradient import qKnowledgeGradient
from botorch.acquisition.logei import qLogExpectedImprovement, qLogNoisyExpectedImprovement
from botorch.acquisition.monte_carlo import qUpperConfidenceBound
from botorch.acquisition.multi_objective.logei import (
    qLogExpectedHypervolumeImprovement,
    qLogNoisyExpectedHypervolumeImprovement,
)
from botorch.acquisition.multi_objective.objective import GenericMCMultiOutputObjective
from botorch.acquisition.objective import GenericMCObjective
from botorch.models.model import Model
from botorch.sampling.normal import SobolQMCNormalSampler
from botorch.utils.multi_objective.box_decompositions.non_dominated import FastNondominatedPartitioning
from botorch.utils.multi_objective.hypervolume import infer_reference_point
from botorch.utils.sampling import draw_sobol_samples
from jaxtyping import Float
from torch import Tensor

from bo_scale.decisions.acquisition import (
    SAMPLES,
    hypervolume_draws,
    posterior_means,
    qLogPlugInExpectedImprovement,
    qNegIntegratedPosteriorVariance,
)
from bo_scale.decisions.candidates import Admissible, already
from bo_scale.decisions.goals import Goal
from bo_scale.decisions.kernel_build import await_kernel_build
from bo_scale.decisions.thompson import thompson_batch
from bo_scale.errors import InvalidArgumentError, InvalidDataError
from bo_scale.models.shell.model import ScalableModel
from bo_scale.models.wiski.model import WISKI

BASELINE = 64
"""qLogNEI compares with so many of the told points, those of highest posterior mean."""


@dataclass(frozen=True)
class Setting:
    """What an acquisition function may want to know beside the model. Points are in the unit cube.

    Attributes:
        model: The surrogate; larger is better.
        observed: All told points.
        pending: Points asked for and not told of, and those abandoned; None for none.
        q: How many points are wanted.
        seed: For samplers.
        options: The user's `acquisition_options`.
        admissible: Which points of the unit cube stand for points of the space; None where all do.
        goal: What outcomes are for; None of a single one without constraints.
    """

    model: Model
    observed: Float[Tensor, "n d"]
    pending: Float[Tensor, "p d"] | None
    q: int
    seed: int
    options: Mapping[str, Any] = field(default_factory=dict)
    admissible: Admissible | None = None
    goal: Goal | None = None

    @property
    def taken(self) -> Float[Tensor, "p d"]:
        """Pending points, of which there may be none."""
        return self.observed[:0] if self.pending is None else self.pending

    @cached_property
    def outcomes(self) -> Float[Tensor, "n m"]:
        """Posterior means of all outcomes at the told points."""
        return posterior_means(self.model, self.observed)

    @cached_property
    def means(self) -> Float[Tensor, " n"]:
        """What ranks the told points: posterior means, of several outcomes as the goal says."""
        return self.outcomes.squeeze(-1) if self.goal is None else self.goal.merits(self.outcomes)

    @property
    def spread(self) -> float:
        """Standard deviation of the posterior means of some told points: the unit of values. 1 where there is none."""
        if self.goal is not None:
            return 1.0  # which measures in units of spread
        some = posterior_means(self.model, self.observed[:: 1 + len(self.observed) // BASELINE])
        spread = some.std().item() if len(some) > 1 else 0.0
        return spread if spread > 0 else 1.0

    @property
    def bounds(self) -> Float[Tensor, "2 d"]:
        """Of the unit cube."""
        return torch.stack([torch.zeros_like(self.observed[0]), torch.ones_like(self.observed[0])])

    def best(self, count: int) -> Float[Tensor, "c d"]:
        """The told points of highest posterior mean."""
        return self.observed[self.means.topk(min(count, len(self.observed))).indices]

    @property
    def baseline(self) -> Float[Tensor, "c d"]:
        """The told points that no other dominates, and the best of the rest: so many as count."""
        assert self.goal is not None
        ranks = self.means + self.goal.front(self.outcomes) * (self.means.max() - self.means.min() + 1)
        return self.observed[ranks.topk(min(BASELINE, len(ranks))).indices]

    def sampler(self, count: int = SAMPLES) -> SobolQMCNormalSampler:
        """Quasi-random normal draws, the same for every evaluation: so many unless the options say how many."""
        return SobolQMCNormalSampler(torch.Size([self.options.get("mc_samples", count)]), seed=self.seed)


OPTIONS = {
    *("beta", "mc_samples", "num_fantasies", "mc_points"),
    *("num_restarts", "raw_samples", "max_steps", "distance"),
}
"""Names of `acquisition_options`; those an acquisition has no use for are ignored."""

Acquisition = Callable[[Setting], AcquisitionFunction | Tensor]
"""From a setting to an acquisition function that is then maximised, or to the points `q × d` themselves."""


def _ucb(setting: Setting) -> AcquisitionFunction:
    beta = setting.options.get("beta", 2.0)
    return qUpperConfidenceBound(setting.model, beta, sampler=setting.sampler(), X_pending=setting.pending)


def _log_ei(setting: Setting) -> AcquisitionFunction:
    if setting.goal is not None:
        return qLogPlugInExpectedImprovement(
            setting.model, setting.observed, sampler=setting.sampler(), X_pending=setting.pending, **_aims(setting.goal)
        )
    best = setting.means.max()
    return qLogExpectedImprovement(setting.model, best, sampler=setting.sampler(), X_pending=setting.pending)


def _log_nei(setting: Setting) -> AcquisitionFunction:
    return qLogNoisyExpectedImprovement(
        setting.model,
        setting.best(BASELINE),
        sampler=setting.sampler(),
        X_pending=setting.pending,
        prune_baseline=setting.goal is None,
        **({} if setting.goal is None else _aims(setting.goal)),
    )


def _aims(goal: Goal) -> dict[str, Any]:
    return {"objective": GenericMCObjective(goal.value), "constraints": goal.inequalities}


def _front(setting: Setting) -> tuple[Goal, Float[Tensor, "f k"], Float[Tensor, " k"]]:
    """Objectives of the told points that no other dominates, and where objectives begin to count.

    Raises:
        InvalidDataError: without several objectives.
    """
    goal = setting.goal
    if goal is None or goal.objectives < 2:
        raise InvalidDataError("acquisition: hypervolumes are of several objectives; take 'qLogEI' for one.")
    values = goal.values(setting.outcomes)
    front = values[goal.front(setting.outcomes)]
    given = None if goal.reference is None else goal.reference / goal.scale[: goal.objectives]
    known = front if len(front) > 0 else values  # nothing feasible: within the range of what was seen
    return goal, front, given if given is not None and not given.isnan().any() else infer_reference_point(known, given)


def _log_ehvi(setting: Setting) -> AcquisitionFunction:
    await_kernel_build()
    goal, front, reference = _front(setting)
    partitioning: Any = FastNondominatedPartitioning(reference, front)
    return qLogExpectedHypervolumeImprovement(
        setting.model,
        reference,
        partitioning,
        sampler=setting.sampler(hypervolume_draws(setting.model)),
        objective=GenericMCMultiOutputObjective(goal.values),
        constraints=goal.inequalities,
        X_pending=setting.pending,
    )


def _log_nehvi(setting: Setting) -> AcquisitionFunction:
    await_kernel_build()
    goal, _, reference = _front(setting)
    return qLogNoisyExpectedHypervolumeImprovement(
        setting.model,
        reference,
        setting.baseline,
        sampler=setting.sampler(hypervolume_draws(setting.model)),
        objective=GenericMCMultiOutputObjective(goal.values),
        constraints=goal.inequalities,
        X_pending=setting.pending,
    )


def _kg(setting: Setting) -> AcquisitionFunction:
    fantasies = setting.options.get("num_fantasies", 16)
    sampler = SobolQMCNormalSampler(torch.Size([fantasies]), seed=setting.seed)
    return qKnowledgeGradient(setting.model, fantasies, sampler=sampler, X_pending=setting.pending)


def _nipv(setting: Setting) -> AcquisitionFunction:
    if isinstance(setting.model, WISKI) and not hasattr(setting.model, "input_transform"):
        return qNegIntegratedPosteriorVariance(setting.model, X_pending=setting.pending)
    points = draw_sobol_samples(setting.bounds, setting.options.get("mc_points", 512), 1, seed=setting.seed).squeeze(1)
    kind = qNegIntegratedPosteriorVariance if isinstance(setting.model, ScalableModel) else SampledNIPV
    return kind(setting.model, mc_points=points, X_pending=setting.pending)


def _thompson(setting: Setting) -> Tensor:
    options = {
        k: v for k, v in setting.options.items() if k in ("num_restarts", "raw_samples", "max_steps", "distance")
    }
    asked = {**options, "starts": setting.best(8), "admissible": setting.admissible}
    every = None if setting.admissible is None else setting.admissible.points
    if every is None:
        return thompson_batch(setting.model, setting.bounds, setting.q, avoid=setting.pending, **asked)
    chosen = setting.taken[:0]
    while len(chosen) < setting.q:  # of few points each once before any is proposed again
        avoid = torch.cat([setting.taken, chosen])
        room = int((~already(every.to(avoid), avoid)).sum())
        avoid, room = (avoid, room) if room > 0 else (avoid[:0], len(every))
        count = min(room, setting.q - len(chosen))
        chosen = torch.cat([chosen, thompson_batch(setting.model, setting.bounds, count, avoid=avoid, **asked)])
    return chosen


ACQUISITIONS: dict[str, Acquisition] = {
    "qUCB": _ucb,
    "qLogEI": _log_ei,
    "qLogNEI": _log_nei,
    "qKG": _kg,
    "qNIPV": _nipv,
    "Thompson": _thompson,
}
SEVERAL: dict[str, Acquisition] = {"qLogNEHVI": _log_nehvi, "qLogEHVI": _log_ehvi}
"""Those for several objectives, with constraints on outcomes or without."""
CONSTRAINED = ("qLogEI", "qLogNEI")
"""Those of one objective that know constraints on outcomes."""


def require_served(acquisition: str | Acquisition, objectives: int, constraints: int) -> None:
    """Refuse an acquisition by name that does not serve so many objectives and constraints on outcomes.

    Raises:
        InvalidArgumentError: naming those that do.
    """
    if not isinstance(acquisition, str) or acquisition not in {**ACQUISITIONS, **SEVERAL}:
        return
    one = CONSTRAINED if constraints else ACQUISITIONS
    served = list(one if objectives == 1 else SEVERAL)
    if acquisition not in served:
        what = f"{objectives} objectives and {constraints} constraints"
        raise InvalidArgumentError(f"acquisition={acquisition!r}: not for {what} on outcomes; choose one of {served}.")


def acquisition_by_name(acquisition: str | Acquisition, options: Mapping[str, Any] | None) -> Acquisition:
    """An acquisition of the table, or the factory given; options are checked for those of the table."""
    if not isinstance(acquisition, str):
        return acquisition
    unknown = sorted(set(options or {}) - OPTIONS)
    if unknown:
        raise InvalidArgumentError(f"acquisition_options: {unknown} are unknown; choose from {sorted(OPTIONS)}.")
    known = {**ACQUISITIONS, **SEVERAL}
    if acquisition not in known:
        raise InvalidArgumentError(
            f"acquisition={acquisition!r}: choose one of {list(known)}, or pass a factory Setting -> "
            f"AcquisitionFunction (or the points themselves)."
        )
    return known[acquisition]
