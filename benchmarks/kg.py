"""Knowledge gradient, forward and backward, at n = 2000, d = 2, 8 fantasies, 2 batches."""

from pathlib import Path
from typing import Any

import torch
from botorch.acquisition import qKnowledgeGradient
from botorch.models import SingleTaskGP

from benchmarks import text
from benchmarks.harness import Unit, median_seconds, smooth_data
from benchmarks.store import Result
from bo_scale import WISKI

TITLE = "Knowledge gradient"
SIZE = 2000
REPEATS = {"WISKI": 20, "SingleTaskGP": 2}


def units(data: Path | None) -> dict[str, Unit]:
    """One unit: both models."""
    return {"forward and backward": measure}


def measure() -> dict[str, Any]:
    """Seconds a forward and backward pass."""
    data = smooth_data(SIZE)
    seconds = {}
    for name, model in (("WISKI", WISKI(*data, grid_size=30)), ("SingleTaskGP", SingleTaskGP(*data))):
        acquisition = qKnowledgeGradient(model.eval(), num_fantasies=8)
        X = torch.rand(2, acquisition.get_augmented_q_batch_size(1), 2, dtype=torch.float64)

        def evaluate(acquisition: Any = acquisition, X: Any = X) -> None:
            acquisition(X.clone().requires_grad_()).sum().backward()

        seconds[name] = median_seconds(evaluate, REPEATS[name])
    return {"n": SIZE, "fantasies": 8, "seconds": seconds}


def table(result: Result) -> str:
    """Seconds of both, and the ratio."""
    (unit,) = result["units"].values()
    taken = unit["seconds"]
    return (
        f"Each time is that of qKnowledgeGradient, forward and backward, with n = {unit['n']:,}, {unit['fantasies']} "
        "fantasies and two starting points.\n\n"
        + text.table(
            ["WISKI", "SingleTaskGP", "ratio"],
            [[*map(text.seconds, taken.values()), text.ratio(taken["SingleTaskGP"], taken["WISKI"])]],
        )
    )


def headline(result: Result) -> list[text.Row]:
    """Both."""
    (unit,) = result["units"].values()
    ours, rival = unit["seconds"]["WISKI"], unit["seconds"]["SingleTaskGP"]
    what = f"qKG forward and backward, n = {unit['n']:,}, {unit['fantasies']} fantasies"
    return [(what, text.seconds(ours), f"`SingleTaskGP`: {text.seconds(rival)}")]
