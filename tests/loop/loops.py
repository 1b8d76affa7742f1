"""What the tests of the loop share: a cheap optimizer, a smooth function, runs that depend on their state alone."""

import json
from pathlib import Path
from typing import Any

import torch
from botorch.models import SingleTaskGP
from botorch.models.model import Model
from torch import Tensor

from bo_scale.loop import Optimizer

BOX = [(0.0, 1.0), (-2.0, 3.0)]
SEALS = ("time", "version", "crc")
CHEAP = {
    "num_initial": 4,
    "acquisition": "qUCB",
    "refit_growth": 2.0,
    "acquisition_options": {"num_restarts": 2, "raw_samples": 16, "max_steps": 10, "mc_samples": 16},
}


def f(X: Tensor) -> Tensor:
    """Smooth on the box, its largest value about 1.7 at (0.52, 0)."""
    return torch.sin(3 * X[:, 0]) + 0.7 * torch.cos(X[:, -1])


def variances(X: Tensor) -> Tensor:
    """Known noise that depends on the point."""
    return 0.01 + 0.02 * X[:, 0]


def single_task(X: Tensor, Y: Tensor, Yvar: Tensor | None) -> Model:
    """A factory of models that are not ours."""
    return SingleTaskGP(X, Y, Yvar)


def cheap(path: Path | None = None, space: Any = BOX, **options: Any) -> Optimizer:
    """An Optimizer whose asks take little time."""
    options = {**CHEAP, "model": "wiski", **options}
    if options["model"] == "wiski":
        options["model_options"] = {"grid_size": 10, **options.get("model_options", {})}
    return Optimizer(space, path=path, **options)


def tell(loop: Optimizer, X: Any, noisy: bool = False) -> None:
    """The function's values at points."""
    rows = loop.space.rows(X)
    loop.tell(X, f(rows), variances(rows) if noisy else None)


def act(loop: Optimizer, noisy: bool = False) -> None:
    """One event: ask, tell of one point out of order, or abandon one, as the state alone says."""
    pending = loop.pending
    if len(pending) < 3:
        loop.ask(2)
    elif len(pending) == 4 and len(loop.steps) == 5:
        loop.abandon(pending[1:2])
    else:
        tell(loop, pending[1:2], noisy)


def run_until(loop: Optimizer, asks: int, noisy: bool = False) -> None:
    """Go on to so many asks."""
    while len(loop.steps) < asks:
        act(loop, noisy)


def events(path: Path) -> list[dict[str, Any]]:
    """A journal, without times and checksums."""
    found = [json.loads(line) for line in (path / "journal.jsonl").read_text().splitlines()]
    return [{k: v for k, v in event.items() if not k.endswith("_seconds") and k not in SEALS} for event in found]


def asked(loop: Optimizer, asks: int, q: int = 2) -> list[Any]:
    """Points of so many asks, each told at once."""
    points = []
    for _ in range(asks):
        points.append(loop.ask(q))
        tell(loop, points[-1])
    return points
