"""One step of Bayesian optimisation on noisy Levy-3: fit, choose a batch of 3, take its observations in."""

import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from botorch.acquisition.monte_carlo import qUpperConfidenceBound
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP, SingleTaskVariationalGP
from botorch.optim.fit import fit_gpytorch_mll_torch
from botorch.optim.optimize import optimize_acqf
from botorch.sampling.normal import SobolQMCNormalSampler
from botorch.test_functions import Levy
from gpytorch.mlls import ExactMarginalLogLikelihood, VariationalELBO
from torch import Tensor

from benchmarks import text
from benchmarks.harness import Unit
from benchmarks.store import Result
from bo_scale import WISKI

TITLE = "A step of Bayesian optimisation"
PLOTS = {"bo_step.png": "Seconds per step of Bayesian optimisation on noisy Levy-3, in batches of 3"}
SIZES = (100, 500, 1000, 2000, 4500)
MODELS = ("WISKI", "SingleTaskGP", "SingleTaskVariationalGP")
NOISE_SD, Q = 10.0, 3
INDUCING, VARIATIONAL_STEPS = 512, 200


def units(data: Path | None) -> dict[str, Unit]:
    """One for every n, all models in it one after the other."""
    return {f"n={n}": partial(measure, n) for n in SIZES}


def measure(n: int) -> dict[str, Any]:
    """Seconds of the three parts for every model on the same data."""
    function = Levy(dim=3, negate=True)
    g = torch.Generator().manual_seed(0)
    X = torch.rand(n + Q, 3, generator=g, dtype=torch.float64)
    f = function(function.bounds[0] + (function.bounds[1] - function.bounds[0]) * X)
    Y = (f + NOISE_SD * torch.randn(n + Q, generator=g, dtype=torch.float64)).unsqueeze(-1)
    return {"n": n, "seed": 0, **{model: step(model, X, Y, n) for model in MODELS}}


def step(name: str, X: Tensor, Y: Tensor, n: int) -> dict[str, float]:
    """A fit from default hyperparameters, a batch by qUCB, and the update by its observations without a fit."""
    started = time.perf_counter()
    model = fitted(name, X[:n], Y[:n])
    after_fit = time.perf_counter()
    sampler = SobolQMCNormalSampler(torch.Size([128]), seed=0)
    optimize_acqf(
        qUpperConfidenceBound(model, 2.0, sampler=sampler),
        torch.stack([torch.zeros(3), torch.ones(3)]).to(X),
        q=Q,
        num_restarts=4,
        raw_samples=128,
        options={"maxiter": 60, "batch_limit": 8, "init_batch_limit": 128},
    )
    after_acquisition = time.perf_counter()
    updated(name, model, X, Y, n).posterior(X[:Q]).variance  # noqa: B018
    return {
        "fit": after_fit - started,
        "acquisition": after_acquisition - after_fit,
        "update": time.perf_counter() - after_acquisition,
    }


def fitted(name: str, X: Tensor, Y: Tensor) -> Any:
    """A fitted model; the variational one by Adam, since L-BFGS over its covariance takes many times as long."""
    if name == "SingleTaskVariationalGP":
        model = SingleTaskVariationalGP(X, Y, inducing_points=min(len(X), INDUCING))
        mll = VariationalELBO(model.likelihood, model.model, num_data=len(X))
        mll.train()
        fit_gpytorch_mll_torch(mll, step_limit=VARIATIONAL_STEPS)
    else:
        model = (WISKI if name == "WISKI" else SingleTaskGP)(X, Y)
        fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    return model.eval()


def updated(name: str, model: Any, X: Tensor, Y: Tensor, n: int) -> Any:
    """The model with q more observations: conditioned; rebuilt where that is faster; fitted where it must be."""
    if name == "WISKI":
        return model.condition_on_observations(X[n:], Y[n:])
    if name == "SingleTaskGP":
        rebuilt = SingleTaskGP(X, Y)
        rebuilt.load_state_dict({k: v for k, v in model.state_dict().items() if "transform" not in k}, strict=False)
        return rebuilt.eval()
    return fitted(name, X, Y)


def table(result: Result) -> str:
    """Fit, acquisition and update for every n and model; the ratio of their sums."""
    rows = []
    for unit in sorted(result["units"].values(), key=lambda unit: unit["n"]):
        total = {model: sum(unit[model].values()) for model in MODELS}
        for model in MODELS:
            parts = [text.seconds(unit[model][part]) for part in ("fit", "acquisition", "update")]
            rows.append([f"{unit['n']:,}", model, *parts, text.ratio(total[model], total["WISKI"])])
    return (
        f"The function is noisy Levy-3 (noise sd {NOISE_SD:g}). A step has three parts: a fit from default "
        f"hyperparameters, a batch of {Q} by qUCB (4 restarts, 128 raw samples), and an update with its {Q} "
        f"observations without a fit of hyperparameters. For the update WISKI conditions. SingleTaskGP is rebuilt, "
        f"which is faster than conditioning it. SingleTaskVariationalGP ({INDUCING} inducing points, "
        f"{VARIATIONAL_STEPS} Adam steps) cannot condition and is fitted again. The last column is the sum as a "
        f"multiple of WISKI's.\n\n"
        + text.table(["n", "model", "fit", "acquisition", "update", "sum / WISKI's"], rows, align="---")
    )


def headline(result: Result) -> list[text.Row]:
    """The largest n."""
    unit = max(result["units"].values(), key=lambda unit: unit["n"])
    total = {model: sum(unit[model].values()) for model in MODELS}
    return [
        (
            f"a whole step on noisy Levy-3 at n = {unit['n']:,}: fit, batch of {Q}, update",
            f"{text.seconds(total['WISKI'])}; without the fit {text.seconds(total['WISKI'] - unit['WISKI']['fit'])}",
            f"`SingleTaskGP` {text.seconds(total['SingleTaskGP'])}, `SingleTaskVariationalGP` "
            f"{text.seconds(total['SingleTaskVariationalGP'])}",
        )
    ]


def plot(result: Result, folder: Path) -> None:
    """The sum against n."""
    from benchmarks import plots

    done = sorted(result["units"].values(), key=lambda unit: unit["n"])
    lines = {m: ([u["n"] for u in done], [sum(u[m].values()) for u in done]) for m in MODELS}
    with plots.figure(folder / "bo_step.png") as (axis,):
        plots.against_n(axis, lines, "Seconds a step")
