"""Models through Ax's client on a GPU: of an ensemble, of a choice, of known noise."""

import pytest
import torch
from clients import CHEAP, client, loss, models, run

from bo_scale.ax import streaming

pytestmark = [
    pytest.mark.usefixtures("short_fits"),
    pytest.mark.filterwarnings("ignore::botorch.exceptions.warnings.InputDataWarning"),
]


@pytest.mark.parametrize(("name", "sem"), [("wiski", None), ("wiski", 0.1), ("grief_bayes", None), ("auto", None)])
def test_models_live_on_the_device_and_points_come_back(name: str, sem: float | None, gpu: torch.device) -> None:
    made = client(name, device="cuda", **({} if name in CHEAP else {"grid_size": 8}))
    run(made, 6, sem=sem)
    model = models(made)[0]
    tensors = [*model.parameters(), *model.buffers(), model.train_inputs[0], model.train_targets]
    assert {each.device.type for each in tensors} == {"cuda"}
    X = torch.rand(3, 2, dtype=torch.float64)
    there = model.posterior(X.to(gpu))
    stream = streaming(made)["loss"]
    assert (stream.count, stream.refitted, stream.accumulated) == (5, 1, 0)
    (point,) = made.get_next_trials(max_trials=1).values()
    assert all(isinstance(value, float) and 0 <= value <= 2 for value in point.values())
    assert loss(made.get_best_parameterization()[0]) < loss({"x": 1.0, "y": 1.0})
    here = model.cpu().posterior(X)
    torch.testing.assert_close(there.mean.cpu(), here.mean, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(there.variance.cpu(), here.variance, rtol=1e-5, atol=1e-5)
