"""One training step of SoftKI against one of GPyTorch's SVGP with as many points, and where SoftKI's time goes."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from botorch.fit import fit_gpytorch_mll
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from benchmarks import rivals, text
from benchmarks.harness import Unit, interleaved, median_seconds
from benchmarks.store import Result

TITLE = "A training step of SoftKI"
POINTS, BATCH, ROWS, DIMENSION = 512, 1024, 4096, 20
REPEATS = 25
PARTS = ("features", "kernel matrix", "Gram matrix", "m × m part", "optimiser")


def units(data: Path | None) -> dict[str, Unit]:
    """One unit: all in turns."""
    return {f"m={POINTS}": measure}


def measure() -> dict[str, Any]:
    """Seconds a step of Adam on the same batch, and of the parts of SoftKI's."""
    g = torch.Generator().manual_seed(0)
    X = torch.randn(ROWS, DIMENSION, generator=g)
    Y = torch.sin(X[:, :1]) + X[:, 1:2] * X[:, 2:3] + 0.1 * torch.randn(ROWS, 1, generator=g)
    svgp = rivals.SVGP(X[:POINTS]).train()
    rival = partial(rivals.svgp_step(svgp, ROWS), X[:BATCH], Y[:BATCH, 0])
    steps = [softki_step(X, Y), softki_step(X.double(), Y.double())]
    with rivals.gpytorch_defaults():
        taken = interleaved([*steps, rival], repeats=REPEATS, warmup=3)
    names = ("SoftKI, float32 inputs", "SoftKI, float64 inputs", "SVGP, float32")
    sizes = {"m": POINTS, "batch": BATCH, "d": DIMENSION, "seed": 0}
    return {**sizes, "seconds": dict(zip(names, taken, strict=True)), "parts": softki_parts(X[:BATCH], Y[:BATCH])}


class _Reached(Exception):
    """A fit has come to its training on batches."""


def softki_step(X: Tensor, Y: Tensor) -> Callable[[], None]:
    """A step as `train_on_batches` makes it, with the loss that SoftKI's fit hands to it."""
    model = softki(X, Y)

    def stop(loss: Callable[[Tensor], Tensor], parameters: dict[str, Tensor], *rest: Any, **options: Any) -> None:
        raise _Reached(loss, list(parameters.values()))

    with patch("bo_scale.models.softki.train_on_batches", stop):
        try:
            fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        except _Reached as reached:
            loss, parameters = reached.args
    batch, optimizer = torch.arange(BATCH), torch.optim.Adam(parameters, lr=0.01)

    def step() -> None:
        optimizer.zero_grad()
        loss(batch).backward()
        optimizer.step()

    return step


def softki(X: Tensor, Y: Tensor) -> Any:
    """A model before its fit."""
    from bo_scale import SoftKI

    return SoftKI(X, Y, num_interpolation_points=POINTS, epochs=1)


def softki_parts(X: Tensor, Y: Tensor) -> dict[str, float]:
    """Seconds of the parts of a step, each with its gradient, one after the other."""
    from bo_scale.gp.linalg.dense import kernel_evidence
    from bo_scale.gp.weight_space.features.softmax import softmax_weights
    from bo_scale.training.minibatch import batch_log_evidence

    model = softki(X, Y)
    features, T = model._feature_map(0), model.log_temperature.exp().detach()
    y, D, noise = Y[:, 0].double(), torch.ones(BATCH).double(), torch.tensor(1e-3).double()
    W = softmax_weights(X, model.interpolation_points.detach(), T).double().requires_grad_()
    S = features.prior_matrix().detach().double().requires_grad_()
    G, r = (W.mT @ W).detach().requires_grad_(), (W.mT @ y).detach().requires_grad_()
    learned = [p for p in model.parameters() if p.requires_grad]
    learned = [torch.nn.Parameter(p.detach().clone()) for p in model.parameters() if p.requires_grad]
    for parameter in learned:
        parameter.grad = torch.zeros_like(parameter)
    optimizer = torch.optim.Adam(learned, lr=0.01)
    grad = torch.ones_like(W)

    def weights() -> None:
        softmax_weights(X, model.interpolation_points, T).double().backward(grad)

    def core() -> None:
        explained, logdet = kernel_evidence(S, G, r, noise)
        (explained - logdet).backward()

    calls: list[Callable[[], Any]] = [
        weights,
        lambda: model._feature_map(0).prior_matrix().sum().backward(),
        lambda: batch_log_evidence(W, S, y, D, noise).backward(),
        core,
        optimizer.step,
    ]
    features, kernel, evidence, square, optimiser = (median_seconds(call, REPEATS, warmup=3) for call in calls)
    return dict(zip(PARTS, (features, kernel, evidence - square, square, optimiser), strict=True))


def table(result: Result) -> str:
    """Seconds and ratios, then the parts."""
    (unit,) = result["units"].values()
    taken, parts = unit["seconds"], unit["parts"]
    rival = taken["SVGP, float32"]
    rows = [[name, text.seconds(s), f"{s / rival:.2f}"] for name, s in taken.items()]
    whole = sum(parts.values())
    shares = [[name, text.seconds(s), f"{s / whole:.0%}"] for name, s in parts.items()]
    return (
        f"Each time is that of one step of Adam on a batch of {unit['batch']:,} rows, with m = {unit['m']}, "
        f"d = {unit['d']} and an RBF kernel with one lengthscale per input. The models take turns. SoftKI's m × m "
        "algebra is in float64 whatever its inputs are.\n\n"
        + text.table(["model", "a step", "of SVGP's"], rows)
        + "\n\nThe parts of SoftKI's step (float32 inputs) were timed one by one, with their gradients: the softmax of "
        "distances, K_zz, WᵀW with its gradient, the evidence from these, and Adam.\n\n"
        + text.table(["part", "seconds", "share"], shares)
    )


def headline(result: Result) -> list[text.Row]:
    """The step in float32."""
    (unit,) = result["units"].values()
    ours, rival = unit["seconds"]["SoftKI, float32 inputs"], unit["seconds"]["SVGP, float32"]
    return [
        (
            f"a training step, m = {unit['m']}, {unit['batch']:,} rows, d = {unit['d']}",
            f"SoftKI {text.seconds(ours)}, {ours / rival:.2f} of SVGP's",
            f"GPyTorch SVGP {text.seconds(rival)}",
        )
    ]
