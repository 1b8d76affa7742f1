"""Predictions of a model: noise, inference at the present hyperparameters, prior and posterior."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from botorch.acquisition.objective import PosteriorTransform
from botorch.models.transforms.outcome import Standardize
from botorch.posteriors.gpytorch import GPyTorchPosterior
from botorch.posteriors.posterior import Posterior
from botorch.posteriors.transformed import TransformedPosterior
from gpytorch.distributions import MultivariateNormal
from jaxtyping import Float
from linear_operator.operators import DenseLinearOperator
from torch import Tensor
from typing_extensions import override

from bo_scale.gp.inference import Inference
from bo_scale.gp.processes import PosteriorProcess
from bo_scale.gp.waiting import reading_each, reading_once, same
from bo_scale.models.errors import UnsupportedError
from bo_scale.models.shell.added_noise import added_noise, batch_of
from bo_scale.models.shell.any_units import in_any_units
from bo_scale.models.shell.cloning import clone_module, subset_batch
from bo_scale.models.shell.data import ModelWithData, freeze
from bo_scale.models.shell.distributions import inputs_of_outputs, predicted, prior_of, standardisation
from bo_scale.models.shell.door import require_inputs, require_outputs
from bo_scale.models.shell.lending import borrows, child_of, own_modules, settle
from bo_scale.models.shell.student_t import StudentTNoise


class PredictiveModel(ModelWithData):
    """A model that predicts by an inference, which it derives anew whenever a hyperparameter has changed. Abstract."""

    # ------------------------------------------------------------------ noise

    def _inference_noise(self) -> Float[Tensor, " m"]:
        """Return σ² as inference uses it; a family may add its approximation error."""
        return self._noise_scale()

    def measurement_noise(self, output: int) -> Float[Tensor, "*s"]:
        """Return the noise variance of a future measurement as inference will use it; one per sample of an ensemble.

        A factor that differs between places (`inference.local_scale`) is not in it.
        """
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
    def train(self, mode: bool = True) -> "PredictiveModel":
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
    def _apply(self, fn: Any, recurse: bool = True) -> "PredictiveModel":
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
    def subset_output(self, idcs: list[int]) -> "PredictiveModel":
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
    def transform_inputs(self, X: Tensor, input_transform: torch.nn.Module | None = None) -> Tensor:
        """Return inputs after the given transform, or the model's own."""
        transform = child_of(self, "input_transform") if input_transform is None else input_transform
        return X if transform is None else transform(X)

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
        batch = batch_of(self, inference, X)
        noise = added_noise(self, inference, outputs, observation_noise, X, batch)
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
