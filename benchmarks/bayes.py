"""GP-GRIEF-I against GP-GRIEF-II and the exact GP; its chains; and its time against the number of rows.

GRIEF-I is measured by the exact mixture: its error is that of the mixture's mean, its likelihood that of the mixture,
and its intervals have the mixture's mean and variance.
"""

import math
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from botorch.fit import fit_gpytorch_mll
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from benchmarks import million, rivals, text, uci
from benchmarks.child import in_child, in_child_or_error
from benchmarks.harness import Unit, require_data
from benchmarks.store import Result

TITLE = "Fully Bayesian GP-GRIEF"
PLOTS = {"bayes.png": "Left: negative log likelihood of the test rows; right: seconds against the number of rows"}
DATA_SETS = ("skillcraft", "parkinsons", "powerplant", "elevators", "kin40k", "keggundirected")
MODELS = ("GRIEF-I", "GRIEF-I, Langevin", "GRIEF-II", "exact")
P, SAMPLES = 1000, 64
CHAINS, ITERATIONS = 4, 10_000
EXACT_ROWS = 5500
"""The exact GP fits up to so many."""
SIZES, SMALL_P = (1000, 10_000, 100_000, 1_000_000), 500


def units(data: Path | None) -> dict[str, Unit]:
    """Fold 0 of every data set and model, the chains, and every n."""
    found: dict[str, Unit] = {
        f"{name} {model}": partial(measure, data, name, model)
        for name in DATA_SETS
        for model in MODELS
        if model != "exact" or name in ("skillcraft", "parkinsons")
    }
    found["chains"] = partial(in_fresh, data, chains)
    return found | {f"n={n}": partial(in_child, against_n, n) for n in SIZES}


def measure(data: Path | None, name: str, model: str) -> dict[str, Any]:
    """A fit in a process of its own. One that fails leaves its error."""
    path = require_data(data, f"{name}.npz")
    described = {"data": name, "model": model, "fold": 0, "seed": 0}
    return in_child_or_error(described, evaluate, path, model)


def in_fresh(data: Path | None, function: Any) -> dict[str, Any]:
    """A function of kin40k's file, in a process of its own."""
    return in_child(function, require_data(data, "kin40k.npz"))


def load(path: Path) -> tuple[Tensor, Tensor, Tensor, Tensor, float]:
    """Training inputs and values of fold 0, test inputs and values, all standardised; and the raw unit of values."""
    X, Y, test = uci.load(path, 0)
    (X, _), (Y, unit) = uci.standardised(X, ~test), uci.standardised(Y, ~test)
    return X[~test], Y[~test].unsqueeze(-1), X[test], Y[test], unit.item()


def build(model: str, X: Tensor, Y: Tensor, count: int = P) -> Any:
    """A model before its fit."""
    from bo_scale import GRIEF, GRIEFBayes

    if model == "GRIEF-II":
        count = min(count, 10 ** math.floor(math.log10(len(X))))  # as in the paper
        return GRIEF(X, Y, num_eigenfunctions=count, weights="type2")
    sampler = "langevin" if model == "GRIEF-I, Langevin" else "exact"
    return GRIEFBayes(
        X,
        Y,
        num_eigenfunctions=count,
        num_samples=SAMPLES,
        sampler=sampler,
        num_chains=CHAINS,
        num_iterations=ITERATIONS,
    )


def evaluate(path: Path, model: str) -> dict[str, Any]:
    """Seconds of the fit and of sampling, and the scores on the test rows."""
    X, Y, X_test, Y_test, unit = load(path)
    start = time.perf_counter()
    if model == "exact":
        fitted = rivals.fit_exact(X, Y.squeeze(-1))
        seconds = {"fit": time.perf_counter() - start}
        mean, variance = fitted.predict(X_test)
        return {"n": len(X), "d": X.shape[-1], "seconds": seconds, **uci.scores(Y_test, mean, variance, unit)}
    made = build(model, X, Y)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(made.likelihood, made))
    made.eval()
    seconds = {"fit": time.perf_counter() - start}
    start = time.perf_counter()
    made.posterior(X[:1])
    seconds["posterior"] = time.perf_counter() - start
    means, variances = predict(made, X_test)  # samples × M
    mean = means.mean(0)
    scores = uci.scores(Y_test, mean, variances.mean(0) + means.var(0, correction=0), unit)
    normal = torch.distributions.Normal(means, variances.sqrt())
    scores["nll"] = -(normal.log_prob(Y_test).logsumexp(0) - math.log(len(means))).mean().item()
    diagnostics = {} if model == "GRIEF-II" else {"diagnostics": vars(made.diagnostics)}
    return {"n": len(X), "d": X.shape[-1], "seconds": seconds, **scores, **diagnostics}


@torch.no_grad()
def predict(model: Any, X: Tensor) -> tuple[Tensor, Tensor]:
    """Means and variances of observations for every sample: `S × M` each; one sample where there is no ensemble."""
    parts = [model.posterior(part.unsqueeze(-2), observation_noise=True) for part in X.split(1000)]
    mean, variance = (torch.cat([getattr(p, what) for p in parts]) for what in ("mean", "variance"))
    return mean.reshape(len(X), -1).mT, variance.reshape(len(X), -1).mT


def chains(path: Path) -> dict[str, Any]:
    """10,000 iterations of 4 chains on kin40k after the features are made, and the exact draws beside them."""
    X, Y, _, _, _ = load(path)
    made = build("GRIEF-I, Langevin", X, Y)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(made.likelihood, made))
    made.eval()
    _ = made.statistics
    seconds = {}
    for sampler in ("langevin", "exact"):
        made._sampler, made._processes = sampler, None
        start = time.perf_counter()
        made.posterior(X[:1])
        seconds[sampler] = time.perf_counter() - start
        if sampler == "langevin":
            found = vars(made.diagnostics)
    return {"data": "kin40k", "p": P, "chains": CHAINS, "seconds": seconds, "seed": 0, **found}


def against_n(n: int) -> dict[str, Any]:
    """Seconds of a fit, of sampling, of one more observation, at fixed p."""
    g = torch.Generator().manual_seed(0)
    X = torch.rand(n, million.D, generator=g, dtype=torch.float64)
    Y = torch.cat([million.function(part) for part in X.split(100_000)]).unsqueeze(-1)
    Y += million.NOISE_SD * torch.randn(n, 1, generator=g, dtype=torch.float64)
    seconds: dict[str, float] = {}
    made = build("GRIEF-I", X, Y, SMALL_P)
    million._timed(seconds, "fit", lambda: fit_gpytorch_mll(ExactMarginalLogLikelihood(made.likelihood, made)))
    made.eval()
    million._timed(seconds, "statistics", lambda: made.statistics)
    million._timed(seconds, "samples", lambda: made.posterior(X[:1]).variance)
    made = made.condition_on_observations(X[:1], Y[:1])  # room for more rows is made once
    observe = partial(made.condition_on_observations, X[:1], Y[:1])
    million._timed(seconds, "observation", lambda: observe().posterior(X[:1]).variance)
    return {"n": n, "p": SMALL_P, "samples": SAMPLES, "seed": 0, "seconds": seconds}


# ---------------------------------------------------------------------- report


def table(result: Result) -> str:
    """Scores of every data set and model, the chains, and time against n."""
    done = {name: unit for name, unit in result["units"].items() if "error" not in unit}
    failed = [f"- {name}: {unit['error']}" for name, unit in result["units"].items() if "error" in unit]
    parts = [
        f"GRIEF-I has {SAMPLES} samples of weights and noise. They are drawn exactly by quadrature, or by {CHAINS} "
        f"Langevin chains of {ITERATIONS:,} iterations. The rivals are GRIEF-II, which estimates weights and noise by "
        f"the evidence (type II), and BoTorch's exact SingleTaskGP. p = {P:,}; scores are in standardised units on "
        f"fold 0.",
        _scores(done),
        _chains(done),
        _sizes(done),
        "Failed:\n\n" + "\n".join(failed) if failed else "",
    ]
    return "\n\n".join(part for part in parts if part)


def _scores(done: dict[str, Any]) -> str:
    header = ["data", "n", "model", "RMSE", "NLL", "in 50 %", "in 95 %", "fit", "samples or posterior"]
    rows = []
    for name in DATA_SETS:
        for model in MODELS:
            unit = done.get(f"{name} {model}")
            if unit is not None:
                scores = [f"{unit['rmse']:.4f}", f"{unit['nll']:.4f}"]
                scores += [f"{unit[f'coverage_{p}']:.1%}" for p in (50, 95)]
                times = [text.seconds(unit["seconds"][key]) if key in unit["seconds"] else "–" for key in _PHASES]
                rows.append([name, f"{unit['n']:,}", model, *scores, *times])
    return text.table(header, rows) if rows else ""


_PHASES = ("fit", "posterior")


def _chains(done: dict[str, Any]) -> str:
    unit = done.get("chains")
    if unit is None:
        return ""
    took = unit["seconds"]["langevin"]
    return (
        f"Langevin chains on kin40k, including the rotation: {unit['iterations']:,} iterations of {unit['chains']} in "
        f"{text.seconds(took)} ({unit['iterations'] / took:,.0f} a second), with acceptance {unit['acceptance']:.2f}. "
        f"Split R̂ is {unit['r_hat_noise']:.3f} for the noise, and at worst {unit['r_hat_mean']:.3f} for the posterior "
        f"mean at 100 points. There are {unit['effective_size']:,.0f} effective draws of the noise. Exact draws take "
        f"{text.seconds(unit['seconds']['exact'])}."
    )


def _sizes(done: dict[str, Any]) -> str:
    found = [done[f"n={n}"] for n in SIZES if f"n={n}" in done]
    names = {"fit": "fit", "samples": f"{SAMPLES} samples", "observation": "one more observation, one prediction"}
    rows = [[f"{unit['n']:,}", *(text.seconds(unit["seconds"][key]) for key in names)] for unit in found]
    return text.table(["n (d = 10)", *names.values()], rows) if rows else ""


def headline(result: Result) -> list[text.Row]:
    """Sampling against n, and likelihoods beside II's."""
    done, rows = {name: unit for name, unit in result["units"].items() if "error" not in unit}, []
    largest = max((n for n in SIZES if f"n={n}" in done), default=None)
    if largest is not None and "chains" in done:
        seconds, unit = done[f"n={largest}"]["seconds"], done["chains"]
        ours = (
            f"{text.seconds(seconds['samples'])} (fit {text.seconds(seconds['fit'])}); Langevin's {CHAINS} chains of "
            f"{ITERATIONS:,}: {text.seconds(unit['seconds']['langevin'])}, R̂ {unit['r_hat_mean']:.3f}"
        )
        rows.append(
            (f"{SAMPLES} samples of a fully Bayesian GP, n = {largest:,}", ours, "an exact GP's matrix alone: 8 TB")
        )
    pairs = [(name, done.get(f"{name} GRIEF-I"), done.get(f"{name} GRIEF-II")) for name in DATA_SETS]
    both = [(name, one, two) for name, one, two in pairs if one is not None and two is not None]
    if both:
        names = ", ".join(name for name, _, _ in both)
        shown = [", ".join(f"{unit['nll']:.3f}" for unit in units) for units in zip(*(pair[1:] for pair in both))]
        rows.append((f"NLL of test rows: {names}", f"GRIEF-I {shown[0]}", f"GRIEF-II {shown[1]}"))
    return rows


def plot(result: Result, folder: Path) -> None:
    """NLL of every data set and model; seconds against n."""
    from benchmarks import plots

    done = {name: unit for name, unit in result["units"].items() if "error" not in unit}
    names = [name for name in DATA_SETS if any(f"{name} {model}" in done for model in MODELS)]
    with plots.figure(folder / "bayes.png", panels=2) as (scores, sizes):
        for offset, (model, marker) in enumerate(zip(MODELS, "osDX", strict=True)):
            rows = [(row, done[f"{name} {model}"]) for row, name in enumerate(names) if f"{name} {model}" in done]
            if rows:
                heights = [row + 0.15 * (offset - 1.5) for row, _ in rows]
                scores.plot([unit["nll"] for _, unit in rows], heights, marker, label=model)
        scores.set(yticks=range(len(names)), yticklabels=names, ylim=(len(names) - 0.5, -2.0), xlabel="NLL")
        found = [done[f"n={n}"] for n in SIZES if f"n={n}" in done]
        if found:
            for key, label in (("fit", "fit"), ("samples", "samples"), ("observation", "one more observation")):
                sizes.plot([u["n"] for u in found], [u["seconds"][key] for u in found], "o-", label=label)
            sizes.set(xscale="log", yscale="log", xlabel="n", ylabel="Seconds")
