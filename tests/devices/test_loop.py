"""The loop with its model on a GPU: points come back to the CPU, and a run resumes on any device."""

from pathlib import Path
from typing import Any

import pytest
import torch
from clients import CHEAP
from loops import asked, cheap, single_task

pytestmark = [
    pytest.mark.usefixtures("short_fits"),
    pytest.mark.filterwarnings("ignore::bo_scale.errors.InterpolationWarning"),
]
MODELS = ["wiski", "softki", "grief", "cagp", "decoupled", single_task]


def random_states() -> list[Any]:
    return [torch.get_rng_state(), *torch.cuda.get_rng_state_all()]


@pytest.mark.parametrize("model", MODELS, ids=[m if isinstance(m, str) else "SingleTaskGP" for m in MODELS])
def test_a_model_on_the_gpu_serves_points_on_the_cpu_and_resumes(model: Any, gpu: torch.device, tmp_path: Path) -> None:
    before = random_states()
    options: dict[str, Any] = {"model": model, "model_options": CHEAP.get(model, {}) if isinstance(model, str) else {}}
    loop = cheap(tmp_path, device="cuda", **options)
    assert all(X.device.type == "cpu" for X in asked(loop, 3))
    assert all(torch.equal(a, b) for a, b in zip(random_states(), before, strict=True))
    Z = torch.rand(3, 2, dtype=torch.float64)
    there, best = loop.model.posterior(Z.to(gpu)), loop.best()
    assert there.mean.device == gpu
    loop.close()
    with cheap(tmp_path, device="cuda", **options) as again:
        torch.testing.assert_close(again.best().mean, best.mean, rtol=1e-5, atol=1e-5)
        if isinstance(model, str):  # others' caches stay where they were
            here = again.model.cpu().posterior(Z)
            torch.testing.assert_close(here.variance, there.variance.cpu(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("acquisition", ["qLogNEI", "qKG", "qNIPV", "Thompson"])
def test_every_acquisition_asks_on_the_gpu(acquisition: str, gpu: torch.device) -> None:
    loop = cheap(device="cuda", acquisition=acquisition)
    asked(loop, 2)
    assert loop.ask(2).device.type == "cpu"
