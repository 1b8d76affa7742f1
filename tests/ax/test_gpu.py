"""Every model through Ax's client with its model on a GPU."""

import pytest
import torch
from clients import CHEAP, client, loss, models, run

from bo_scale.ax import streaming
from bo_scale.models.catalogue import MODELS

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.filterwarnings("ignore::botorch.exceptions.warnings.InputDataWarning"),
]


@pytest.mark.parametrize("sem", [None, 0.1], ids=["learned noise", "known noise"])
@pytest.mark.parametrize("name", [*MODELS, "auto"])
def test_models_live_on_the_device_and_points_come_back(name: str, sem: float | None) -> None:
    made = client(name, device="cuda", **({} if name in CHEAP else {"grid_size": 8}))
    run(made, 9, sem=sem)
    model = models(made)[0]
    tensors = [*model.parameters(), *model.buffers(), model.train_inputs[0], model.train_targets]
    assert {each.device.type for each in tensors} == {"cuda"}
    posterior = model.posterior(torch.rand(3, 2, dtype=torch.float64, device="cuda"))
    assert posterior.mean.device.type == posterior.variance.device.type == "cuda"
    stream = streaming(made)["loss"]
    assert (stream.count, stream.refitted, stream.streamed, stream.accumulated) == (8, 2, 2, 0)
    (point,) = made.get_next_trials(max_trials=1).values()
    assert all(isinstance(value, float) and 0 <= value <= 2 for value in point.values())
    assert loss(made.get_best_parameterization()[0]) < loss({"x": 1.0, "y": 1.0})


def test_the_gpu_predicts_what_the_cpu_does() -> None:
    """At the same hyperparameters and data."""
    made = client("wiski", device="cuda")
    run(made, 9)
    model = models(made)[0]
    X = torch.rand(20, 2, dtype=torch.float64)
    there = model.posterior(X.cuda())
    here = models(made)[0].cpu().posterior(X)
    torch.testing.assert_close(there.mean.cpu(), here.mean, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(there.variance.cpu(), here.variance, rtol=1e-6, atol=1e-6)
