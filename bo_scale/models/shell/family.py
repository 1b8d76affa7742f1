"""The interface between a family of models and the shell that serves them all."""

from abc import ABC, abstractmethod
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from bo_scale.gp.inference import Inference
from bo_scale.models.fitting.report import Recorder
from bo_scale.models.fitting.strategies import EvidenceFit, Fitting


class Family(ABC):
    """Methods by which models differ. Abstract; `ScalableModel` calls them.

    A family defines the posterior given data, the objective of fitting and the prior. The other methods have defaults.
    """

    _inference: Inference | None = None
    """The frozen inference; None before the first. The present hyperparameters may differ from those it was made at."""
    _fitting: Fitting = EvidenceFit()
    """The strategy of `fit_gpytorch_mll`."""
    _infers_first = False
    """True to infer from the present rows before new ones join: rows may not be kept."""

    # ------------------------------------------------------------------ posterior

    @property
    @abstractmethod
    def inference(self) -> Inference:
        """The frozen inference at the current hyperparameters."""

    @abstractmethod
    def _infer(self, theta: Float[Tensor, " h"]) -> Inference:
        """Return the inference at the current hyperparameters, whose values are `theta`. Called without gradients."""

    @abstractmethod
    def _restored_inference(self, saved: dict[str, Any]) -> Inference:
        """Return the inference of a saved model from its `state`, at the current hyperparameters and rows."""

    def _saved_inference(self) -> dict[str, Any]:
        """Return plain tensors and numbers from which `_restored_inference` restores the posterior to the last bit."""
        return self.inference.state()

    def _saved_options(self) -> dict[str, Any]:
        """Return options, by name, in which a saved model and the one that it is loaded into must agree."""
        return {}

    def _inference_in_units(self, scale: Float[Tensor, " m"], offset: Float[Tensor, " m"]) -> Inference | None:
        """Return the inference with targets scale · y + offset; None to infer from the rows when it is needed."""
        return None

    def _forget_inference(self) -> None:
        """Drop the inference, since rows may have changed; it is computed anew when needed."""
        self._inference = None

    def _bound_rank(self) -> None:
        """Keep the cost of the posterior bounded, in place. Called after observations have joined the data."""

    # ------------------------------------------------------------------ prior and objective of fitting

    @abstractmethod
    def _prior_covariance(self, X: Float[Tensor, "*b q d"], output: int) -> Float[Tensor, "*c q q"]:
        """Return the prior covariance at transformed points as inference uses it, approximations included."""

    @abstractmethod
    def _log_evidence(self) -> Float[Tensor, " m"]:
        """Return the objective of fitting, for every output: log p(y), or a bound."""

    def _evidence_size(self) -> float:
        """Return the number of observations in the evidence, at least 1."""
        return float(max(1, self.num_observations))

    def _check_fit(self, record: Recorder) -> None:
        """Warn of shortcomings of a fit, through the recorder. Called after each fit."""

    @property
    def _may_miss_changes(self) -> bool:
        """True if residuals of neighbouring rows that go together show that a fit took changes for noise."""
        return True

    # ------------------------------------------------------------------ data and parameters

    @property
    @abstractmethod
    def num_observations(self) -> int:
        """The number of observations in the model, not counting fantasies."""

    def _feature_parameters(self) -> list[torch.nn.Parameter]:
        """Return the hyperparameters on which statistics of the data depend; none by default."""
        return []

    @property
    def learns_features(self) -> bool:
        """True if φ depends on hyperparameters; the statistics then do too."""
        return bool(self._feature_parameters())

    def _subset_own(self, outputs: list[int]) -> None:
        """Keep some outputs of the family's own attributes (all but modules), in place."""
