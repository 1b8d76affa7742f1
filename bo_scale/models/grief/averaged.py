"""A wrapper that makes a fully Bayesian ensemble a single model, since BoTorch would average an ensemble twice."""

from typing import Any

import torch
from botorch.acquisition.objective import PosteriorTransform
from botorch.models.model import Model
from botorch.posteriors.fully_bayesian import GaussianMixturePosterior
from botorch.posteriors.gpytorch import GPyTorchPosterior
from botorch.sampling.base import MCSampler
from linear_operator import to_dense
from linear_operator.operators import DenseLinearOperator
from torch import Tensor
from typing_extensions import override

from bo_scale.models.errors import UnsupportedError
from bo_scale.models.grief.bayes import GRIEFBayes
from bo_scale.models.shell.any_units import AnyUnits, in_any_units


class AveragedEnsemble(Model):
    """A fully Bayesian ensemble as a single model, for qKnowledgeGradient, which would average an ensemble twice.

    Posteriors have the moments of the mixture. Fantasies are those of the ensemble: each sample is conditioned on its
    own values, and results are averaged over samples.

    Args:
        model: The ensemble, with one output.
    """

    def __init__(self, model: GRIEFBayes) -> None:
        super().__init__()
        self.ensemble = model

    @property
    @override
    def num_outputs(self) -> int:
        return self.ensemble.num_outputs

    @property
    @override
    def batch_shape(self) -> torch.Size:
        """The empty shape."""
        return torch.Size([])

    @override
    def posterior(
        self,
        X: Tensor,
        output_indices: list[int] | None = None,
        observation_noise: bool | Tensor | None = False,
        posterior_transform: PosteriorTransform | None = None,
        **kwargs: Any,
    ) -> GPyTorchPosterior:
        """Return the Gaussian with the mean and covariance of the mixture at raw inputs `… q d`."""
        mixture = self.ensemble.posterior(X, output_indices, observation_noise, **kwargs)
        if not isinstance(mixture, GaussianMixturePosterior):
            raise UnsupportedError("AveragedEnsemble: the outcome transform must be linear, as Standardize is.")
        mean, covariance = mixture.mixture_mean.squeeze(-1), mixture.mixture_covariance_matrix
        averaged = GPyTorchPosterior(AnyUnits(mean, DenseLinearOperator(to_dense(covariance))))
        return averaged if posterior_transform is None else in_any_units(posterior_transform(posterior=averaged, X=X))

    def fantasize(self, X: Tensor, sampler: MCSampler, **kwargs: Any) -> GRIEFBayes:
        """Return the ensemble conditioned on values it predicts at X `… q d`, with batch shape `f × … × S`."""
        return self.ensemble.fantasize(X, sampler, **kwargs)
