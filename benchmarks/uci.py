"""Regression on nine data sets of the UCI repository: bo_scale's models for any dimension against GPyTorch's.

Every unit is a process of its own. Inputs and values are standardised by the training rows, and all measures but one
are in those units.
"""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from botorch.fit import fit_gpytorch_mll
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from benchmarks import rivals, text
from benchmarks.child import gpu_megabytes, in_child_or_error, peak_megabytes
from benchmarks.harness import Unit, require_data
from benchmarks.rivals import Fitted, of_botorch
from benchmarks.store import Result

TITLE = "Regression on UCI data"
ANYWHERE = True
"""Errors do not depend on the machine. Times are shown of the first one only."""
PLOTS = {"uci.png": "Error and coverage of the 95 % interval on the test rows"}
DATA_SETS = {
    "skillcraft": 10,
    "parkinsons": 10,
    "powerplant": 20,
    "pol": 10,
    "elevators": 10,
    "bike": 10,
    "kin40k": 10,
    "protein": 10,
    "keggundirected": 10,
}
"""In order of their size, each with its number of folds."""
SMALL = ("skillcraft", "parkinsons", "powerplant")
"""Data sets of fewer than 10,000 rows, of which all folds are measured."""
FOLDS_OF_LARGE, FOLDS_OF_RIVALS = 3, 1
MARKED = ("kin40k", "protein")
"""Data sets with an exact GP of all rows beside."""
PAPERS: dict[tuple[str, str], tuple[float, float, str]] = {
    ("pol", "SoftKI"): (0.195, 0.006, "rmse"),
    ("elevators", "SoftKI"): (0.389, 0.010, "rmse"),
    ("bike", "SoftKI"): (0.204, 0.006, "rmse"),
    ("kin40k", "SoftKI"): (0.237, 0.008, "rmse"),
    ("protein", "SoftKI"): (0.649, 0.010, "rmse"),
    ("keggundirected", "SoftKI"): (0.115, 0.004, "rmse"),
    ("skillcraft", "GRIEF-II"): (0.248, 0.016, "rmse_raw"),
    ("elevators", "GRIEF-II"): (0.091, 0.002, "rmse_raw"),
    ("kin40k", "GRIEF-II"): (0.206, 0.004, "rmse_raw"),
    ("keggundirected", "GRIEF-II"): (0.118, 0.003, "rmse_raw"),
    ("kin40k", "all rows"): (0.099, 0.001, "rmse"),
    ("protein", "all rows"): (0.536, 0.012, "rmse"),
    ("pol", "SGPR"): (0.261, 0.008, "rmse"),
    ("pol", "SVGP"): (0.300, 0.005, "rmse"),
    ("elevators", "SGPR"): (0.401, 0.007, "rmse"),
    ("elevators", "SVGP"): (0.389, 0.009, "rmse"),
    ("bike", "SGPR"): (0.284, 0.002, "rmse"),
    ("bike", "SVGP"): (0.268, 0.003, "rmse"),
    ("kin40k", "SGPR"): (0.205, 0.008, "rmse"),
    ("kin40k", "SVGP"): (0.192, 0.006, "rmse"),
    ("protein", "SGPR"): (0.660, 0.009, "rmse"),
    ("protein", "SVGP"): (0.659, 0.008, "rmse"),
    ("keggundirected", "SGPR"): (0.126, 0.005, "rmse"),
    ("keggundirected", "SVGP"): (0.127, 0.007, "rmse"),
}
"""Test RMSE and its standard deviation in the papers, and its unit: SoftKI's table 1, GP-GRIEF's table 1; exact GPs of
25,600 and 29,267 rows: Wang et al. 2019, table 1."""
SOFTKI_POINTS, EPOCHS = 512, 50
EIGENFUNCTIONS = 1000

Kind = Callable[[Tensor, Tensor], Fitted]
Unitwise = dict[str, Any]


def fit_softki(X: Tensor, Y: Tensor) -> Fitted:
    """SoftKI with the settings of its paper, in float32 as its rival SVGP."""
    from bo_scale import SoftKI

    options = {"epochs": EPOCHS, "batch_size": 1024, "lr": 0.01}
    return _fitted(
        SoftKI(X.float(), Y.float().unsqueeze(-1), num_interpolation_points=min(SOFTKI_POINTS, len(X)), **options)
    )


def fit_grief(X: Tensor, Y: Tensor) -> Fitted:
    """GP-GRIEF with the plain Nyström weights."""
    from bo_scale import GRIEF

    return _fitted(GRIEF(X, Y.unsqueeze(-1), num_eigenfunctions=EIGENFUNCTIONS))


def fit_reweighted_grief(X: Tensor, Y: Tensor) -> Fitted:
    """GP-GRIEF-II, with as many eigenfunctions as there are rows to a power of ten, as in its paper."""
    from bo_scale import GRIEF

    count = min(EIGENFUNCTIONS, 10 ** math.floor(math.log10(len(X))))
    return _fitted(GRIEF(X, Y.unsqueeze(-1), num_eigenfunctions=count, weights="type2"))


def fit_chosen(X: Tensor, Y: Tensor) -> Fitted:
    """The model that `choose` takes, with its defaults."""
    from bo_scale import choose

    return of_botorch(choose(X, Y.unsqueeze(-1)))


def _fitted(model: Any) -> Fitted:
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    return of_botorch(model.eval())


MODELS: dict[str, Kind] = {
    "choose": fit_chosen,
    "SoftKI": fit_softki,
    "GRIEF": fit_grief,
    "GRIEF-II": fit_reweighted_grief,
    "SGPR": rivals.fit_sgpr,
    "SVGP": rivals.fit_svgp,
    "exact": rivals.fit_exact,
    "all rows": rivals.fit_exact_of_all_rows,
}
OURS = ("choose", "SoftKI", "GRIEF", "GRIEF-II")


def units(data: Path | None) -> dict[str, Unit]:
    """One for each fold, model and data set; rivals of the large ones, which take hours, at the end."""
    every = [
        (model not in OURS and name not in SMALL, fold, model, name)
        for fold in range(max(DATA_SETS.values()))
        for model in MODELS
        for name in DATA_SETS
        if fold < _folds(name, model)
    ]
    every.sort(key=lambda unit: unit[:2])
    return {f"{name} {model} fold {fold}": partial(measure, data, name, model, fold) for _, fold, model, name in every}


def _folds(name: str, model: str) -> int:
    """The number of folds: all where there is a GPU."""
    if (model == "exact" and name != "skillcraft") or (model == "all rows" and name not in MARKED):
        return 0
    if model == "all rows":
        return FOLDS_OF_RIVALS
    if torch.cuda.is_available():
        return DATA_SETS[name]
    if model not in OURS:
        return FOLDS_OF_RIVALS
    return DATA_SETS[name] if name in SMALL else FOLDS_OF_LARGE


def measure(data: Path | None, name: str, model: str, fold: int) -> Unitwise:
    """One fit in a process of its own. A model that fails, or is killed for its memory, leaves its error."""
    path = require_data(data, f"{name}.npz")
    described = {"data": name, "model": model, "fold": fold}
    return in_child_or_error(described, evaluate, path, MODELS[model], fold)


def evaluate(path: Path, fit: Kind, fold: int) -> Unitwise:
    """Fit the training rows of a fold and predict its test rows."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    X, Y, test = load(path, fold)
    (X, _), (Y, unit) = standardised(X, ~test), standardised(Y, ~test)
    X, Y = X.to(device), Y.to(device)
    before = peak_megabytes()
    start = time.perf_counter()
    fitted = fit(X[~test], Y[~test])
    fit_seconds = _clock() - start
    after, on_gpu = peak_megabytes(), gpu_megabytes()
    start = time.perf_counter()
    mean, variance = fitted.predict(X[test])
    predict_seconds = _clock() - start
    return {
        "n": int((~test).sum()),
        "d": X.shape[-1],
        "test": int(test.sum()),
        **scores(Y[test].cpu(), mean, variance, unit.item()),
        "noise": fitted.noise,
        "fit_seconds": fit_seconds,
        "predict_seconds": predict_seconds,
        "megabytes": after,
        "megabytes_before": before,
        **({} if on_gpu is None else {"gpu_megabytes": on_gpu}),
    }


def _clock() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def load(path: Path, fold: int) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs `n × d`, values `n` and which rows are for the test, in float64."""
    arrays = np.load(path)
    X, Y = (torch.as_tensor(arrays[key].astype(np.float64)) for key in ("X", "y"))
    return X, Y, torch.as_tensor(arrays["test_mask"][:, fold])


def standardised(values: Tensor, train: Tensor) -> tuple[Tensor, Tensor]:
    """Values and their unit: less the mean of the training rows, over their standard deviation (1 where it is 0)."""
    scale = values[train].std(0)
    scale = torch.where(scale > 1e-8 * values[train].abs().amax(0), scale, 1.0)
    return (values - values[train].mean(0)) / scale, scale


def scores(Y: Tensor, mean: Tensor, variance: Tensor, unit: float) -> dict[str, float]:
    """Quality of Gaussian predictions of observations, in standardised units: `M` each.

    Args:
        Y: What was observed.
        mean: Of the predictions.
        variance: Of the predictions, observation noise included.
        unit: Standard deviation of the training values, in raw units.

    References:
        T. Gneiting, A. E. Raftery. Strictly proper scoring rules, prediction, and estimation. JASA 2007: the CRPS of a
        Gaussian, eq. 21 and what follows.
    """
    sd = variance.sqrt()
    z = (Y - mean) / sd
    normal = torch.distributions.Normal(0.0, 1.0)
    density = normal.log_prob(z).exp()
    crps = sd * (z * (2 * normal.cdf(z) - 1) + 2 * density - math.pi**-0.5)
    rmse = (Y - mean).square().mean().sqrt().item()
    within = {p: (z.abs() <= normal.icdf(torch.tensor(0.5 + p / 200))).double().mean().item() for p in (50, 95)}
    return {
        "rmse": rmse,
        "rmse_raw": rmse * unit,
        "nll": (0.5 * z.square() + sd.log() + 0.5 * math.log(2 * math.pi)).mean().item(),
        "crps": crps.mean().item(),
        "coverage_50": within[50],
        "coverage_95": within[95],
    }


# ---------------------------------------------------------------------- report

_COLUMNS = {
    "rmse": ("RMSE", "{:.3f}"),
    "rmse_raw": ("RMSE, raw", "{:.4g}"),
    "nll": ("NLL", "{:.3f}"),
    "crps": ("CRPS", "{:.4f}"),
    "coverage_50": ("in 50 %", "{:.1%}"),
    "coverage_95": ("in 95 %", "{:.1%}"),
    "noise": ("noise", "{:.2g}"),
}


def folds(result: Result, name: str, model: str) -> list[Unitwise]:
    """The units of a data set and model that did not fail."""
    found = [unit for unit in result["units"].values() if (unit["data"], unit["model"]) == (name, model)]
    return [unit for unit in found if "error" not in unit]


def mean(units: Sequence[Unitwise], key: str) -> float:
    """Over folds."""
    return statistics.mean(unit[key] for unit in units)


def table(result: Result) -> str:
    """All measures of every data set and model, the best error and likelihood of a data set in bold; failures."""
    rows = [row for name in DATA_SETS for row in _rows(result, name)]
    header = ["data", "n, d", "model", "folds", *(title for title, _ in _COLUMNS.values()), "fit", "predict", "MB"]
    failed = [f"- {name}: {unit['error']}" for name, unit in result["units"].items() if "error" in unit]
    return (
        "- `choose` is the model that the data ask for: an exact GP of at most 5,000 rows with one of four kernels, "
        f"SoftKI or GRIEF.\n"
        f"- Ours: SoftKI (m = {SOFTKI_POINTS} points, {EPOCHS} epochs), GRIEF and GRIEF-II (p = {EIGENFUNCTIONS:,} "
        f"eigenfunctions).\n"
        f"- Rivals: GPyTorch's SGPR ({rivals.SGPR_POINTS} inducing points, {rivals.SGPR_STEPS} steps of Adam) and SVGP "
        f"({rivals.SVGP_POINTS:,} inducing points, {rivals.SVGP_EPOCHS} epochs), and BoTorch's exact SingleTaskGP.\n"
        f"- Marks: `all rows` is an exact GP of all rows with a Matérn-3/2 kernel (one Cholesky factor of 10 to 13 GB) "
        f"at hyperparameters of {rivals.SUBSET:,}: what more rows and no approximation would give.\n"
        f"- All others but `choose` have RBF kernels with one lengthscale per input. Inputs and values are "
        f"standardised by the training rows.\n"
        f"- RMSE, NLL (of an observation) and CRPS are in standardised units; RMSE is also given in raw units. "
        f"Coverage is that of the central 50 % and 95 % intervals for observations. Bold is the smallest of a data "
        f"set.\n"
        f"- Fit and prediction of all test rows are in wall time, on the machine named below; '–' is for those of "
        f"others. Memory is the process's peak up to the end of the "
        f"fit (VmHWM), including libraries and data.\n\n"
        + text.table(header, rows)
        + "\n\nBeside the papers. The standard deviations are over folds, here and there.\n\n"
        + text.table(["data", "model", "RMSE", "in the paper", "of the paper's"], _beside_papers(result))
        + ("\n\nFailed:\n\n" + "\n".join(failed) if failed else "")
    )


def _beside_papers(result: Result) -> list[list[str]]:
    rows = []
    for (name, model), (theirs, spread, key) in PAPERS.items():
        if found := [unit[key] for unit in folds(result, name, model)]:
            ours = statistics.mean(found)
            own = f" ± {statistics.stdev(found):.3f}" if len(found) > 1 else ""
            shown = f"{ours:.3f}{own}{' (raw)' if key == 'rmse_raw' else ''}"
            rows.append([name, model, shown, f"{theirs:.3f} ± {spread:.3f}", f"{ours / theirs:.2f}"])
    return rows


def _rows(result: Result, name: str) -> list[list[str]]:
    """The rows of a data set."""
    done = {model: found for model in MODELS if (found := folds(result, name, model))}
    best = {key: min((mean(found, key) for found in done.values()), default=0.0) for key in ("rmse", "nll")}
    rows = []
    for model, found in done.items():
        shown = {key: form.format(mean(found, key)) for key, (_, form) in _COLUMNS.items()}
        shown |= {key: f"**{shown[key]}**" for key, value in best.items() if mean(found, key) == value}
        timed = [unit for unit in found if "machine" not in unit]
        seconds = [text.seconds(mean(timed, key)) if timed else "–" for key in ("fit_seconds", "predict_seconds")]
        size = f"{found[0]['n']:,}, {found[0]['d']}"
        rows.append([name, size, model, str(len(found)), *shown.values(), *seconds, f"{mean(found, 'megabytes'):,.0f}"])
    return rows


def headline(result: Result) -> list[text.Row]:
    """Error and coverage of each model of ours against the rivals', on the data sets that both have done."""
    rows = []
    for model in OURS:
        names = [name for name in DATA_SETS if folds(result, name, model) and folds(result, name, "SVGP")]
        if not names:
            continue
        ours, svgp, sgpr = (_summary(result, names, each) for each in (model, "SVGP", "SGPR"))
        rows.append(
            (f"test RMSE (coverage of the 95 % interval): {', '.join(names)}; {model}", ours, f"{svgp}; {sgpr}")
        )
    return rows


def _summary(result: Result, names: Sequence[str], model: str) -> str:
    shown = []
    for name in names:
        found = folds(result, name, model)
        shown.append(f"{mean(found, 'rmse'):.3f} ({mean(found, 'coverage_95'):.0%})" if found else "–")
    return f"{model} {', '.join(shown)}"


def plot(result: Result, folder: Path) -> None:
    """A row for each data set, a marker for each model: error and coverage."""
    from benchmarks import plots

    names = [name for name in DATA_SETS if any(folds(result, name, model) for model in MODELS)]
    ticks = [0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0]
    with plots.figure(folder / "uci.png", panels=2) as (errors, coverages):
        errors.figure.set_size_inches(10.5, 2.4 + 0.6 * len(names))
        for offset, (model, marker) in enumerate(zip(MODELS, "osDv^XP*", strict=False)):
            done = [(row, name) for row, name in enumerate(names) if folds(result, name, model)]
            rows = [row + 0.13 * (offset - (len(MODELS) - 1) / 2) for row, _ in done]
            errors.plot([mean(folds(result, name, model), "rmse") for _, name in done], rows, marker, label=model)
            coverages.scatter(
                [mean(folds(result, name, model), "coverage_95") for _, name in done], rows, 36, marker=marker, zorder=3
            )
        for axis in (errors, coverages):
            axis.set(yticks=range(len(names)), yticklabels=names, ylim=(len(names) - 0.5, -2.6))
            for row in range(0, len(names), 2):
                axis.axhspan(row - 0.5, row + 0.5, color="0.5", alpha=0.08, linewidth=0)
        errors.set(xscale="log", xlabel="RMSE of standardised values")
        limits = errors.get_xlim()
        errors.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        errors.set_xticks([], minor=True)
        errors.set_xlim(limits)
        coverages.axvspan(0.90, 0.98, color="tab:green", alpha=0.12, linewidth=0)
        coverages.axvspan(0.9497, 0.9503, color="0.4", linewidth=0)
        coverages.set(xlabel="Coverage of the 95 % interval; shaded: 0.90 to 0.98", xlim=(None, 1.005))
