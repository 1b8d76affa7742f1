"""A stand-in for the class of a model that is chosen by evidence."""

from typing import Any

from bo_scale.models.shell.model import ScalableModel


class Automatic(ScalableModel):
    """A stand-in for the class of a model. Its constructor returns a model of the class that the data ask for.

    Ax needs the class before there are data; the model is chosen once there are, by `bo_scale.choose`'s rules for a
    search, and anew whenever the observations have doubled.
    """

    def __new__(cls, model_class: type[ScalableModel], **inputs: Any) -> Any:
        """Make the model.

        Args:
            model_class: Its class.
            **inputs: Arguments of its constructor.
        """
        return model_class(**inputs)
