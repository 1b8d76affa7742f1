"""Errors that are BoTorch's as well, so that code written for BoTorch catches them."""

import botorch.exceptions.errors as botorch_errors

from bo_scale.errors import BoScaleError


class UnsupportedError(BoScaleError, botorch_errors.UnsupportedError):
    """A request that the model or the method cannot serve; the message names an alternative where there is one."""


class FitError(BoScaleError, botorch_errors.ModelFittingError):
    """Hyperparameters could not be fitted from any starting point."""
