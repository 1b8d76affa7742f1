"""Distributions and models for targets in any units, however small."""

from typing import Any

import torch
from botorch.acquisition.objective import PosteriorTransform
from botorch.models.model_list_gp_regression import ModelListGP
from botorch.posteriors.gpytorch import GPyTorchPosterior
from botorch.posteriors.posterior import Posterior
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

LEAST_VARIANCE = 1e-12
"""Least variance of a value, relative to that of its output's targets: less may be rounding."""


class AnyUnits(MultivariateNormal):
    """A Gaussian whose variances may be small.

    GPyTorch raises a variance to 1e-10, in float32 to 1e-6. Targets of the order of 1e-6, in float32 of 1e-3, have
    smaller ones.
    """

    @property
    @override
    def variance(self) -> Float[Tensor, "*b q"]:
        """The variances; where a root of low rank has none, the least positive number."""
        diagonal = self.lazy_covariance_matrix.diagonal(dim1=-1, dim2=-2)
        variance = diagonal.reshape(diagonal.shape[:-1] + self._event_shape).expand(
            self._batch_shape + self._event_shape
        )
        return variance.clamp_min(torch.finfo(variance.dtype).tiny)


class AnyUnitsMultitask(MultitaskMultivariateNormal, AnyUnits):
    """A Gaussian of several outputs whose variances may be small."""


def in_any_units(posterior: Any) -> Any:
    """Return a posterior that GPyTorch or BoTorch made, with variances that may be small; another kind as it is."""
    if type(posterior) is not GPyTorchPosterior:
        return posterior
    made: Any = posterior.distribution
    if type(made) is MultivariateNormal:
        return GPyTorchPosterior(AnyUnits(made.mean, made.lazy_covariance_matrix))
    if type(made) is MultitaskMultivariateNormal:
        covariance, interleaved = made.lazy_covariance_matrix, made._interleaved
        return GPyTorchPosterior(AnyUnitsMultitask(made.mean, covariance, interleaved=interleaved))
    return posterior


def raised(covariance: Float[Tensor, "*b q q"], least: Tensor | float) -> Float[Tensor, "*b q q"]:
    """Return a covariance with variances that are at least so large: what is missing to them is rounding."""
    lack = (least - covariance.diagonal(dim1=-2, dim2=-1)).clamp_min(0.0)
    return covariance + torch.diag_embed(lack)


class IndependentModels(ModelListGP):
    """A ModelListGP whose variances may be small."""

    @override
    def posterior(  # type: ignore[override]
        self,
        X: Tensor,
        output_indices: list[int] | None = None,
        observation_noise: bool | Tensor = False,
        posterior_transform: PosteriorTransform | None = None,
    ) -> Posterior:
        """Return the posterior over all models' outputs at raw inputs `… q d`, as a ModelListGP does."""
        posterior = in_any_units(super().posterior(X, output_indices, observation_noise))
        return posterior if posterior_transform is None else in_any_units(posterior_transform(posterior=posterior, X=X))
