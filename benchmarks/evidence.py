"""Log evidence and its gradient: WISKI with p = 900 at any n, against SingleTaskGP."""

from pathlib import Path
from typing import Any

from botorch.models import SingleTaskGP
from botorch.optim.closures import get_loss_closure
from gpytorch.kernels import MaternKernel
from gpytorch.mlls import ExactMarginalLogLikelihood

from benchmarks import text
from benchmarks.harness import Unit, interleaved, smooth_data
from benchmarks.store import Result
from bo_scale import WISKI

TITLE = "Evidence and gradient"
SIZES = (1_000, 1_000_000)
RIVAL_SIZES = (1_000, 2_000)
REPEATS = 15


def units(data: Path | None) -> dict[str, Unit]:
    """One unit: all models in turns."""
    return {"loss and gradient": measure}


def closure(model: Any) -> Any:
    """One evaluation of the loss with its gradient, as BoTorch's fit makes it."""
    mll = ExactMarginalLogLikelihood(model.likelihood, model).train()
    loss = get_loss_closure(mll)

    def evaluate() -> None:
        mll.zero_grad()
        loss().sum().backward()

    return evaluate


def measure() -> dict[str, Any]:
    """Seconds an evaluation. "full rank" is a Matérn-1/2 kernel, of which no eigenpair can be left out."""
    models: dict[str, Any] = {}
    for n in SIZES:
        X, Y = smooth_data(n)
        models[f"WISKI RBF n={n}"] = WISKI(X, Y, grid_size=30)
        rough = MaternKernel(0.5, ard_num_dims=2)
        models[f"WISKI full rank n={n}"] = WISKI(X, Y, grid_size=30, covar_module=rough)
    ranks = {name: int(model._feature_map(0).prior_root().shape[-1]) for name, model in models.items()}
    for n in RIVAL_SIZES:
        models[f"SingleTaskGP n={n}"] = SingleTaskGP(*smooth_data(n))
    seconds = interleaved([closure(model) for model in models.values()], repeats=REPEATS, warmup=2)
    return {"seconds": dict(zip(models, seconds, strict=True)), "rank": ranks}


def table(result: Result) -> str:
    """Seconds and rank of every model."""
    (unit,) = result["units"].values()
    rows = []
    for name, taken in unit["seconds"].items():
        model, n = name.split(" n=")
        rows.append([model, f"{int(n):,}", str(unit["rank"].get(name, "")), text.seconds(taken)])
    return (
        "Each time is that of one evaluation of the loss with its gradient. WISKI has p = 900 grid points. 'full rank' "
        "is a Matérn-1/2 kernel, of which no eigenpair can be left out.\n\n"
        + text.table(["model", "n", "rank", "seconds"], rows)
    )


def headline(result: Result) -> list[text.Row]:
    """WISKI at its largest n against the rival at its own."""
    (unit,) = result["units"].values()
    taken = unit["seconds"]
    rbf, rough, rival = ([k for k in taken if k.startswith(m)][-1] for m in ("WISKI RBF", "WISKI full", "Single"))
    return [
        (
            f"evidence and gradient, n = {int(rbf.split('=')[1]):,}",
            f"{text.seconds(taken[rbf])} (RBF), {text.seconds(taken[rough])} (Matérn-1/2)",
            f"`SingleTaskGP` at n = {int(rival.split('=')[1]):,}: {text.seconds(taken[rival])}",
        )
    ]
