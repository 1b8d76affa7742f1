"""Fits of small models beside those of the outcomes."""

import logging

from botorch.exceptions.errors import ModelFittingError
from botorch.fit import fit_gpytorch_mll
from gpytorch.mlls import MarginalLogLikelihood

logger = logging.getLogger("bo_scale.loop")


def fit_or_keep(mll: MarginalLogLikelihood, of: str) -> None:
    """Fit the model of a marginal likelihood in place; if that fails, log a warning and keep hyperparameters.

    Args:
        mll: The marginal likelihood.
        of: A name for the model in the log.
    """
    before = {name: value.clone() for name, value in mll.state_dict().items()}
    try:
        fit_gpytorch_mll(mll)
    except (ModelFittingError, ValueError) as error:  # a prior refuses what has become zero by rounding
        mll.load_state_dict(before)
        logger.warning("the model of %s was not fitted (%s).", of, error)
