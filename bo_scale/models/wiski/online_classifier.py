"""Online classification: predict, observe, and one gradient step an observation."""

import os
from dataclasses import asdict, dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from bo_scale.errors import InvalidDataError
from bo_scale.models.shell.storage import write_atomically
from bo_scale.models.wiski.classifier import WISKIClassifier
from bo_scale.models.wiski.online import OnlineLearner


@dataclass(frozen=True)
class PrequentialClasses:
    """How well labels were predicted before they were seen.

    Attributes:
        count: How many.
        correct: Of how many the class of the largest mean was right.
        losses: Summed −log of the probability that the label was given.
    """

    count: int = 0
    correct: int = 0
    losses: float = 0.0

    def observe(
        self, labels: Int[Tensor, " q"], predicted: Int[Tensor, " q"], probabilities: Float[Tensor, "q c"]
    ) -> "PrequentialClasses":
        """With q more."""
        given = probabilities.double().gather(-1, labels.unsqueeze(-1))
        return PrequentialClasses(
            self.count + len(labels),
            self.correct + int((labels == predicted).sum()),
            self.losses - given.log().sum().item(),
        )

    @property
    def accuracy(self) -> float:
        """Share that was right; NaN before the first label."""
        return self.correct / self.count if self.count > 0 else float("nan")

    @property
    def log_loss(self) -> float:
        """Mean −log p(label)."""
        return self.losses / self.count if self.count > 0 else float("nan")


class OnlineClassifier:
    """A classifier that learns from a stream, as `OnlineLearner` does: constant time and memory, no data kept.

    Args:
        classifier: Fitted to what there is to begin with. It stays as it is.
        lr: Of kernel and mean; 0 leaves them.
        projection_lr: Of the projection; 0 leaves it.
    """

    def __init__(self, classifier: WISKIClassifier, lr: float = 5e-3, projection_lr: float = 5e-4) -> None:
        self._concentration = classifier.concentration
        self._learner = OnlineLearner(classifier.model, lr, projection_lr)
        self._scores = PrequentialClasses()

    @property
    def classifier(self) -> WISKIClassifier:
        """The classifier as it is now; later steps leave it alone. It keeps no data."""
        return WISKIClassifier.of(self._learner.model, self._concentration)

    @property
    def scores(self) -> PrequentialClasses:
        """Accuracy and log loss of the predictions made so far, each before its label was seen."""
        return self._scores

    def probabilities(self, X: Tensor, num_samples: int = 256) -> Float[Tensor, "*b q c"]:
        """Those of the classifier as it is now, without making a copy."""
        return self._live.probabilities(X, num_samples)

    @property
    def _live(self) -> WISKIClassifier:
        return WISKIClassifier.of(self._learner._model, self._concentration)

    @torch.no_grad()
    def _predicted(self, X: Tensor, labels: Tensor) -> PrequentialClasses:
        live = self._live
        return self._scores.observe(labels.reshape(-1).long(), live.predict(X), live.probabilities(X))

    def step(self, X: Tensor, labels: Tensor) -> None:
        """Predict, observe and learn. O(s³) a class for priors of rank s, whatever was observed before.

        Args:
            X: Raw inputs `q × d`.
            labels: Their classes, `q` or `q × 1`.

        Raises:
            InvalidDataError: if shapes do not fit or labels are no classes. The learner is then as it was.
        """
        targets, noise = self._live.targets(labels, len(X))
        scores = self._predicted(X, labels) if len(X) > 0 else self._scores
        self._learner.step(X, targets, noise)
        self._scores = scores

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything to a file of tensors. Atomic: the old file or the new, never half.

        Args:
            path: The file.
        """
        write_atomically({"learner": self._learner._content(), "classes": asdict(self._scores)}, path)

    def restore(self, path: str | os.PathLike[str]) -> "OnlineClassifier":
        """Become the one that was saved, which continues to the last bit, and return it.

        Args:
            path: The file.

        Raises:
            InvalidDataError: if the file holds something else, or other hyperparameters were learned.
        """
        saved = torch.load(path, weights_only=True, map_location=self._learner._model._device)
        if not isinstance(saved, dict) or set(saved) != {"learner", "classes"}:
            raise InvalidDataError(f"{path}: holds no OnlineClassifier.")
        self._learner._restore(saved["learner"], path)
        self._scores = PrequentialClasses(**saved["classes"])
        return self
