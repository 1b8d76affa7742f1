"""The BoTorch shell, written once: posteriors, conditioning and fitting of every model."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import numpy as np
import torch
from botorch.acquisition.objective import PosteriorTransform
from botorch.models.model import FantasizeMixin
from botorch.models.transforms.outcome import Standardize
from botorch.models.utils.assorted import fantasize as fantasize_flag
from botorch.posteriors.gpytorch import GPyTorchPosterior
from botorch.posteriors.posterior import Posterior
from botorch.posteriors.transformed import TransformedPosterior
from botorch.sampling.base import MCSampler
from botorch.sampling.pathwise.paths import SamplePath
from botorch.sampling.pathwise.posterior_samplers import DrawMatheronPaths
from gpytorch.distributions import MultivariateNormal
from gpytorch.mlls import MarginalLogLikelihood
from jaxtyping import Float
from linear_operator.operators import DenseLinearOperator
from torch import Size, Tensor
from typing_extensions import override

from bo_scale.errors import InvalidDataError, WrongTypeError
from bo_scale.gp.inference import Inference
from bo_scale.gp.processes import PosteriorProcess
from bo_scale.gp.waiting import reading_each, reading_once, same
from bo_scale.models.errors import UnsupportedError
from bo_scale.models.fitting.checks import warn_of_missed
from bo_scale.models.fitting.evidence import loss_of
from bo_scale.models.fitting.report import FitReport, Recorder
from bo_scale.models.fitting.strategies import FitOptions
from bo_scale.models.fitting.student_t import weighed_rows
from bo_scale.models.shell.any_units import in_any_units
from bo_scale.models.shell.cloning import clone_module, subset_batch
from bo_scale.models.shell.conditioning import fantasised, new_inputs, streamed
from bo_scale.models.shell.data import ModelWithData, freeze
from bo_scale.models.shell.distributions import inputs_of_outputs, predicted, prior_of, standardisation
from bo_scale.models.shell.door import (
    broadcasts,
    require_device,
    require_finite,
    require_given,
    require_inputs,
    require_noise,
    require_outputs,
    require_tensors,
)
from bo_scale.models.shell.lending import borrows, child_of, own_modules, settle
from bo_scale.models.shell.row_noise import relative_noise
from bo_scale.models.shell.student_t import StudentTNoise
from bo_scale.threads import scipy_on_one_thread, threads_for
from bo_scale.training.time_limit import is_over, time_limit


class ScalableModel(ModelWithData, FantasizeMixin):
    """A GP surrogate with BoTorch's Model interface. Abstract: each family defines its posterior given data.

    All models share this behaviour: the posterior is derived anew whenever a hyperparameter has changed; conditioning
    returns a new model; computation is in float64, whatever the model's dtype.
    """

    _recorder: Recorder | None = None
    fit_report: FitReport | None = None
    """Report of the last fit by `fit_gpytorch_mll`; None before the first."""
    choice: Any = None
    """The `ChoiceReport` of a model that `bo_scale.choose` made; otherwise None."""

    # ------------------------------------------------------------------ noise

    def _inference_noise(self) -> Float[Tensor, " m"]:
        """Return σ² as inference uses it; a family may add its approximation error."""
        return self._noise_scale()

    def measurement_noise(self, output: int) -> Float[Tensor, "*s"]:
        """Return the noise variance of a future measurement as inference will use it; one per sample of an ensemble."""
        sampled = self.inference.sampled_noise
        if sampled is not None:
            return sampled
        inflation = (self._inference_noise() / self._noise_scale()).detach()
        return (self.mean_noise.to(torch.float64) * inflation)[output]

    @property
    def mean_noise(self) -> Float[Tensor, " m"]:
        """The learned noise variance, or the mean of the known ones, in squared units of the transformed targets."""
        if self.knows_noise:
            noise: Tensor = self.likelihood.noise_covar.observed.reshape(self._num_outputs, -1)
            if noise.shape[-1] == 0:
                raise UnsupportedError(
                    "observation_noise: no variances are known before the first observation. Pass them as a tensor."
                )
            return noise.mean(-1)
        return self._noise_scale().detach().to(self._dtype)

    @property
    def suspects(self) -> list[int]:
        """The rows that a model with `StudentTNoise` takes for outliers, the farthest first, since its last fit.

        Their expected residual is more than three noise standard deviations, in some output. Empty for other models.
        """
        if not isinstance(self.likelihood, StudentTNoise) or self._rows is None:
            return []
        return self.likelihood.suspects(self._rows)

    # ------------------------------------------------------------------ modes, devices, copies

    @override
    def train(self, mode: bool = True) -> "ScalableModel":
        """Set training or evaluation mode. Transforms stay as the constructor learned them."""
        if mode != self.training:
            own_modules(self)
        super().train(mode)
        freeze(self)
        return self

    @override
    def _owned_modules(self) -> None:
        freeze(self)
        self._tell_likelihood()

    @override
    def _apply(self, fn: Any, recurse: bool = True) -> "ScalableModel":
        own_modules(self)
        settle(self)
        before = self._dtype, self._device
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if (self._dtype, self._device) == before:
            return self
        moved = torch.empty(0, dtype=self._dtype, device=self._device)
        if self._rows is not None:
            self._take_rows(self._rows.to(moved))
        if self._inference is not None:
            self._inference = self._inference.settled().to(moved.device)
        if self._fantasies is not None:
            X, Y, D = self._fantasies
            self._fantasies = X.to(moved), Y.to(moved), D.to(moved)
            self._tell_likelihood()
        return self

    def _hyperparameters(self) -> Float[Tensor, " h"]:
        """Return the values of all hyperparameters in a row. Version counters would miss some of GPyTorch's changes."""
        return torch.cat([p.detach().reshape(-1).to(torch.float64) for p in self.parameters()])

    @property
    @override
    def inference(self) -> Inference:
        """The frozen inference at the current hyperparameters; computed anew if they have changed."""
        found = self._known_inference()
        if found is None:
            with torch.no_grad(), _outside_transforms(), reading_each():
                found = self._inference = self._infer(self._hyperparameters())
        return found

    def _known_inference(self) -> Inference | None:
        """Return the present inference if it is at the current hyperparameters. Only this method compares them."""
        found = self._inference
        if found is None or self._fantasies is not None or borrows(self):
            return found
        theta = self._hyperparameters()
        alike = theta.device == found.theta.device and theta.shape == found.theta.shape
        return found if alike and same(theta, found.theta) else None

    @property
    def processes(self) -> tuple[PosteriorProcess, ...]:
        """The posterior processes, one per output, in units of transformed inputs and targets."""
        return self.inference.processes

    @override
    def subset_output(self, idcs: list[int]) -> "ScalableModel":
        """Return a model of some of the outputs, with the same hyperparameters and data."""
        outputs = require_outputs(idcs, self._num_outputs, "idcs")
        subset = clone_module(self)
        if self._num_outputs > 1:
            for part in (subset.mean_module, subset.covar_module, subset.likelihood):
                subset_batch(part, outputs, self._num_outputs)
        subset._num_outputs = len(outputs)
        if self._rows is not None:
            subset._take_rows(self._rows.outputs(outputs))
        if hasattr(self, "outcome_transform"):
            subset.outcome_transform = self.outcome_transform.subset_output(outputs)
        if self._fantasies is not None:
            X, Y, D = self._fantasies
            subset._fantasies = X, Y[..., outputs], D[..., outputs]
            subset._tell_likelihood()
        subset._subset_own(outputs)
        known = self._known_inference()
        subset._inference = None if known is None else known.outputs(outputs).at_theta(subset._hyperparameters())
        return subset

    # ------------------------------------------------------------------ prior, for leaving rows out

    @override
    def forward(self, X: Tensor) -> MultivariateNormal:
        """Return the prior, like ExactGP's `forward`: at transformed inputs in eval mode, at raw in train mode: `… q`.

        In train mode its evidence is the objective of the model's own fit if features approximate the kernel, and the
        exact GP's otherwise. It knows nothing of decay, nor of learned noise that differs between rows. O(n³): prefer
        `fit_gpytorch_mll`.

        In eval mode it is the prior that inference conditions, with shape `… m × q` for several outputs. BoTorch's
        `loo_cv` treats this prior and the likelihood, K and N, as the whole model and predicts row i from the others:

        μ_i = y_i − [A⁻¹(y − μ)]_i/[A⁻¹]_ii,   σ²_i = 1/[A⁻¹]_ii,   A = K + N.

        Raises:
            UnsupportedError: in eval mode, if these would not be this model's predictions without the row.
        """
        if self.training:
            X = self.transform_inputs(X)
            return prior_of(self._training_covariance(X), self._constants(), X)
        reason = self._unlike_prior()
        if reason is not None:
            raise UnsupportedError(f"{type(self).__name__}: leave-one-out has no closed form here: {reason}.")
        parts = inputs_of_outputs(X, self._num_outputs)
        every = [self._prior_covariance(part.to(torch.float64), j) for j, part in enumerate(parts)]
        K = torch.stack(every, -3) if self._num_outputs > 1 else every[0]
        mean = self._constants().reshape(*self._aug_batch_shape, 1).expand(K.shape[:-1])
        return MultivariateNormal(mean.to(X), DenseLinearOperator(K.to(X)))

    def _training_covariance(self, X: Float[Tensor, "*b q d"]) -> Any:
        """Return the covariance of all outputs at transformed inputs whose evidence a training loop maximises."""
        return self.covar_module(X)

    def _unlike_prior(self) -> str | None:
        """Return why `forward` and the likelihood do not determine leave-one-out predictions; None if they do."""
        if self._fantasies is not None:
            return "the model holds fantasies; use the model that they were made from"
        if self._rows is None:
            return "the model keeps no rows; use keep_data=True"
        known = self.knows_noise
        if not known and bool((self._rows.D != 1).any()):
            return "some observations have noise variances of their own, which the likelihood does not have"
        return None

    # ------------------------------------------------------------------ posterior

    @override
    def __call__(self, X: Tensor) -> MultivariateNormal:
        """Return the posterior at transformed inputs in eval mode, the prior at raw inputs in train mode: `… q`."""
        if self.training:
            return self.forward(X)
        every = list(range(self._num_outputs))
        return predicted(self.inference, X, every, batch=self._batch_shape, dtype=X.dtype)

    @override
    def posterior(  # type: ignore[override]
        self,
        X: Tensor,
        output_indices: list[int] | None = None,
        observation_noise: bool | Tensor | None = False,
        posterior_transform: PosteriorTransform | None = None,
        **kwargs: Any,
    ) -> GPyTorchPosterior | TransformedPosterior | Posterior:
        """Return the posterior at raw inputs X: `… q d`.

        Args:
            X: Raw inputs; the q points are considered jointly.
            output_indices: Outputs to return, in this order; None for all. Ignored for one output, as by BoTorch.
            observation_noise: True adds the learned noise (with `StudentTNoise` the mean squared residual, outliers
                included), or the mean of the known variances; a tensor `… q m` or `… 1 m` (of all outputs), in
                transformed units, is added as it is.
            posterior_transform: A transform of the posterior, applied last.
            **kwargs: Ignored, as BoTorch's models do.

        Raises:
            InvalidDataError: for NaN, inf, another number of columns, or variances that are not one for each value.
            InvalidArgumentError: for outputs that are not there.
        """
        if self.training:
            self.eval()
        posterior: Any = reading_once(self._device, lambda: self._posterior(X, output_indices, observation_noise))
        return posterior if posterior_transform is None else in_any_units(posterior_transform(posterior=posterior, X=X))

    def _posterior(
        self, X: Tensor, output_indices: list[int] | None, observation_noise: bool | Tensor | None
    ) -> GPyTorchPosterior | TransformedPosterior:
        require_inputs(X, self._num_inputs, device=self._device)
        X = self.transform_inputs(X)
        every = list(range(self._num_outputs))
        one = self._num_outputs == 1  # a ModelListGP passes its own indices to models of one output
        outputs = every if output_indices is None or one else require_outputs(output_indices, self._num_outputs)
        inference = self.inference
        batch = _batch_of(self, inference, X)
        noise = _added_noise(self, inference, outputs, observation_noise, X, batch)
        outcome_transform = child_of(self, "outcome_transform")
        standardised = standardisation(outcome_transform, outputs)
        with _outside_transforms():
            predictions = predicted(inference, X, outputs, noise, standardised, batch, X.dtype)
        posterior: Any = GPyTorchPosterior(distribution=predictions)
        if standardised is None and outcome_transform is not None:
            transform = outcome_transform if outputs == every else outcome_transform.subset_output(outputs)
            posterior = transform.untransform_posterior(posterior, X=X)
        return posterior

    def posterior_mean(self, X: Tensor) -> Tensor:
        """Return the mean at raw inputs `… q d`: `… q m`, in raw units. Cheaper than a posterior for many points."""
        if self.training:
            self.eval()
        return reading_once(self._device, lambda: self._posterior_mean(X))

    def _posterior_mean(self, X: Tensor) -> Tensor:
        require_inputs(X, self._num_inputs, device=self._device)
        transformed = self.transform_inputs(X)
        located = transformed.to(torch.float64)
        means = torch.stack([process.mean(located).to(X.dtype) for process in self.processes], -1)
        outcome_transform = child_of(self, "outcome_transform")
        if outcome_transform is None:
            return means
        if type(outcome_transform) is not Standardize:
            posterior: Any = self.posterior(X)
            return posterior.mean
        if outcome_transform._outputs is not None:
            return outcome_transform.untransform(means, X=transformed)[0]
        return outcome_transform.means + outcome_transform.stdvs * means

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

    @override
    def transform_inputs(self, X: Tensor, input_transform: torch.nn.Module | None = None) -> Tensor:
        """Return inputs after the given transform, or the model's own."""
        transform = child_of(self, "input_transform") if input_transform is None else input_transform
        return X if transform is None else transform(X)

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

    def compute_custom_loss(self, mll: MarginalLogLikelihood, **kwargs: Any) -> Tensor:
        """Return −(log evidence + log priors)/n, the loss that BoTorch's fit minimises for this model."""
        _require_fittable(self)
        return loss_of(self, mll, self._log_evidence())


@contextmanager
def _outside_transforms() -> Iterator[None]:
    """Say what to do if an inference is made within a transform of `torch.func`, which would trace it."""
    try:
        yield
    except RuntimeError as error:
        if "functorch" in str(error) or "doesn't have storage" in str(error):
            raise UnsupportedError(
                "torch.func: the model has not predicted yet. Call model.posterior(X) once before the transform."
            ) from error
        raise


def _require_fittable(model: ScalableModel) -> None:
    if model._fantasies is not None:
        raise UnsupportedError("a model with fantasies cannot be fitted; fit the model it was made from.")


def _require_batches(model: ScalableModel, X: Tensor, Y: Tensor) -> None:
    """Refuse values whose batch dimensions are not those of their inputs."""
    if X.ndim == Y.ndim == 2:
        return
    batch = _batch_of(model, model.inference, X)
    try:
        torch.broadcast_shapes(batch, Y.shape[:-2])
    except RuntimeError:
        raise InvalidDataError(
            f"X, Y: batch shapes {tuple(X.shape[:-2])} and {tuple(Y.shape[:-2])} do not fit. Give values f × b × q × m "
            "at inputs b × q × d."
        ) from None


def _batch_of(model: ScalableModel, inference: Inference, X: Tensor) -> torch.Size:
    """Return the batch shape of predictions at inputs, with the model's fantasies and its samples."""
    here = torch.Size([*X.shape[:-2], *inference.samples_shape])
    if not model._batch_shape or here == model._batch_shape:
        return here
    try:
        return torch.broadcast_shapes(here, model._batch_shape)
    except RuntimeError:
        raise InvalidDataError(
            f"X: batch shape {tuple(X.shape[:-2])} does not fit the model's fantasies of batch shape "
            f"{tuple(model._batch_shape)}. Give X without batch dimensions, or with these."
        ) from None


def _added_noise(
    model: ScalableModel,
    inference: Inference,
    outputs: list[int],
    given: bool | Tensor | None,
    X: Tensor,
    batch: torch.Size,
) -> Tensor | None:
    """Return noise variances … q k that predictions at X add, in transformed units; None for none."""
    sampled = inference.sampled_noise
    if isinstance(given, Tensor):
        require_tensors(observation_noise=given)
        require_device(X.device, observation_noise=given)
        shape = [*batch, X.shape[-2], model.num_outputs]
        if sampled is not None and given.ndim > 2 and not broadcasts(given.shape, shape):  # shared by the samples
            require_noise(given, [*batch[:-1], *shape[-2:]], "observation_noise")
            return given[..., outputs].unsqueeze(-3)
        require_noise(given, shape, "observation_noise")
        return given[..., outputs]
    if given is None:
        return None
    if not isinstance(given, bool | np.bool_):
        raise WrongTypeError(f"observation_noise: expected True, False or a tensor of variances, got {given!r}.")
    if not given:
        return None
    if sampled is not None:
        return sampled.reshape(-1, 1, 1)
    noise = model.mean_noise
    if isinstance(model.likelihood, StudentTNoise) and model.rows is not None and not fantasize_flag.on():
        squares = model.likelihood.mean_squares(model.rows)  # fantasies are conditioned as regular values
        noise = noise * squares.to(noise)
    return (noise if outputs == list(range(model.num_outputs)) else noise[outputs]).unsqueeze(0)


@DrawMatheronPaths.register(ScalableModel)  # type: ignore[untyped-decorator]
def _draw_matheron_paths(model: ScalableModel, *, sample_shape: Size, **_: Any) -> SamplePath:
    """Draw functions for BoTorch. The samplers it passes approximate what is exact here, and are not used.

    Registered with the model: whoever has one need not import the package of decisions, which draws.
    """
    return import_module("bo_scale.decisions.paths").draw_posterior_functions(model, sample_shape)
