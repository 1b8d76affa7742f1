"""KeOps gives what the chunks give. On a CPU it compiles too, where it is installed."""

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from bo_scale import CaGP
from bo_scale.errors import BoScaleWarning
from bo_scale.gp.function_space.kernel_products import chunked as products
from bo_scale.gp.function_space.kernel_products import keops, profiles

DEVICES = [
    "cpu",
    pytest.param(
        "cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
    ),
]


def _usable() -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BoScaleWarning)
        return keops.usable()


@pytest.mark.skipif(not keops.available(), reason="pykeops is not installed: pip install bo_scale[keops]")
@pytest.mark.parametrize("blocks", [True, False], ids=["blocks", "dense"])
@pytest.mark.parametrize("name", ["rbf", "matern12", "matern32", "matern52"])
@pytest.mark.parametrize("device", DEVICES)
def test_products_and_gradients_equal_those_of_chunks(device: str, name: str, blocks: bool) -> None:
    if device == "cuda" and not _usable():
        pytest.skip("KeOps does not compute on this GPU")
    Z, X = torch.rand(7, 3).double(), torch.rand(12, 3).double()
    X[0] = Z[0]  # a distance of 0
    S = torch.randn((4, 3) if blocks else (12, 5)).double()
    arguments = [values.to(device).requires_grad_() for values in (Z, X, S)]
    profile = getattr(profiles, name)
    found = [f(*arguments, blocks, profile) for f in (products._RadialProducts.apply, keops.radial_products)]
    torch.testing.assert_close(*found)
    gradients = [torch.autograd.grad(product.square().sum(), arguments) for product in found]
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """As if KeOps were installed, and had not been tried."""
    monkeypatch.setattr(keops, "available", lambda: True)
    keops.usable.cache_clear()
    yield monkeypatch
    keops.usable.cache_clear()


@pytest.mark.parametrize(
    ("trial", "told"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "its process ended with -11"),
        ("raise ValueError('no compiler')", "no compiler"),
        ("import time; time.sleep(60)", "timed out"),
    ],
    ids=["crash", "error", "hang"],
)
def test_torch_computes_where_keops_ends_its_process(
    trial: str, told: str, installed: pytest.MonkeyPatch, log: Any
) -> None:
    installed.setattr(keops, "TRIAL", trial)
    installed.setattr(keops, "TRIAL_SECONDS", 2)
    model = CaGP(torch.rand(1100, 2).double(), torch.rand(1100, 1).double(), num_actions=1000).to("cuda").eval()
    with pytest.warns(BoScaleWarning, match=told):
        model.posterior(torch.rand(3, 2).double().to("cuda")).mean  # noqa: B018


def test_keops_is_used_where_its_trial_succeeds(installed: pytest.MonkeyPatch) -> None:
    installed.setattr(keops, "TRIAL", "")
    assert keops.usable()
