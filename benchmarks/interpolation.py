"""Which interpolation, and how fine a grid, WISKI should take: against the exact GP, and by where optimisation ends.

The exact GP has the same product kernel, the same hyperparameters and the same data, drawn from the prior itself, so
that all differences are the interpolation's. All variants have equally many grid points.
"""

import math
import statistics
from collections.abc import Callable
from functools import lru_cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from botorch.test_functions import Ackley, Hartmann, Levy
from gpytorch.kernels import Kernel, RBFKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import ZeroMean
from torch import Tensor

from benchmarks import text
from benchmarks.harness import Unit
from benchmarks.store import Result
from bo_scale import WISKI
from bo_scale.gp.weight_space.features.grid.features import GridFeatures
from bo_scale.gp.weight_space.features.grid.interpolation import Grid
from bo_scale.loop import Optimizer
from bo_scale.models.shell.kernels import KernelProduct, ProductMaternKernel
from bo_scale.models.wiski.grid_sizes import TOLERATED_SHARE

TITLE = "Interpolation from a grid"
PLOTS = {
    "interpolation.png": "Distance to the exact GP against the interpolation error as a share of the noise, with a "
    "point for each kernel, dimension and grid. Left: distance of means (with missing variance they are the "
    "spline's). Right: the largest deficit of variances, where there is one. Dotted: the share above which WISKI warns"
}
KERNELS: dict[str, Callable[..., Kernel]] = {
    "RBF": RBFKernel,
    "Matérn-5/2": partial(ProductMaternKernel, nu=2.5),
    "Matérn-3/2": partial(ProductMaternKernel, nu=1.5),
    "Matérn-1/2": partial(ProductMaternKernel, nu=0.5),
}
VARIANTS: dict[str, dict[str, Any]] = {
    "keys": {"basis": "keys"},
    "spline": {"basis": "spline"},
    "conservative": {"basis": "spline", "conservative": True},
    "missing": {"basis": "spline", "missing_variance": True},
}
"""Options of WISKI."""
LENGTHSCALES = {1: 0.2, 2: 0.2, 3: 1 / 3, 4: 0.5}
"""By dimension, in units of the range."""
ROWS = {1: 200, 2: 400, 3: 600, 4: 800}
CELLS = {1: (1, 2, 4, 8), 2: (1, 2, 4, 8), 3: (1, 2, 4), 4: (1, 2, 3)}
"""A lengthscale; four in d = 4 would be 14,641 grid points and, with all eigenpairs, matrices of 10 GB."""
NOISE, TEST, SEEDS = 1e-2, 500, range(3)
FINEST = 1024
"""Cells of the finest grid in the search for one that is fine enough."""
FUNCTIONS: dict[str, tuple[Any, float, int]] = {
    "Levy-2": (partial(Levy, dim=2), 5.0, 11),
    "Hartmann-3": (partial(Hartmann, dim=3), 0.2, 11),
    "Ackley-3": (partial(Ackley, dim=3), 2.0, 11),
}
"""Each with its noise sd and a coarse grid: 8 cells, two a lengthscale of a quarter of the range."""
RUNS, BATCHES, FIRST = range(12), 40, 5
LEAST_DEFICIT = 1e-5
"""That is plotted."""


def units(data: Path | None) -> dict[str, Unit]:
    """Grids that are fine enough; one for each grid, kernel and variant; one run for each function and variant."""
    named: dict[str, Unit] = {f"needed {kernel} d={d}": partial(needed, kernel, d) for d in CELLS for kernel in KERNELS}
    compared = {d: _comparisons(d) for d in CELLS}
    last = compared.pop(4, {})
    for each in compared.values():
        named |= each
    for seed, name, variant in product(RUNS, FUNCTIONS, VARIANTS):
        named[f"{name} {variant} seed {seed}"] = partial(optimise, name, variant, seed)
    return named | last


def _comparisons(d: int) -> dict[str, Unit]:
    return {
        f"d={d} {kernel} {cells} {variant}": partial(compare, kernel, d, cells, variant)
        for kernel, cells, variant in product(KERNELS, CELLS[d], VARIANTS)
    }


# ---------------------------------------------------------------------- against the exact GP


def prior_kernel(kernel: str, d: int) -> Kernel:
    """A product over dimensions, of variance 1, with fixed lengthscales."""
    made = KERNELS[kernel](ard_num_dims=d).double()
    made.lengthscale = LENGTHSCALES[d]
    return made.requires_grad_(False)


def grid_points(d: int, cells: float) -> int:
    """Nodes a dimension, margin included, of so many cells a lengthscale."""
    return round(cells / LENGTHSCALES[d]) + 3


@lru_cache(maxsize=len(SEEDS))
def drawn(kernel: str, d: int, seed: int) -> dict[str, Tensor]:
    """Data and test values drawn from the prior at uniform points, and the exact posterior there."""
    g = torch.Generator().manual_seed(seed)
    n = ROWS[d]
    X = torch.rand(n + TEST, d, generator=g, dtype=torch.float64)
    K = prior_kernel(kernel, d)(X).to_dense()
    values, vectors = torch.linalg.eigh(K)
    f = vectors @ (values.clamp_min(0).sqrt() * torch.randn(len(X), generator=g, dtype=torch.float64))
    Y = f[:n] + math.sqrt(NOISE) * torch.randn(n, generator=g, dtype=torch.float64)
    L = torch.linalg.cholesky(K[:n, :n] + NOISE * torch.eye(n, dtype=torch.float64))
    half = torch.linalg.solve_triangular(L, torch.cat([K[:n, n:], Y.unsqueeze(-1)], -1), upper=False)
    B, a = half[:, :-1], half[:, -1]
    return {"X": X[:n], "Y": Y, "test": X[n:], "f": f[n:], "mean": B.T @ a, "variance": 1 - B.square().sum(0)}


def surrogate(kernel: str, d: int, cells: int, variant: str, X: Tensor, Y: Tensor) -> WISKI:
    """A WISKI at the hyperparameters that the data were drawn by, with all eigenpairs of its prior."""
    likelihood = GaussianLikelihood().double()
    likelihood.noise = NOISE
    return WISKI(
        X,
        Y.unsqueeze(-1),
        grid_size=grid_points(d, cells),
        covar_module=prior_kernel(kernel, d),
        mean_module=ZeroMean(),
        likelihood=likelihood,
        outcome_transform=None,
        rank=grid_points(d, cells) ** d,
        **VARIANTS[variant],
    )


def compare(kernel: str, d: int, cells: int, variant: str) -> dict[str, Any]:
    """Distances to the exact posterior, and coverage of the function itself, each a mean over seeds."""
    found = []
    for seed in SEEDS:
        exact = drawn(kernel, d, seed)
        model = surrogate(kernel, d, cells, variant, exact["X"], exact["Y"])
        with torch.no_grad():
            posterior: Any = model.posterior(exact["test"])
        mean, variance = posterior.mean.squeeze(-1), posterior.variance.squeeze(-1)
        found.append(distances(exact, mean, variance) | {"share": model.interpolation_error.item() / NOISE})
    means = {key: statistics.mean(each[key] for each in found) for key in found[0]}
    described = {"kernel": kernel, "d": d, "variant": variant, "cells": cells, "points": grid_points(d, cells) ** d}
    return {**described, "seed": list(SEEDS), **means}


def distances(exact: dict[str, Tensor], mean: Tensor, variance: Tensor) -> dict[str, float]:
    """Of means in units of the exact posterior sd; ratios of sds; coverage of 95 % intervals, the exact one's too."""
    off = (mean - exact["mean"]) / exact["variance"].sqrt()
    ratio = (variance / exact["variance"]).sqrt()
    low, middle, high = ratio.quantile(ratio.new_tensor([0.05, 0.5, 0.95])).tolist()

    def coverage(mean: Tensor, variance: Tensor) -> float:
        return ((exact["f"] - mean).abs() <= 1.959964 * variance.sqrt()).double().mean().item()

    return {
        "mean_error": off.square().mean().sqrt().item(),
        "sd_low": low,
        "sd_median": middle,
        "sd_high": high,
        "deficit": 1 - ratio.square().min().item(),
        "coverage": coverage(mean, variance),
        "coverage_exact": coverage(exact["mean"], exact["variance"]),
    }


def needed(kernel: str, d: int) -> dict[str, Any]:
    """The fewest cells a lengthscale, for each basis, whose interpolation error is a tolerable share of the noise."""
    factors = KernelProduct(prior_kernel(kernel, d))

    def fine_enough(basis: Any, cells: int) -> bool:
        grid = Grid((0.0,) * d, (1.0,) * d, (cells + 3,) * d)
        return GridFeatures(grid, factors, basis).error.mean().item() <= TOLERATED_SHARE * NOISE

    found: dict[str, Any] = {"kernel": kernel, "d": d}
    for basis in ("keys", "spline"):
        low, high = 0, FINEST
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if fine_enough(basis, middle) else (middle, high)
        found[basis] = None if high == FINEST else high * LENGTHSCALES[d]
    return found


# ---------------------------------------------------------------------- in the loop


def optimise(name: str, variant: str, seed: int) -> dict[str, Any]:
    """One run of the loop on a coarse grid: the noise-free value at the point it calls best in the end."""
    kind, noise_sd, size = FUNCTIONS[name]
    function = kind()
    g = torch.Generator().manual_seed(seed)
    loop = Optimizer(
        function.bounds,
        objective="minimize",
        model="wiski",
        acquisition="qUCB",
        seed=seed,
        num_initial=FIRST,
        model_options={"grid_size": size, **VARIANTS[variant]},
    )
    for batch in range(BATCHES + 1):
        X = loop.ask(3 if batch else FIRST)
        loop.tell(X, function(X, noise=False) + noise_sd * torch.randn(len(X), generator=g, dtype=torch.float64))
    value, model = float(function(loop.best().x, noise=False)), loop.model
    lengthscale = statistics.median(model.covar_module.base_kernel.lengthscale.flatten().tolist())
    share = (model.interpolation_error / model.mean_noise).item()
    run = {"function": name, "variant": variant, "seed": seed, "value": value}
    return {**run, "cells": lengthscale * (size - 3), "share": share}


# ---------------------------------------------------------------------- report


def _compared(result: Result, **wanted: Any) -> list[dict[str, Any]]:
    """Comparisons with the exact GP that agree in some entries."""
    units = [unit for unit in result["units"].values() if "mean_error" in unit]
    return [unit for unit in units if all(unit[key] == value for key, value in wanted.items())]


def table(result: Result) -> str:
    """How fine a grid must be; distances to the exact GP by dimension; intervals on coarse grids; the loop."""
    parts = [_needed(result), *(_distances(result, d) for d in CELLS), _intervals(result), _ends(result)]
    return (
        f"Four variants of WISKI have the same grid points: cubic convolution (keys), cubic B-splines, and splines "
        f"with `conservative=True` or with `missing_variance=True`. The data are drawn from the prior: variance 1, "
        f"product kernels, lengthscales {', '.join(f'{LENGTHSCALES[d]:.2g}' for d in CELLS)} of the range in d = 1 to "
        f"4, and noise variance {NOISE:g}. There are {', '.join(str(ROWS[d]) for d in CELLS)} uniform points in d = 1 "
        f"to 4. The variants are compared with the exact GP at {TEST} other points. All values are means over "
        f"{len(SEEDS)} seeds.\n\n" + "\n\n".join(part for part in parts if part)
    )


def _needed(result: Result) -> str:
    """A row for each kernel, dimensions beside each other."""
    found = {(u["kernel"], u["d"]): u for u in result["units"].values() if "kernel" in u and "cells" not in u}
    most = {d: f"> {FINEST * LENGTHSCALES[d]:.0f}" for d in CELLS}

    def shown(kernel: str, d: int) -> str:
        unit = found.get((kernel, d))
        if unit is None:
            return "–"
        return " / ".join(most[d] if unit[b] is None else text.digits(unit[b]) for b in ("keys", "spline"))

    if not found:
        return ""
    rows = [[kernel, *(shown(kernel, d) for d in CELLS)] for kernel in KERNELS]
    return (
        f"This table shows how many cells per lengthscale give an `interpolation_share` of {100 * TOLERATED_SHARE:g} "
        f"%, keys / spline:\n\n" + text.table(["kernel", *(f"d = {d}" for d in CELLS)], rows)
    )


def _row(result: Result, cell: Callable[[dict[str, Any]], str], **wanted: Any) -> list[str]:
    """What is shown of each variant."""
    by_variant = {unit["variant"]: cell(unit) for unit in _compared(result, **wanted)}
    return [by_variant.get(variant, "–") for variant in VARIANTS]


def _distances(result: Result, d: int) -> str:
    """Rows of kernels and grids in one dimension."""

    def distance(unit: dict[str, Any]) -> str:
        return f"{text.digits(unit['mean_error'])} / {unit['sd_median']:.3f}"

    rows = []
    for kernel, cells in product(KERNELS, CELLS[d]):
        wanted = {"d": d, "kernel": kernel, "cells": cells}
        if not _compared(result, **wanted):
            continue
        shares = _row(result, lambda unit: _percent(unit["share"]), **wanted)
        share = f"{shares[0]}, {shares[1]}"
        rows.append([f"{kernel}, {cells} ({grid_points(d, cells)})", share, *_row(result, distance, **wanted)])
    header = ["kernel, cells per lengthscale (points per dimension)", "share: keys, spline", *VARIANTS]
    return (
        f"In d = {d}, each table cell has the rms difference of means, in exact posterior sds, and the median ratio of "
        f"sds:\n\n{text.table(header, rows)}"
        if rows
        else ""
    )


def _intervals(result: Result, cells: int = 2) -> str:
    """Coverage and deficits on coarse grids."""

    def interval(unit: dict[str, Any]) -> str:
        return f"{100 * unit['coverage']:.1f} % / {100 * unit['deficit']:.1f} %"

    rows = []
    for d, kernel in product(CELLS, KERNELS):
        if found := _compared(result, d=d, kernel=kernel, cells=cells):
            exact = f"{100 * found[0]['coverage_exact']:.1f} %"
            rows.append([f"{kernel}, d = {d}", exact, *_row(result, interval, d=d, kernel=kernel, cells=cells)])
    return (
        f"With {cells} cells per lengthscale, each table cell has the coverage of the function by 95 % intervals, and "
        f"the largest missing share of the exact posterior variance (below zero: none is missing anywhere):\n\n"
        + text.table(["kernel", "exact", *VARIANTS], rows)
        if rows
        else ""
    )


def _percent(share: float) -> str:
    return f"{text.digits(100 * share)} %" if share >= 1e-5 else "< 0.001 %"


def _ends(result: Result) -> str:
    """Last values of the loop, and their paired differences to the spline's."""
    rows = []
    for name in FUNCTIONS:
        runs = [unit for unit in result["units"].values() if unit.get("function") == name]
        ends = {v: {u["seed"]: u["value"] for u in runs if u["variant"] == v} for v in VARIANTS}
        if not runs:
            continue
        for variant, values in ends.items():
            common = sorted(values.keys() & ends["spline"].keys())
            gaps = [values[s] - ends["spline"][s] for s in common]
            gap = "–" if variant == "spline" else text.mean_and_error(gaps, "+")
            mine = [unit for unit in runs if unit["variant"] == variant]
            cells, share = (statistics.median([u[k] for u in mine]) if mine else math.nan for k in ("cells", "share"))
            fine = ["–", "–"] if not mine else [text.digits(cells), _percent(share)]
            rows.append([name, variant, str(len(values)), text.mean_and_error(list(values.values())), gap, *fine])
    header = ["function", "variant", "seeds", "value", "minus spline's", "cells per lengthscale", "share"]
    grids = ", ".join(
        f"{name} with {size} points per dimension and noise sd {sd:g}" for name, (_, sd, size) in FUNCTIONS.items()
    )
    return (
        f"The last table is for the loop on coarse grids ({grids}). It shows the noise-free value at `best()` after "
        f"{FIRST + 3 * BATCHES} observations ({FIRST} quasi-random, then batches of 3 by qUCB) as mean ± standard "
        "error over seeds. Lower is better. Differences are paired by seed. The last two columns are medians: the last "
        "fit's cells per lengthscale, and its interpolation error as a share of the noise variance.\n\n"
        + text.table(header, rows)
        if rows
        else ""
    )


def plot(result: Result, folder: Path) -> None:
    """Means and variances, one colour a variant."""
    from benchmarks import plots

    with plots.figure(folder / "interpolation.png", panels=2) as axes:
        labels = {"mean_error": "rms difference of means, exact sd", "deficit": "worst deficit of variance, share"}
        for axis, (key, label) in zip(axes, labels.items(), strict=True):
            for variant, marker in zip(VARIANTS, "osx+"):
                found = [unit for unit in _compared(result, variant=variant) if unit[key] > LEAST_DEFICIT]
                if (variant, key) == ("missing", "mean_error"):
                    continue
                shares = [unit["share"] for unit in found]
                axis.plot(shares, [unit[key] for unit in found], marker, markersize=5, fillstyle="none", label=variant)
            axis.axvline(TOLERATED_SHARE, color="0.6", linewidth=0.8, linestyle=":")
            axis.set(xscale="log", yscale="log", xlabel="interpolation error / noise variance", ylabel=label)
