"""Kernel products by KeOps: one compiled reduction, no kernel entry in memory. An alternative to `chunked`.

B. Charlier, J. Feydy, J. A. Glaunès, F.-D. Collin, G. Durif. Kernel operations on the GPU, with autodiff, without
memory overflows. JMLR 2021. Install it as the extra `bo_scale[keops]`; CUDA tensors use it if it works there.
"""

import subprocess
import sys
import warnings
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Any

from jaxtyping import Float
from torch import Tensor

from bo_scale.errors import BoScaleWarning
from bo_scale.gp.function_space.kernel_products import profiles
from bo_scale.gp.function_space.process import Profile

TINY = 1e-30
"""Constant added to squared distances under a square root, which has no slope at 0."""


TRIAL = """
import torch
from pykeops.torch import LazyTensor
x = torch.arange(3.0, device="cuda").reshape(3, 1)
squares = (LazyTensor(x[:, None]) - LazyTensor(x[None])).square().sum(-1)
assert torch.allclose(squares.sum(1), torch.tensor([[5.0], [2.0], [5.0]], device="cuda"))
"""
TRIAL_SECONDS = 180


def available() -> bool:
    """Whether KeOps is installed."""
    return find_spec("pykeops") is not None


@cache
def usable() -> bool:
    """Whether KeOps is installed and computes on the GPU. Another process tries it, once: some seconds.

    Its compiler ends the process where it does not suit the driver or CUDA (seen with KeOps 2.3 and CUDA 13.0).
    """
    if not available():
        return False
    try:
        tried = subprocess.run(
            [sys.executable, "-c", TRIAL], capture_output=True, text=True, errors="replace", timeout=TRIAL_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        found = str(error)
    else:
        if tried.returncode == 0:
            return True
        found = (tried.stderr.strip().splitlines() or [f"its process ended with {tried.returncode}"])[-1]
    warnings.warn(
        f"KeOps is installed and does not compute on this GPU ({found}). Torch computes kernel products. Remedy: "
        f"pip install another version of pykeops, or pip uninstall pykeops.",
        BoScaleWarning,
        stacklevel=2,
    )
    return False


def radial_products(
    Z: Float[Tensor, "q d"], X: Float[Tensor, "n d"], S: Float[Tensor, "*e"], blocks: bool, profile: Profile
) -> Float[Tensor, "q i"]:
    """κ(‖z − x‖²) S. Differentiable in all three. q n kernel entries, O(q i) memory.

    Args:
        Z: Scaled points.
        X: Scaled points, block after block.
        S: Dense entries `n × i`, or the entries `i × k` of disjoint blocks.
        blocks: Whether S holds the entries of disjoint blocks.
        profile: κ, one of `bo_scale.gp.function_space.kernel_products.profiles`.
    """
    from pykeops.torch import LazyTensor

    symbolic = _PROFILES[profile]
    if not blocks:
        distances = ((LazyTensor(Z[:, None, :]) - LazyTensor(X[None, :, :])) ** 2).sum(-1)
        product: Tensor = symbolic(distances) @ S
        return product
    points = X.unflatten(0, S.shape)
    distances = ((LazyTensor(Z[None, :, None, :]) - LazyTensor(points[:, None, :, :].contiguous())) ** 2).sum(-1)
    sums: Tensor = (symbolic(distances) * LazyTensor(S[:, None, :, None].contiguous())).sum(2)
    return sums.squeeze(-1).mT


def _rbf(squares: Any) -> Any:
    return (-0.5 * squares).exp()


def _matern12(squares: Any) -> Any:
    return (-(squares + TINY).sqrt()).exp()


def _matern32(squares: Any) -> Any:
    a = (3 * squares + TINY).sqrt()
    return (1 + a) * (-a).exp()


def _matern52(squares: Any) -> Any:
    a = (5 * squares + TINY).sqrt()
    return (1 + a + (5 / 3) * squares) * (-a).exp()


_PROFILES: dict[Profile, Callable[[Any], Any]] = {
    profiles.rbf: _rbf,
    profiles.matern12: _matern12,
    profiles.matern32: _matern32,
    profiles.matern52: _matern52,
}
