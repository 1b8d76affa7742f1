"""Log evidence and its gradient: WISKI with p = 900 at any n, against SingleTaskGP."""

import warnings
from typing import Any

from botorch.models import SingleTaskGP
from botorch.optim.closures import get_loss_closure
from gpytorch.kernels import MaternKernel
from gpytorch.mlls import ExactMarginalLogLikelihood

from benchmarks.harness import interleaved, smooth_data
from bo_scale import WISKI


def closure(model: Any) -> Any:
    """One evaluation of the loss with its gradient, as BoTorch's fit makes it."""
    mll = ExactMarginalLogLikelihood(model.likelihood, model).train()
    loss = get_loss_closure(mll)

    def evaluate() -> None:
        mll.zero_grad()
        loss().sum().backward()

    return evaluate


def run() -> dict[str, Any]:
    """Seconds an evaluation. "full rank" is a Matérn-1/2 kernel, of which no eigenpair can be left out."""
    warnings.simplefilter("ignore")
    models: dict[str, Any] = {}
    for n in (1_000, 1_000_000):
        X, Y = smooth_data(n)
        models[f"WISKI RBF n={n}"] = WISKI(X, Y, grid_size=30)
        rough = MaternKernel(0.5, ard_num_dims=2)
        models[f"WISKI full rank n={n}"] = WISKI(X, Y, grid_size=30, covar_module=rough)
    ranks = {name: int(model._feature_map(0).prior_root().shape[-1]) for name, model in models.items()}
    for n in (1000, 2000):
        models[f"SingleTaskGP n={n}"] = SingleTaskGP(*smooth_data(n))
    seconds = interleaved([closure(model) for model in models.values()], repeats=15, warmup=2)
    return {"seconds": dict(zip(models, seconds, strict=True)), "rank": ranks}
