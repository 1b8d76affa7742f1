"""A fitted model of one quantity over the map."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch

from bo_scale.models.shell.model import ScalableModel
from bo_scale.survey.mapping.fit import Fit
from bo_scale.survey.mapping.gaps import Gaps
from bo_scale.survey.mapping.likelihoods import Censored
from bo_scale.survey.mapping.model import predict
from bo_scale.survey.mapping.sites import Sites

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Surface:
    """A Gaussian process over the map, given measurements.

    Attributes:
        sites: The measurements, on the model's scale.
        fit: Hyperparameters of the model.
        model: The model of the sites.
    """

    sites: Sites
    fit: Fit
    model: ScalableModel

    @cached_property
    def gaps(self) -> Gaps:
        """Gaps between the sites."""
        return Gaps(self.fit, self.sites)

    @property
    def noise(self) -> float:
        """Variance of new measurements beyond their known errors, on the model's scale."""
        if self.fit.nearest is not None:
            return float(self.fit.nearest["noise"])
        if self.sites.variance is not None:
            return self.fit.nugget * self.fit.unit**2
        with torch.no_grad():
            return float(self.model.measurement_noise(0)) * self.fit.unit**2

    @property
    def typical_error(self) -> float:
        """Median of the known variances of measurements, on the model's scale; 0 where none are known."""
        likelihood = self.sites.likelihood
        if isinstance(likelihood, Censored):
            return float(np.median(likelihood.error))
        if likelihood is not None or self.sites.variance is None:
            return 0.0
        return float(np.median(self.sites.variance))

    def forecast(
        self, xy: Array, progress: bool | None = False, covariates: Array | None = None
    ) -> tuple[Array, Array]:
        """Return means and standard deviations at places, `n × 2` metres, on the model's scale.

        Covariates of the places, `n × q`, are looked up unless they are given.
        """
        return predict(self.model, self.fit, self.sites, xy, progress, covariates, self.gaps)
