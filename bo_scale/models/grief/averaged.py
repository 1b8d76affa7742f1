"""A fully Bayesian model as one model, where BoTorch would average an ensemble twice."""

from typing import Any

import torch
from botorch.acquisition.objective import PosteriorTransform
from botorch.models.model import Model
from botorch.posteriors.fully_bayesian import GaussianMixturePosterior
from botorch.posteriors.gpytorch import GPyTorchPosterior
from botorch.sampling.base import MCSampler
from gpytorch.distributions import MultivariateNormal
from linear_operator import to_dense
from linear_operator.operators import DenseLinearOperator
from torch import Tensor
from typing_extensions import override

from bo_scale.models.errors import UnsupportedError
from bo_scale.models.grief.bayes import GRIEFBayes


class AveragedEnsemble(Model):
    """A fully Bayesian model as one model, for qKnowledgeGradient: BoTorch's averages an ensemble twice.

    Posteriors have the moments of the mixture; fantasies are those of the ensemble, every sample conditioned on values
    of its own, and what is made of them is averaged over samples.

    Args:
        model: The ensemble, of one output.
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
        """Empty."""
        return torch.Size([])

    @override
    def posterior(
        self,
        X: Tensor,
        output_indices: list[int] | None = None,
        observation_noise: bool | Tensor = False,
        posterior_transform: PosteriorTransform | None = None,
        **kwargs: Any,
    ) -> GPyTorchPosterior:
        """The Gaussian with the mean and covariance of the mixture at raw inputs `… q d`."""
        mixture = self.ensemble.posterior(X, output_indices, observation_noise, **kwargs)
        if not isinstance(mixture, GaussianMixturePosterior):
            raise UnsupportedError("AveragedEnsemble: the outcome transform must be linear, as Standardize is.")
        mean, covariance = mixture.mixture_mean.squeeze(-1), mixture.mixture_covariance_matrix
        averaged = GPyTorchPosterior(MultivariateNormal(mean, DenseLinearOperator(to_dense(covariance))))
        return averaged if posterior_transform is None else posterior_transform(posterior=averaged, X=X)

    def fantasize(self, X: Tensor, sampler: MCSampler, **kwargs: Any) -> GRIEFBayes:
        """The ensemble given values it expects at X `… q d`: of batch shape `f × … × S`."""
        return self.ensemble.fantasize(X, sampler, **kwargs)
