"""New values that are far from what a model predicted of them."""

from botorch.models.model import Model
from jaxtyping import Float
from torch import Tensor

from bo_scale.loop.insight.predict import moments

DEVIATIONS = 8.0
"""Values farther from their predictions, in standard deviations of an observation, are far off."""
LEAST_ERROR = 0.1
"""Least distance from the prediction that matters, in standard deviations of the others: less does little harm."""


def far_off(
    model: Model,
    X: Float[Tensor, "q d"],
    Y: Float[Tensor, "q 1"],
    noise: Float[Tensor, "q 1"] | None,
    seen: Float[Tensor, "n 1"],
) -> bool:
    """Return whether any new value is far from its prediction, for the model and among the values seen before.

    Hyperparameters that did not foresee such a value do not describe it either: conditioned on, an error bends the
    function over lengthscales, and is believed to the last digit if there was no noise.

    Args:
        model: The model of the values seen before.
        X: The new points in the unit cube.
        Y: Their values.
        noise: Their noise variances, infinite where nothing says how large they are; None if noise is learned.
        seen: The values seen before.
    """
    if len(X) == 0 or len(seen) < 2:
        return False
    mean, variance = moments(model, X, observation=noise is None)
    variance = variance if noise is None else variance + noise
    errors = (Y - mean).abs()
    far = (errors > DEVIATIONS * variance.sqrt()) & (errors > LEAST_ERROR * seen.std())
    return bool(far.any())
