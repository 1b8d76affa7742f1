"""A hundred SIGKILLs at random moments of an optimisation: nothing told is lost, the same points are proposed."""

import json
import os
import random
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks import text
from benchmarks.harness import Unit
from benchmarks.store import Result
from bo_scale.loop import Optimizer

TITLE = "Kills"
KILLS, BATCHES, Q = 100, 200, 2
LONGEST = 3.0
"""A process is killed after up to so many seconds."""
CHANGES: dict[int, dict[str, Any]] = {
    41: {"acquisition": "qLogNEI", "failures": "learn"},
    61: {"seed": 1},
    81: {"per_cost": True},
    121: {"acquisition": "qMFKG", "failures": "avoid", "fidelity": {1: 0.5}},
    161: {"acquisition": "qUCB", "per_cost": False, "fidelity": {}},
}
"""Changes of settings, by the number of asks."""


def units(data: Path | None) -> dict[str, Unit]:
    """One run, beside the same run left alone."""
    return {f"{KILLS} kills": measure}


def evaluate(X: Tensor) -> Tensor:
    """A function of two parameters with a noise that depends on the point alone."""
    noise = torch.sin(1e5 * X.sum(-1))
    return torch.sin(5 * X[:, 0]) + torch.cos(4 * X[:, 1]) + 0.1 * noise


def work(path: Path, acknowledged: int | None) -> None:
    """Go on with the run at a path until all batches are told; a line for each told batch, once told."""
    torch.set_num_threads(1)
    space = [(0.0, 1.0), (0.0, 1.0)]
    with Optimizer.open(path) if (path / "journal.jsonl").exists() else begun(space, path) as loop:
        while len(loop.steps) < BATCHES or len(loop.pending) > 0:
            if len(loop.pending) == 0:
                correct(loop, len(loop.steps))
                loop.ask(Q)
            X = loop.pending
            if len(X) == Q and len(loop.steps) % 20 == 0:
                loop.tell(X[:1], failed=True)
                X = X[1:]
            loop.tell(X, evaluate(X), cost=1.0 + X[:, 0] ** 2)
            if acknowledged is not None:
                os.write(acknowledged, (json.dumps(X.tolist()) + "\n").encode())


def begun(space: Any, path: Path) -> Optimizer:
    """A new run."""
    return Optimizer(space, objective="maximize", acquisition="qUCB", path=path, num_initial=6)


def correct(loop: Optimizer, step: int) -> None:
    """Corrections and changes of every kind, each once, by the number of asks; repeated ones change nothing."""
    if step % 20 == 5:
        loop.tell([[0.5, 0.5]], [100.0], id=f"error {step}")
    elif step % 20 == 10:
        loop.revise(f"error {step - 5}", float(evaluate(torch.tensor([[0.5, 0.5]]))))
    elif step % 20 == 15:
        gone = loop.history.told.place(f"error {step - 10}") is None
        loop.forget([] if gone else [f"error {step - 10}"])
    elif step in CHANGES:
        loop.change(**CHANGES[step])
    elif step == 101 and loop.space.upper[0] == 1.0:
        loop.migrate([(0.0, 1.5), (-0.5, 1.0)])


def child(path: Path, acknowledged: int | None, after: float | None) -> bool:
    """Work in a process of its own, killed after some seconds if it still runs; whether it was killed."""
    started = os.fork()
    if started == 0:
        try:
            work(path, acknowledged)
        finally:
            os._exit(0)
    if after is not None:
        time.sleep(after)
        os.kill(started, signal.SIGKILL)
    _, status = os.waitpid(started, 0)
    return os.WIFSIGNALED(status)


def told(path: Path) -> tuple[list[Any], list[Any]]:
    """Points asked for, and points told of, in a journal."""
    lines = (path / "journal.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in lines]
    asked = [e["X"] for e in events if e["event"] == "ask"]
    return asked, [e["X"] for e in events if e["event"] == "tell" and "ids" not in e]


def measure() -> dict[str, Any]:
    """Kill and resume, then compare with the run that nobody killed."""
    rng, killed = random.Random(0), 0
    with tempfile.TemporaryDirectory() as folder:
        alone, harmed, acks = Path(folder) / "alone", Path(folder) / "harmed", Path(folder) / "acknowledged"
        child(alone, None, None)
        with acks.open("wb") as file:
            while killed < KILLS and child(harmed, file.fileno(), rng.uniform(0.0, LONGEST)):
                killed += 1
            child(harmed, file.fileno(), None)
        asked_alone, told_alone = told(alone)
        asked, points = told(harmed)
        acknowledged = [json.loads(line) for line in acks.read_text().splitlines()]
    pairs = zip(asked, asked_alone, strict=True)
    return {
        "seed": 0,
        "kills": killed,
        "batches": len(asked),
        "acknowledged": len(acknowledged),
        "lost": sum(X not in points for X in acknowledged),
        "told twice": len(points) - len({json.dumps(X) for X in points}),
        "missing": len(told_alone) - len(points),
        "largest difference": max(float((torch.tensor(a) - torch.tensor(b)).abs().max()) for a, b in pairs),
    }


def table(result: Result) -> str:
    """What was lost, told twice, or proposed otherwise."""
    (unit,) = result["units"].values()
    names = ("kills", "batches", "acknowledged", "lost", "told twice", "missing", "largest difference")
    return (
        "An optimisation of 2 parameters was killed by SIGKILL at random moments, also during fits, and opened again "
        "each time. Between asks errors are told, corrected and taken out, points fail, settings and the space change: "
        "proposals learn where points fail, count costs, choose fidelities. It is compared with an uninterrupted run. "
        "'largest difference' is that between their proposals.\n\n"
        + text.table(names, [[f"{unit[name]:g}" for name in names]], align="---:")
    )
