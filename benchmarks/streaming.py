"""One observation: condition on q = 1 and predict one variance. WISKI with p = 900 against SingleTaskGP."""

import warnings
from typing import Any

import torch
from botorch.models import SingleTaskGP

from benchmarks.harness import interleaved, smooth_data
from bo_scale import WISKI

SIZES = (1_000, 10_000, 100_000, 1_000_000)
RIVAL_SIZES = (500, 1500, 4500)


def one_observation(model: Any) -> None:
    """What is timed."""
    child = model.condition_on_observations(
        torch.rand(1, 2, dtype=torch.float64), torch.randn(1, 1, dtype=torch.float64)
    )
    child.posterior(torch.rand(1, 2, dtype=torch.float64)).variance  # noqa: B018


def run() -> dict[str, Any]:
    """Seconds an observation against n, and the ratio at n = 4500."""
    warnings.simplefilter("ignore")
    with torch.no_grad():
        ours = [WISKI(*smooth_data(n), grid_size=30).eval() for n in SIZES]
        rivals = [SingleTaskGP(*smooth_data(n)).eval() for n in RIVAL_SIZES]
        for model in [*ours, *rivals]:
            model.posterior(torch.rand(1, 2, dtype=torch.float64))
        mine = interleaved([lambda m=m: one_observation(m) for m in ours], repeats=200, warmup=20)
        theirs = interleaved([lambda m=m: one_observation(m) for m in rivals], repeats=5)
    return {
        "WISKI": [{"n": n, "p": 900, "seconds": s} for n, s in zip(SIZES, mine, strict=True)],
        "SingleTaskGP": [{"n": n, "seconds": s} for n, s in zip(RIVAL_SIZES, theirs, strict=True)],
        "flatness": max(mine) / min(mine),
        "ratio_at_4500": theirs[-1] / mine[0],
    }
