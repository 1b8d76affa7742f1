"""qNIPV with gradient, q = 6: ours over N = 10⁶ points against BoTorch's over 10⁴; and whose gradient is right."""

import warnings
from typing import Any

import torch
from botorch.acquisition import qNegIntegratedPosteriorVariance as BoTorchNIPV
from botorch.models import SingleTaskGP
from torch import Tensor

from benchmarks.harness import median_seconds, smooth_data
from bo_scale import WISKI, qNegIntegratedPosteriorVariance

BATCHES = 200


def with_gradient(acquisition: Any, X: Tensor) -> Tensor:
    """Gradient of the summed values."""
    X = X.clone().requires_grad_()
    acquisition(X).sum().backward()
    assert X.grad is not None
    return X.grad


def gradient_error(acquisition: Any, X: Tensor) -> float:
    """Largest difference to central finite differences, relative to their largest."""
    numeric, step = torch.zeros_like(X), 1e-5
    for i in range(X.numel()):
        shift = torch.zeros(X.numel(), dtype=X.dtype)
        shift[i] = step
        shift = shift.view_as(X)
        numeric.view(-1)[i] = ((acquisition(X + shift) - acquisition(X - shift)) / (2 * step)).detach().sum()
    return ((with_gradient(acquisition, X) - numeric).abs().max() / numeric.abs().max()).item()


def run() -> dict[str, Any]:
    """Seconds a batch, and the gradient's error."""
    warnings.simplefilter("ignore")
    X = torch.rand(BATCHES, 6, 2, dtype=torch.float64)
    ours = {}
    for n, N in ((500, 10_000), (500, 1_000_000), (100_000, 1_000_000)):
        model = WISKI(*smooth_data(n), grid_size=30)
        acquisition = qNegIntegratedPosteriorVariance(model, torch.rand(N, 2, dtype=torch.float64))
        ours[f"n={n} N={N}"] = median_seconds(lambda a=acquisition: with_gradient(a, X), repeats=15, warmup=3) / BATCHES
    rival = BoTorchNIPV(SingleTaskGP(*smooth_data(500)).eval(), torch.rand(10_000, 2, dtype=torch.float64))
    small = torch.rand(1, 2, 2, dtype=torch.float64)
    return {
        "seconds_a_batch": {"WISKI": ours, "BoTorch with SingleTaskGP n=500 N=10000": median_seconds(
            lambda: with_gradient(rival, X[:1]), repeats=3
        )},
        "gradient_error": {"WISKI": gradient_error(acquisition, small), "BoTorch": gradient_error(rival, small)},
    }  # fmt: skip
