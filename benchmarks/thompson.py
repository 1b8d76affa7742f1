"""Thompson batches: maximisers of exact posterior functions, against BoTorch's sampling over a discrete set."""

import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from botorch.generation.sampling import MaxPosteriorSampling
from botorch.models import SingleTaskGP
from botorch.sampling.pathwise import draw_matheron_paths
from botorch.utils.sampling import draw_sobol_samples, optimize_posterior_samples
from torch import Tensor

from benchmarks import text
from benchmarks.harness import Unit, smooth_data
from benchmarks.store import Result
from bo_scale import WISKI
from bo_scale.decisions.thompson import thompson_batch

TITLE = "Thompson batches"
SIZES = (10, 100, 1000)
N, CANDIDATES = 2000, 5000


def units(data: Path | None) -> dict[str, Unit]:
    """One for every q."""
    return {f"q={q}": partial(measure, q) for q in SIZES}


def measure(q: int) -> dict[str, Any]:
    """Seconds a batch at n = 2000, d = 3, and how many of its points are distinct (1e-3 apart in some coordinate)."""
    X, Y = smooth_data(N, d=3)
    bounds = torch.stack([torch.zeros(3), torch.ones(3)]).to(X)
    ours, exact = WISKI(X, Y).eval(), SingleTaskGP(X, Y).eval()
    for model in (ours, exact):
        model.posterior(X[:1])

    def discrete() -> Tensor:
        candidates = draw_sobol_samples(bounds, CANDIDATES, 1, seed=0).squeeze(1)
        return MaxPosteriorSampling(exact, replacement=False)(candidates, num_samples=q)

    def pathwise() -> Tensor:
        return optimize_posterior_samples(draw_matheron_paths(exact, torch.Size([q])), bounds)[0]

    ways = {
        "WISKI thompson_batch": lambda: thompson_batch(ours, bounds, q),
        "SingleTaskGP optimize_posterior_samples": pathwise,
        f"SingleTaskGP MaxPosteriorSampling, {CANDIDATES} candidates": discrete,
    }
    return {"q": q, "n": N, "seed": 0, "ways": {name: timed(way, q) for name, way in ways.items()}}


def timed(way: Any, q: int) -> dict[str, float | None]:
    """Seconds, the better of two runs, and the share of distinct points; None where memory runs out."""
    seconds = []
    for seed in range(2):
        torch.manual_seed(seed)
        started = time.perf_counter()
        try:
            points = way().detach().reshape(q, -1)
        except RuntimeError as error:
            if "allocate memory" not in str(error):
                raise
            return {"seconds": None, "distinct": None}
        seconds.append(time.perf_counter() - started)
    gaps = (points.unsqueeze(1) - points).abs().amax(-1) + torch.eye(q, dtype=points.dtype)
    return {"seconds": min(seconds), "distinct": float(((gaps >= 1e-3).all(-1)).double().mean())}


def table(result: Result) -> str:
    """Seconds and distinct points for every q."""
    done = sorted(result["units"].values(), key=lambda unit: unit["q"])
    rows = [[way, *(_cell(unit["ways"][way]) for unit in done)] for way in done[0]["ways"]]
    return (
        f"Each cell has the seconds per batch with n = {done[0]['n']:,} and d = 3, and the share of its points that "
        f"are at least 1e-3 apart from all others.\n\n" + text.table(["", *(f"q = {u['q']:,}" for u in done)], rows)
    )


def _cell(way: dict[str, float | None]) -> str:
    if way["seconds"] is None or way["distinct"] is None:
        return "out of memory (24 GiB)"
    return f"{text.seconds(way['seconds'])}, {100 * way['distinct']:.0f} %"


def headline(result: Result) -> list[text.Row]:
    """The largest batch."""
    unit = max(result["units"].values(), key=lambda unit: unit["q"])
    ours, pathwise, discrete = (_cell(way) for way in unit["ways"].values())
    return [
        (
            f"a Thompson batch of {unit['q']:,} at n = {unit['n']:,}, d = 3; its distinct points",
            ours,
            f"`SingleTaskGP`, BoTorch's paths: {pathwise}; over {CANDIDATES:,} candidates: {discrete}",
        )
    ]
