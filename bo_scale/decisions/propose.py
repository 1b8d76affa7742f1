"""Propose the points to evaluate next: maximise an acquisition function over the points that may be proposed."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from botorch.acquisition.acquisition import AcquisitionFunction, OneShotAcquisitionFunction
from botorch.acquisition.active_learning import qNegIntegratedPosteriorVariance as SampledNIPV
from botorch.acquisition.analytic import AnalyticAcquisitionFunction, LogExpectedImprovement
from botorch.acquisition.logei import qLogExpectedImprovement, qLogNoisyExpectedImprovement
from botorch.acquisition.monte_carlo import qUpperConfidenceBound
from botorch.models.model import Model
from botorch.optim.optimize import optimize_acqf
from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from bo_scale.decisions.acquisition import qNegIntegratedPosteriorVariance
from bo_scale.decisions.batch_search import search
from bo_scale.decisions.candidates import Admissible, already
from bo_scale.decisions.setting import Acquisition, Setting
from bo_scale.models.errors import UnsupportedError
from bo_scale.threads import scipy_on_one_thread, threads_for

RELATIVE_RISE = 1e-5
"""A restart ends when a step raises the acquisition value by less than this share of its unit: half the evaluations of
BoTorch's 2e-9, for values that agree to 1 %."""

LEAST_UNIT = 0.01
"""Least unit of the logarithm of an improvement, which counts for targets with a smaller spread."""
WORTH, OTHER_CHOICES = 1e-3, 0.5
"""A search has converged where the expected improvement is less than this share of the spread of the targets. Points
with other choices than the best are then proposed, until this share of all points told, pending or failed had such."""
_LOG_IMPROVEMENTS = LogExpectedImprovement, qLogExpectedImprovement, qLogNoisyExpectedImprovement

_EFFORT = {"num_restarts": 4, "raw_samples": 128, "max_steps": 60}
"""The default options of the optimisation."""
_DISCRETE = {"raw_samples": 512}
"""Other defaults with integers or choices, where fewer points miss the best value more often at the same time."""


def propose(acquisition: Acquisition, setting: Setting) -> Float[Tensor, "q d"]:
    """Propose the next q points, one after the other, each pending for the next.

    Functions that are submodular, as expected improvement is, lose little by this. A joint search of q · d inputs from
    a few starts loses more (benchmark `batches`). One-shot functions are searched jointly. Points repeat, or repeat
    pending ones, only where no others are left.

    J. Wilson, F. Hutter, M. Deisenroth. Maximizing acquisition functions for Bayesian optimization. NeurIPS 2018.
    """
    if setting.held and setting.allowed is not None:
        only = setting.allowed.sample(1, setting.seed)  # refuses held values that no admissible point has
        if setting.allowed.count == 1:
            return only.to(setting.observed).expand(setting.q, -1)
    with scipy_on_one_thread(), threads_for(len(setting.observed)):
        return _proposed(acquisition, setting)


def _proposed(acquisition: Acquisition, setting: Setting) -> Float[Tensor, "q d"]:
    made = acquisition(setting)
    if isinstance(made, AnalyticAcquisitionFunction) and setting.q > 1:
        raise UnsupportedError(
            f"acquisition: {type(made).__name__} scores one point at a time. Ask for one point, or use a Monte-Carlo "
            f"function (BoTorch names them q…)."
        )
    if not isinstance(made, AcquisitionFunction):
        return _placed(made.detach(), setting)
    points = _maximised(made, setting).detach()
    return points if setting.allowed is None else setting.allowed.settled(points)


def _placed(points: Float[Tensor, "q d"], setting: Setting) -> Float[Tensor, "q d"]:
    """Return the nearest points that may be proposed to those that a factory returned."""
    if setting.allowed is None:
        return points
    near = setting.allowed.nearest(points)
    return setting.allowed.settled(setting.allowed.repair(near) if setting.held else near)


def _maximised(made: AcquisitionFunction, setting: Setting) -> Float[Tensor, "q d"]:
    """Maximise an acquisition function: jointly by BoTorch's optimiser, or point by point."""
    made, unit = _with_unit(made, setting.spread)
    if setting.log_cost is not None:
        made = _PerCost(made, setting.log_cost)
    discrete = setting.admissible is not None and setting.admissible.discrete
    defaults = {**_EFFORT, **_DISCRETE} if discrete else _EFFORT
    effort = {name: setting.options.get(name, default) for name, default in defaults.items()}
    equal = setting.admissible is not None and len(setting.admissible.equations(setting.observed)) > 0
    single = setting.q == 1 and not (setting.allowed and setting.allowed.held) and not equal
    if not discrete and (single or isinstance(made, OneShotAcquisitionFunction)):
        return _distinct(_continuous(made, setting, effort, unit).detach(), made, setting)
    allowed, best = setting.allowed or Admissible(setting.observed.shape[-1]), setting.best(4)
    given: dict[str, Any] = {"taken": setting.avoided, "starts": best, "rise": unit * RELATIVE_RISE, **effort}
    points = search(made, allowed, setting.q, setting.seed, **given)
    if setting.q == 1 and _has_converged(made, points, best[0], setting):
        return _with_other_choices(made, points, best, allowed, setting, given)
    return points


def _with_unit(made: AcquisitionFunction, spread: float) -> tuple[AcquisitionFunction, float]:
    """Return an acquisition function with values of the order of a unit, and that unit."""
    small = min(1.0, spread)
    if isinstance(made, qNegIntegratedPosteriorVariance | SampledNIPV):
        return _InUnits(made, spread**2), 1.0
    if isinstance(made, qUpperConfidenceBound):
        return _InUnits(made, spread), 1.0
    if isinstance(made, OneShotAcquisitionFunction):
        return made, 1.0 if getattr(made, "posterior_transform", None) else small
    if isinstance(made, _LOG_IMPROVEMENTS):
        return made, max(small, LEAST_UNIT)
    return (made if small == 1 else _InUnits(made, small)), 1.0  # it may be a probability, which has no unit


def _has_converged(
    made: AcquisitionFunction, point: Float[Tensor, "1 d"], best: Float[Tensor, " d"], setting: Setting
) -> bool:
    """Return whether a search has converged: its point has the choices of the best one told, and promises little.

    Beside the best point some improvement is always promised, since a noise variance has a lower bound, and models are
    too sure of choices that were seldom evaluated. Once enough points had others, the search goes on as it is.
    """
    allowed = setting.allowed
    if allowed is None or not allowed.choice_inputs or setting.held or not isinstance(made, _LOG_IMPROVEMENTS):
        return False
    if bool(allowed.take_other_choices(point, best).any()):
        return False
    others = allowed.take_other_choices(torch.cat([setting.observed, setting.taken]), best).double().mean().item()
    return others < OTHER_CHOICES and _improvement(made, point) < math.log(WORTH * setting.spread)


@torch.no_grad()
def _improvement(made: Any, point: Float[Tensor, "1 d"]) -> float:
    """Return the logarithm of the expected improvement by one point alone, without pending ones."""
    if not isinstance(made, qLogExpectedImprovement) or made.X_pending is None:
        return float(made(point))
    pending = made.X_pending
    made.set_X_pending(None)
    found = float(made(point))
    made.set_X_pending(pending)
    return found


def _with_other_choices(
    made: AcquisitionFunction,
    point: Float[Tensor, "1 d"],
    best: Float[Tensor, "b d"],
    allowed: Admissible,
    setting: Setting,
    given: Mapping[str, Any],
) -> Float[Tensor, "1 d"]:
    """Return the point of highest acquisition value that is new and takes other choices than the best one told.

    The given point is returned if no other is found. Starts are also the best told points with other choices.
    """
    told = setting.observed
    others = allowed.take_other_choices(told, best[0])
    starts = torch.cat([best, told[others][setting.means[others].argsort(descending=True)[: len(best)]]])
    known = torch.cat([told, setting.taken])
    found = search(made, allowed, 1, setting.seed, unlike=best[0], **{**given, "taken": known, "starts": starts})
    new = allowed.take_other_choices(found, best[0]) & ~already(found, known)
    return found if bool(new.all()) else point


class _Of(AcquisitionFunction):
    """A function of the values of an acquisition function, with its pending points."""

    def __init__(self, of: AcquisitionFunction) -> None:
        model: Any = getattr(of, "model", None)  # a function of a function may have none
        super().__init__(model)
        self.of: Any = of
        self.X_pending: Any = getattr(of, "X_pending", None)  # an analytic function has none

    @override
    def set_X_pending(self, X_pending: Tensor | None = None) -> None:
        self.of.set_X_pending(X_pending)
        self.X_pending = self.of.X_pending


class _PerCost(_Of):
    """Improvement by unit of cost: log α(X) − log Σ_i exp m(x_i), with m the posterior mean of log cost.

    J. Snoek, H. Larochelle, R. Adams. Practical Bayesian optimization of machine learning algorithms. NeurIPS 2012:
    section 3.2.
    """

    def __init__(self, of: AcquisitionFunction, log_cost: Model) -> None:
        super().__init__(of)
        self.log_cost = log_cost

    @override
    def forward(self, X: Float[Tensor, "*b q d"]) -> Float[Tensor, "*b"]:
        posterior: Any = self.log_cost.posterior(X)
        improvement: Tensor = self.of(X)
        return improvement - posterior.mean.squeeze(-1).logsumexp(-1)


class _InUnits(_Of):
    """Values in shares of a unit: that of the targets, or of variances its square.

    The first step of L-BFGS-B is no longer than the gradient: where that is small, the step raises a value by less than
    any tolerance for the values, and the search ends where it began.
    """

    def __init__(self, of: AcquisitionFunction, unit: float) -> None:
        super().__init__(of)
        self.unit = unit

    @override
    def forward(self, X: Float[Tensor, "*b q d"]) -> Float[Tensor, "*b"]:
        return self.of(X) / self.unit


def _continuous(
    made: AcquisitionFunction, setting: Setting, effort: Mapping[str, int], unit: float
) -> Float[Tensor, "q d"]:
    """Maximise jointly by BoTorch's optimiser, for values in a unit: L-BFGS-B, or SLSQP under constraints."""
    allowed = setting.allowed
    limits = None if allowed is None else allowed.inequalities(setting.observed)
    equations = [] if setting.admissible is None else setting.admissible.equations(setting.observed)
    stop = {"factr": unit * RELATIVE_RISE / torch.finfo(torch.float64).eps, "pgtol": unit * 1e-5}
    with _held(made, setting):
        points, _ = optimize_acqf(
            made,
            setting.bounds,
            q=setting.q,
            num_restarts=effort["num_restarts"],
            raw_samples=effort["raw_samples"],
            options={
                "maxiter": effort["max_steps"],
                **(stop if limits is None and not equations else {"ftol": unit * RELATIVE_RISE}),
                "batch_limit": 8,
                "init_batch_limit": 128,
            },
            inequality_constraints=limits,
            equality_constraints=equations or None,
        )
    if allowed is None:
        return points
    inside = allowed.sample(1, setting.seed).to(points)
    if equations:
        points = allowed.nearest(points)
    return allowed.retract(points, inside.expand_as(points))  # SLSQP's tolerance is not ours


@contextmanager
def _held(made: AcquisitionFunction, setting: Setting) -> Iterator[None]:
    """Evaluate a one-shot function with held values in its first q points. Its fantasies have the target fidelity only.

    BoTorch's `fixed_features` would hold all inputs of the fantasies too.
    """
    if not setting.held:
        yield
        return
    forward = made.forward
    allowed, fidelity = setting.allowed, setting.fidelity
    assert allowed is not None

    def with_held(X: Tensor) -> Tensor:
        fantasies = X[..., setting.q :, :] if fidelity is None else fidelity.project(X[..., setting.q :, :])
        return forward(torch.cat([allowed.nearest(X[..., : setting.q, :]), fantasies], -2))

    made.forward = with_held  # type: ignore[method-assign]
    try:
        yield
    finally:
        del made.forward


def _distinct(points: Float[Tensor, "q d"], made: AcquisitionFunction, setting: Setting) -> Float[Tensor, "q d"]:
    """Replace points that repeat, at corners where several searches end, by others of high value."""
    for row in range(len(points)):
        taken = torch.cat([setting.taken, points[:row]])
        if bool(already(points[row : row + 1], taken).any()):
            others = (setting.allowed or Admissible(points.shape[-1])).sample(128, setting.seed).to(points)
            if isinstance(made, OneShotAcquisitionFunction):  # has no value of a point alone
                other = others[0]
            else:
                if not isinstance(made, AnalyticAcquisitionFunction):
                    made.set_X_pending(taken)
                with torch.no_grad():
                    other = others[made(others.unsqueeze(-2)).argmax()]
            points = torch.cat([points[:row], other.unsqueeze(0), points[row + 1 :]])
    return points
