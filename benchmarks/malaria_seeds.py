"""The demonstration for seeds 0-9: area under the RMSE curve of integrated variance against random sites."""

import sys
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import text
from benchmarks.harness import Unit
from benchmarks.store import Result
from bo_scale.datasets import load_malaria

sys.path.append(str(Path(__file__).parent.parent / "examples"))

TITLE = "The demonstration over seeds"
SEEDS = range(10)
BATCHES = 60


def units(data: Path | None) -> dict[str, Unit]:
    """One unit a seed."""
    return {f"seed {seed}": partial(measure, seed) for seed in SEEDS}


def measure(seed: int) -> dict[str, Any]:
    """Mean RMSE over batches of 6, final RMSE and coverage."""
    from malaria import area_under_curve, sample_sites

    row: dict[str, Any] = {"seed": seed, "batches": BATCHES}
    for strategy in ("nipv", "random"):
        result, _ = sample_sites(load_malaria(), strategy, seed, batches=BATCHES)
        row[strategy] = {
            "area": area_under_curve(result),
            "rmse": result.rmse[-1],
            "coverage": result.coverage[-1],
            "seconds": sum(result.seconds),
        }
    return row


def table(result: Result) -> str:
    """Every seed, and for how many the integrated variance is ahead."""
    runs = list(result["units"].values())
    rows = [
        [
            str(run["seed"]),
            *(f"{run[s]['area']:.4f}" for s in ("nipv", "random")),
            *(f"{run[s]['rmse']:.4f}" for s in ("nipv", "random")),
            f"{100 * run['nipv']['coverage']:.0f} %",
        ]
        for run in runs
    ]
    ahead = sum(run["nipv"]["area"] < run["random"]["area"] for run in runs)
    header = ["seed", "mean RMSE", "random sites", "final RMSE", "random sites", "coverage of the 95 % interval"]
    return (
        f"Sites chosen by integrated variance are compared with random ones on the sample that the package ships, in "
        f"{runs[0]['batches']} batches of 6. Their mean RMSE is smaller for {ahead} of {len(runs)} seeds.\n\n"
        + text.table(header, rows)
    )
