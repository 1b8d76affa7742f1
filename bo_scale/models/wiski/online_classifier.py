"""Online classification: predict, observe, take one gradient step per observation."""

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
    """Scores of predictions of labels, each made before its label was seen.

    Attributes:
        count: Number of labels.
        correct: Number of labels for which the class with the largest mean was right.
        losses: Summed −log of the predicted probability of the label.
    """

    count: int = 0
    correct: int = 0
    losses: float = 0.0

    def observe(
        self, labels: Int[Tensor, " q"], predicted: Int[Tensor, " q"], probabilities: Float[Tensor, "q c"]
    ) -> "PrequentialClasses":
        """Return the scores with q more labels."""
        given = probabilities.double().gather(-1, labels.unsqueeze(-1))
        correct, log_loss = torch.stack([(labels == predicted).sum().double(), -given.log().sum()]).tolist()
        return PrequentialClasses(self.count + len(labels), self.correct + int(correct), self.losses + log_loss)

    @property
    def accuracy(self) -> float:
        """The share of correct predictions; NaN before the first label."""
        return self.correct / self.count if self.count > 0 else float("nan")

    @property
    def log_loss(self) -> float:
        """The mean −log p(label)."""
        return self.losses / self.count if self.count > 0 else float("nan")


class OnlineClassifier:
    """A classifier that learns from a stream, as `OnlineLearner` does: constant time and memory, no data kept.

    Args:
        classifier: A classifier fitted to the initial data. It is not changed.
        lr: Step size for kernel and mean; 0 keeps them fixed.
        projection_lr: Step size for the projection; 0 keeps it fixed.
    """

    def __init__(self, classifier: WISKIClassifier, lr: float = 5e-3, projection_lr: float = 5e-4) -> None:
        self._concentration = classifier.concentration
        self._learner = OnlineLearner(classifier.model, lr, projection_lr)
        self._scores = PrequentialClasses()

    @property
    def classifier(self) -> WISKIClassifier:
        """A copy of the present classifier; later steps do not change it. It keeps no data."""
        return WISKIClassifier.of(self._learner.model, self._concentration)

    @property
    def scores(self) -> PrequentialClasses:
        """Accuracy and log loss of all predictions so far, each made before its label was seen."""
        return self._scores

    def probabilities(self, X: Tensor, num_samples: int = 256) -> Float[Tensor, "*b q c"]:
        """Return class probabilities of the present classifier, without a copy."""
        return self._live.probabilities(X, num_samples)

    @property
    def _live(self) -> WISKIClassifier:
        return WISKIClassifier.of(self._learner._model, self._concentration)

    @torch.no_grad()
    def _predicted(self, X: Tensor, labels: Tensor) -> PrequentialClasses:
        live = self._live
        return self._scores.observe(labels.reshape(-1).long().to(X.device), live.predict(X), live.probabilities(X))

    def step(self, X: Tensor, labels: Tensor) -> None:
        """Predict, observe and learn. O(s³) per class for priors of rank s, whatever the number of earlier labels.

        Args:
            X: Raw inputs `q × d`.
            labels: Class labels, `q` or `q × 1`.

        Raises:
            InvalidDataError: if shapes do not fit or labels are not classes. The learner is then unchanged.
        """
        targets, noise = self._live.targets(labels, len(X))
        scores = self._predicted(X, labels) if len(X) > 0 else self._scores
        self._learner.step(X, targets, noise)
        self._scores = scores

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the complete state to a file of tensors, atomically.

        Args:
            path: The file to write.
        """
        write_atomically({"learner": self._learner._content(), "classes": asdict(self._scores)}, path)

    def restore(self, path: str | os.PathLike[str]) -> "OnlineClassifier":
        """Restore a saved learner into this one, which then continues to the last bit, and return it.

        Args:
            path: The file to read.

        Raises:
            InvalidDataError: if the file holds something else, or a learner of other hyperparameters.
        """
        saved = torch.load(path, weights_only=True, map_location=self._learner._model._device)
        if not isinstance(saved, dict) or set(saved) != {"learner", "classes"}:
            raise InvalidDataError(f"{path}: holds no OnlineClassifier.")
        self._learner._restore(saved["learner"], path)
        self._scores = PrequentialClasses(**saved["classes"])
        return self
