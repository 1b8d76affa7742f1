"""The acquisition functions that come with the package, each made from a setting."""

import math
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
from botorch.acquisition.objective import GenericMCObjective, ScalarizedPosteriorTransform
from botorch.posteriors.gpytorch import GPyTorchPosterior
from botorch.sampling.normal import SobolQMCNormalSampler
from botorch.utils.multi_objective.box_decompositions.non_dominated import FastNondominatedPartitioning
from botorch.utils.multi_objective.hypervolume import infer_reference_point
from botorch.utils.sampling import draw_sobol_samples
from botorch.utils.transforms import is_ensemble
from jaxtyping import Float
from torch import Tensor

from bo_scale.decisions.acquisition import (
    hypervolume_draws,
    qLogPlugInExpectedImprovement,
    qNegIntegratedPosteriorVariance,
)
from bo_scale.decisions.candidates import Admissible, already
from bo_scale.decisions.goals import Goal
from bo_scale.decisions.kernel_build import build_kernel
from bo_scale.decisions.knowledge_gradient import LogKnowledgeGradient
from bo_scale.decisions.setting import BASELINE, Setting
from bo_scale.decisions.thompson import thompson_batch
from bo_scale.errors import InvalidDataError
from bo_scale.models.errors import UnsupportedError
from bo_scale.models.shell.model import ScalableModel
from bo_scale.models.wiski.model import WISKI

EFFORT = ("num_restarts", "raw_samples", "max_steps")
"""Options of everything that is maximised from several starting points."""
MAXIMIZERS, BEST_TOLD = 32, 8
"""Points that may be the best at the target of a fidelity: maximisers of posterior draws, and told ones."""


def upper_confidence_bound(setting: Setting) -> AcquisitionFunction:
    """Make the upper confidence bound, mean + √β · standard deviation."""
    beta = setting.options.get("beta", 2.0)
    return qUpperConfidenceBound(setting.model, beta, sampler=setting.sampler(), X_pending=setting.pending)


def expected_improvement(setting: Setting) -> AcquisitionFunction:
    """Make the log of expected improvement over the best posterior mean."""
    if setting.goal is not None:
        return qLogPlugInExpectedImprovement(
            setting.model,
            setting.observed,
            sampler=setting.sampler(),
            X_pending=setting.pending,
            **_aims(setting.goal),
            **_smoothing(setting),
        )
    best, smoothing = setting.means.max(), _smoothing(setting)
    return qLogExpectedImprovement(setting.model, best, setting.sampler(), X_pending=setting.pending, **smoothing)


def noisy_expected_improvement(setting: Setting) -> AcquisitionFunction:
    """Make the log of expected improvement over the unknown best of the told points."""
    return qLogNoisyExpectedImprovement(
        setting.model,
        setting.best(BASELINE),
        sampler=setting.sampler(),
        X_pending=setting.pending,
        prune_baseline=setting.goal is None,
        **({} if setting.goal is None else _aims(setting.goal)),
        **_smoothing(setting),
    )


def _smoothing(setting: Setting) -> dict[str, Any]:
    """Return the temperatures of the smooth maximum and of the smooth positive part, in units of the values.

    The smooth maximum over a batch exceeds the true one by up to its temperature, even for equal points. BoTorch's
    0.01 is more than another point adds near the end of a search, and copies of one point would make up the batch.

    S. Ament, S. Daulton, D. Eriksson, M. Balandat, E. Bakshy. Unexpected improvements to expected improvement for
    Bayesian optimization. NeurIPS 2023: section 4, τ_max and τ_0.
    """
    return {"tau_max": 1e-4 * setting.spread, "tau_relu": 1e-6 * setting.spread}


def _aims(goal: Goal) -> dict[str, Any]:
    return {"objective": GenericMCObjective(goal.value), "constraints": goal.inequalities}


def _front(setting: Setting) -> tuple[Goal, Float[Tensor, "f k"], Float[Tensor, " k"]]:
    """Return the goal, the objectives on the front of told points, and the point beyond which objectives count.

    Raises:
        InvalidDataError: without several objectives.
    """
    goal = setting.goal
    if goal is None or goal.objectives < 2:
        raise InvalidDataError("acquisition: hypervolumes need several objectives. For one, use 'qLogEI'.")
    values = goal.values(setting.outcomes)
    front = values[goal.front(setting.outcomes)]
    given = None if goal.reference is None else goal.reference / goal.scale[: goal.objectives]
    known = front if len(front) > 0 else values  # nothing feasible: within the range of what was seen
    return goal, front, given if given is not None and not given.isnan().any() else infer_reference_point(known, given)


def hypervolume_improvement(setting: Setting) -> AcquisitionFunction:
    """Make the log of hypervolume improvement over the front of posterior means."""
    build_kernel()
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


def noisy_hypervolume_improvement(setting: Setting) -> AcquisitionFunction:
    """Make the log of hypervolume improvement over the unknown front of the told points."""
    build_kernel()
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


def knowledge_gradient(setting: Setting) -> AcquisitionFunction:
    """Make the knowledge gradient: the expected rise of the highest posterior mean, in units near the spread."""
    fantasies = setting.options.get("num_fantasies", 16)
    sampler = SobolQMCNormalSampler(torch.Size([fantasies]), seed=setting.seed)
    unit = 2.0 ** round(math.log2(setting.spread))
    in_units = ScalarizedPosteriorTransform(setting.observed.new_tensor([1 / unit]))
    return qKnowledgeGradient(
        setting.model, fantasies, sampler=sampler, posterior_transform=in_units, X_pending=setting.pending
    )


def integrated_variance(setting: Setting) -> AcquisitionFunction:
    """Make the negative integrated posterior variance, in closed form where the model has one."""
    count, space, fidelity = setting.options.get("mc_points", 512), setting.admissible, setting.fidelity
    if space is not None and (space.conditions or space.equations(setting.observed)):  # elsewhere is no point
        inside = space if fidelity is None else space.holding(fidelity.target)
        points = inside.sample(count, setting.seed).to(setting.observed)
    elif fidelity is None and isinstance(setting.model, WISKI) and not hasattr(setting.model, "input_transform"):
        return qNegIntegratedPosteriorVariance(setting.model, X_pending=setting.pending)
    else:
        points = draw_sobol_samples(setting.bounds, count, 1, seed=setting.seed).squeeze(1)
        points = points if fidelity is None else fidelity.project(points)
    kind = qNegIntegratedPosteriorVariance if isinstance(setting.model, ScalableModel) else SampledNIPV
    return kind(setting.model, mc_points=points, X_pending=setting.pending)


def multi_fidelity_knowledge_gradient(setting: Setting) -> AcquisitionFunction:
    """Make the logarithm of the gain in the highest posterior mean at the target of the fidelity.

    It is sought among the maximisers of posterior draws there, and the best told points moved there.

    Raises:
        InvalidDataError: without a fidelity, or for several outcomes.
        UnsupportedError: for a model without joint Gaussian posteriors.
    """
    fidelity = setting.fidelity
    if fidelity is None or setting.goal is not None:
        raise InvalidDataError("acquisition: 'qMFKG' needs a fidelity and one objective. Else use 'qLogNEI'.")
    _require_gaussian(setting)
    allowed = (setting.allowed or Admissible(setting.observed.shape[-1])).holding(fidelity.target)
    told = allowed.snap(setting.best(BEST_TOLD))
    told = told[allowed.feasible(told)]
    count = int(min(setting.options.get("num_maximizers", MAXIMIZERS), allowed.count))
    drawn = thompson_batch(setting.model, setting.bounds, count, starts=told, admissible=allowed)
    points = torch.cat([told, drawn]).unique(dim=0)
    return LogKnowledgeGradient(setting.model, points, fidelity.project, setting.pending)


def _require_gaussian(setting: Setting) -> None:
    """Refuse models of which the acquisition cannot use the posterior."""
    with torch.no_grad():
        posterior = setting.model.posterior(setting.observed[:1])
    if is_ensemble(setting.model) or not isinstance(posterior, GPyTorchPosterior):
        name = type(setting.model).__name__
        raise UnsupportedError(
            f"acquisition: 'qMFKG' needs a model with one joint Gaussian posterior, and {name} has none. Choose "
            f"another model, or an acquisition that proposes at the target, such as 'qLogNEI'."
        )


def thompson(setting: Setting) -> Tensor:
    """Draw posterior functions and return their maximisers."""
    options = {name: value for name, value in setting.options.items() if name in {*EFFORT, "distance"}}
    asked = {**options, "starts": setting.best(8), "admissible": setting.allowed}
    every = None if setting.allowed is None else setting.allowed.points
    if every is None:
        return thompson_batch(setting.model, setting.bounds, setting.q, avoid=setting.pending, **asked)
    chosen = setting.taken[:0]
    while len(chosen) < setting.q:  # of few points each once before any is proposed again
        avoid = torch.cat([setting.avoided, chosen])
        room = int((~already(every.to(avoid), avoid)).sum())
        avoid, room = (avoid, room) if room > 0 else (avoid[:0], len(every))
        count = min(room, setting.q - len(chosen))
        chosen = torch.cat([chosen, thompson_batch(setting.model, setting.bounds, count, avoid=avoid, **asked)])
    return chosen
