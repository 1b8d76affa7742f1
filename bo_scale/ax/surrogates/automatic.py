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
        reason: In a sentence.
    """

    model: str
    reason: str


def choose(dimension: int, num_observations: int) -> ModelChoice:
    """Choose the model of this package for so many inputs and observations.

    Args:
        dimension: Inputs of the model: every value of an unordered choice of more than two is one.
        num_observations: n.
    """
    if dimension <= GRID_DIMENSIONS:
        return ModelChoice("wiski", f"{dimension} inputs, for which a grid is nearest to an exact GP at any n")
    if num_observations <= EXACT_ROWS:
        return ModelChoice("cagp", f"{num_observations} observations, of which it is the exact GP")
    if num_observations <= LEARNED_ROWS:
        return ModelChoice(
            "grief", f"{dimension} inputs and {num_observations} observations, too few to learn points from"
        )
    return ModelChoice("softki", f"{dimension} inputs and {num_observations} observations, enough to learn points from")


class Automatic(ScalableModel):
    """A stand-in whose constructor returns the model that `choose` names.

    Ax wants the class of a model before there are data: this stands for whichever suits them.
    """

    def __new__(cls, model_class: type[ScalableModel], **inputs: Any) -> Any:
        """Make the model.

        Args:
            model_class: Its class.
            **inputs: Arguments of its constructor.
        """
        return model_class(**inputs)
