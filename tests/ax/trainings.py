"""Functions for trials. Each says in the file $TRAININGS_LOG, which is appended to, what it does and for which x."""

import math
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

LOG = "TRAININGS_LOG"


def say(word: str, point: Any) -> None:
    handle = os.open(os.environ[LOG], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(handle, f"{word} {point['x']!r}\n".encode())
    os.close(handle)


def said(word: str) -> list[float]:
    """The x of all that have said it, in order."""
    path = Path(os.environ[LOG])
    lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
    return [float(x) for heard, x in lines if heard == word]


def good(point: Any) -> Any:
    say("begun", point)
    time.sleep(0.1)
    say("ended", point)
    return {"loss": point["x"] ** 2, "cost": (2 * point["x"], 0.5), "threads": os.environ.get("OMP_NUM_THREADS", 0)}


FAILING = 1.5
"""Four points of Sobol's in [0, 2] have one beyond it, whatever their seed."""


def quick(point: Any) -> Any:
    return fails(point) if point["x"] > FAILING else {"loss": (point["x"] - 1) ** 2, "cost": (point["x"], 0.1)}


def fails(point: Any) -> Any:
    say("begun", point)
    raise FloatingPointError(f"no convergence at x = {point['x']}")


def fails_once(point: Any) -> Any:
    first = not said("begun")
    return fails(point) if first else good(point)


def diverges(point: Any) -> Any:
    return {"cost": 1.0, "loss": math.inf if point["x"] > 0 else (1.0, math.nan)}


def complains(point: Any) -> Any:
    raise RuntimeError("o" * 200)


def returns_nothing(point: Any) -> Any:
    return None


def hangs(point: Any) -> Any:
    """With a child, whose number it says."""
    child = subprocess.Popen(["sleep", "60"])
    say("begun", {"x": float(child.pid)})
    time.sleep(60)


def is_killed(point: Any) -> Any:
    say("begun", point)
    os.kill(os.getpid(), signal.SIGKILL)


def is_killed_with_a_child(point: Any) -> None:
    """The child lives on; its number is said."""
    child = subprocess.Popen(["sleep", "60"])
    say("begun", {"x": float(child.pid)})
    os.kill(os.getpid(), signal.SIGKILL)


def leaves(point: Any) -> Any:
    os._exit(3)


def dies_once(point: Any) -> Any:
    first = not said("begun")
    say("begun", point)
    if first:
        os.kill(os.getpid(), signal.SIGKILL)
    return {"loss": 1.0}


def waits(point: Any) -> Any:
    """Wait for a file beside the log."""
    say("begun", point)
    end = time.monotonic() + 20.0
    while not (Path(os.environ[LOG]).parent / "go").exists() and time.monotonic() < end:
        time.sleep(0.01)
    return {"loss": 1.0}
