"""Acquisition functions that BoTorch lacks, or computes by sampling what has a closed form."""

from collections.abc import Callable
from typing import Any

import torch
from botorch.acquisition.acquisition import AcquisitionFunction
from botorch.acquisition.analytic import LogExpectedImprovement
from botorch.acquisition.logei import qLogExpectedImprovement
from botorch.acquisition.objective import (
    MCAcquisitionObjective,
    PosteriorTransform,
    ScalarizedPosteriorTransform,
)
from botorch.acquisition.utils import compute_best_feasible_objective, get_infeasible_cost
from botorch.models.model import Model, ModelList
from botorch.models.transforms.input import AffineInputTransform
from botorch.models.transforms.outcome import Standardize
from botorch.sampling.base import MCSampler
from botorch.utils.objective import compute_feasibility_indicator
from botorch.utils.transforms import average_over_ensemble_models, is_ensemble, t_batch_mode_transform
from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from bo_scale.errors import InvalidDataError
from bo_scale.gp.conditioning import Conditioned
from bo_scale.gp.integrals import IntegratedVariance, PointwiseIntegral, WeightSpaceIntegral
from bo_scale.gp.processes import PosteriorProcess
from bo_scale.gp.weight_space.features.grid.features import box_gram
from bo_scale.gp.weight_space.posterior import WeightSpacePosterior
from bo_scale.models.errors import UnsupportedError
from bo_scale.models.shell.door import require_inputs
from bo_scale.models.shell.model import ScalableModel
from bo_scale.models.wiski.model import WISKI

SAMPLES, SAMPLES_OF_MEMBERS = 128, 32
"""Draws of the objective; in hypervolumes of each member of an ensemble, which costs as much as another model."""


def hypervolume_draws(model: Model) -> int:
    """Return the default number of posterior draws for an acquisition function of several objectives."""
    return SAMPLES_OF_MEMBERS if is_ensemble(model) else SAMPLES


class qLogPlugInExpectedImprovement(qLogExpectedImprovement):
    """log E[(max f(X) − best)⁺] with best = max E[f(x)] over the observed points: expected improvement under noise.

    This is BoTorch's qLogExpectedImprovement with the best posterior mean "plugged in" as the best value. Under noise,
    the best observation is too optimistic. qLogNoisyExpectedImprovement integrates over the unknown best value, by
    joint draws at all observed points. The plug-in needs no such draws: it evaluates the model at X alone.
    [Picheny et al. 2013]

    Args:
        model: Any BoTorch model without fantasies.
        X_baseline: Observed points `n × d`.
        sampler: As for qLogExpectedImprovement.
        objective: As for qLogExpectedImprovement.
        posterior_transform: As for qLogExpectedImprovement.
        X_pending: As for qLogExpectedImprovement.
        constraints: As for qLogExpectedImprovement. The best value is then over points with feasible means. If there
            are none, a lower bound on the objective takes its place.
        **smoothing: eta, fat, tau_max and tau_relu, as for qLogExpectedImprovement.

    Raises:
        UnsupportedError: if the model holds fantasies or is batched.
        InvalidDataError: if there are no observed points.
    """

    def __init__(
        self,
        model: Model,
        X_baseline: Tensor,
        sampler: MCSampler | None = None,
        objective: MCAcquisitionObjective | None = None,
        posterior_transform: PosteriorTransform | None = None,
        X_pending: Tensor | None = None,
        constraints: list[Callable[[Tensor], Tensor]] | None = None,
        **smoothing: Any,
    ) -> None:
        if model.batch_shape and not is_ensemble(model):
            raise UnsupportedError(
                "model: holds fantasies or is batched, so it has several best values. Use a model without batches."
            )
        if len(X_baseline) == 0:
            raise InvalidDataError("X_baseline: no points. Give the observed ones.")
        means = posterior_means(model, X_baseline)
        values = means if posterior_transform is None else posterior_transform.evaluate(means)
        if objective is not None:
            values = objective(values, X_baseline)
        worst = None
        if constraints is not None and not bool(compute_feasibility_indicator(constraints, means).any()):
            some = X_baseline[:: 1 + len(X_baseline) // 32]  # BoTorch's own bound looks 10 % beyond these points
            worst = -get_infeasible_cost(some, model, objective, posterior_transform)
        best = compute_best_feasible_objective(
            means, values.reshape(len(means)), constraints, model, infeasible_obj=worst
        )
        super().__init__(
            model, best, sampler, objective, posterior_transform, X_pending, constraints=constraints, **smoothing
        )
        closed = (
            objective is None and constraints is None and (model.num_outputs == 1 or posterior_transform is not None)
        )
        self._of_one_point = LogExpectedImprovement(model, best, posterior_transform) if closed else None

    @override
    def forward(self, X: Tensor) -> Tensor:
        """Return the values `b` at X, `b × q × d`; in closed form for a single point with nothing pending."""
        if self._of_one_point is None or X.shape[-2] > 1 or self.X_pending is not None:
            return super().forward(X)
        return self._of_one_point(X)


def posterior_means(model: Model, X: Float[Tensor, "n d"]) -> Float[Tensor, "n m"]:
    """Return posterior means at points, in chunks; for an ensemble, those of the mixture."""
    with torch.no_grad():
        if isinstance(model, ScalableModel):
            return torch.cat([model.posterior_mean(part) for part in X.split(100_000)])
        if isinstance(model, ModelList):
            members: list[Any] = list(model.models)
            return torch.cat([posterior_means(each, X) for each in members], -1)
        posteriors: list[Any] = [model.posterior(part.unsqueeze(1)) for part in X.split(1000)]
        means = [each.mixture_mean if hasattr(each, "mixture_mean") else each.mean for each in posteriors]
        return torch.cat(means).squeeze(-2)


class qNegIntegratedPosteriorVariance(AcquisitionFunction):
    """−∫ Var[f(z) | data, X] dz: the negative uncertainty that is left after measuring at X. Larger is better.

    BoTorch has an acquisition function of the same name. This one has the same values, in closed form:
    tr(A⁻¹M_q) − V₀, with A the covariance of the new observations and M_q = (1/N) Σ_z k(X, z) k(z, X). For a
    weight-space model an evaluation costs O(q (k + q) s), whatever the number of observations and of integration
    points. Its gradient is exact.

    Args:
        model: A model of this package.
        mc_points: Integration points `N × d` in raw units. None integrates exactly over the box of a WISKI's bounds;
            its input transform must then be affine.
        sampler: Ignored; it is there for BoTorch's signature.
        posterior_transform: A ScalarizedPosteriorTransform, required for several outputs.
        X_pending: Points `n' × d` that are being measured already.
        weights: Weights of the N integration points. They are normalised to sum to one.

    Raises:
        UnsupportedError: for another model, for an outcome transform that is not linear, or if integration points are
            required.
        InvalidDataError: for weights of another number, negative ones, or zeros alone, or points that do not fit.
    """

    def __init__(
        self,
        model: Model,
        mc_points: Tensor | None = None,
        sampler: MCSampler | None = None,
        posterior_transform: PosteriorTransform | None = None,
        X_pending: Tensor | None = None,
        weights: Float[Tensor, " N"] | None = None,
    ) -> None:
        super().__init__(model=model)
        if not isinstance(model, ScalableModel):
            raise UnsupportedError(
                f"model: {type(model).__name__} is not a model of bo_scale. Use BoTorch's acquisition of this name."
            )
        model.eval()
        if mc_points is not None:
            _require_points(mc_points, model.num_inputs)
        self._num_inputs = model.num_inputs
        self.sampler = sampler
        self.posterior_transform = posterior_transform
        self._scales = _variance_scales(model, posterior_transform)
        self._noise = [model.measurement_noise(j) for j in range(model.num_outputs)]
        processes = model.processes
        self._given_data = [_integral(model, j, process, mc_points, weights) for j, process in enumerate(processes)]
        self.set_X_pending(X_pending)

    @override
    def set_X_pending(self, X_pending: Tensor | None = None) -> None:
        """Treat points as already measured. This costs O(p s q) once; later evaluations cost no more than without."""
        super().set_X_pending(X_pending)
        self._integrals = self._given_data
        if self.X_pending is not None and len(self.X_pending) > 0:
            pending = self.model.transform_inputs(self.X_pending).double()
            with torch.no_grad():
                self._integrals = [
                    integral.after(pending, noise, self._noise_factor(pending, j))
                    for j, (integral, noise) in enumerate(zip(self._given_data, self._noise))
                ]

    def _noise_factor(self, X: Float[Tensor, "*b q d"], output: int) -> Float[Tensor, "*b q"] | None:
        """Return the factors of the noise variance at transformed points; None for one."""
        model: Any = self.model
        factor: Tensor | None = model.inference.local_scale(X, output)
        return factor

    @override
    @t_batch_mode_transform()
    @average_over_ensemble_models  # type: ignore[arg-type]
    def forward(self, X: Float[Tensor, "*b q d"]) -> Float[Tensor, "*c"]:
        """Return the negative integrated variance after measuring at X too, in squared units of the raw targets."""
        require_inputs(X, self._num_inputs, device=self._noise[0].device)
        transformed = self.model.transform_inputs(X).double()
        parts = [
            scale * integral(transformed, noise, self._noise_factor(transformed, j))
            for j, (scale, noise, integral) in enumerate(zip(self._scales, self._noise, self._integrals, strict=True))
        ]
        return -torch.stack(parts).sum(0).to(X.dtype)


def _require_points(points: Tensor, dimension: int) -> None:
    """Refuse integration points that are none, or not finite points of the model's inputs."""
    require_inputs(points, dimension, "mc_points")
    if points.shape[-2] == 0:
        raise InvalidDataError("mc_points: there are none. Pass at least one, or None for the box of a WISKI.")


def _integral(
    model: ScalableModel,
    output: int,
    process: PosteriorProcess,
    mc_points: Tensor | None,
    weights: Float[Tensor, " N"] | None,
) -> IntegratedVariance:
    if mc_points is None:
        return _box_integral(model, output, process)
    points = model.transform_inputs(mc_points.detach()).to(torch.float64)
    points = points.reshape(-1, points.shape[-1])
    share = points.new_ones(len(points)) if weights is None else weights.detach().to(points)
    if len(share) != len(points) or not (share >= 0).all() or share.sum() == 0:
        raise InvalidDataError(f"weights: expected {len(points)} numbers, none negative and not all zero.")
    share = share / share.sum()
    extra = model.inference.extra_variance(points, output)
    offset = points.new_zeros(()) if extra is None else (share * extra).sum().detach()
    if isinstance(process, WeightSpacePosterior):
        gram = process.features.empty_gram(points.device)
        size = process.features.chunk_size()
        for chunk, part in zip(points.split(size), share.split(size)):
            gram = gram.add_rows(process.features(chunk), part)
        return WeightSpaceIntegral.over(process, gram, offset)
    return PointwiseIntegral.over(process, points, share, offset)


def _box_integral(model: ScalableModel, output: int, process: PosteriorProcess) -> IntegratedVariance:
    transform = getattr(model, "input_transform", None)
    affine = transform is None or isinstance(transform, AffineInputTransform)
    if not isinstance(model, WISKI) or isinstance(process, Conditioned) or not affine or model.projection is not None:
        raise UnsupportedError(
            "mc_points: required, except for a WISKI with an affine input_transform and no projection. Pass some."
        )
    if not isinstance(process, WeightSpacePosterior):
        raise UnsupportedError("mc_points: needed for a posterior by a sparse precision matrix. Pass some.")
    with torch.no_grad():
        offset = model.mean_added_variance(output)
        return WeightSpaceIntegral.over(process, box_gram(process.features), offset)


def _variance_scales(model: ScalableModel, posterior_transform: PosteriorTransform | None) -> Tensor:
    """Return each output's factor: squared weight of the scalarisation × squared scale of the targets."""
    scales = torch.ones(model.num_outputs, dtype=torch.float64, device=model.train_inputs[0].device)
    if posterior_transform is not None:
        if type(posterior_transform) is not ScalarizedPosteriorTransform:
            raise UnsupportedError(
                f"posterior_transform: {type(posterior_transform).__name__} is not a linear scalarisation. Use "
                f"ScalarizedPosteriorTransform."
            )
        scales = torch.as_tensor(posterior_transform.weights).to(scales).square()
    elif model.num_outputs > 1:
        raise UnsupportedError("posterior_transform: several outputs need a ScalarizedPosteriorTransform.")
    outcome = getattr(model, "outcome_transform", None)
    if outcome is not None:
        if type(outcome) is not Standardize:
            raise UnsupportedError(
                f"outcome_transform: {type(outcome).__name__} does not scale variances by a constant. Use "
                f"Standardize, or none."
            )
        scales = scales * outcome.stdvs.to(scales).reshape(-1).square()
    return scales
