"""qNIPV with gradient, q = 6: ours over N = 10⁶ points against BoTorch's over 10⁴; and whose gradient is right."""

from functools import partial
from pathlib import Path
from typing import Any

import torch
from botorch.acquisition import qNegIntegratedPosteriorVariance as BoTorchNIPV
from botorch.models import SingleTaskGP
from torch import Tensor

from benchmarks import text
from benchmarks.harness import Unit, median_seconds, smooth_data
from benchmarks.store import Result
from bo_scale import WISKI, qNegIntegratedPosteriorVariance

TITLE = "Integrated variance"
BATCHES = 200
SIZES = ((500, 10_000), (500, 1_000_000), (100_000, 1_000_000))
RIVAL_SIZE = (500, 10_000)


def units(data: Path | None) -> dict[str, Unit]:
    """One unit: both models."""
    return {"value and gradient": measure}


def with_gradient(acquisition: Any, X: Tensor) -> Tensor:
    """Gradient `b × q × d` of the summed values."""
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


def measure() -> dict[str, Any]:
    """Seconds a batch of q = 6, and the gradient's error."""
    X, small = torch.rand(BATCHES, 6, 2, dtype=torch.float64), torch.rand(1, 2, 2, dtype=torch.float64)
    rows = []
    for n, N in SIZES:
        model = WISKI(*smooth_data(n), grid_size=30)
        acquisition = qNegIntegratedPosteriorVariance(model, torch.rand(N, 2, dtype=torch.float64))
        seconds = median_seconds(partial(with_gradient, acquisition, X), repeats=15, warmup=3) / BATCHES
        rows.append({"model": "WISKI", "n": n, "N": N, "seconds": seconds})
    rows[-1]["gradient_error"] = gradient_error(acquisition, small)
    n, N = RIVAL_SIZE
    rival = BoTorchNIPV(SingleTaskGP(*smooth_data(n)).eval(), torch.rand(N, 2, dtype=torch.float64))
    seconds = median_seconds(partial(with_gradient, rival, X[:1]), repeats=3)
    error = gradient_error(rival, small)
    rows.append({"model": "BoTorch, SingleTaskGP", "n": n, "N": N, "seconds": seconds, "gradient_error": error})
    return {"batches": BATCHES, "rows": rows}


def table(result: Result) -> str:
    """Seconds and error of every row."""
    (unit,) = result["units"].values()
    rows = [
        [row["model"], f"{row['n']:,}", f"{row['N']:,}", text.seconds(row["seconds"]), _error(row)]
        for row in unit["rows"]
    ]
    return (
        f"Each time is that of qNIPV with its gradient, per batch of q = 6. WISKI evaluates {unit['batches']} batches "
        f"at once, BoTorch one. The gradient's error is its largest difference from finite differences, relative to "
        f"the largest finite difference.\n\n"
        + text.table(["model", "n", "integration points", "seconds per batch", "gradient error"], rows)
    )


def headline(result: Result) -> list[text.Row]:
    """The most integration points at the smallest n, against the rival."""
    (unit,) = result["units"].values()
    ours, rival = unit["rows"][1], unit["rows"][-1]
    error = next(_error(row) for row in unit["rows"] if "gradient_error" in row)
    return [
        (
            f"qNIPV with gradient, q = 6, {ours['N']:,} points; the gradient's relative error",
            f"{text.seconds(ours['seconds'])} per batch, gradient error {error}",
            f"BoTorch's at n = {rival['n']}, {rival['N']:,} points: {text.seconds(rival['seconds'])}, "
            f"gradient error {_error(rival)}",
        )
    ]


def _error(row: dict[str, Any]) -> str:
    return f"{row['gradient_error']:.0e}" if "gradient_error" in row else ""
