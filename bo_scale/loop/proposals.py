"""What to evaluate next: acquisition functions by name, optimised over the unit cube."""

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
from botorch.models.model import Model
from botorch.optim.optimize import optimize_acqf
from botorch.sampling.normal import SobolQMCNormalSampler
from botorch.utils.sampling import draw_sobol_samples
from jaxtyping import Float
from torch import Tensor

from bo_scale.acquisition import posterior_means, qNegIntegratedPosteriorVariance
from bo_scale.models.base import ScalableModel
from bo_scale.models.wiski import WISKI
from bo_scale.thompson import thompson_batch

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
    """

    model: Model
    observed: Float[Tensor, "n d"]
    pending: Float[Tensor, "p d"] | None
    q: int
    seed: int
    options: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def means(self) -> Float[Tensor, " n"]:
        """Posterior means of the told points."""
        return posterior_means(self.model, self.observed).squeeze(-1)

    @property
    def spread(self) -> float:
        """Standard deviation of the posterior means of some told points: the unit of values. 1 where there is none."""
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

    def sampler(self) -> SobolQMCNormalSampler:
        """Quasi-random normal draws, the same for every evaluation."""
        return SobolQMCNormalSampler(torch.Size([self.options.get("mc_samples", 128)]), seed=self.seed)


JOINTLY = 8
"""Batches up to this size are optimised jointly, larger ones point by point."""
RELATIVE_RISE = 1e-5
"""A restart ends when a step raises the acquisition value by less than this share (of the spread of the targets, for
values below it): half the evaluations of BoTorch's 2e-9, for values that agree to 1 %."""

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
    best = setting.means.max()
    return qLogExpectedImprovement(setting.model, best, sampler=setting.sampler(), X_pending=setting.pending)


def _log_nei(setting: Setting) -> AcquisitionFunction:
    return qLogNoisyExpectedImprovement(
        setting.model, setting.best(BASELINE), sampler=setting.sampler(), X_pending=setting.pending
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
    return thompson_batch(
        setting.model, setting.bounds, setting.q, avoid=setting.pending, starts=setting.best(8), **options
    )


ACQUISITIONS: dict[str, Acquisition] = {
    "qUCB": _ucb,
    "qLogEI": _log_ei,
    "qLogNEI": _log_nei,
    "qKG": _kg,
    "qNIPV": _nipv,
    "Thompson": _thompson,
}


def acquisition_by_name(acquisition: str | Acquisition, options: Mapping[str, Any] | None) -> Acquisition:
    """An acquisition of the table, or the factory given; options are checked for those of the table."""
    if not isinstance(acquisition, str):
        return acquisition
    unknown = sorted(set(options or {}) - OPTIONS)
    if unknown:
        raise ValueError(f"acquisition_options: {unknown} are unknown; choose from {sorted(OPTIONS)}.")
    if acquisition not in ACQUISITIONS:
        raise ValueError(
            f"acquisition={acquisition!r}: choose one of {list(ACQUISITIONS)}, or pass a factory Setting -> "
            f"AcquisitionFunction (or the points themselves)."
        )
    return ACQUISITIONS[acquisition]


def propose(acquisition: Acquisition, setting: Setting) -> Float[Tensor, "q d"]:
    """The next q points: jointly for small q, one after the other (each pending for the next) for large."""
    made = acquisition(setting)
    if not isinstance(made, AcquisitionFunction):
        return made.detach()
    options, unit = setting.options, min(1.0, setting.spread)
    points, _ = optimize_acqf(
        made,
        setting.bounds,
        q=setting.q,
        num_restarts=options.get("num_restarts", 4),
        raw_samples=options.get("raw_samples", 128),
        options={
            "maxiter": options.get("max_steps", 60),
            "factr": unit * RELATIVE_RISE / torch.finfo(torch.float64).eps,
            "pgtol": unit * 1e-5,
            "batch_limit": 8,
            "init_batch_limit": 128,
        },
        sequential=setting.q > JOINTLY,
    )
    return points.detach()
