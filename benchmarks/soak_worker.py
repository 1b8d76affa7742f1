"""Workers of the soak test: most answer, others die, hang, answer late, twice, or NaN. By the standard library."""

import heapq
import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

MEDIAN = "SOAK_MEDIAN"
"""In the environment: the median of what an evaluation takes, in seconds."""
LOG = "SOAK_LOG"
"""In the environment: the file in which every evaluation says that it ended."""
SHARES = {"dies": 0.05, "dies always": 0.02, "late": 0.05, "twice": 0.05, "nan": 0.03}
"""Of evaluations; the others answer."""
LIMIT = 4.0
"""Medians after which an evaluation is given up."""
LATE = 8.0
"""Medians after which a late one answers."""


def drawn(point: dict[str, float]) -> tuple[str, float]:
    """What becomes of an evaluation, and what it takes, in medians: a function of the point alone."""
    chance = random.Random(key(point))
    share = chance.random()
    duration = chance.lognormvariate(0.0, 0.6)
    for fate, part in SHARES.items():
        if (share := share - part) < 0:
            return fate, duration
    return "answers", duration


def key(point: dict[str, float]) -> str:
    """The name of a point, which no other has."""
    return " ".join(f"{name}={float(point[name]).hex()}" for name in sorted(point))


def branin(point: dict[str, float]) -> float:
    """Branin's function of x in (−5, 10) and y in (0, 15); the minimum is 0.3979."""
    x, y = point["x"], point["y"]
    dip = (y - 5.1 / (4 * math.pi**2) * x**2 + 5 / math.pi * x - 6) ** 2
    return dip + 10 * (1 - 1 / (8 * math.pi)) * math.cos(x) + 10


def append(path: Path, record: Any) -> None:
    """One line of JSON at the end of a file, by one call of the system: whole, or not there."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(handle, (json.dumps(record) + "\n").encode())
    os.close(handle)


def lines(path: Path) -> list[Any]:
    """All of them."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


# ---------------------------------------------------------------------- a trial of Ax's


def measure(point: dict[str, Any]) -> dict[str, float]:
    """A trial. What dies or hangs does so in its first attempt; NaN comes in every one."""
    fate, duration = drawn(point)
    median, attempt = float(os.environ[MEDIAN]), Path(sys.argv[1])
    first = attempt.name.endswith("-1")
    if fate == "twice":  # a second process for the same attempt
        subprocess.Popen([sys.executable, "-P", *sys.argv[:2]], start_new_session=True)
    time.sleep(median * (1000 if fate == "late" and first else duration))
    if fate == "dies always" or (fate == "dies" and first):
        os.kill(os.getpid(), signal.SIGKILL)
    append(Path(os.environ[LOG]), attempt.parent.name)
    return {"y": math.nan if fate == "nan" else branin(point)}


# ---------------------------------------------------------------------- a laboratory for a loop


def laboratory(folder: Path, median: float) -> None:
    """Answer orders in `folder/orders` by files in `folder/answers`, until there is `folder/closed`.

    Every answer that went out is a line of `folder/answered.jsonl`, written before.
    """
    seen: set[str] = set()
    due: list[tuple[float, str, int, dict[str, float], float]] = []
    while not (folder / "closed").exists():
        for order in (folder / "orders").glob("*.json"):
            if order.name not in seen:
                seen.add(order.name)
                for item in answers(json.loads(order.read_text()), median):
                    heapq.heappush(due, item)
        while due and due[0][0] <= time.time():
            _, name, number, point, value = heapq.heappop(due)
            append(folder / "answered.jsonl", {"key": name, "value": None if math.isnan(value) else value})
            hidden, path = folder / f".{name}", folder / "answers" / f"{name} {number}.json"
            hidden.write_text(json.dumps({"point": point, "value": None if math.isnan(value) else value}))
            hidden.rename(path)
        time.sleep(0.02)


def answers(point: dict[str, float], median: float) -> list[tuple[float, str, int, dict[str, float], float]]:
    """When what will be answered to an order."""
    (fate, duration), now, name = drawn(point), time.time(), key(point)
    if fate in ("dies", "dies always"):
        return []
    value = math.nan if fate == "nan" else branin(point)
    medians = [LATE] if fate == "late" else [duration, duration + 1] if fate == "twice" else [duration]
    return [(now + median * after, name, number, point, value) for number, after in enumerate(medians)]
