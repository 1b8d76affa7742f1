"""KeOps gives what the chunks give. On a CPU it compiles too, where it is installed."""

import pytest
import torch

from bo_scale.gp.function_space.kernel_products import chunked as products
from bo_scale.gp.function_space.kernel_products import keops, profiles

DEVICES = [
    "cpu",
    pytest.param(
        "cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
    ),
]


@pytest.mark.skipif(not keops.available(), reason="pykeops is not installed: pip install bo_scale[keops]")
@pytest.mark.parametrize("blocks", [True, False], ids=["blocks", "dense"])
@pytest.mark.parametrize("name", ["rbf", "matern12", "matern32", "matern52"])
@pytest.mark.parametrize("device", DEVICES)
def test_products_and_gradients_equal_those_of_chunks(device: str, name: str, blocks: bool) -> None:
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
