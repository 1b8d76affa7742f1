"""The model that suits an experiment."""

from dataclasses import dataclass
from typing import Any

from bo_scale.models.shell.model import ScalableModel

GRID_DIMENSIONS = 3
EXACT_ROWS = 512
LEARNED_ROWS = 5000


@dataclass(frozen=True)
class Choice:
    """A model by name, and why.

    Attributes:
        model: One of "wiski", "softki", "grief", "grief_bayes", "cagp", "decoupled".
        reason: In a sentence.
    """

    model: str
    reason: str


def choose(dimension: int, num_observations: int) -> Choice:
    """The model of this package for so many inputs and observations.

    Args:
        dimension: Inputs of the model: every value of an unordered choice of more than two is one.
        num_observations: n.
    """
    if dimension <= GRID_DIMENSIONS:
        return Choice("wiski", f"{dimension} inputs, for which a grid is nearest to an exact GP at any n")
    if num_observations <= EXACT_ROWS:
        return Choice("cagp", f"{num_observations} observations, of which it is the exact GP")
    if num_observations <= LEARNED_ROWS:
        return Choice("grief", f"{dimension} inputs and {num_observations} observations, too few to learn points from")
    return Choice("softki", f"{dimension} inputs and {num_observations} observations, enough to learn points from")


class Automatic(ScalableModel):
    """Makes the model that `choose` names. What comes out of the constructor is that model itself.

    Ax wants the class of a model before there are data: this stands for whichever suits them.
    """

    def __new__(cls, model_class: type[ScalableModel], **inputs: Any) -> Any:
        """The model.

        Args:
            model_class: Its class.
            **inputs: Of its constructor.
        """
        return model_class(**inputs)
