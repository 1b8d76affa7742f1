"""An objective of one's own for surveys: where the variance is large and the threshold near, `objective="boundary"`.

The score is v exp(−z²/2) with z = (mean − threshold)/√v: the variance, weighted by how likely the threshold is among
the values that the place may have. Sites come to lie along the line where the quantity crosses the threshold.

    python examples/recipes/survey_objective.py
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from bo_scale.survey import Objective, Survey, register_objective
from bo_scale.survey.choice.design_state import DesignState

THRESHOLD = 0.5


def boundary(state: DesignState, threshold: float | None) -> Float[Tensor, " M"]:
    """Score all candidates of a design state; mean, variance and threshold are on the model's scale."""
    assert threshold is not None, "needs_threshold: the survey has asked for one"
    v = state.variances()
    return v * torch.exp(-0.5 * (state.means() - threshold).square() / v)


register_objective(
    Objective("boundary", "the variance is large and the threshold near", boundary, needs_threshold=True)
)


def surveyed(folder: Path, sites: int = 40, seed: int = 0) -> Survey:
    """Begin a survey of a field that rises from below the threshold in the south-west to above it in the north-east."""
    rng = np.random.default_rng(seed)
    xy = rng.uniform(0, 10_000, (sites, 2))
    value = xy.sum(1) / 20_000 + 0.2 * np.sin(xy[:, 0] / 1500) + 0.02 * rng.standard_normal(sites)
    table = pd.DataFrame({"easting": xy[:, 0], "northing": xy[:, 1], "lead": value})
    table.to_csv(folder / "sites.csv", index=False)
    return Survey.create(
        folder / "lead.gpkg",
        folder / "sites.csv",
        value="lead",
        crs="EPSG:32631",
        threshold=THRESHOLD,
        kernel="matern52",
    )


def main() -> None:
    """Plan four sites for the objective, and four where the variance is largest."""
    with TemporaryDirectory() as folder:
        survey = surveyed(Path(folder))
        for objective in ("boundary", "uncertainty"):
            print(f"{objective}:\n{survey.plan(4, objective).table.to_string(index=False)}")


if __name__ == "__main__":
    main()
