"""Models of a survey as it grows: the survey's own, exact or on grids, and a CaGP of few actions."""

from abc import ABC, abstractmethod

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from bo_scale.loop.surrogate.builder import Surrogate, SurrogateBuilder
from bo_scale.models.cagp import CaGP
from bo_scale.models.shell.model import ScalableModel
from bo_scale.survey.mapping.fit import Fit
from bo_scale.survey.mapping.kernels import Box, map_kernel, noise_likelihood, square_box
from bo_scale.survey.mapping.model import FEW_FOR_TWO, REFIT, Array, fit_model, model_of, model_tensors
from bo_scale.survey.mapping.roughness import roughness
from bo_scale.survey.mapping.sites import Sites

ACTIONS = 64
"""Of the CaGP."""


class Learner(ABC):
    """A model that is fitted anew at every quarter more sites, as a survey's is.

    Args:
        box: That sites and predictions lie in.
    """

    def __init__(self, box: Box) -> None:
        self.box = box

    @abstractmethod
    def update(self, sites: Sites) -> tuple[Fit, ScalableModel]:
        """The model of all sites."""

    def roughness(self, sites: Sites, places: Array) -> Array:
        """Of the quantity at places beside what the model of the sites says, as far as that is known."""
        del sites
        return np.ones(len(places))


class SurveyLearner(Learner):
    """The survey's own.

    Args:
        box: That sites and predictions lie in.
        exact_up_to: Sites up to which it is exact.
    """

    def __init__(self, box: Box, exact_up_to: int) -> None:
        super().__init__(box)
        self.exact_up_to = exact_up_to
        self.fit: Fit | None = None

    @override
    def update(self, sites: Sites) -> tuple[Fit, ScalableModel]:
        if self.fit is None or REFIT.due(len(sites.z), self.fit.count):
            self.fit, model = fit_model(sites, self.box, exact_up_to=self.exact_up_to)
            return self.fit, model
        return self.fit, model_of(sites, self.fit)

    @override
    def roughness(self, sites: Sites, places: Array) -> Array:
        assert self.fit is not None, "updated before"
        return roughness(model_of(sites, self.fit), self.fit, sites, places)


class FewActions(Learner):
    """A CaGP of `ACTIONS` learned actions, kernel Matérn-3/2 with the survey's priors, as a loop keeps it.

    Args:
        box: That sites and predictions lie in.
    """

    def __init__(self, box: Box) -> None:
        super().__init__(box)
        self.builder = SurrogateBuilder(self._blank, REFIT, 0, torch.device("cpu"))
        self.surrogate: Surrogate | None = None
        self.unit: tuple[float, float] | None = None

    def _blank(self, X: Tensor, Y: Tensor, Yvar: Tensor | None) -> CaGP:
        parts = {
            "covar_module": map_kernel("matern32", [], isotropic=len(X) < FEW_FOR_TWO),
            "likelihood": noise_likelihood(),
            "input_transform": square_box(self.box),
        }
        return CaGP(X, Y, Yvar, num_actions=ACTIONS, outcome_transform=None, progress=False, **parts)

    @override
    def update(self, sites: Sites) -> tuple[Fit, ScalableModel]:
        if self.unit is None:
            self.unit = float(sites.z.mean()), float(sites.z.std())
        X, Y, _ = model_tensors(sites, self._fit(0))
        self.surrogate = self.builder.advance(self.surrogate, X, Y, None, len(X))
        model = self.surrogate.model
        assert isinstance(model, ScalableModel)
        return self._fit(self.surrogate.fitted), model

    def _fit(self, count: int) -> Fit:
        assert self.unit is not None, "set by the first update"
        return Fit("matern32", count, self.box, *self.unit, [], {})
