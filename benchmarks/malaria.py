"""Active sampling of malaria incidence: WISKI against an exact GP, error, coverage and time a batch.

The protocol of Stanton et al. 2021 (WISKI), appendix C.3, on Central Africa 2017: 10,000 places at random are the test
set and the integration points of NIPV, 10 more the first sites, 10,000 more the pool of which batches of 6 are chosen.
Priors Gamma(3, 6) on lengthscales and Gamma(2, 0.15) on the outputscale. Unlike there: Matérn-3/2 (what a grid leaves
of a Matérn-1/2 is far above the noise), learned noise, and refits at every quarter more observations.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize
from gpytorch.kernels import MaternKernel, ScaleKernel
from gpytorch.priors import GammaPrior
from torch import Tensor

from benchmarks.designs import Design, WISKIDesign
from benchmarks.exact_design import ExactDesign
from benchmarks.harness import Unit, require_data
from benchmarks.malaria_report import PLOTS, TITLE, headline, plot, table
from bo_scale import WISKI
from bo_scale.datasets import load_malaria
from bo_scale.models.shell.kernels import ProductMaternKernel

__all__ = ["PLOTS", "TITLE", "headline", "plot", "table", "units"]

DATA = "malaria_central_africa_2017.npz"
PLACES, FIRST, Q, EVERY, GRID = 10_000, 10, 6, 5, 40
START = 0.1
"""Lengthscale that fits start from: from GPyTorch's 0.69 some end with everything explained as noise."""


@dataclass(frozen=True)
class Variant:
    """A model, its kernel, and how long and often it runs."""

    design: type[Design]
    kernel: type[MaternKernel] = MaternKernel
    nu: float = 1.5
    batches: int = 250
    seeds: int = 1

    def build(self, bounds: Tensor, X: Tensor, Y: Tensor) -> Any:
        """The model, for a region of corners `2 × 2`, inputs `n × 2` and observations `n × 1`."""
        base = self.kernel(self.nu, ard_num_dims=2, lengthscale_prior=GammaPrior(3.0, 6.0))
        base.lengthscale = START
        kernel = ScaleKernel(base, outputscale_prior=GammaPrior(2.0, 0.15))
        parts = {"covar_module": kernel, "input_transform": Normalize(2, bounds=bounds)}
        if self.design is ExactDesign:
            return SingleTaskGP(X, Y, **parts)
        return WISKI(X, Y, bounds=bounds, grid_size=GRID, conservative=True, **parts)


VARIANTS = {
    "WISKI": Variant(WISKIDesign, batches=500, seeds=3),
    "exact": Variant(ExactDesign),
    "exact, product kernel": Variant(ExactDesign, ProductMaternKernel, seeds=3),
}


def units(data: Path | None) -> dict[str, Unit]:
    """A unit for each variant and seed."""
    runs = [(name, seed) for name, variant in VARIANTS.items() for seed in range(variant.seeds)]
    return {f"{name}, seed {seed}": partial(measure, data, name, seed) for name, seed in runs}


def measure(data: Path | None, model: str, seed: int) -> dict[str, Any]:
    """One run: error and coverage every few batches, and seconds a batch by what they went into."""
    places = load_malaria(require_data(data, DATA))
    order = torch.randperm(len(places), generator=torch.Generator().manual_seed(seed))
    test, first, pool = order[: 2 * PLACES + FIRST].split([PLACES, FIRST, PLACES])
    bounds = torch.stack([places.X.amin(0), places.X.amax(0)])
    variant = VARIANTS[model]
    build = partial(variant.build, bounds)
    design = variant.design(build, places.X[pool], places.X[test], places.X[first], places.Y[first])
    run: dict[str, Any] = {"model": model, "seed": seed, "nu": variant.nu, "n": [], "rmse": [], "coverage": []}
    run |= {"seconds": {"choose": [], "condition": []}, "refits": {"n": [], "seconds": []}}
    record(run, design, places.Y[test, 0])
    for batch in range(1, variant.batches + 1):
        sites, choosing = timed(partial(design.choose, Q))
        _, conditioning = timed(partial(design.observe, sites, places.Y[pool[sites]]))
        run["seconds"]["choose"].append(choosing)
        run["seconds"]["condition"].append(conditioning)
        if design.due:
            _, refitting = timed(design.refit)
            run["refits"]["n"].append(len(design.X))
            run["refits"]["seconds"].append(refitting)
        if batch % EVERY == 0:
            record(run, design, places.Y[test, 0])
    return run | hyperparameters(design.model)


def record(run: dict[str, Any], design: Design, Y: Tensor) -> None:
    """Append error and coverage of the 95 % interval at the test places, whose values are Y `M`."""
    mean, variance = design.predict()
    error = (mean - Y).abs()
    run["n"].append(len(design.X))
    run["rmse"].append(error.square().mean().sqrt().item())
    run["coverage"].append((error <= 1.96 * variance.sqrt()).double().mean().item())


def hyperparameters(model: Any) -> dict[str, Any]:
    """The last ones, in units of the unit square and of standardised values."""
    found = {
        "lengthscale": model.covar_module.base_kernel.lengthscale.reshape(-1).tolist(),
        "outputscale": model.covar_module.outputscale.item(),
        "noise": model.likelihood.noise.item(),
    }
    if isinstance(model, WISKI):
        found |= {"grid": list(model.grid.size), "interpolation_error": model.interpolation_error.item()}
    return {"hyperparameters": found}


def timed(function: Callable[[], Any]) -> tuple[Any, float]:
    """What a function returns, and the processor seconds it took."""
    start = time.process_time()
    value = function()
    return value, time.process_time() - start
