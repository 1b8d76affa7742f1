"""Knowledge gradient, forward and backward, at n = 2000, d = 2, 8 fantasies, 2 batches."""

import warnings
from typing import Any

import torch
from botorch.acquisition import qKnowledgeGradient
from botorch.models import SingleTaskGP

from benchmarks.harness import median_seconds, smooth_data
from bo_scale import WISKI


def run() -> dict[str, Any]:
    """Seconds a forward and backward pass."""
    warnings.simplefilter("ignore")
    data = smooth_data(2000)
    seconds = {}
    for name, model, repeats in (("WISKI", WISKI(*data, grid_size=30), 20), ("SingleTaskGP", SingleTaskGP(*data), 2)):
        acquisition = qKnowledgeGradient(model.eval(), num_fantasies=8)
        X = torch.rand(2, acquisition.get_augmented_q_batch_size(1), 2, dtype=torch.float64)

        def evaluate(acquisition: Any = acquisition, X: Any = X) -> None:
            acquisition(X.clone().requires_grad_()).sum().backward()

        seconds[name] = median_seconds(evaluate, repeats)
    return {"seconds": seconds, "ratio": seconds["SingleTaskGP"] / seconds["WISKI"]}
