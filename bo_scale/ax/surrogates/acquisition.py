"""Ax's acquisition with our choice for one objective, at a cost that does not grow with the observations."""

from collections.abc import Callable
from typing import Any

import torch
from ax.core.search_space import SearchSpaceDigest
from ax.generators.torch.botorch_modular.acquisition import Acquisition, determine_optimizer
from ax.generators.utils import mk_discrete_choices
from botorch.acquisition.acquisition import AcquisitionFunction
from botorch.acquisition.input_constructors import acqf_input_constructor
from botorch.acquisition.logei import TAU_MAX, TAU_RELU, qLogNoisyExpectedImprovement
from botorch.acquisition.multi_objective.logei import (
    qLogExpectedHypervolumeImprovement,
    qLogNoisyExpectedHypervolumeImprovement,
)
from botorch.acquisition.objective import MCAcquisitionObjective, PosteriorTransform
from botorch.models.model import Model
from botorch.sampling.base import MCSampler
from botorch.sampling.get_sampler import get_sampler
from botorch.sampling.normal import SobolQMCNormalSampler
from botorch.utils.datasets import SupervisedDataset
from botorch.utils.transforms import is_ensemble
from torch import Tensor
from typing_extensions import override

from bo_scale.decisions.acquisition import SAMPLES, hypervolume_draws, qLogPlugInExpectedImprovement
from bo_scale.decisions.kernel_build import build_kernel
from bo_scale.threads import scipy_on_one_thread, threads_for

RISE = 1e-4
"""A restart ends when a step raises the logarithm of the acquisition value by less, of 1 or of its size.

By L-BFGS-B; SLSQP, which BoTorch takes under parameter constraints, has its own rule.
"""
STARTS: dict[str, Any] = {"num_restarts": 4, "raw_samples": 512}
"""Ax's 20 restarts from 1024 points find the same maxima in three times as many evaluations."""
RAW_SAMPLES_A_DIMENSION = 64
"""Raw samples per dimension for an ensemble, since each needs a value of every member; never more than for others."""
CONTINUOUS: dict[str, Any] = {
    "maxiter": 60,
    "factr": RISE / torch.finfo(torch.float64).eps,
    "pgtol": 1e-5,
    "batch_limit": 4,
    "init_batch_limit": 512,
}
HYPERVOLUMES = (qLogExpectedHypervolumeImprovement, qLogNoisyExpectedHypervolumeImprovement)
PLUG_IN = "bo_scale_plug_in"
"""Among the options of the acquisition: whether qLogNEI may be taken for `qLogPlugInExpectedImprovement`."""


class StreamingAcquisition(Acquisition):
    """Ax's acquisition, at a cost that does not grow with the observations.

    Where qLogNEI would be Ax's choice it may be expected improvement over the best posterior mean: the one draws
    jointly at all observed points, O(n³), to find out which of them matter; the other looks at their means, O(n).
    Several objectives, and feasibility where nothing feasible is known, stay Ax's choice. Optimisers have fewer starts.
    """

    @override
    def _instantiate_acquisition(self) -> None:
        plain = self.botorch_acqf_classes_with_options == [(qLogNoisyExpectedImprovement, {})]
        if plain and self.options.get(PLUG_IN):
            self.botorch_acqf_classes_with_options = [(qLogPlugInExpectedImprovement, {})]
        self.botorch_acqf_classes_with_options = [
            self._sampled(*each) for each in self.botorch_acqf_classes_with_options
        ]
        super()._instantiate_acquisition()

    def _sampled(
        self, kind: type[AcquisitionFunction], options: dict[str, Any]
    ) -> tuple[type[AcquisitionFunction], dict[str, Any]]:
        """Reduce the draws from each member of an ensemble in hypervolumes, unless options give their number."""
        if kind not in HYPERVOLUMES:
            return kind, options
        build_kernel()
        if {"sampler", "mc_samples"} & options.keys() or not is_ensemble(self._model):
            return kind, options
        centre = torch.tensor(self.search_space_digest.bounds, dtype=self.dtype, device=self.device).mean(1)
        posterior: Any = self._model.posterior(centre.unsqueeze(0))
        return kind, {**options, "sampler": get_sampler(posterior, torch.Size([hypervolume_draws(self._model)]))}

    @override
    def optimize(  # type: ignore[override]
        self,
        n: int,
        search_space_digest: SearchSpaceDigest,
        optimizer_options: dict[str, Any] | None = None,
        **arguments: Any,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Optimise as Ax does, with fewer starting points unless options give their number."""
        choices = mk_discrete_choices(search_space_digest, arguments.get("fixed_features"))
        optimizer = determine_optimizer(search_space_digest, self.acqf, choices)
        given = dict(optimizer_options or {})
        if optimizer == "optimize_acqf":
            given = {**STARTS, **self._fewer(), **given, "options": {**CONTINUOUS, **given.get("options", {})}}
        elif optimizer in ("optimize_acqf_mixed", "optimize_acqf_mixed_alternating"):
            given = {**STARTS, **self._fewer(), **given}
        rows = max(len(X) for X in self.surrogate.Xs)
        with scipy_on_one_thread(), threads_for(rows):
            return super().optimize(n, search_space_digest, optimizer_options=given, **arguments)

    def _fewer(self) -> dict[str, Any]:
        """Reduce the starting points for an ensemble in few dimensions."""
        if not is_ensemble(self._model):
            return {}
        enough = RAW_SAMPLES_A_DIMENSION * len(self.search_space_digest.feature_names)
        return {"raw_samples": min(STARTS["raw_samples"], enough)}


@acqf_input_constructor(qLogPlugInExpectedImprovement)
def _plug_in_inputs(
    model: Model,
    training_data: SupervisedDataset | dict[Any, SupervisedDataset],
    X_baseline: Tensor | None = None,
    objective: MCAcquisitionObjective | None = None,
    posterior_transform: PosteriorTransform | None = None,
    X_pending: Tensor | None = None,
    constraints: list[Callable[[Tensor], Tensor]] | None = None,
    sampler: MCSampler | None = None,
    eta: Tensor | float = 1e-3,
    fat: bool = True,
    tau_max: float = TAU_MAX,
    tau_relu: float = TAU_RELU,
    **known_to_others: Any,
) -> dict[str, Any]:
    """Return constructor arguments from Ax's. If no observed point is in the space, all observed points count."""
    if X_baseline is None:
        some = training_data if isinstance(training_data, SupervisedDataset) else next(iter(training_data.values()))
        X_baseline = some.X
    smoothing = {"eta": eta, "fat": fat, "tau_max": tau_max, "tau_relu": tau_relu}
    return {
        **smoothing,
        "model": model,
        "X_baseline": X_baseline,
        "objective": objective,
        "posterior_transform": posterior_transform,
        "X_pending": X_pending,
        "constraints": constraints,
        "sampler": sampler or SobolQMCNormalSampler(torch.Size([SAMPLES])),
    }
