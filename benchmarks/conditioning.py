"""Conditioning on one observation after another: how exact it is for every model, and what it costs.

Each model is fitted to some rows and then told of the others one by one. Beside it, in turns, does so BoTorch's
SingleTaskGP.
"""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from benchmarks import text
from benchmarks.harness import Unit, smooth_data
from benchmarks.store import Result

TITLE = "One observation after another"
PLOTS = {"conditioning.png": "Seconds of an update, which conditions on one observation and predicts one variance"}
ROWS, UPDATES, TEST = 500, 100, 200
ACTIONS, FEATURES, MEAN_POINTS, COVAR_POINTS = 64, 200, 256, 64
ITERATIONS, STEPS = 50, 200
"""Of CaGP's fit by L-BFGS, and of the decoupled GP's by Adam."""
RIVAL = "SingleTaskGP"

Moments = tuple[Tensor, Tensor]
"""Mean and standard deviation of f at points."""
Build = Callable[[Tensor, Tensor], Any]
"""A model of inputs in the unit cube and targets of unit scale, before its fit."""


def wiski(X: Tensor, Y: Tensor) -> Any:
    """On a grid over the unit square, whatever the rows."""
    from bo_scale import WISKI

    return WISKI(X, Y, bounds=_cube(X), outcome_transform=None)


def softki(X: Tensor, Y: Tensor) -> Any:
    """With few interpolation points."""
    from bo_scale import SoftKI

    return SoftKI(X, Y, num_interpolation_points=FEATURES, outcome_transform=None, progress=False)


def grief(X: Tensor, Y: Tensor) -> Any:
    """On a grid over the unit cube, whatever the rows."""
    from bo_scale import GRIEF

    return GRIEF(X, Y, num_eigenfunctions=FEATURES, bounds=_cube(X), outcome_transform=None)


def cagp(X: Tensor, Y: Tensor, policy: str) -> Any:
    """With actions of either policy."""
    from bo_scale.models.cagp import CaGP

    options: dict[str, Any] = {"optimizer": "lbfgs", "epochs": ITERATIONS, "outcome_transform": None, "progress": False}
    return CaGP(X, Y, num_actions=ACTIONS, policy=policy, **options)


def decoupled(X: Tensor, Y: Tensor, parameterization: str) -> Any:
    """Of either parameterization."""
    from bo_scale.models.decoupled import DecoupledGP

    sizes = {
        "num_mean_inducing": MEAN_POINTS,
        "num_covar_inducing": COVAR_POINTS,
        "num_steps": STEPS,
        "batch_size": 256,
    }
    return DecoupledGP(X, Y, parameterization=parameterization, **sizes, outcome_transform=None, progress=False)


def _cube(X: Tensor) -> Tensor:
    return torch.stack([torch.zeros_like(X[0]), torch.ones_like(X[0])])


MODELS: dict[str, tuple[int, Build]] = {
    "WISKI": (2, wiski),
    "SoftKI": (4, softki),
    "GRIEF": (4, grief),
    "CaGP, learned": (4, partial(cagp, policy="learned")),
    "CaGP, cg": (4, partial(cagp, policy="cg")),
    "decoupled, direct": (4, partial(decoupled, parameterization="direct")),
    "decoupled, hybrid": (4, partial(decoupled, parameterization="hybrid")),
}
"""Each with its dimension."""


def units(data: Path | None) -> dict[str, Unit]:
    """One for each model, with the rival in it."""
    return {model: partial(measure, model) for model in MODELS}


def measure(model: str) -> dict[str, Any]:
    """Fit, condition in turns with the rival, and compare with what should have come out."""
    d, build = MODELS[model]
    X, Y = smooth_data(ROWS + UPDATES + TEST, d)
    Y = (Y - Y[:ROWS].mean()) / Y[:ROWS].std()
    test, X, Y = X[ROWS + UPDATES :], X[: ROWS + UPDATES], Y[: ROWS + UPDATES]
    fitted = {model: build(X[:ROWS], Y[:ROWS]), RIVAL: SingleTaskGP(X[:ROWS], Y[:ROWS], outcome_transform=None)}
    refit = {name: _seconds(partial(_fit, each)) for name, each in fitted.items()}
    with torch.no_grad():
        for each in fitted.values():
            _ = each.posterior(test[:1]).variance  # derived once, before the clock
        last, update = _update(fitted, X[ROWS:], Y[ROWS:], test[:1])
        found = {name: _moments(each, test) for name, each in last.items()}
        rebuilt: dict[str, Any] = {}
        rebuild = {
            model: _seconds(lambda: rebuilt.update({model: _rebuilt(build, fitted[model], X, Y, test)})),
            RIVAL: _seconds(lambda: rebuilt.update({RIVAL: _rebuilt(_exact, fitted[RIVAL], X, Y, test)})),
        }
        dense = {name: conditioned(each, X[ROWS:], Y[ROWS:], test) for name, each in fitted.items()}
        errors = {
            "errors": {name: _errors(found[name], dense[name]) for name in fitted},
            "to_rebuilt": {name: _errors(found[name], rebuilt[name]) for name in fitted},
        }
        if model.startswith("CaGP"):
            errors["to_formula"] = {model: _errors(found[model], by_actions(fitted[model], X, Y, test))}
    sizes = {"model": model, "d": d, "n": ROWS, "updates": UPDATES, "seed": 0}
    return {**sizes, **errors, "update": update, "rebuild": rebuild, "refit": refit}


def _exact(X: Tensor, Y: Tensor) -> Any:
    return SingleTaskGP(X, Y, outcome_transform=None)


def _fit(model: Any) -> None:
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    model.eval()


def _seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _update(
    models: dict[str, Any], X: Tensor, Y: Tensor, test: Tensor
) -> tuple[dict[str, Any], dict[str, list[float]]]:
    """The models after all rows, one at a time and in turns, and the seconds of every update."""
    last, seconds = dict(models), {name: [] for name in models}
    for x, y in zip(X.split(1), Y.split(1), strict=True):
        for name in models:
            start = time.perf_counter()
            last[name] = last[name].condition_on_observations(x, y)
            _ = last[name].posterior(test).variance  # computed when asked for
            seconds[name].append(time.perf_counter() - start)
    return last, seconds


def _moments(model: Any, X: Tensor) -> Moments:
    posterior = model.posterior(X)
    return posterior.mean.squeeze(-1), posterior.variance.squeeze(-1).sqrt()


def _rebuilt(build: Build, fitted: Any, X: Tensor, Y: Tensor, test: Tensor) -> Moments:
    """Moments of a model made of all rows with the hyperparameters of the fitted one."""
    model = build(X, Y)
    model.load_state_dict(fitted.state_dict())
    return _moments(model.eval(), test)


def conditioned(model: Any, X: Tensor, Y: Tensor, test: Tensor) -> Moments:
    """Moments of a model's own process at the test points given the observations, by dense Gaussian conditioning."""
    joint = model.posterior(torch.cat([X, test])).distribution
    mean, covariance, count = joint.mean, joint.covariance_matrix, len(X)
    noise = model.likelihood.noise.double() * torch.eye(count, dtype=torch.float64)
    gain = torch.linalg.solve(covariance[:count, :count] + noise, covariance[:count, count:]).mT
    variance = covariance.diagonal()[count:] - (gain * covariance[count:, :count]).sum(-1)
    return mean[count:] + gain @ (Y.squeeze(-1) - mean[:count]), variance.sqrt()


def by_actions(model: Any, X: Tensor, Y: Tensor, test: Tensor) -> Moments:
    """Moments of a CaGP with actions blkdiag(S, I), S of the fitted model, from dense matrices alone."""
    known, count = model.num_observations, len(X)
    actions = model._policy.actions(0, model._observations(0), model._shares)
    seen = actions.project(torch.eye(known, dtype=torch.float64))
    St = torch.block_diag(seen, torch.eye(count - known, dtype=torch.float64))
    with torch.no_grad():
        K = model.covar_module(torch.cat([X, test])).to_dense()
        mu = model.mean_module(X[:1]).squeeze()
    noisy = K[:count, :count] + model.likelihood.noise * torch.eye(count, dtype=torch.float64)
    gain = torch.linalg.solve(St @ noisy @ St.mT, St @ K[:count, count:]).mT
    variance = K.diagonal()[count:] - (gain * (K[count:, :count] @ St.mT)).sum(-1)
    return mu + gain @ (St @ (Y.squeeze(-1) - mu)), variance.sqrt()


def _errors(found: Moments, expected: Moments) -> dict[str, float]:
    """The largest over points, in units of the expected standard deviation."""
    mean, sd = expected
    return {
        "mean": ((found[0] - mean).abs() / sd).max().item(),
        "sd": ((found[1] - sd).abs() / sd).max().item(),
    }


# ---------------------------------------------------------------------- report


def _done(result: Result) -> dict[str, dict[str, Any]]:
    """Units in the order of MODELS."""
    found = {unit["model"]: unit for unit in result["units"].values()}
    return {model: found[model] for model in MODELS if model in found}


def _pair(errors: dict[str, float]) -> str:
    return f"{errors['mean']:.1g}, {errors['sd']:.1g}"


def table(result: Result) -> str:
    """Seconds of an update and of what it saves, and errors, of every model and of the rival beside it."""
    rows = []
    for model, unit in _done(result).items():
        ours, theirs = (median(unit["update"][name]) for name in (model, RIVAL))
        seconds = [text.seconds(unit[what][model]) for what in ("rebuild", "refit")]
        errors = [_pair(unit[what][model]) for what in ("errors", "to_rebuilt")]
        formula = _pair(unit["to_formula"][model]) if "to_formula" in unit else "–"
        rivals = [text.seconds(theirs), text.seconds(unit["refit"][RIVAL]), _pair(unit["errors"][RIVAL])]
        rows.append([f"{model}, d = {unit['d']}", text.seconds(ours), *seconds, *errors, formula, *rivals])
    header = ["model", "update", "rebuild", "refit", "error", "to rebuilt", "to blkdiag(S, I)"]
    header += [f"{RIVAL}: update", "refit", "error"]
    return (
        f"Each model is fitted to {ROWS} rows. It then receives {UPDATES} observations one by one, in turns with "
        f"{RIVAL}.\n\n"
        f"- An update conditions on one observation and predicts one variance. Its time is the median over all "
        f"observations.\n"
        f"- A rebuild makes the model of all {ROWS + UPDATES} rows at the same hyperparameters and predicts. A refit "
        f"fits the model to the {ROWS} rows.\n"
        f"- Errors are those of the mean and of the sd of f: the largest over {TEST} points after the last update, in "
        f"units of the sd.\n"
        f"- 'error' compares with dense Gaussian conditioning of the fitted model's own process on the {UPDATES} "
        f"observations. It should be zero up to rounding for every model.\n"
        f"- 'to rebuilt' compares with the rebuilt model. It should be zero up to rounding for weight-space models, "
        f"but not for the others. A rebuilt CaGP has the new rows in blocks or has other conjugate gradients, while a "
        f"conditioned one has an action for each new row. A rebuilt decoupled GP solves for its variational parameters "
        f"again.\n"
        f"- 'to blkdiag(S, I)' compares CaGP with the dense formula for its own actions. It should be zero up to "
        f"rounding.\n"
        f"- WISKI's grid has its default size. SoftKI has {FEATURES} interpolation points, GRIEF as many "
        f"eigenfunctions, and CaGP {ACTIONS} actions. The decoupled GP has {MEAN_POINTS} points for its mean and "
        f"{COVAR_POINTS} for its covariance.\n\n" + text.table(header, rows)
    )


def headline(result: Result) -> list[text.Row]:
    """The slowest and the least exact update."""
    done = _done(result)
    if not done:
        return []
    worst = max(max(unit["errors"][model].values()) for model, unit in done.items())
    seconds = {model: median(unit["update"][model]) for model, unit in done.items()}
    rivals = [median(unit["update"][RIVAL]) for unit in done.values()]
    their_worst = max(max(unit["errors"][RIVAL].values()) for unit in done.values())
    return [
        (
            f"one more observation after {ROWS} rows, {len(done)} models",
            f"{text.seconds(min(seconds.values()))} to {text.seconds(max(seconds.values()))} each; after {UPDATES} "
            f"observations within {worst:.1g} sd of dense conditioning",
            f"`SingleTaskGP` {text.seconds(median(rivals))}, {their_worst:.1g} sd",
        )
    ]


def plot(result: Result, folder: Path) -> None:
    """Seconds of every update against the observations before it."""
    from benchmarks import plots

    done = _done(result)
    with plots.figure(folder / "conditioning.png") as (axis,):
        axis.figure.set_size_inches(7.5, 4.4)
        rivals = [unit["update"][RIVAL] for unit in done.values()]
        lines = {model: unit["update"][model] for model, unit in done.items()}
        if rivals:
            lines[RIVAL] = [median(values) for values in zip(*rivals, strict=True)]
        for name, seconds in lines.items():
            style = {"color": "0.3", "linestyle": ":"} if name == RIVAL else {}
            axis.plot(range(ROWS, ROWS + len(seconds)), _smoothed(seconds), label=name, **style)
        axis.set(yscale="log", xlabel="Observations before", ylabel="Seconds of an update")


def _smoothed(seconds: list[float], width: int = 9) -> list[float]:
    """Running medians."""
    half = width // 2
    return [median(seconds[max(0, i - half) : i + half + 1]) for i in range(len(seconds))]
