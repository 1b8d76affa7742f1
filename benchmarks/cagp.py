"""CaGP on UCI data against SVGP, SGPR and, where it can be fitted, the exact GP; and what its loss costs.

All have a Matérn-3/2 kernel with a lengthscale an input, bounded below, an outputscale and a constant mean. Inputs and
values are standardised by the training rows, and all measures are in those units.
"""

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from botorch.fit import fit_gpytorch_mll
from gpytorch.constraints import GreaterThan
from gpytorch.kernels import Kernel, MaternKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from benchmarks import rivals, text, uci
from benchmarks.child import in_child, in_child_or_error, peak_megabytes
from benchmarks.harness import Unit, median_seconds, require_data
from benchmarks.memory import resident
from benchmarks.rivals import Fitted, of_botorch
from benchmarks.store import Result
from bo_scale.models.fitting.evidence import loss_of

TITLE = "Computation-aware GP on UCI data"
PLOTS = {
    "cagp.png": "Negative log likelihood on the test rows against seconds of the fit",
    "cagp_cost.png": "One loss with its gradient: seconds and memory against the number of rows",
}
ACTIONS, ITERATIONS = 512, 40
"""i, and iterations of L-BFGS at most, after the exact GP on 1,000 rows that hyperparameters start from."""
POINTS = 1024
"""Of SVGP and SGPR."""
FLOOR, LOW_FLOOR, SHORTEST = 1e-4, 1e-6, 0.02
"""Bounds from below: of the noise variance (GPyTorch's own is the first), and of lengthscales."""
EXACT_STEPS = 40
"""Iterations of L-BFGS of the exact GP, at most."""
COST_ROWS, COST_ACTIONS, COST_DIMENSION, BATCH = (1_000, 3_000, 10_000, 20_000), (64, 256, 512), 10, 1024
REPEATED_ROWS, REPEATS = 3_000, 3
"""Costs of more rows are timed once."""

Unitwise = dict[str, Any]


def matern(d: int) -> Kernel:
    """The kernel of all models. Inputs of few distinct values would drive lengthscales to 0."""
    bounded = GreaterThan(SHORTEST, initial_value=1.0)
    return ScaleKernel(MaternKernel(1.5, ard_num_dims=d, lengthscale_constraint=bounded))


def make(X: Tensor, Y: Tensor, floor: float = FLOOR, **options: Any) -> Any:
    """A CaGP of standardised rows before its fit."""
    from bo_scale.models.cagp import CaGP

    likelihood = GaussianLikelihood(noise_constraint=GreaterThan(floor, initial_value=0.1))
    shared = {"likelihood": likelihood, "covar_module": matern(X.shape[-1]), "outcome_transform": None}
    return CaGP(X, Y.unsqueeze(-1), **shared, progress=False, **options)


def fit_cagp(X: Tensor, Y: Tensor, floor: float = FLOOR) -> Fitted:
    """Learned actions on all rows, by L-BFGS."""
    model = make(X, Y, floor, num_actions=ACTIONS, optimizer="lbfgs", epochs=ITERATIONS)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    return of_botorch(model.eval())


def fit_svgp(X: Tensor, Y: Tensor) -> Fitted:
    """GPyTorch's, by minibatches."""
    return rivals.fit_svgp(X, Y, kernel=matern)


def fit_sgpr(X: Tensor, Y: Tensor) -> Fitted:
    """GPyTorch's, on all rows."""
    return rivals.fit_sgpr(X, Y, kernel=matern, points=POINTS)


def fit_exact(X: Tensor, Y: Tensor) -> Fitted:
    """BoTorch's SingleTaskGP."""
    return rivals.fit_exact_with(X, Y, matern, EXACT_STEPS)


MODELS = {
    "CaGP": fit_cagp,
    f"CaGP, floor {LOW_FLOOR:g}": partial(fit_cagp, floor=LOW_FLOOR),
    "SVGP": fit_svgp,
    "SGPR": fit_sgpr,
    "exact": fit_exact,
}
DATA_SETS = {
    "parkinsons": tuple(MODELS),
    "skillcraft": ("CaGP", "SVGP", "SGPR", "exact"),
    "bike": ("CaGP", "SVGP", "SGPR"),
    "protein": ("CaGP", "SVGP", "SGPR"),
}
"""With the models that are fitted to each."""
ON_GPU = ("protein",)
"""Measured only where there is a GPU."""


def units(data: Path | None) -> dict[str, Unit]:
    """One for each data set and model, all of fold 0, and one for each size that a loss is timed at."""
    fits: dict[str, Unit] = {
        f"{name} {model}": partial(measure, data, name, model)
        for name, models in DATA_SETS.items()
        for model in models
        if name not in ON_GPU or torch.cuda.is_available()
    }
    costs: dict[str, Unit] = {
        f"cost n={n} i={i}": partial(in_child, cost, n, i) for n in COST_ROWS for i in COST_ACTIONS
    }
    return {**fits, **costs}


def measure(data: Path | None, name: str, model: str) -> Unitwise:
    """One fit in a process of its own. A model that fails leaves its error."""
    path = require_data(data, f"{name}.npz")
    described = {"data": name, "model": model, "fold": 0, "seed": 0}
    return in_child_or_error(described, uci.evaluate, path, MODELS[model], 0)


def cost(n: int, actions: int) -> Unitwise:
    """Seconds and memory of one loss with its gradient, of all rows and with the data term of a batch of them."""
    g = torch.Generator().manual_seed(0)
    X = torch.rand(n, COST_DIMENSION, generator=g, dtype=torch.float64)
    Y = torch.sin(5 * X[:, 0]) + X[:, 1:].sum(-1) + 0.1 * torch.randn(n, generator=g, dtype=torch.float64)
    model = make(X, Y, num_actions=actions).train()
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    batch = torch.randperm(n, generator=g)[:BATCH]

    def step(rows: Tensor | None) -> None:
        model.zero_grad()
        loss_of(model, mll, model._log_evidence(rows)).backward()

    before, rounds = resident(), (REPEATS, 1) if n <= REPEATED_ROWS else (1, 0)
    seconds = median_seconds(partial(step, None), *rounds)
    peak = peak_megabytes()
    return {
        "n": n,
        "actions": actions,
        "d": COST_DIMENSION,
        "seed": 0,
        "seconds": seconds,
        "batch_seconds": median_seconds(partial(step, batch), *rounds),
        "megabytes_beyond": peak - before,
    }


# ---------------------------------------------------------------------- report

_COLUMNS = {"nll": ("NLL", "{:.3f}"), "rmse": ("RMSE", "{:.4f}")}


def _fits(result: Result, name: str) -> dict[str, Unitwise]:
    """The fits of a data set by model, in the order of MODELS, without those that failed."""
    found = {unit["model"]: unit for unit in result["units"].values() if unit.get("data") == name}
    return {model: found[model] for model in MODELS if model in found and "error" not in found[model]}


def _costs(result: Result) -> list[Unitwise]:
    return sorted((u for u in result["units"].values() if "actions" in u), key=lambda u: (u["actions"], u["n"]))


def off(unit: Unitwise) -> float:
    """How far the coverage of the 95 % interval is from 95 %."""
    return abs(unit["coverage_95"] - 0.95)


def table(result: Result) -> str:
    """Quality and cost of every fit, then seconds and memory of a loss; failures."""
    rows = [row for name in DATA_SETS for row in _rows(result, name)]
    header = ["data", "n, d", "model", "NLL", "RMSE", "coverage error", "in 95 %", "noise", "fit", "predict", "MB"]
    shown = (
        f"- CaGP has i = {ACTIONS} learned actions and at most {ITERATIONS} iterations of L-BFGS, after an exact GP on "
        f"1,000 rows.\n"
        f"- The rivals are GPyTorch's SVGP ({rivals.SVGP_POINTS:,} inducing points, {rivals.SVGP_EPOCHS} epochs, "
        f"float32) and SGPR ({POINTS:,} inducing points, {rivals.SGPR_STEPS} steps of Adam). Some rows show BoTorch's "
        f"exact SingleTaskGP (at most {EXACT_STEPS} iterations of L-BFGS). With few rows SVGP takes few steps: "
        f"{_steps(3005)} on skillcraft and {_steps(5288)} on parkinsons.\n"
        f"- All have Matérn-3/2 kernels with one lengthscale per input, not below {SHORTEST:g}, an outputscale and a "
        f"constant mean. The noise variance has a lower bound, the *floor*: {FLOOR:g}, unless a row gives another.\n"
        f"- If a model interpolates the data, the floor determines the NLL. Without any error the NLL is "
        f"½ log(2π · floor): {_least(FLOOR):.2f} and {_least(LOW_FLOOR):.2f} for the two floors. Intervals then cover "
        f"more than 95 %.\n"
        f"- Test rows are those of fold 0. Coverage error is |coverage − 0.95|. Memory is the process's peak up to the "
        f"end of the fit, including libraries and data. Bold is the smallest of a data set.\n\n"
        + text.table(header, rows)
    )
    failed = [f"- {name}: {unit['error']}" for name, unit in result["units"].items() if "error" in unit]
    return "\n\n".join([shown, *(["Failed:", "\n".join(failed)] if failed else []), *_cost_table(result)])


def _steps(rows: int) -> int:
    """Of SVGP on so many rows."""
    return rivals.SVGP_EPOCHS * -(-rows // rivals.SVGP_BATCH)


def _least(floor: float) -> float:
    """The NLL of predictions without error whose variance is that of the noise."""
    return 0.5 * math.log(2 * math.pi * floor)


def _rows(result: Result, name: str) -> list[list[str]]:
    done = _fits(result, name)
    best = {key: min((unit[key] for unit in done.values()), default=0.0) for key in _COLUMNS}
    nearest = min((off(unit) for unit in done.values()), default=0.0)
    rows = []
    for model, unit in done.items():
        shown = {key: form.format(unit[key]) for key, (_, form) in _COLUMNS.items()}
        shown |= {"off": f"{off(unit):.3f}"}
        bold = {key for key in best if unit[key] == best[key]} | ({"off"} if off(unit) == nearest else set())
        cells = [f"**{value}**" if key in bold else value for key, value in shown.items()]
        seconds = [text.seconds(unit[key]) for key in ("fit_seconds", "predict_seconds")]
        rest = [f"{unit['coverage_95']:.1%}", f"{unit['noise']:.2g}", *seconds, f"{unit['megabytes']:,.0f}"]
        rows.append([name, f"{unit['n']:,}, {unit['d']}", model, *cells, *rest])
    return rows


def _cost_table(result: Result) -> list[str]:
    """Costs against n and i, with the power of n that they grow with."""
    costs = _costs(result)
    if not costs:
        return []
    sizes = sorted({unit["n"] for unit in costs})
    rows = []
    for i in sorted({unit["actions"] for unit in costs}):
        done = {unit["n"]: unit for unit in costs if unit["actions"] == i}
        for label, key in (("all rows", "seconds"), (f"batch {BATCH:,}", "batch_seconds")):
            cells = [text.seconds(done[n][key]) if n in done else "–" for n in sizes]
            rows.append([f"{i}", label, *cells, _slope(list(done.values()), key)])
        memory = [f"{done[n]['megabytes_beyond']:,.0f} MB" if n in done else "–" for n in sizes]
        rows.append([f"{i}", "memory", *memory, _slope(list(done.values()), "megabytes_beyond")])
    return [
        f"This is the cost of one loss with its gradient, with d = {COST_DIMENSION}. 'all rows' uses all rows. 'batch' "
        f"estimates the data term from a batch, which saves O(n i²) but still needs the n² kernel entries. 'memory' is "
        f"the peak beyond what was resident before, for all rows. The last column is the power of n between the two "
        f"largest sizes.",
        text.table(["i", "what", *(f"n = {n:,}" for n in sizes), "power of n"], rows),
    ]


def _slope(units: Sequence[Unitwise], key: str) -> str:
    if len(units) < 2 or min(unit[key] for unit in units[-2:]) <= 0:
        return "–"
    first, last = units[-2:]
    return f"{math.log(last[key] / first[key]) / math.log(last['n'] / first['n']):.1f}"


def headline(result: Result) -> list[text.Row]:
    """Likelihood and coverage of each data set that CaGP and a rival have done."""
    rows = []
    for name in DATA_SETS:
        done = _fits(result, name)
        ours = {model: unit for model, unit in done.items() if model.startswith("CaGP")}
        theirs = {model: unit for model, unit in done.items() if model not in ours}
        if ours and theirs:
            rows.append(
                (f"{name}: NLL (coverage of the 95 % interval; fit)", _summary(ours), _summary(theirs)),
            )
    return rows


def _summary(units: dict[str, Unitwise]) -> str:
    return "; ".join(
        f"{model} {unit['nll']:.2f} ({unit['coverage_95']:.0%}; {text.seconds(unit['fit_seconds'])})"
        for model, unit in units.items()
    )


def plot(result: Result, folder: Path) -> None:
    """Likelihood against the time it took, a panel a data set; and the cost of a loss."""
    from benchmarks import plots

    names = [name for name in DATA_SETS if _fits(result, name)]
    with plots.figure(folder / "cagp.png", panels=max(1, len(names))) as axes:
        for axis, name in zip(axes, names, strict=False):
            for index, (model, marker) in enumerate(zip(MODELS, "osDv^", strict=True)):
                unit = _fits(result, name).get(model)
                if unit:
                    place, style = ([unit["fit_seconds"]], [unit["nll"]]), {"color": f"C{index}", "markersize": 8}
                    axis.plot(*place, marker, linestyle="", label=model, **style)
            axis.set(title=f"{name}, n = {next(iter(_fits(result, name).values()))['n']:,}", xlim=(0, None))
            axis.set(xlabel="Seconds of the fit", ylabel="NLL")
    costs = _costs(result)
    with plots.figure(folder / "cagp_cost.png", panels=2) as (seconds, memory):
        for key, axis, label, floor in (
            ("seconds", seconds, "Seconds", 0.0),
            ("megabytes_beyond", memory, "MB beyond what was there", 1.0),
        ):
            lines = {}
            for i in sorted({unit["actions"] for unit in costs}):
                done = [unit for unit in costs if unit["actions"] == i]
                lines[f"i = {i}"] = ([unit["n"] for unit in done], [max(unit[key], floor) for unit in done])
                if key == "seconds":
                    batches = [unit["batch_seconds"] for unit in done]
                    lines[f"i = {i}, batch of {BATCH:,}"] = ([unit["n"] for unit in done], batches)
            plots.against_n(axis, lines, label, "Rows")
