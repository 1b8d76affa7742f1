"""The BoTorch shell, written once: conditioning, fantasies and fitting of every model."""

from importlib import import_module
from typing import Any

import torch
from botorch.models.model import FantasizeMixin
from botorch.models.transforms.outcome import Standardize
from botorch.models.utils.assorted import fantasize as fantasize_flag
from botorch.sampling.base import MCSampler
from botorch.sampling.pathwise.paths import SamplePath
from botorch.sampling.pathwise.posterior_samplers import DrawMatheronPaths
from gpytorch.mlls import MarginalLogLikelihood
from jaxtyping import Float
from torch import Size, Tensor
from typing_extensions import override

from bo_scale.errors import InvalidDataError
from bo_scale.gp.waiting import reading_once
from bo_scale.models.errors import UnsupportedError
from bo_scale.models.fitting.checks import warn_of_missed
from bo_scale.models.fitting.evidence import loss_of
from bo_scale.models.fitting.report import FitReport, Recorder
from bo_scale.models.fitting.strategies import FitOptions
from bo_scale.models.fitting.student_t import weigh_anew, weighed_rows
from bo_scale.models.shell.added_noise import batch_of
from bo_scale.models.shell.cloning import clone_module
from bo_scale.models.shell.conditioning import fantasised, new_inputs, streamed
from bo_scale.models.shell.door import (
    require_device,
    require_finite,
    require_given,
    require_inputs,
    require_noise,
    require_tensors,
)
from bo_scale.models.shell.lending import child_of, own_modules, settle
from bo_scale.models.shell.predictive import PredictiveModel
from bo_scale.models.shell.row_noise import relative_noise
from bo_scale.models.shell.student_t import StudentTNoise
from bo_scale.threads import scipy_on_one_thread, threads_for
from bo_scale.training.time_limit import is_over, time_limit


class ScalableModel(PredictiveModel, FantasizeMixin):  # type: ignore[misc]  # of two signatures of posterior
    """A GP surrogate with BoTorch's Model interface. Abstract: each family defines its posterior given data.

    All models share this behaviour: the posterior is derived anew whenever a hyperparameter has changed; conditioning
    returns a new model; computation is in float64, whatever the model's dtype.
    """

    _recorder: Recorder | None = None
    fit_report: FitReport | None = None
    """Report of the last fit by `fit_gpytorch_mll`; None before the first."""
    choice: Any = None
    """The `ChoiceReport` of a model that `bo_scale.choose` made; otherwise None."""

    # ------------------------------------------------------------------ conditioning

    @override
    def condition_on_observations(
        self, X: Tensor, Y: Tensor, noise: Tensor | None = None, **kwargs: Any
    ) -> "ScalableModel":
        """Return a new model that has also observed Y at X; this one is unchanged.

        Without batch dimensions the observations join the data, exactly and at a cost that does not grow with n. With
        batch dimensions or gradients the posterior is conditioned by Schur complement, and the new model has the batch
        shape of the fantasies.

        Args:
            X: Raw inputs `b × q × d`.
            Y: Raw values `f × b × q × m`.
            noise: Noise variances `b × q × m` in transformed units, instead of the learned noise. Required if the model
                was given `train_Yvar`. With learned noise only their ratio to it is kept, so a later fit scales both.
                Fantasies may have none: 0 counts as 1e-6 there, and is refused for observations.
            **kwargs: Ignored, as BoTorch's models do.
        """
        if self.training:
            self.eval()
        return reading_once(self._device, lambda: self._conditioned_on(X, Y, noise))

    def _conditioned_on(self, X: Tensor, Y: Tensor, noise: Tensor | None) -> "ScalableModel":
        require_inputs(X, self._num_inputs, device=self._device)
        require_given(Y=Y)
        require_tensors(noise=noise)
        require_device(X.device, Y=Y, noise=noise)
        require_finite(Y=Y, noise=noise)
        if Y.ndim < 2 or Y.shape[-1] != self._num_outputs:
            raise InvalidDataError(
                f"Y: shape {tuple(Y.shape)}, expected … × {X.shape[-2]} × {self._num_outputs}, one column an output."
            )
        transformed = new_inputs(self, X)
        outcome_transform = child_of(self, "outcome_transform")
        if outcome_transform is not None:
            Y, _ = outcome_transform(Y=Y, Yvar=None, X=transformed)
        return self._conditioned(X, transformed, Y, noise)

    @override
    def fantasize(self, X: Tensor, sampler: MCSampler, **kwargs: Any) -> "ScalableModel":  # type: ignore[override]
        """Return a model conditioned on values that it predicts at raw inputs X `b × q × d`: batch shape `f × b`.

        Args:
            X: Raw inputs; without rows, the model with a batch of f copies of the posterior.
            sampler: A sampler of f values at each.
            **kwargs: `observation_noise`, as for BoTorch's models, and arguments of `condition_on_observations`.
        """
        require_inputs(X, self._num_inputs, device=self._device)
        return super().fantasize(X, sampler, **kwargs)

    def get_fantasy_model(
        self, inputs: Tensor, targets: Tensor, noise: Tensor | None = None, **kwargs: Any
    ) -> "ScalableModel":
        """Condition on raw inputs and transformed targets; called by ModelListGP.condition_on_observations.

        Args:
            inputs: Raw inputs `b × q × d`; BoTorch leaves their transform to the model.
            targets: Transformed values; a single output needs no last dimension.
            noise: Noise variances, shaped like the targets.
            **kwargs: Ignored, as BoTorch's models do.
        """
        if self.training:
            self.eval()
        require_inputs(inputs, self._num_inputs, "inputs", self._device)
        require_given(targets=targets)
        require_tensors(noise=noise)
        q = inputs.shape[-2]

        def with_outputs(values: Tensor) -> Tensor:
            own = values.ndim > 1 and values.shape[-2:] == (q, 1)
            if q == 1 and inputs.ndim > 2:  # of shape … × 1 × 1 either way
                own = own and values.ndim > inputs.ndim
            if self._num_outputs == 1 and not own:
                values = values.unsqueeze(-1)
            return values.reshape(values.shape[-2:]) if inputs.ndim == 2 and values.shape[:-2].numel() == 1 else values

        targets, noise = with_outputs(targets), None if noise is None else with_outputs(noise)
        require_device(inputs.device, targets=targets, noise=noise)
        require_finite(targets=targets, noise=noise)
        return self._conditioned(inputs, new_inputs(self, inputs), targets, noise)

    def _conditioned(self, X: Tensor, transformed: Tensor, Y: Tensor, noise: Tensor | None) -> "ScalableModel":
        if transformed.shape[-2] != Y.shape[-2]:
            raise InvalidDataError(f"X has {transformed.shape[-2]} rows and Y {Y.shape[-2]}. Give as many of both.")
        _require_batches(self, X, Y)
        if noise is not None and noise.ndim > Y.ndim:
            Y = Y.expand(*torch.broadcast_shapes(X.shape[:-2], Y.shape[:-2]), *Y.shape[-2:])
        require_noise(noise, Y.shape, "noise", zero=self.knows_noise or fantasize_flag.on())
        D = self._relative_noise(Y, noise)
        if noise is not None and isinstance(self.likelihood, StudentTNoise) and not fantasize_flag.on():
            raise UnsupportedError("noise: StudentTNoise gives every value a variance of its own. Leave the noise out.")
        needs_grad = torch.is_grad_enabled() and (X.requires_grad or Y.requires_grad)
        if X.ndim == 2 and Y.ndim == 2 and self._fantasies is None and not needs_grad and len(X) == len(transformed):
            return streamed(self, X, transformed, Y, D.expand_as(Y))
        return fantasised(self, X, transformed, Y, D if noise is not None else D[(0,) * (Y.ndim - 2)])

    def _relative_noise(self, Y: Tensor, noise: Tensor | None) -> Tensor:
        if noise is None and not self.knows_noise:  # nothing is asked of modules, which would be copied
            return torch.ones_like(Y[..., :1, :], dtype=torch.float64)
        return relative_noise(Y, noise, self.learned_noise)

    def with_rows(self, X: Tensor, Y: Tensor, D: Tensor) -> "ScalableModel":
        """Return a new model that has also observed rows with transformed targets; this one is unchanged.

        Args:
            X: Raw inputs `q × d`.
            Y: Transformed targets `q × m`.
            D: Noise variances `q × m` relative to the learned one; absolute if noise is known.
        """
        return streamed(self, X, new_inputs(self, X), Y, D)

    # ------------------------------------------------------------------ other units

    def restandardised(self, means: Float[Tensor, "1 m"], stdvs: Float[Tensor, "1 m"]) -> "ScalableModel":
        """Return the model with targets standardised anew, (y − means)/stdvs, and the same hyperparameters. Exact.

        Use it before a fit after many new observations: priors and starting values assume standardised targets.

        Args:
            means: Means of the raw targets.
            stdvs: Standard deviations of the raw targets.

        Raises:
            UnsupportedError: if the outcome transform is not a Standardize of all outputs, or there are fantasies.
            InvalidDataError: for another shape, or standard deviations that are not positive.
        """
        old = getattr(self, "outcome_transform", None)
        if type(old) is not Standardize or old._outputs is not None or self._fantasies is not None:
            raise UnsupportedError("restandardised: needs Standardize as outcome_transform, and no fantasies.")
        require_device(self._device, means=means, stdvs=stdvs)
        for name, values in (("means", means), ("stdvs", stdvs)):
            if values.shape != old.stdvs.shape or not bool(values.isfinite().all()):
                raise InvalidDataError(
                    f"{name}: shape {tuple(values.shape)}, expected finite {tuple(old.stdvs.shape)}."
                )
        if not bool((stdvs > 0).all()):
            raise InvalidDataError("stdvs: standard deviations must be positive.")
        child = clone_module(self)
        scale = (old.stdvs / stdvs).to(torch.float64).reshape(-1)
        offset = ((old.means - means) / stdvs).to(torch.float64).reshape(-1)
        inference = child._inference_in_units(scale, offset)
        if child._rows is not None:
            Y, D = child._rows.Y * scale.to(child._rows.Y) + offset.to(child._rows.Y), child._rows.D
            child._take_rows(child._rows.with_targets(Y, D * scale.square().to(D) if self.knows_noise else D))
        child._inference = inference
        child._tell_likelihood()
        child.outcome_transform.means = means.to(old.means)
        child.outcome_transform.stdvs = stdvs.to(old.stdvs)
        child.outcome_transform._stdvs_sq = stdvs.to(old.stdvs).square()
        return child

    # ------------------------------------------------------------------ fitting

    def custom_fit(
        self,
        mll: MarginalLogLikelihood,
        closure: Any = None,
        closure_kwargs: dict[str, Any] | None = None,
        optimizer_kwargs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> MarginalLogLikelihood:
        """Fit this model in place by its strategy and set `fit_report`; called by `fit_gpytorch_mll`.

        Args:
            mll: The mll of this model; it ends in eval mode.
            closure: As for `fit_gpytorch_mll`; models that are fitted in stages refuse it.
            closure_kwargs: As for `fit_gpytorch_mll`.
            optimizer_kwargs: Options of L-BFGS, for every stage that uses it; and `timeout_sec`, the time for all
                stages together, which it exceeds by a step of each.
            **kwargs: As for `fit_gpytorch_mll`; models that are fitted in stages ignore them with a warning.

        Raises:
            UnsupportedError: for a model with fantasies, or a closure that the strategy refuses.
            FitError: if no fit succeeds; hyperparameters then keep their values.
        """
        _require_fittable(self)
        own_modules(self)
        settle(self)
        self._recorder = record = Recorder()
        try:
            given = dict(optimizer_kwargs or {})
            seconds = given.pop("timeout_sec", None)
            options = FitOptions(closure, closure_kwargs, given or None, kwargs)
            with time_limit(seconds), scipy_on_one_thread(), threads_for(self.train_targets.shape[-1]):
                with weighed_rows(self, record):
                    fitted = self._fitting.fit(self, mll, options, record)
                if is_over():
                    record.note("the time was over, so stages may have ended before they converged")
            self._check_fit(record)
            if self._may_miss_changes:
                warn_of_missed(self, record)
        finally:
            self._recorder = None
        self.fit_report = record.report(self)
        return fitted

    @override
    def _load(self, state_dict: Any, strict: bool, keep_transforms: bool, assign: bool) -> None:
        super()._load(state_dict, strict, keep_transforms, assign)
        weigh_anew(self)

    def compute_custom_loss(self, mll: MarginalLogLikelihood, **kwargs: Any) -> Tensor:
        """Return −(log evidence + log priors)/n, the loss that BoTorch's fit minimises for this model."""
        _require_fittable(self)
        return loss_of(self, mll, self._log_evidence())


def _require_fittable(model: ScalableModel) -> None:
    if model._fantasies is not None:
        raise UnsupportedError("a model with fantasies cannot be fitted; fit the model it was made from.")


def _require_batches(model: ScalableModel, X: Tensor, Y: Tensor) -> None:
    """Refuse values whose batch dimensions are not those of their inputs."""
    if X.ndim == Y.ndim == 2:
        return
    batch = batch_of(model, model.inference, X)
    try:
        torch.broadcast_shapes(batch, Y.shape[:-2])
    except RuntimeError:
        raise InvalidDataError(
            f"X, Y: batch shapes {tuple(X.shape[:-2])} and {tuple(Y.shape[:-2])} do not fit. Give values f × b × q × m "
            "at inputs b × q × d."
        ) from None


@DrawMatheronPaths.register(ScalableModel)  # type: ignore[untyped-decorator]
def _draw_matheron_paths(model: ScalableModel, *, sample_shape: Size, **_: Any) -> SamplePath:
    """Draw functions for BoTorch. The samplers it passes approximate what is exact here, and are not used.

    Registered with the model: whoever has one need not import the package of decisions, which draws.
    """
    return import_module("bo_scale.decisions.paths").draw_posterior_functions(model, sample_shape)
