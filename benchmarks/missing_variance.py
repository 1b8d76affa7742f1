"""Bayesian optimisation with and without the variance that features lack, and against random search.

Features reproduce a kernel where they resolve it; elsewhere the prior they imply is too narrow. The option
`missing_variance` adds the difference to predicted variances. Whether that finds better points is measured here.
"""

import time
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from botorch.acquisition.logei import qLogExpectedImprovement
from botorch.fit import fit_gpytorch_mll
from botorch.optim.optimize import optimize_acqf
from botorch.sampling.normal import SobolQMCNormalSampler
from botorch.test_functions import Ackley, Hartmann
from botorch.utils.sampling import draw_sobol_samples
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from benchmarks import text
from benchmarks.harness import Unit
from benchmarks.store import Result

TITLE = "Missing variance in optimisation"
PLOTS = {"missing_variance.png": "Regret against evaluations: median and quartiles over seeds"}
FUNCTIONS: dict[str, Any] = {
    "Ackley-5": partial(Ackley, dim=5, negate=True),
    "Hartmann-6": partial(Hartmann, dim=6, negate=True),
    "Ackley-10": partial(Ackley, dim=10, negate=True),
}
MODELS = ("SoftKI", "GRIEF")
OPTIONS = {"off": False, "on": True}
DEFAULTS = {"SoftKI": "on", "GRIEF": "off"}
"""As the loop's "softki" and "grief" have it; the classes have it off."""
SEEDS = range(20)
EVALUATIONS, FIRST, GROWTH = {"Hartmann-6": 100, "Ackley-5": 60, "Ackley-10": 100}, 10, 1.25
"""How many in all of each function, how many quasi-random first, and by how much the data grow between fits."""
SEARCH = {"num_restarts": 2, "raw_samples": 128}
SEARCH_STEPS, SAMPLES = 25, 64


def units(data: Path | None) -> dict[str, Unit]:
    """One for each function, seed, model and option; random search for each function and seed."""
    runs: dict[str, Unit] = {
        f"{name} random seed {seed}": partial(random_search, name, seed) for name in FUNCTIONS for seed in SEEDS
    }
    for name, seed, model, option in product(FUNCTIONS, SEEDS, MODELS, OPTIONS):
        runs[f"{name} {model} {option} seed {seed}"] = partial(optimise, name, model, option, seed)
    return runs


def first_points(d: int, seed: int) -> Tensor:
    """Quasi-random `FIRST × d` points of the unit cube, the same for all models and random search."""
    cube = torch.stack([torch.zeros(d), torch.ones(d)]).double()
    return draw_sobol_samples(cube, FIRST, 1, seed=seed).squeeze(1)


def evaluate(function: Any, X: Tensor) -> Tensor:
    """Values `n × 1` at points of the unit cube."""
    low, high = function.bounds.double()
    return function(low + (high - low) * X).double().unsqueeze(-1)


def random_search(name: str, seed: int) -> dict[str, Any]:
    """Uniform points after the first ones."""
    function = FUNCTIONS[name]()
    g = torch.Generator().manual_seed(seed)
    X = torch.rand(EVALUATIONS[name] - FIRST, function.dim, generator=g, dtype=torch.float64)
    Y = evaluate(function, torch.cat([first_points(function.dim, seed), X]))
    return {"function": name, "model": "random", "seed": seed, "regret": regrets(function, Y)}


def optimise(name: str, model: str, option: str, seed: int) -> dict[str, Any]:
    """One run. Fits from default hyperparameters, conditioning in between. A model that fails leaves its error."""
    run = {"function": name, "model": model, "option": option, "seed": seed}
    started = time.perf_counter()
    function = FUNCTIONS[name]()
    torch.manual_seed(seed)
    X = first_points(function.dim, seed)
    Y = evaluate(function, X)
    try:
        surrogate, fitted = fit(model, option, X, Y), len(X)
        while len(X) < EVALUATIONS[name]:
            x = propose(surrogate, Y, seed=len(X))
            y = evaluate(function, x)
            X, Y = torch.cat([X, x]), torch.cat([Y, y])
            if len(X) >= GROWTH * fitted:
                surrogate, fitted = fit(model, option, X, Y), len(X)
            else:
                surrogate = surrogate.condition_on_observations(x, y)
    except Exception as error:
        return run | {"error": f"{type(error).__name__} at n = {len(X)}: {error}"[:300]}
    return {**run, "regret": regrets(function, Y), "seconds": time.perf_counter() - started}


def kind(model: str) -> Any:
    """The class of that name."""
    import bo_scale

    return getattr(bo_scale, model)


def fit(model: str, option: str, X: Tensor, Y: Tensor) -> Any:
    """A model of points of the unit cube, with its own defaults beside the option."""
    options: dict[str, Any] = {"missing_variance": OPTIONS[option]}
    if model == "GRIEF":
        options["bounds"] = torch.stack([torch.zeros_like(X[0]), torch.ones_like(X[0])])
    made = kind(model)(X, Y, **options)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(made.likelihood, made))
    return made.eval()


def propose(model: Any, Y: Tensor, seed: int) -> Tensor:
    """The point `1 × d` of largest expected improvement."""
    d = model.train_inputs[0].shape[-1]
    sampler = SobolQMCNormalSampler(torch.Size([SAMPLES]), seed=seed)
    options = {"maxiter": SEARCH_STEPS, "batch_limit": 8, "init_batch_limit": SEARCH["raw_samples"]}
    cube = torch.stack([torch.zeros(d), torch.ones(d)]).double()
    acquisition = qLogExpectedImprovement(model, Y.max(), sampler=sampler)
    return optimize_acqf(acquisition, cube, q=1, **SEARCH, options=options)[0]


def regrets(function: Any, Y: Tensor) -> list[float]:
    """What is missing to the optimum after each evaluation from the last of the first ones on."""
    best = Y.squeeze(-1).cummax(0).values
    return (function.optimal_value - best)[FIRST - 1 :].tolist()


# ---------------------------------------------------------------------- report


def _runs(result: Result, name: str, model: str, option: str | None = None) -> dict[int, list[float]]:
    """Regrets by seed."""
    return {
        unit["seed"]: unit["regret"]
        for unit in result["units"].values()
        if (unit["function"], unit["model"], unit.get("option")) == (name, model, option) and "regret" in unit
    }


def _ahead(ours: dict[int, list[float]], random: dict[int, list[float]]) -> tuple[int, int]:
    """For how many seeds a model ended better than random search, and of how many."""
    common = ours.keys() & random.keys()
    return sum(ours[seed][-1] < random[seed][-1] for seed in common), len(common)


def table(result: Result) -> str:
    """Last regrets of every function and model, the paired difference, and counts against random search."""
    rows = []
    for name, model in product(FUNCTIONS, MODELS):
        off, on = (_runs(result, name, model, option) for option in OPTIONS)
        random = _runs(result, name, "random")
        if not random or not (off or on):
            continue
        common = sorted(off.keys() & on.keys())
        ahead = [f"{won} of {of}" if of else "–" for won, of in (_ahead(each, random) for each in (off, on))]
        gaps = [on[seed][-1] - off[seed][-1] for seed in common]
        shown = text.mean_and_error
        last = [shown([run[-1] for run in each.values()]) for each in (off, on, random)]
        seeds = str(max(len(off), len(on)))
        rows.append([f"{name}, {EVALUATIONS[name]}", model, seeds, last[0], last[1], shown(gaps, "+"), last[2], *ahead])
    defaults = ", ".join(f"{option} for {model}" for model, option in DEFAULTS.items())
    failed = [f"- {name}: {unit['error']}" for name, unit in result["units"].items() if "error" in unit]
    header = ["function, evaluations", "model", "seeds", "off", "on", "on − off", "random", "off ahead", "on ahead"]
    return (
        "The table shows the regret after the last noise-free evaluation as mean ± standard error over seeds. Lower is "
        f"better. Each run has {FIRST} quasi-random points, then single points by qLogEI. Models have their default "
        f"options. They are fitted whenever the data have grown by a factor of {GROWTH:g}, and conditioned in between. "
        f"The difference is paired by seed. The last columns count the seeds for which the model ends with less regret "
        f"than random search from the same first points. In the loop the option `missing_variance` is "
        f"{defaults}; in the classes it is off.\n\n"
        + text.table(header, rows)
        + ("\n\nFailed:\n\n" + "\n".join(failed) if failed else "")
    )


def headline(result: Result) -> list[text.Row]:
    """Counts against random search at the defaults."""
    counts = []
    for model, name in product(MODELS, ("Hartmann-6", "Ackley-10")):
        ahead, of = _ahead(_runs(result, name, model, DEFAULTS[model]), _runs(result, name, "random"))
        if of:
            counts.append(f"{model} {name} {ahead} of {of}")
    if not counts:
        return []
    return [("runs of qLogEI that end with less regret, 100 evaluations", ", ".join(counts), "random search")]


def plot(result: Result, folder: Path) -> None:
    """A panel for each function; lines are dashed where the option is off."""
    from benchmarks import plots

    names = [name for name in FUNCTIONS if _runs(result, name, "random")]
    with plots.figure(folder / "missing_variance.png", panels=len(names)) as axes:
        for axis, name in zip(axes, names, strict=True):
            lines = [(model, option, f"{model}, {option}") for model in MODELS for option in OPTIONS]
            for model, option, label in [*lines, ("random", None, "random search")]:
                runs = list(_runs(result, name, model, option).values())
                if runs:
                    style = "-" if option == "on" else "--" if option == "off" else "k:"
                    plots.band(axis, range(FIRST, FIRST + len(runs[0])), runs, label, style)
            axis.set(title=name, xlabel="Evaluations", ylabel="Regret")
