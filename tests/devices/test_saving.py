"""Files do not depend on the device: what one device wrote another one reads."""

from typing import Any

import pytest
import torch
from cases import MODELS, data, points, ring
from matching import assert_all_on, assert_matches

from bo_scale import OnlineClassifier, OnlineLearner, WISKIClassifier, load_model, save_model
from bo_scale.models.wiski.model import WISKI

NAMES = {"WISKI-2d", "WISKI-precision-sum", "WISKI-projected", "SoftKI-2d", "GRIEF-2d", "CaGP-few", "Decoupled-2d"}
FAMILIES = [case for case in MODELS if case.id in NAMES]
PRECISIONS = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
pytestmark = pytest.mark.filterwarnings("ignore::botorch.exceptions.warnings.InputDataWarning")  # of float32


@PRECISIONS
@pytest.mark.parametrize(("d", "build"), FAMILIES)
def test_a_model_is_read_on_another_device(
    d: int, build: Any, dtype: torch.dtype, gpu: torch.device, tmp_path: Any
) -> None:
    X, Y, Xn, Yn = (values.to(dtype) for values in (*data(14, d), *data(2, d, seed=5)))
    Z = points(3, d, seed=9).to(dtype)
    saved = build(X, Y).eval().condition_on_observations(Xn, Yn)
    expected = saved.posterior(Z).mean.detach()
    for device in (gpu, torch.device("cpu")):
        save_model(saved, tmp_path / "model")
        saved = load_model(build((0.9 * X).to(device), Y.to(device)), tmp_path / "model")
        assert_all_on(saved, device)
        assert_matches(saved.posterior(Z.to(device)).mean.detach(), expected, device)
        saved = saved.condition_on_observations(Xn[:1].to(device), Yn[:1].to(device))
        expected = saved.posterior(Z.to(device)).mean.detach().cpu()


@PRECISIONS
def test_a_stream_goes_on_after_a_restore(device: torch.device, dtype: torch.dtype, tmp_path: Any) -> None:
    X, Y, Z = (values.to(device, dtype) for values in (*data(30, 2), points(3, seed=9)))
    learner = OnlineLearner(WISKI(X[:20], Y[:20], grid_size=8))
    learner.step(X[20:21], Y[20:21])
    learner.save(tmp_path / "learner")
    again = OnlineLearner(WISKI(X[:20], Y[:20], grid_size=8)).restore(tmp_path / "learner")
    for each in (learner, again):
        each.step(X[21:22], Y[21:22])
    assert learner.scores.count == again.scores.count == 2
    assert again.scores.squares.device.type == "cpu"
    assert torch.equal(learner.scores.losses, again.scores.losses)
    assert torch.equal(learner.posterior(Z).mean, again.posterior(Z).mean)


@PRECISIONS
def test_a_stream_of_labels_goes_on_after_a_restore(device: torch.device, dtype: torch.dtype, tmp_path: Any) -> None:
    X = points(30)
    X, labels = X.to(device, dtype), ring(X).to(device)
    learner, again = (OnlineClassifier(WISKIClassifier(X[:20], labels[:20], 3, grid_size=6)) for _ in range(2))
    learner.step(X[20:21], labels[20:21])
    learner.save(tmp_path / "learner")
    again.restore(tmp_path / "learner")
    for each in (learner, again):
        each.step(X[21:22], labels[21:22])
    assert learner.scores == again.scores
    assert torch.equal(learner.probabilities(X[:3]), again.probabilities(X[:3]))
