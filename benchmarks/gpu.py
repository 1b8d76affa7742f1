"""A GPU against the CPU, and against SingleTaskGP on the same GPU: eight minutes of all that a GPU is asked for."""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from botorch.acquisition import qNegIntegratedPosteriorVariance as BoTorchNIPV
from botorch.acquisition.logei import qLogExpectedImprovement
from botorch.fit import fit_gpytorch_mll
from botorch.generation.gen import gen_candidates_scipy
from botorch.models import SingleTaskGP
from botorch.sampling import SobolQMCNormalSampler
from botorch.sampling.pathwise import draw_matheron_paths
from botorch.utils.sampling import draw_sobol_samples
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from benchmarks import text
from benchmarks.harness import MissingDataError, Unit, interleaved, smooth_data
from benchmarks.nipv import with_gradient
from benchmarks.store import Result
from bo_scale import WISKI, CaGP, SoftKI, choose, qNegIntegratedPosteriorVariance
from bo_scale.gp.weight_space.host_rows import summed_from_host
from bo_scale.loop import Optimizer
from bo_scale.thompson import thompson_batch

TITLE = "A GPU"
DEVICES = ("cuda", "cpu")
PRECISIONS = {"float64": torch.float64, "float32": torch.float32}
ROWS, GRID, RIVAL_ROWS = 10_000, 30, 2_000
"""Rows and grid points a dimension of WISKI, and rows of SingleTaskGP."""
BATCHES, Q, INTEGRATED, THOMPSON = 64, 4, 10_000, 1_000
"""Batches of Q points that acquisition functions evaluate at once, integration points, and functions of Thompson."""
FITTED = {"cuda": 1_000_000, "cpu": 20_000}
POINTS, EPOCHS = 512, 1
ACTIONS, COMPUTED = 512, {"cuda": 100_000, "cpu": 3_000}
"""Rows of fits of SoftKI and of solutions of CaGP: fewer on a CPU, which would take all of the time."""
CHOSEN, BEFORE = (2_000, 5_000), 500
"""Rows of a choice of a model, which is an exact GP, and of one before that is not timed."""
STREAMED = {"cuda": 10_000_000, "cpu": 300_000}
ASKS, LOOP_ROWS = 3, 500
REPEATS = 10


def units(data: Path | None) -> dict[str, Unit]:
    """One for every task and precision: all devices and the rival in turns."""
    return {
        f"{task} {precision}": partial(measure, task, dtype)
        for task in TASKS
        for precision, dtype in PRECISIONS.items()
        if task not in DOUBLE or dtype is torch.float64
    }


def measure(task: str, dtype: torch.dtype) -> dict[str, Any]:
    """Seconds of a task on every device.

    Raises:
        MissingDataError: if there is no GPU.
    """
    if "cuda" in DEVICES and not torch.cuda.is_available():
        raise MissingDataError("there is no CUDA device. This case compares one with the CPU.")
    return {"task": task, "precision": str(dtype).removeprefix("torch."), "ways": TASKS[task](dtype)}


def in_turns(ways: dict[str, Callable[[], Any]], per: float = 1.0) -> dict[str, dict[str, float]]:
    """Median seconds of each way."""
    repeats = [interleaved([way], REPEATS if "SingleTaskGP" not in name else 3)[0] for name, way in ways.items()]
    return {name: {"seconds": seconds / per} for name, seconds in zip(ways, repeats, strict=True)}


def rows(n: int, device: str, dtype: torch.dtype, d: int = 2) -> tuple[Tensor, Tensor]:
    """Rows of a smooth function on a device."""
    X, Y = smooth_data(n, d)
    return X.to(device, dtype), Y.to(device, dtype)


def models(dtype: torch.dtype, d: int = 2) -> dict[str, Any]:
    """WISKI on every device, and SingleTaskGP on the first, all of which have predicted."""
    made: dict[str, Any] = {f"WISKI, {name}": WISKI(*rows(ROWS, name, dtype, d), grid_size=GRID) for name in DEVICES}
    made[f"SingleTaskGP, {DEVICES[0]}"] = SingleTaskGP(*rows(RIVAL_ROWS, DEVICES[0], dtype, d))
    for model in made.values():
        model.eval().posterior(model.train_inputs[0][:1]).variance  # noqa: B018
    return made


def streaming(dtype: torch.dtype) -> Any:
    """Condition on one observation and predict one variance."""

    def one(model: Any) -> None:
        X = torch.rand(2, 2).to(model.train_inputs[0])
        with torch.no_grad():
            child = model.condition_on_observations(X[:1], X[:1, :1])
            child.posterior(X[1:]).variance  # noqa: B018

    return in_turns({name: partial(one, model) for name, model in models(dtype).items()})


def evidence(dtype: torch.dtype) -> Any:
    """The loss of a fit with its gradient."""

    def loss(model: Any) -> None:
        mll = ExactMarginalLogLikelihood(model.likelihood, model).train()
        if isinstance(model, SingleTaskGP):
            value = -mll(model(*model.train_inputs), model.train_targets)
        else:
            value = model.compute_custom_loss(mll)
        value.backward()

    return in_turns({name: partial(loss, model) for name, model in models(dtype).items()})


def improvement(dtype: torch.dtype) -> Any:
    """QLogEI with its gradient, BATCHES at once."""

    def made(model: Any) -> Callable[[], Any]:
        like = model.train_inputs[0]
        sampler = SobolQMCNormalSampler(torch.Size([128]), seed=0)
        acquisition = qLogExpectedImprovement(model, torch.tensor(1.0).to(like), sampler)
        return partial(with_gradient, acquisition, torch.rand(BATCHES, Q, 2).to(like))

    return in_turns({name: made(model) for name, model in models(dtype).items()}, per=BATCHES)


def integrated(dtype: torch.dtype) -> Any:
    """QNIPV with its gradient over INTEGRATED points; BoTorch's takes one batch at a time."""

    def made(model: Any) -> Callable[[], Any]:
        like, ours = model.train_inputs[0], isinstance(model, WISKI)
        points = torch.rand(INTEGRATED, 2).to(like)
        acquisition = (qNegIntegratedPosteriorVariance if ours else BoTorchNIPV)(model, points)
        return partial(with_gradient, acquisition, torch.rand(BATCHES if ours else 1, Q, 2).to(like))

    found = in_turns({name: made(model) for name, model in models(dtype).items()})
    return {
        name: {"seconds": each["seconds"] / (BATCHES if name.startswith("WISKI") else 1)}
        for name, each in found.items()
    }


def thompson(dtype: torch.dtype) -> Any:
    """A batch of THOMPSON maximisers of functions."""
    ways: dict[str, Callable[[], Any]] = {}
    for name, model in models(dtype, 3).items():
        bounds = torch.tensor([[0.0] * 3, [1.0] * 3]).to(model.train_inputs[0])
        if isinstance(model, WISKI):
            ways[name] = partial(thompson_batch, model, bounds, THOMPSON)
        else:
            ways[name] = partial(_pathwise, model, bounds)
    return {name: {"seconds": interleaved([way], 1, warmup=0)[0]} for name, way in ways.items()}


def _pathwise(model: Any, bounds: Tensor) -> Tensor:
    """Do what BoTorch's `optimize_posterior_samples` does, whose starting points are on the CPU whatever the device."""
    paths = draw_matheron_paths(model, torch.Size([THOMPSON]))
    starts = draw_sobol_samples(bounds, n=1024, q=1, seed=0).squeeze(-2)
    best = paths(starts).squeeze(-1).topk(20, -1).indices
    points, values = gen_candidates_scipy(
        starts[best], lambda X: paths(X).squeeze(-1), bounds[0], bounds[1], use_parallel_mode=False
    )
    index = values.argmax(-1)[..., None, None].expand(*values.shape[:-1], 1, bounds.shape[-1])
    return points.gather(-2, index).squeeze(-2)


def fit_of_many(dtype: torch.dtype) -> Any:
    """A fit of SoftKI, seconds per million rows."""
    found = {}
    for device in DEVICES:
        n = FITTED[device]
        model = SoftKI(*rows(n, device, dtype, 6), num_interpolation_points=POINTS, epochs=EPOCHS, progress=False)
        seconds = _once(partial(fit_gpytorch_mll, ExactMarginalLogLikelihood(model.likelihood, model)))
        found[f"SoftKI, {device}"] = {"seconds": seconds * 1e6 / n, "n": n}
    return found


def actions(dtype: torch.dtype) -> Any:
    """CaGP's posterior of many rows, by KeOps on a GPU if it is installed."""
    found = {}
    for device in DEVICES:
        n = COMPUTED[device]
        model = CaGP(*rows(n, device, dtype, 6), num_actions=ACTIONS, policy="learned")
        found[f"CaGP, {device}"] = {"seconds": _once(lambda model=model: model.eval().processes), "n": n}
    return found


def choice(dtype: torch.dtype) -> Any:
    """A choice of a model with its fit, and a fit of SingleTaskGP."""
    for device in DEVICES:
        choose(*rows(BEFORE, device, dtype, 6))
    found = {}
    for n in CHOSEN:
        for device in DEVICES:
            found[f"choose, {device}, {n}"] = {"seconds": _once(partial(choose, *rows(n, device, dtype, 6))), "n": n}
        rival = SingleTaskGP(*rows(n, DEVICES[0], dtype, 6))
        fit = partial(fit_gpytorch_mll, ExactMarginalLogLikelihood(rival.likelihood, rival))
        found[f"SingleTaskGP, {DEVICES[0]}, {n}"] = {"seconds": _once(fit), "n": n}
    return found


def from_the_host(dtype: torch.dtype) -> Any:
    """Sums of rows that stay in pinned memory, seconds per million rows, and a copy of them alone."""
    found = {}
    for device in DEVICES:
        n, where = STREAMED[device], torch.empty(0, device=device).device
        X, Y = rows(n, "cpu", dtype)
        features = WISKI(X[:100].to(where), Y[:100].to(where), grid_size=GRID)._feature_map(0, frozen=True)
        X, Y = (values.pin_memory() if device == "cuda" else values for values in (X, Y))
        summed = _once(partial(summed_from_host, features, X, Y, device=where))
        copied = _once(lambda X=X, Y=Y, where=where: [each.to(where, non_blocking=True) for each in (X, Y)])
        found[f"WISKI, {device}"] = {"seconds": summed * 1e6 / n, "n": n}
        found[f"copy, {device}"] = {"seconds": copied * 1e6 / n, "n": n}
    return found


def asks(dtype: torch.dtype) -> Any:
    """An ask of the loop, with the model on a device."""
    found = {}
    choices = [(name, name.lower(), device) for name in ("WISKI", "auto") for device in DEVICES]
    for name, model, device in [*choices, ("SingleTaskGP", _single_task, DEVICES[0])]:
        X, Y = rows(LOOP_ROWS, "cpu", dtype)
        loop = Optimizer([(0.0, 1.0)] * 2, model=model, device=device, seed=0, acquisition="qLogEI")
        loop.tell(X, Y.squeeze(-1))
        loop.ask(1)
        found[f"{name}, {device}"] = {"seconds": _once(lambda loop=loop: [loop.ask(1) for _ in range(ASKS)]) / ASKS}
    return found


def _single_task(X: Tensor, Y: Tensor, Yvar: Tensor | None) -> SingleTaskGP:
    return SingleTaskGP(X, Y, Yvar)


def _once(call: Callable[[], Any]) -> float:
    """Seconds of one call, with all that it asked of a GPU."""
    start = time.perf_counter()
    call()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start


TASKS: dict[str, Callable[[torch.dtype], Any]] = {
    "one observation": streaming,
    "evidence with gradient": evidence,
    "qLogEI with gradient": improvement,
    "qNIPV with gradient": integrated,
    "Thompson batch": thompson,
    "SoftKI fit, per million rows": fit_of_many,
    "CaGP posterior": actions,
    "choice of a model": choice,
    "rows of the host, per million": from_the_host,
    "ask of the loop": asks,
}
DOUBLE = ("ask of the loop", "choice of a model")
"""Tasks of which the precision is not for us to choose: their fits are in float64."""


def table(result: Result) -> str:
    """Seconds on every device, and the ratio of the CPU's."""
    rows = []
    for unit in result["units"].values():
        for name, found in unit["ways"].items():
            n = f"{found['n']:,}" if "n" in found else ""
            short = name.removesuffix(f", {found.get('n')}")
            rows.append([unit["task"], unit["precision"], short, n, text.seconds(found["seconds"])])
    introduction = (
        f"WISKI has {ROWS:,} rows and {GRID}² grid points, SingleTaskGP {RIVAL_ROWS:,} rows. Acquisition functions "
        f"evaluate {BATCHES} batches of {Q} points at once, and times are of one batch. The fit of SoftKI has {POINTS} "
        f"points and {EPOCHS} epoch, CaGP {ACTIONS} actions, a Thompson batch {THOMPSON:,} points. A model is chosen "
        "and fitted for rows of 6 inputs, and SingleTaskGP is fitted to them."
    )
    return f"{introduction}\n\n{text.table(['task', 'precision', 'model, device', 'n', 'time'], rows)}"


def headline(result: Result) -> list[text.Row]:
    """One observation in float64."""
    unit = result["units"].get("one observation float64")
    if unit is None:
        return []
    ways = {name: text.seconds(found["seconds"]) for name, found in unit["ways"].items()}
    ours, here, rival = (f"WISKI, {DEVICES[0]}", f"WISKI, {DEVICES[-1]}", f"SingleTaskGP, {DEVICES[0]}")
    return [("one observation on a GPU", f"{ways[ours]}; {ways[here]} on the CPU", f"`SingleTaskGP`: {ways[rival]}")]
