"""A fitted model of one quantity over the map."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bo_scale.models.shell.model import ScalableModel
from bo_scale.survey.mapping.model import Fit, Sites, predict

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

    def forecast(
        self, xy: Array, progress: bool | None = False, covariates: Array | None = None
    ) -> tuple[Array, Array]:
        """Return means and standard deviations at places, `n × 2` metres, on the model's scale.

        Covariates of the places, `n × q`, are looked up unless they are given.
        """
        return predict(self.model, self.fit, self.sites, xy, progress, covariates)
