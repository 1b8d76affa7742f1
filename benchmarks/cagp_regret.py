"""Regret of the loop with CaGP and with the exact GP, both started from hundreds of points.

CaGP sees the first observations through few actions, and each later one through an action of its own. Whether that
costs evaluations is measured here, with the same kernel, priors, first points and seeds, and for actions and
hyperparameters of different origin: the bound that CaGP learns them by counts what few actions miss as noise.
"""

import statistics
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from botorch.models import SingleTaskGP
from botorch.models.transforms.outcome import Standardize
from botorch.test_functions import Hartmann
from botorch.utils.sampling import draw_sobol_samples
from gpytorch.constraints import GreaterThan
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.priors import LogNormalPrior
from scipy.stats import t as student
from torch import Tensor

from benchmarks import text
from benchmarks.harness import Unit
from benchmarks.store import Result
from bo_scale.loop import Optimizer

TITLE = "Regret of a computation-aware GP"
PLOTS = {"cagp_regret.png": "Regret on Hartmann-6 against further evaluations: median and quartiles over seeds"}
FIRST, EVALUATIONS, SEEDS = 500, 40, range(20)
ACTIONS = 64
LIMIT = 0.1
"""Of the upper bound of the mean difference in regret."""
EXACT, RESCALED = "SingleTaskGP", "rescaled"
SEARCH = {"num_restarts": 2, "raw_samples": 128, "max_steps": 50, "mc_samples": 64}


class FirstStandardize(Standardize):
    """Units of the first values, whatever comes later."""

    def forward(self, Y: Tensor, Yvar: Tensor | None = None, X: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Values in these units, and variances."""
        if self.training:
            super().forward(Y[:FIRST])
            self.eval()
        return super().forward(Y, Yvar, X)


def exact(X: Tensor, Y: Tensor, Yvar: Tensor | None, units: type[Standardize] = FirstStandardize) -> SingleTaskGP:
    """The exact GP with the kernel, the likelihood, the priors and the units that the loop's CaGP has.

    The loop makes it anew for new data, with the hyperparameters of the last fit in standardised units. In units of all
    values, BoTorch's own, the many good values that come later make these units larger, and with them the noise.
    """
    from bo_scale.models.shell.kernels import default_scaled_kernel

    floor = GreaterThan(1e-4, transform=None, initial_value=0.1)
    likelihood = GaussianLikelihood(noise_prior=LogNormalPrior(-1.0, 1.5), noise_constraint=floor)
    kernel = default_scaled_kernel(X.shape[-1], torch.Size([]))
    return SingleTaskGP(X, Y, Yvar, covar_module=kernel, likelihood=likelihood, outcome_transform=units(m=1))


VARIANTS: dict[str, dict[str, Any]] = {
    "cg": {"policy": "cg", "epochs": 0},
    "blocks": {"policy": "learned", "epochs": 0},
    "learned": {"policy": "learned", "epochs": 100},
}
"""Options of CaGP in the loop, whose own are the first. Without epochs hyperparameters are those of the exact GP that a
fit starts from."""
LABELS = {
    "cg": "conjugate gradients, exact GP's hyperparameters",
    "blocks": "blocks, exact GP's hyperparameters",
    "learned": "learned blocks, by the bound",
    EXACT: EXACT,
    RESCALED: f"{EXACT}, in units of all values",
}


def units(data: Path | None) -> dict[str, Unit]:
    """One for each seed and model."""
    return {f"{model} seed {seed}": partial(optimise, model, seed) for seed in SEEDS for model in LABELS}


def surrogate(model: str) -> dict[str, Any]:
    """Arguments of the loop."""
    if model in (EXACT, RESCALED):
        return {"model": partial(exact, units=FirstStandardize if model == EXACT else Standardize)}
    return {"model": "cagp", "model_options": {"num_actions": ACTIONS, **VARIANTS[model]}}


def optimise(model: str, seed: int) -> dict[str, Any]:
    """One run of noise-free evaluations, one at a time. A model that fails leaves its error."""
    function = Hartmann(dim=6, negate=True)
    run = {"model": model, "seed": seed}
    cube = function.bounds.double()
    X = draw_sobol_samples(cube, FIRST, 1, seed=seed).squeeze(1)
    Y = function(X).double()
    loop = Optimizer(
        cube,
        **surrogate(model),
        acquisition="qLogEI",
        seed=seed,
        num_initial=FIRST,
        acquisition_options=SEARCH,
    )
    loop.tell(X, Y)
    started = time.perf_counter()
    try:
        for _ in range(EVALUATIONS):
            x = loop.ask(1)
            y = function(x).double()
            loop.tell(x, y)
            Y = torch.cat([Y, y])
    except Exception as error:
        return run | {"error": f"{type(error).__name__} at n = {len(Y)}: {error}"[:300]}
    regret = (function.optimal_value - Y.cummax(0).values)[FIRST - 1 :].tolist()
    seconds = time.perf_counter() - started
    unit = loop.model.outcome_transform.stdvs.square().item()
    return {**run, "regret": regret, "noise": unit * loop.model.likelihood.noise.item(), "seconds": seconds}


# ---------------------------------------------------------------------- report


def _runs(result: Result, model: str) -> dict[int, dict[str, Any]]:
    """Runs by seed, without those that failed."""
    return {unit["seed"]: unit for unit in result["units"].values() if unit["model"] == model and "regret" in unit}


def difference(result: Result, model: str) -> tuple[int, float, float] | None:
    """Seeds that both have done, the mean of CaGP's last regret less the exact GP's, and its upper 90 % bound."""
    ours, theirs = _runs(result, model), _runs(result, EXACT)
    gaps = [ours[seed]["regret"][-1] - theirs[seed]["regret"][-1] for seed in sorted(ours.keys() & theirs.keys())]
    if model == EXACT or len(gaps) < 2:
        return None
    error = statistics.stdev(gaps) / len(gaps) ** 0.5
    mean = statistics.mean(gaps)
    return len(gaps), mean, mean + float(student.ppf(0.9, len(gaps) - 1)) * error


def table(result: Result) -> str:
    """Last regrets of every model, differences and bounds, noise and seconds a run; failures."""
    rows = []
    for model, label in LABELS.items():
        runs, found = _runs(result, model), difference(result, model)
        if runs:
            gap = ["–", "–"] if found is None else [f"{found[1]:+.3f}", f"{found[2]:+.3f}"]
            noise = text.digits(statistics.median(run["noise"] for run in runs.values()))
            seconds = text.seconds(statistics.mean(run["seconds"] for run in runs.values()))
            rows.append([label, str(len(runs)), _last(runs), *gap, noise, seconds])
    failed = [f"- {name}: {unit['error']}" for name, unit in result["units"].items() if "error" in unit]
    header = ["model", "seeds", "regret", "difference", "upper 90 %", "noise variance", "a run"]
    return (
        f"- The table shows the regret on noise-free Hartmann-6 (optimum 3.322) after {FIRST} Sobol points and "
        f"{EVALUATIONS} evaluations, one at a time by qLogEI: mean ± standard error over seeds. Lower is better.\n"
        f"- All models have BoTorch's default RBF kernel with an outputscale and the same priors. All but the last row "
        f"have the same units of values. All are fitted once, because the data do not grow enough for the loop to fit "
        f"again.\n"
        f"- CaGP conditions on the first {FIRST} observations by {ACTIONS} actions, and on the later ones exactly.\n"
        f"- 'exact GP's hyperparameters' are those of an exact GP on at most 1,000 rows, here all rows. Every fit of "
        f"CaGP starts from them. With conjugate gradients this is the loop's own CaGP.\n"
        f"- The difference is the regret minus SingleTaskGP's on the same seeds. The bound is the upper end of a "
        f"one-sided 90 % interval (Student's t), and should be below {LIMIT:g}.\n"
        f"- The noise variance is what the model learned from data without noise (median, in squared units of the "
        f"function). The bound by which CaGP is trained counts as noise what its few actions do not resolve. Expected "
        f"improvement then keeps returning to one place.\n\n"
        + text.table(header, rows)
        + ("\n\nFailed:\n\n" + "\n".join(failed) if failed else "")
    )


def _last(runs: dict[int, dict[str, Any]]) -> str:
    """The mean of last regrets, with its standard error."""
    return text.mean_and_error([run["regret"][-1] for run in runs.values()])


def headline(result: Result) -> list[text.Row]:
    """The bound for each variant."""
    found = {LABELS[model]: difference(result, model) for model in VARIANTS}
    bounds = [f"{each[2]:+.3f} with {label} ({each[0]} seeds)" for label, each in found.items() if each]
    if not bounds:
        return []
    what = f"regret on Hartmann-6, {FIRST} points and {EVALUATIONS} evaluations"
    shown = f"CaGP, i = {ACTIONS}: mean difference to the exact GP, upper 90 % bound: {'; '.join(bounds)}"
    return [(what, shown, f"the same loop with `{EXACT}`")]


def plot(result: Result, folder: Path) -> None:
    """A line for each model."""
    from benchmarks import plots

    with plots.figure(folder / "cagp_regret.png") as (axis,):
        axis.figure.set_size_inches(7.5, 4.4)
        for model, label in LABELS.items():
            runs = [run["regret"] for run in _runs(result, model).values()]
            if runs:
                plots.band(axis, range(len(runs[0])), runs, label)
        axis.set(yscale="log", xlabel=f"Evaluations after {FIRST}", ylabel="Regret")
