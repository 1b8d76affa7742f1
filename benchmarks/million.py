"""A million rows: seconds and memory of SoftKI and GRIEF against n, and the error against the known function."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from botorch.fit import fit_gpytorch_mll
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from benchmarks import text
from benchmarks.child import gpu_megabytes, in_child, peak_megabytes
from benchmarks.harness import Unit
from benchmarks.memory import resident
from benchmarks.store import Result

TITLE = "A million rows"
PLOTS = {"million.png": "Peak memory and seconds of a fit against the number of rows"}
SIZES = (10_000, 100_000, 1_000_000)
EPOCHS = {10_000: 50, 100_000: 10, 1_000_000: 2}
"""Of SoftKI, so that the largest takes minutes."""
POINTS, EIGENFUNCTIONS = 512, 500
D, NOISE_SD, TEST = 10, 0.2, 10_000
MODELS = ("SoftKI", "GRIEF")
PHASES = {
    "bo_scale.models.softki": ("train_on_batches", "fit_evidence"),
    "bo_scale.models.grief.model": ("start_from_subset", "fit_evidence"),
}
"""Functions of a model's module that its fit spends its time in."""


def units(data: Path | None) -> dict[str, Unit]:
    """One for each n and model, each in a process of its own."""
    return {f"{model} n={n}": partial(measure, model, n) for n in SIZES for model in MODELS}


def measure(model: str, n: int) -> dict[str, Any]:
    """A fit in a fresh process."""
    return in_child(evaluate, model, n)


def function(X: Tensor) -> Tensor:
    """Friedman's first function of 5 of the inputs `n × d` in the unit cube, at zero mean and unit variance."""
    f = 10 * torch.sin(math.pi * X[:, 0] * X[:, 1]) + 20 * (X[:, 2] - 0.5).square() + 10 * X[:, 3] + 5 * X[:, 4]
    return (f - 14.41) / 4.88


def build(model: str, X: Tensor, Y: Tensor) -> Any:
    """A model before its fit."""
    import bo_scale

    if model == "SoftKI":
        epochs = EPOCHS.get(len(X), min(EPOCHS.values()))
        return bo_scale.SoftKI(X, Y, num_interpolation_points=POINTS, epochs=epochs)
    return bo_scale.GRIEF(X, Y, num_eigenfunctions=EIGENFUNCTIONS)


def evaluate(model: str, n: int) -> dict[str, Any]:
    """Seconds of construction, fit, its phases and what comes after; memory beyond the data; error and coverage."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    g = torch.Generator().manual_seed(0)
    X = torch.rand(n, D, generator=g, dtype=torch.float64).to(device)
    Y = torch.cat([function(part) for part in X.split(100_000)]).unsqueeze(-1)
    Y += NOISE_SD * torch.randn(n, 1, generator=g, dtype=torch.float64).to(device)
    test = torch.rand(TEST, D, generator=g, dtype=torch.float64).to(device)
    before, seconds = resident(), {}
    with timed_phases(seconds):
        made = _timed(seconds, "construct", partial(build, model, X, Y))
        _timed(seconds, "fit", lambda: fit_gpytorch_mll(ExactMarginalLogLikelihood(made.likelihood, made)))
    made.eval()
    _timed(seconds, "first prediction", lambda: made.posterior(test[:1]).variance)
    after, on_gpu = peak_megabytes(), gpu_megabytes()
    with torch.no_grad():
        mean, variance = _timed(seconds, f"{TEST:,} predictions", lambda: predict(made, test))
        new, values = test[:1], mean[:1].unsqueeze(-1)
        observe = partial(made.condition_on_observations, new, values)
        _timed(seconds, "one observation", lambda: observe().posterior(test[:1]).variance)
    error = function(test) - mean
    return {
        "model": model,
        "n": n,
        "seed": 0,
        "epochs": EPOCHS.get(n) if model == "SoftKI" else None,
        "seconds": seconds,
        "data_megabytes": 8e-6 * n * (D + 1),
        "megabytes_before": before,
        "megabytes": after,
        **({} if on_gpu is None else {"gpu_megabytes": on_gpu}),
        "rmse": error.square().mean().sqrt().item(),
        "coverage": (error.abs() <= 1.96 * variance.sqrt()).double().mean().item(),
        "noise_sd": (made.likelihood.noise.mean().sqrt() * Y.std()).item(),
    }


def predict(model: Any, X: Tensor) -> tuple[Tensor, Tensor]:
    """Means and variances of the function at points `M × d`: `M` each."""
    posteriors = [model.posterior(part) for part in X.split(1000)]
    mean, variance = (torch.cat([getattr(p, what) for p in posteriors]) for what in ("mean", "variance"))
    return mean.squeeze(-1), variance.squeeze(-1)


def _timed(seconds: dict[str, float], name: str, call: Callable[[], Any]) -> Any:
    start = time.perf_counter()
    value = call()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - start
    return value


@contextmanager
def timed_phases(seconds: dict[str, float]) -> Iterator[None]:
    """Add up the seconds of the functions of PHASES that are called within."""
    kept = []
    for path, names in PHASES.items():
        module = import_module(path)
        for name in names:
            if hasattr(module, name):
                kept.append((module, name, getattr(module, name)))
                setattr(module, name, _counted(seconds, name, getattr(module, name)))
    try:
        yield
    finally:
        for module, name, original in kept:
            setattr(module, name, original)


def _counted(seconds: dict[str, float], name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def counted(*args: Any, **kwargs: Any) -> Any:
        return _timed(seconds, name, lambda: original(*args, **kwargs))

    return counted


# ---------------------------------------------------------------------- report


def _sorted(result: Result, model: str) -> list[dict[str, Any]]:
    return sorted((unit for unit in result["units"].values() if unit["model"] == model), key=lambda unit: unit["n"])


def _beyond(unit: dict[str, Any]) -> float:
    """Megabytes that the fit took beyond what was there: libraries and data."""
    return unit["megabytes"] - unit["megabytes_before"]


_PARTS = (("start_from_subset", "subset"), ("train_on_batches", "batches"), ("fit_evidence", "evidence"))


def table(result: Result) -> str:
    """Time by phases, memory and error of every model and n."""
    rows = []
    for unit in (unit for model in MODELS for unit in _sorted(result, model)):
        taken = unit["seconds"]
        parts = ", ".join(f"{label} {text.seconds(taken[name])}" for name, label in _PARTS if name in taken)
        rows.append(
            [
                unit["model"] + (f", {unit['epochs']} epochs" if unit["epochs"] else ""),
                f"{unit['n']:,}",
                *(text.seconds(taken[name]) for name in ("construct", "fit")),
                parts,
                *(text.seconds(taken[name]) for name in ("first prediction", "one observation")),
                f"{unit['data_megabytes']:,.0f}",
                f"{_beyond(unit):,.0f}",
                f"{unit['rmse']:.4f}",
                f"{unit['coverage']:.1%}",
            ]
        )
    header = ["model", "n", "construct", "fit", "parts of the fit", "first prediction", "one observation"]
    header += ["data, MB", "beyond, MB", "RMSE", "coverage"]
    return (
        f"The data are Friedman's function in {D} dimensions, scaled to unit variance, with noise of sd {NOISE_SD:g}. "
        f"SoftKI has m = {POINTS} points, GRIEF p = {EIGENFUNCTIONS} eigenfunctions.\n\n"
        f"- 'one observation' conditions on an observation and predicts a variance.\n"
        f"- 'beyond' is the memory beyond libraries and data: the process's peak up to the first prediction (VmHWM), "
        f"less what was resident before the model was made. The models keep a copy of the rows.\n"
        f"- RMSE is the error for the noise-free function at {TEST:,} points. Coverage is that of its 95 % "
        f"interval.\n\n" + text.table(header, rows) + "\n\n" + "\n".join(_growth(result))
    )


def _growth(result: Result) -> list[str]:
    """How memory grows from one n to the next, also as a multiple of the growth of the data."""
    lines = []
    for model in MODELS:
        for first, last in pairwise(_sorted(result, model)):
            more, data = _beyond(last) - _beyond(first), last["data_megabytes"] - first["data_megabytes"]
            lines.append(
                f"- {model}: from {first['n']:,} to {last['n']:,} rows, memory beyond the data grows by {more:,.0f} "
                f"MB. This is {more / data:.1f} times the growth of the data."
            )
    return lines


def headline(result: Result) -> list[text.Row]:
    """The largest n of each model."""
    rows = []
    for model in MODELS:
        done = _sorted(result, model)
        if done and done[-1]["n"] >= 1_000_000:
            unit = done[-1]
            rows.append(
                (
                    f"{model} of {unit['n']:,} rows, d = {D}",
                    f"fit {text.seconds(unit['seconds']['fit'])}, {_beyond(unit):,.0f} MB beyond the data, RMSE "
                    f"{unit['rmse']:.3f} at noise sd {NOISE_SD:g}; one more observation "
                    f"{text.seconds(unit['seconds']['one observation'])}",
                    f"an exact GP's matrix alone: {8e-12 * unit['n'] ** 2:,.0f} TB",
                )
            )
    return rows


def plot(result: Result, folder: Path) -> None:
    """Memory and seconds against n."""
    from benchmarks import plots

    done = {model: units for model in MODELS if (units := _sorted(result, model))}
    with plots.figure(folder / "million.png", panels=2) as axes:
        memory = {
            f"{model}, beyond the data": ([u["n"] for u in us], list(map(_beyond, us))) for model, us in done.items()
        }
        longest = max(done.values(), key=len)
        memory["the data"] = ([u["n"] for u in longest], [u["data_megabytes"] for u in longest])
        plots.against_n(axes[0], memory, "MB", "Rows")
        fits = {model: ([u["n"] for u in us], [u["seconds"]["fit"] for u in us]) for model, us in done.items()}
        plots.against_n(axes[1], fits, "Seconds a fit", "Rows")
