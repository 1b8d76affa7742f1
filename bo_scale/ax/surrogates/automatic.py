"""Choose the model that suits an experiment."""

from dataclasses import dataclass
from typing import Any

from bo_scale.models.shell.model import ScalableModel

GRID_DIMENSIONS = 3
EXACT_ROWS = 512
LEARNED_ROWS = 5000


@dataclass(frozen=True)
class ModelChoice:
    """The model chosen for an experiment, and the reason.

    Attributes:
        model: One of "wiski", "softki", "grief", "grief_bayes", "cagp", "decoupled".
        reason: The reason, in a few words.
    """

    model: str
    reason: str


def choose(dimension: int, num_observations: int) -> ModelChoice:
    """Choose the model of this package that suits a number of inputs and of observations.

    Args:
        dimension: Number of inputs of the model. An unordered choice of more than two values has an input for each.
        num_observations: Number of observations n.
    """
    if dimension <= GRID_DIMENSIONS:
        return ModelChoice(
            "wiski", f"{dimension} inputs, few enough for a grid, which comes closest to an exact GP at any n"
        )
    if num_observations <= EXACT_ROWS:
        return ModelChoice("cagp", f"{num_observations} observations, few enough for it to be the exact GP")
    if num_observations <= LEARNED_ROWS:
        return ModelChoice(
            "grief", f"{dimension} inputs, and {num_observations} observations: too few to learn interpolation points"
        )
    return ModelChoice(
        "softki", f"{dimension} inputs, and {num_observations} observations: enough to learn interpolation points"
    )


class Automatic(ScalableModel):
    """A stand-in for the class of a model. Its constructor returns the model that `choose` names.

    Ax needs the class before there are data; the model is chosen once there are.
    """

    def __new__(cls, model_class: type[ScalableModel], **inputs: Any) -> Any:
        """Make the model.

        Args:
            model_class: Its class.
            **inputs: Arguments of its constructor.
        """
        return model_class(**inputs)
