"""The demonstration for seeds 0-9: area under the RMSE curve of integrated variance against random sites."""

import sys
from pathlib import Path
from typing import Any

from bo_scale.datasets import load_malaria

sys.path.append(str(Path(__file__).parent.parent / "examples"))
from malaria import area_under_curve, sample_sites

SEEDS = range(10)


def run() -> dict[str, Any]:
    """Mean RMSE over 60 batches of 6, final RMSE and coverage, for every seed."""
    data, rows = load_malaria(), []
    for seed in SEEDS:
        row: dict[str, Any] = {"seed": seed}
        for strategy in ("nipv", "random"):
            result, _ = sample_sites(data, strategy, seed, batches=60)
            row[strategy] = {
                "area": area_under_curve(result),
                "rmse": result.rmse[-1],
                "coverage": result.coverage[-1],
                "seconds": sum(result.seconds),
            }
        rows.append(row)
    return {"runs": rows, "nipv_ahead": sum(row["nipv"]["area"] < row["random"]["area"] for row in rows)}
