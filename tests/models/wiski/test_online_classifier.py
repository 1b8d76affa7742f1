import math
from typing import Any

import pytest
import torch
from cases import points, ring

from bo_scale import OnlineClassifier, WISKIClassifier
from bo_scale.errors import InvalidDataError
from bo_scale.models.wiski.online_classifier import PrequentialClasses


def started(**options: Any) -> OnlineClassifier:
    X = points(40)
    return OnlineClassifier(WISKIClassifier(X, ring(X), num_classes=3, grid_size=8), **options)


def test_a_stream_of_labels_is_a_batch_at_fixed_hyperparameters_and_is_scored_before_it_is_seen(tmp_path: Any) -> None:
    X, Xt = points(60), points(9, seed=1)
    labels = ring(X)
    start = WISKIClassifier(X[:40], labels[:40], num_classes=3, grid_size=8)
    learner, correct, losses = OnlineClassifier(start, lr=0.0), 0, []
    for i in range(40, 60):
        x, y = X[i : i + 1], labels[i : i + 1]
        correct += int((learner.classifier.predict(x) == y).sum())
        losses.append(-learner.probabilities(x)[0, y].log().item())
        learner.step(x, y)
    whole = WISKIClassifier(X, labels, grid_size=8)
    torch.testing.assert_close(learner.probabilities(Xt), whole.probabilities(Xt), rtol=1e-6, atol=1e-6)
    assert learner.scores.accuracy == pytest.approx(correct / 20)
    assert learner.scores.log_loss == pytest.approx(sum(losses) / 20)
    learner.save(tmp_path / "state")
    again = OnlineClassifier(start, lr=0.0).restore(tmp_path / "state")
    assert torch.equal(again.probabilities(Xt), learner.probabilities(Xt))
    assert again.scores == learner.scores
    learner._learner.save(tmp_path / "values")
    with pytest.raises(InvalidDataError, match="holds no OnlineClassifier"):
        again.restore(tmp_path / "values")
    assert math.isnan(OnlineClassifier(start).scores.accuracy)
    with pytest.raises(InvalidDataError):
        learner.step(X[:1], torch.tensor([7]))
    assert learner.scores.count == 20


def test_learning_as_labels_come_moves_the_hyperparameters() -> None:
    X = points(30)
    learner = OnlineClassifier(WISKIClassifier(X[:20], ring(X[:20]), num_classes=3, grid_size=8), lr=0.01)
    before = learner.classifier.model._hyperparameters()
    for i in range(20, 24):
        learner.step(X[i : i + 1], ring(X[i : i + 1]))
    assert (learner.classifier.model._hyperparameters() - before).abs().max() > 1e-3


def test_scores_are_shares_and_means_over_all_labels() -> None:
    P = torch.tensor([[0.5, 0.25, 0.25], [0.1, 0.1, 0.8], [0.2, 0.7, 0.1]])
    labels, predicted = torch.tensor([0, 1, 1]), torch.tensor([0, 2, 1])
    scores = PrequentialClasses().observe(labels, predicted, P)
    assert (scores.count, scores.correct) == (3, 2)
    assert scores.accuracy == pytest.approx(2 / 3)
    assert scores.log_loss == pytest.approx(-math.log(0.5 * 0.1 * 0.7) / 3)
    parts = PrequentialClasses()
    for i in range(3):
        parts = parts.observe(labels[i : i + 1], predicted[i : i + 1], P[i : i + 1])
    assert (parts.count, parts.correct) == (3, 2)
    assert parts.losses == pytest.approx(scores.losses)
    assert scores.observe(labels[:0], predicted[:0], P[:0]) == scores
    assert math.isnan(PrequentialClasses().accuracy)
    assert math.isnan(PrequentialClasses().log_loss)


def test_no_labels_change_nothing() -> None:
    learner, Z = started(), points(3, seed=2)
    before = learner.probabilities(Z)
    learner.step(points(0), torch.empty(0, dtype=torch.long))
    assert learner.scores.count == 0
    assert torch.equal(learner.probabilities(Z), before)


def test_labels_may_be_a_column_and_a_refused_one_changes_nothing() -> None:
    X, Z = points(4, seed=1), points(3, seed=2)
    one, other = started(lr=0.0), started(lr=0.0)
    one.step(X, ring(X))
    other.step(X, ring(X).unsqueeze(-1))
    assert one.scores == other.scores
    assert torch.equal(one.probabilities(Z), other.probabilities(Z))
    before = one.probabilities(Z)
    for labels in (ring(X)[:3], torch.full((4,), 3)):
        with pytest.raises(InvalidDataError, match="label"):
            one.step(X, labels)
    assert one.scores == other.scores
    assert torch.equal(one.probabilities(Z), before)


def test_a_classifier_taken_out_stays_as_it_is() -> None:
    X, Z = points(4, seed=1), points(3, seed=2)
    learner = started()
    taken = learner.classifier
    before = taken.probabilities(Z)
    learner.step(X, ring(X))
    assert torch.equal(taken.probabilities(Z), before)
    assert not torch.equal(learner.probabilities(Z), before)
