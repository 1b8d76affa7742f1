"""Transforms of targets, and the posteriors that they make."""

from typing import Any

import torch
from botorch.models.transforms.outcome import ChainedOutcomeTransform, Log, Standardize
from botorch.models.transforms.utils import norm_to_lognorm_mean, norm_to_lognorm_variance
from botorch.posteriors.posterior import Posterior
from botorch.posteriors.transformed import TransformedPosterior
from torch import Tensor
from typing_extensions import override

from bo_scale.errors import InvalidDataError


class LogNormalPosterior(TransformedPosterior):
    """A posterior of values whose logarithms are Gaussian, with their exact mean and variance.

    It is skewed: the mean is above the median, and 95 % of values lie between two quantiles, not within two standard
    deviations of the mean.

    Args:
        logarithms: The Gaussian posterior of the logarithms, `… q m`.
    """

    def __init__(self, logarithms: Any) -> None:
        super().__init__(logarithms, torch.exp, norm_to_lognorm_mean, norm_to_lognorm_variance)
        self.logarithms = logarithms

    @override
    def quantile(self, value: Tensor) -> Tensor:
        """Return quantiles of each value for itself, those of the logarithms transformed.

        Args:
            value: Probabilities, one or `k`.

        Returns:
            Quantiles `… q m`, or `k … q m`.
        """
        quantiles: Tensor = self.logarithms.quantile(value)
        return quantiles.exp()

    @override
    def density(self, value: Tensor) -> Tensor:
        """Return densities of each value for itself: that of log y, divided by y.

        Args:
            value: Values y, one or `k`. The density of those that are not positive is zero.

        Returns:
            Densities `… q m`, or `k … q m`.
        """
        if value.numel() > 1:
            return torch.stack([self.density(each) for each in value])
        density: Tensor = self.logarithms.density(value.log()) / value if value > 0 else torch.zeros_like(self.mean)
        return density


class LogTargets(Log):
    """Logarithms of positive targets, as BoTorch's `Log`, whose posterior has quantiles and densities.

    Amounts, sizes and times are often skewed, with noise in proportion to them. Their logarithms are not.

    Raises:
        InvalidDataError: for targets that are not positive.

    Examples:
        >>> Y = torch.tensor([[1.0], [10.0]])
        >>> LogTargets()(Y)[0].flatten()
        tensor([0.0000, 2.3026])
    """

    @override
    def forward(self, Y: Tensor, Yvar: Tensor | None = None, X: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Return logarithms of targets `… n m`; their noise variances are Yvar/Y², to first order."""
        require_positive(Y)
        transformed: tuple[Tensor, Tensor | None] = super().forward(Y, Yvar, X)
        return transformed

    @override
    def untransform_posterior(self, posterior: Posterior, X: Tensor | None = None) -> LogNormalPosterior:
        """Return the posterior of the targets from that of their logarithms."""
        return LogNormalPosterior(posterior)


def require_positive(Y: Tensor) -> None:
    """Raise InvalidDataError if some targets have no logarithm."""
    if not bool((Y > 0).all()):
        raise InvalidDataError(
            f"Y: {int((~(Y > 0)).sum())} of {Y.numel()} targets are not positive, and have no logarithms. Use "
            "log_targets=False, or add a small amount to all."
        )


def of_logarithms(units: Standardize) -> ChainedOutcomeTransform:
    """Return the transform of targets whose logarithms are standardised by another."""
    return ChainedOutcomeTransform(logarithms=LogTargets(), units=units)
