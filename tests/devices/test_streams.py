"""Streams and classifiers on a GPU give what they give on the CPU."""

from typing import Any

import pytest
import torch
from cases import data, points, projected_wiski, ring, wiski_sum
from gpytorch.kernels import MaternKernel
from matching import assert_matches, in_turns

from bo_scale import OnlineClassifier, OnlineLearner, WISKIClassifier
from bo_scale.models.wiski.model import WISKI

PRECISIONS = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
pytestmark = pytest.mark.filterwarnings("ignore::botorch.exceptions.warnings.InputDataWarning")  # of float32


LEARNERS = [
    pytest.param(2, 1, lambda X, Y: WISKI(X, Y, grid_size=8), id="grid"),
    pytest.param(2, 2, lambda X, Y: WISKI(X, Y, grid_size=8), id="outputs"),
    pytest.param(3, 1, projected_wiski, id="projected"),
    pytest.param(2, 1, wiski_sum, id="sum"),
    pytest.param(1, 1, lambda X, Y: WISKI(X, Y, grid_size=8, conservative=True), id="conservative"),
    pytest.param(
        2, 1, lambda X, Y: WISKI(X, Y, grid_size=8, covar_module=MaternKernel(0.5, ard_num_dims=2), rank=9), id="sparse"
    ),
]


@pytest.mark.parametrize(("d", "m", "build", "dtype"), in_turns(LEARNERS))
def test_a_learner_learns_the_same(d: int, m: int, build: Any, dtype: torch.dtype, gpu: torch.device) -> None:
    (X, Y), Z = data(24, d, m), points(3, d, seed=9)

    def learned(device: Any) -> tuple[Any, Any]:
        x, y = X.to(device, dtype), Y.to(device, dtype)
        learner = OnlineLearner(build(x[:20], y[:20]))
        for i in range(20, 24):
            learner.step(x[i : i + 1], y[i : i + 1])
        return learner.posterior(Z.to(device, dtype)), learner

    (there, on_gpu), (here, on_cpu) = learned(gpu), learned("cpu")
    assert_matches(there.mean.detach(), here.mean.detach(), gpu)
    assert_matches(there.variance.detach(), here.variance.detach(), gpu)
    torch.testing.assert_close(on_gpu.scores.losses, on_cpu.scores.losses, rtol=1e-2, atol=1e-3)
    assert on_gpu.scores.covered.tolist() == on_cpu.scores.covered.tolist()


@PRECISIONS
def test_a_classifier_classifies_the_same(dtype: torch.dtype, gpu: torch.device) -> None:
    X, Z = points(30), points(5, seed=9)
    labels = ring(X)

    def told(device: Any) -> tuple[Any, Any]:
        x, y = X.to(device, dtype), labels.to(device)
        start = WISKIClassifier(x[:20], y[:20], 3, grid_size=6)
        more = start.condition_on_observations(x[20:], y[20:].unsqueeze(-1))
        learner = OnlineClassifier(start)
        learner.step(x[20:22], y[20:22])
        return more.predict(Z.to(device, dtype)), learner.probabilities(Z.to(device, dtype), num_samples=16)

    for found, expected in zip(told(gpu), told("cpu"), strict=True):
        assert_matches(found.detach(), expected.detach(), gpu)
