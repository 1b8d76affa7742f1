"""What fits of exact GPs spend their time on: the evidence with its gradient, and the first posterior."""

from functools import partial
from pathlib import Path
from typing import Any

import torch
from botorch.models import SingleTaskGP
from torch import Tensor

from benchmarks import text
from benchmarks.evidence import closure
from benchmarks.harness import Unit, interleaved, smooth_data
from benchmarks.store import Result
from bo_scale.gp.function_space.exact_evidence import radial_evidence, radial_gradients
from bo_scale.models.choice.plan import Plan
from bo_scale.models.fitting.closed_form import ClosedForm
from bo_scale.models.fitting.exact import ExactGP
from bo_scale.threads import one_thread, scipy_on_one_thread

TITLE = "The evidence of an exact GP"
SIZES, INPUTS = (50, 200, 500, 1_000, 2_000), 6
POSTERIOR, POINTS = 5_000, 500
"""Rows of the posterior, and points at which it is predicted."""
REPEATS = 9


def units(data: Path | None) -> dict[str, Unit]:
    """One for each size, and one for the posterior."""
    evidence: dict[str, Unit] = {f"evidence n={n}": partial(measure, n) for n in SIZES}
    return {**evidence, f"posterior n={POSTERIOR}": posterior}


def measure(n: int) -> dict[str, Any]:
    """Seconds of one evaluation with its gradient, on one thread, with an RBF kernel."""
    X, Y = smooth_data(n, INPUTS)
    closed = ExactGP.of(Plan("exact", "rbf").build(X, Y)).closed_form(slice(None))
    assert closed is not None, "it has an RBF kernel"
    at = closed.present
    with one_thread(), scipy_on_one_thread():
        ways = [partial(closed, at), partial(_in_own_memory, closed), closure(SingleTaskGP(X, Y))]
        seconds = interleaved(ways, REPEATS)
    return {"n": n, "what": "evidence and gradient", "seconds": seconds}


def _in_own_memory(closed: ClosedForm) -> Tensor:
    """Evaluate with matrices that are made each time, by torch."""
    Z, y, D = (torch.from_numpy(values) for values in (closed.X, closed.Y, closed.D))
    value, saved = radial_evidence(Z, torch.ones((), dtype=torch.float64), y, 0.02 * D, closed.profile)
    radial_gradients(*saved)
    return value


def posterior() -> dict[str, Any]:
    """Seconds of a model's first posterior, at its initial hyperparameters, on one thread."""
    X, Y = smooth_data(POSTERIOR, INPUTS)
    points = smooth_data(POINTS, INPUTS, seed=1)[0]

    def first(make: Any) -> None:
        with torch.no_grad():
            assert make().eval().posterior(points).variance.isfinite().all()

    with one_thread(), scipy_on_one_thread():
        made = [partial(Plan("exact", "rbf").build, X, Y), partial(SingleTaskGP, X, Y)]
        ours, rival = interleaved([partial(first, make) for make in made], 3)
    return {"n": POSTERIOR, "what": "first posterior", "seconds": [ours, None, rival]}


def table(result: Result) -> str:
    """Seconds of every way, and of the rival in units of ours."""
    rows = []
    for unit in result["units"].values():
        ours, own, rival = unit["seconds"]
        times = [text.seconds(ours), "" if own is None else text.seconds(own), text.seconds(rival)]
        rows.append([unit["what"], f"{unit['n']:,}", *times, f"{rival / ours:.1f}"])
    heads = ["", "n", "bo_scale", "with new matrices", "SingleTaskGP", "ratio"]
    return (
        f"On one thread, with {INPUTS} inputs and an RBF kernel. Fits keep two n × n matrices from one evaluation to "
        "the next; 'with new matrices' is the same evidence without that and without priors, as on several threads. "
        f"The posterior is that of {POINTS} points. The ratio is that of SingleTaskGP's time to ours.\n\n"
        + text.table(heads, rows)
    )
