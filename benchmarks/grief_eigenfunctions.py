"""How well p features reproduce a kernel matrix in 100 dimensions: figure 2 of Evans and Nair 2018 (GP-GRIEF)."""

import math
from functools import partial
from pathlib import Path
from typing import Any

import torch
from gpytorch.kernels import RBFKernel
from torch import Tensor

from benchmarks import text
from benchmarks.harness import Unit
from benchmarks.store import Result

TITLE = "Eigenfunctions in 100 dimensions"
PLOTS = {
    "grief_eigenfunctions.png": "Relative error of a kernel matrix in 100 dimensions against the number of features"
}
POINTS, DIMENSION, GRID_POINTS = 5000, 100, 100
REACH = math.sqrt(3)
"""Points are uniform between minus this and this, so that their variance is 1."""
FEATURES = (10, 30, 102, 300, 1000, 2000)
SEEDS = range(5)
METHODS = {
    "eigenfunctions": "GRIEF",
    "nystrom": "Nyström, random rows",
    "fourier": "random Fourier features",
    "optimum": "optimum",
}


def lengthscales(kernel: str) -> Tensor:
    """Of every dimension: all √d, or spread over two orders of magnitude."""
    if kernel == "one lengthscale":
        return torch.full((DIMENSION,), math.sqrt(DIMENSION), dtype=torch.float64)
    return torch.logspace(math.log10(3.0), math.log10(300.0), DIMENSION, dtype=torch.float64)


KERNELS = ("one lengthscale", "lengthscales 3 to 300")


def units(data: Path | None) -> dict[str, Unit]:
    """One for each kernel and seed."""
    return {f"{kernel}, seed {seed}": partial(measure, kernel, seed) for seed in SEEDS for kernel in KERNELS}


def measure(kernel: str, seed: int) -> dict[str, Any]:
    """Errors on the training half of the points, which the random subset is of, and on all."""
    g = torch.Generator().manual_seed(seed)
    X = REACH * (2 * torch.rand(POINTS, DIMENSION, generator=g, dtype=torch.float64) - 1)
    base = RBFKernel(ard_num_dims=DIMENSION).double()
    base.lengthscale = lengthscales(kernel)
    base.requires_grad_(False)
    train = POINTS // 2
    K = base(X).to_dense()
    errors: dict[str, dict[str, list[float]]] = {"train": {}, "all": {}}
    for part, block in (("train", K[:train, :train]), ("all", K)):
        values = torch.linalg.eigvalsh(block).flip(0)
        errors[part]["optimum"] = [(values[p:].norm() / values.norm()).item() for p in FEATURES]
    makers = {"eigenfunctions": eigenfunctions, "nystrom": nystrom, "fourier": fourier}
    for method, make in makers.items():
        for p in FEATURES:
            Phi = make(base, X, train, p, g)
            gap = torch.addmm(K, Phi, Phi.mT, alpha=-1.0)
            for part, n in (("train", train), ("all", POINTS)):
                error = (gap[:n, :n].norm() / K[:n, :n].norm()).item()
                errors[part].setdefault(method, []).append(error)
    return {"kernel": kernel, "seed": seed, "points": POINTS, "p": list(FEATURES), "error": errors}


def eigenfunctions(base: RBFKernel, X: Tensor, train: int, p: int, g: torch.Generator) -> Tensor:
    """GRIEF's, on a grid of GRID_POINTS^DIMENSION nodes. They have seen none of the points."""
    from bo_scale.gp.weight_space.features.eigenfunctions import Eigenbasis, EigenfunctionFeatures
    from bo_scale.models.shell.kernels import AxisKernels

    nodes = torch.linspace(-REACH, REACH, GRID_POINTS, dtype=torch.float64).expand(X.shape[-1], -1)
    one = torch.ones((), dtype=torch.float64)
    return EigenfunctionFeatures(Eigenbasis(nodes, AxisKernels(base), p), one)(X)


def nystrom(base: RBFKernel, X: Tensor, train: int, p: int, g: torch.Generator) -> Tensor:
    """K_xz L⁻ᵀ with z a random subset of the training half and L the Cholesky factor of K_zz."""
    Z = X[torch.randperm(train, generator=g)[:p]]
    root = torch.linalg.cholesky(base(Z).to_dense() + 1e-10 * torch.eye(len(Z), dtype=X.dtype))
    return torch.linalg.solve_triangular(root, base(Z, X).to_dense(), upper=False).mT


def fourier(base: RBFKernel, X: Tensor, train: int, p: int, g: torch.Generator) -> Tensor:
    """p/2 pairs of a cosine and a sine of random frequencies (Rahimi and Recht 2007)."""
    omega = torch.randn(X.shape[-1], p // 2, generator=g, dtype=X.dtype) / base.lengthscale.mT
    return math.sqrt(2 / p) * torch.cat([torch.cos(X @ omega), torch.sin(X @ omega)], -1)


def _errors(result: Result, kernel: str, part: str, method: str) -> Tensor:
    """Seeds × numbers of features."""
    runs = [unit for unit in result["units"].values() if unit["kernel"] == kernel]
    return torch.tensor([run["error"][part][method] for run in runs])


def table(result: Result) -> str:
    """Mean errors over seeds."""
    done = list(result["units"].values())
    features = done[0]["p"]
    rows = []
    for kernel in dict.fromkeys(unit["kernel"] for unit in done):
        for part, shown in (("train", "training half"), ("all", "all")):
            for method, label in METHODS.items():
                errors = _errors(result, kernel, part, method)
                rows.append([kernel, shown, label, str(len(errors)), *(f"{e:.4f}" for e in errors.mean(0).tolist())])
    header = ["kernel", "points", "features", "seeds", *(f"p = {p:,}" for p in features)]
    return (
        f"The table shows the relative Frobenius error ‖K − ΦΦᵀ‖/‖K‖ of an RBF kernel matrix. Its "
        f"{done[0]['points']:,} points are uniform in {DIMENSION} dimensions, with variance 1. Its lengthscales are "
        f"all √{DIMENSION}, or spread geometrically. GRIEF's grid has {GRID_POINTS}^{DIMENSION} nodes over the box. "
        f"Nyström's method takes its subset from the training half. 'optimum' is the truncated "
        f"eigendecomposition of the matrix itself.\n\n" + text.table(header, rows)
    )


def headline(result: Result) -> list[text.Row]:
    """All points, at the numbers of features next to 100 and 1,000."""
    done = list(result["units"].values())
    features, kernel = done[0]["p"], done[0]["kernel"]
    columns = [min(range(len(features)), key=lambda i: abs(features[i] - p)) for p in (100, 1000)]
    means = {m: _errors(result, kernel, "all", m).mean(0) for m in METHODS}
    errors = {m: " and ".join(f"{mean[i]:.3f}" for i in columns) for m, mean in means.items()}
    return [
        (
            f"error of a kernel matrix in {DIMENSION} dimensions by {' and '.join(str(features[i]) for i in columns)} "
            "features",
            f"GRIEF {errors['eigenfunctions']}; optimum {errors['optimum']}",
            f"Nyström on random rows {errors['nystrom']}, random Fourier features {errors['fourier']}",
        )
    ]


def plot(result: Result, folder: Path) -> None:
    """A panel for each kernel and set of points."""
    from benchmarks import plots

    features = next(iter(result["units"].values()))["p"]
    kernels = list(dict.fromkeys(unit["kernel"] for unit in result["units"].values()))
    with plots.figure(folder / "grief_eigenfunctions.png", panels=2, rows=len(kernels)) as axes:
        panels = [(kernel, part) for kernel in kernels for part in ("train", "all")]
        for axis, (kernel, part) in zip(axes, panels, strict=True):
            for method, label in METHODS.items():
                style = "k--" if method == "optimum" else "o-"
                plots.band(axis, features, _errors(result, kernel, part, method).tolist(), label, style)
            points = "training half" if part == "train" else "all points"
            axis.set(title=f"{kernel}: {points}", xlabel="Features p", ylabel="Relative error")
            axis.set(xscale="log", yscale="log")
