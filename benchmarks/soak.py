"""A day in an hour: workers that die, hang, answer late, twice and NaN, and a controller killed twenty times."""

import json
import logging
import math
import os
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from ax.api.client import Client
from ax.api.configs import RangeParameterConfig, StorageConfig
from ax.utils.common.logger import set_ax_logger_levels

from benchmarks import soak_worker, text
from benchmarks.harness import Unit
from benchmarks.soak_worker import LIMIT, LOG, MEDIAN, append, drawn, key, laboratory, lines
from benchmarks.store import Result
from bo_scale.ax import LocalRunner, attach, generation_strategy
from bo_scale.loop import Optimizer

TITLE = "A day in an hour"
PLOTS = {"soak.png": "Resident memory of the controllers; a line ends where a controller was killed"}
ANYWHERE = True
"""Counts and memory, not times."""
SECONDS, KILLS, WORKERS = 3600.0, 20, 8
MEDIAN_SECONDS = 37.5
"""Of an evaluation: a quarter of an hour, when a day passes in an hour."""
KILLED_FOR = 0.6
"""Share of the time in which kills fall; then a controller lives to the end, whose memory is looked at."""
SPACE = {"x": (-5.0, 10.0), "y": (0.0, 15.0)}
SETTLED = 60.0
"""Seconds that a controller must live for a growth of its memory to mean something."""
TRIALS_AT_ONCE = 48
"""That `run_trials` is asked for in one call."""


def units(data: Path | None) -> dict[str, Unit]:
    """The loop with a journal, and Ax with a database and processes of its own."""
    return {name: partial(soak, name, SECONDS, KILLS, MEDIAN_SECONDS) for name in KINDS}


def soak(kind: str, seconds: float, kills: int, median: float) -> dict[str, Any]:
    """Controllers of a kind one after the other, each killed but the last; then what they left is looked through.

    Args:
        kind: "loop" or "Ax".
        seconds: Until no more is asked for.
        kills: Of controllers, at random moments.
        median: Seconds of an evaluation.
    """
    control, check = KINDS[kind]
    with tempfile.TemporaryDirectory() as name:
        folder, chance = Path(name), random.Random(0)
        for each in ("orders", "answers", "taken", "runs"):
            (folder / each).mkdir()
        os.environ.update({MEDIAN: str(median), LOG: str(folder / "ended.jsonl")})
        begin = time.time()
        moments = sorted(begin + chance.uniform(0.0, KILLED_FOR * seconds) for _ in range(kills))
        bench = child(partial(laboratory, folder, median)) if kind == "loop" else None
        try:
            killed = lives(folder, partial(control, folder, median, begin + seconds), moments)
        finally:
            (folder / "closed").touch()
            if bench is not None:
                os.waitpid(bench, 0)
        if bench is not None:
            ended(child(partial(control, folder, median, 0.0)))  # what came last is told too
        ended(child(lambda: append(folder / "checked.jsonl", check(folder))))
        (checked,) = lines(folder / "checked.jsonl")
        hours = round((time.time() - begin) / median / 4, 2)
        return {"kind": kind, "seed": 0, "kills": killed, "hours": hours, **checked, **memory_of(folder)}


def lives(folder: Path, control: Callable[[], None], moments: list[float]) -> int:
    """Controllers that are killed at these moments, and one that is not; how many were killed."""
    killed = 0
    for moment in [*moments, None]:
        life = child(partial(watched, folder, control))
        if moment is not None:
            time.sleep(max(moment - time.time(), 0.0))
            os.kill(life, signal.SIGKILL)
        killed += ended(life)
    return killed


def ended(process: int) -> bool:
    """Wait for the end of a process; whether it was killed."""
    status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    if status not in (0, -signal.SIGKILL):
        raise RuntimeError(f"the controller failed: exit {status}")
    return status != 0


def child(work: Callable[[], Any]) -> int:
    """A process of its own that does the work; its number."""
    started = os.fork()
    if started == 0:
        try:
            torch.set_num_threads(1)
            work()
        except BaseException:
            traceback.print_exc()  # logging may be caught in this process, and end with it
            sys.stderr.flush()
            os._exit(1)
        os._exit(0)
    return started


def watched(folder: Path, work: Callable[[], Any]) -> None:
    """Work, and note every few seconds what memory and how many files the process has."""
    begun = time.time()

    def note() -> None:
        resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
        files = len(os.listdir("/proc/self/fd"))
        append(folder / "memory.jsonl", {"begun": begun, "time": time.time(), "MB": resident, "files": files})

    def keep_noting() -> None:
        while True:
            time.sleep(5.0)
            note()

    note()
    threading.Thread(target=keep_noting, daemon=True).start()
    warnings.simplefilter("ignore")
    work()


def memory_of(folder: Path) -> dict[str, Any]:
    """Memory over time of all lives, and what that of the last one grew by in an hour, its first fifth aside."""
    notes = lines(folder / "memory.jsonl")
    first, last = notes[0]["time"], max(note["begun"] for note in notes)
    lives: dict[float, list[Any]] = {}
    for note in notes:
        lives.setdefault(note["begun"], []).append([round(note["time"] - first, 1), round(note["MB"], 1)])
    settled = [note for note in notes if note["begun"] == last]
    settled = settled[len(settled) // 5 :]
    times, sizes = zip(*((note["time"], note["MB"]) for note in settled), strict=True)
    grown = statistics.linear_regression(times, sizes).slope * 3600 if times[-1] - times[0] > SETTLED else None
    ends = [statistics.median(note["MB"] for note in part) for part in (settled[:20], settled[-20:])]
    files = [settled[0]["files"], settled[-1]["files"]]
    return {"MB": ends, "grown": grown, "files": files, "lives": [thinned(life) for life in lives.values()]}


def thinned(life: list[Any], most: int = 60) -> list[Any]:
    """Some of many."""
    return life[:: 1 + len(life) // most]


# ---------------------------------------------------------------------- the loop


def control_loop(folder: Path, median: float, until: float) -> None:
    """Ask, order, take what is answered, tell of it, give up what is not: until the time has come.

    What it does is in two places, the journal and the folders, and it may be killed between them: so what is pending
    without an order is ordered, and an answer that was told of is not told again.
    """
    with Optimizer(SPACE, objective="minimize", path=folder / "journal") as loop:
        told = {key(point) for point in loop.observations[0]}
        over = False
        while not over:
            over = time.time() >= until
            for path in sorted((folder / "answers").iterdir(), key=lambda path: path.stat().st_mtime_ns):
                take(loop, json.loads(path.read_text()), told)
                path.rename(folder / "taken" / path.name)
            loop.abandon([point for point in loop.pending if time.time() - ordered(folder, point) > LIMIT * median])
            if not over and len(loop.pending) < WORKERS:
                loop.ask(WORKERS - len(loop.pending))
            for point in loop.pending:
                ordered(folder, point)
            time.sleep(0.1)


def ordered(folder: Path, point: dict[str, Any]) -> float:
    """When a point was ordered, which it is now unless it was."""
    order = folder / "orders" / f"{key(point)}.json"
    if not order.exists():
        hidden = order.with_suffix(".partial")
        hidden.write_text(json.dumps(point))
        hidden.rename(order)
    return order.stat().st_mtime


def take(loop: Optimizer, answer: dict[str, Any], told: set[str]) -> None:
    """Tell of an answer unless that was done."""
    point, name = answer["point"], key(answer["point"])
    if answer["value"] is None:
        if name in {key(each) for each in loop.pending}:
            loop.abandon([point])
    elif name not in told:
        loop.tell([point], [answer["value"]])
        told.add(name)


def check_loop(folder: Path) -> dict[str, Any]:
    """What was told against what was answered."""
    with Optimizer(SPACE, objective="minimize", path=folder / "journal") as loop:
        points, values, _ = loop.observations
        told = Counter(key(point) for point in points)
        tells = dict(zip(map(key, points), values.tolist(), strict=True))
        best = min(values.tolist(), default=math.nan)
        pending = len(loop.pending)
    answered = lines(folder / "answered.jsonl")
    counts = Counter(each["key"] for each in answered)
    finite = {each["key"]: each["value"] for each in answered if each["value"] is not None}
    orders = len(list((folder / "orders").glob("*.json")))
    return {
        "asked": orders,
        "finished": len(told),
        "failed": orders - len(told) - pending,
        "doubles": sum(count > 1 for count in counts.values()),
        "lost": len(finite.keys() - told.keys()),
        "told twice": sum(count > 1 for count in told.values()),
        "wrong": sum(tells[name] != finite.get(name) for name in tells),
        "best": best,
    }


# ---------------------------------------------------------------------- Ax


def opened(folder: Path) -> Client:
    """The experiment in a folder's database, begun if it is not there, or not all of it."""
    from ax.exceptions.core import ObjectNotFoundError
    from ax.storage.sqa_store.db import create_all_tables, get_engine, init_engine_and_session_factory

    url = f"sqlite:///{folder / 'ax.db'}"
    init_engine_and_session_factory(url=url)
    create_all_tables(get_engine())
    storage = StorageConfig(url=url)
    try:
        client = Client.load_from_database("soak", storage)
    except ObjectNotFoundError:
        client = Client(storage, random_seed=0)
        parameters = [
            RangeParameterConfig(name=name, parameter_type="float", bounds=bounds) for name, bounds in SPACE.items()
        ]
        client.configure_experiment(parameters, name="soak")
    if client._experiment.optimization_config is None:
        client.configure_optimization("-y")
    if client._maybe_generation_strategy is None:
        client.set_generation_strategy(generation_strategy("wiski", seed=0))
    return client


def control_ax(folder: Path, median: float, until: float) -> None:
    """Take the experiment up and run trials until the time has come, and those under way to their end."""
    set_ax_logger_levels(logging.ERROR)
    client = opened(folder)
    runner = LocalRunner(
        f"{soak_worker.__file__}:measure",
        folder / "runs",
        WORKERS,
        timeout_seconds=LIMIT * median,
        retries=1,
        threads=1,
    )
    attach(client, runner)
    while time.time() < until:
        client.run_trials(
            TRIALS_AT_ONCE,
            parallelism=WORKERS,
            tolerated_trial_failure_rate=0.99,
            initial_seconds_between_polls=min(1.0, median / 10),
        )


def check_ax(folder: Path) -> dict[str, Any]:
    """What Ax knows against the results in the folder of the runner."""
    trials = opened(folder)._experiment.trials
    data = opened(folder)._experiment.lookup_data().df
    results = {
        int(path.parent.name.removeprefix("trial-")): json.loads(path.read_text())["outcomes"]["y"][0]
        for path in (folder / "runs").glob("trial-*/result.json")
    }
    rows = Counter(data["trial_index"].tolist())
    means = dict(zip(data["trial_index"].tolist(), data["mean"].tolist(), strict=True))
    statuses = Counter(trial.status.name for trial in trials.values())
    completed = {index for index, trial in trials.items() if trial.status.is_completed}
    ends = Counter(lines(folder / "ended.jsonl"))
    started = {int(path.name.removeprefix("trial-")) for path in (folder / "runs").glob("trial-*")}
    return {
        "asked": len(trials),
        "finished": statuses["COMPLETED"],
        "failed": statuses["FAILED"],
        "doubles": sum(drawn(trial.arm.parameters)[0] == "twice" for trial in trials.values()),
        "lost": len(started - trials.keys()) + len(results.keys() - (completed & means.keys())),
        "told twice": sum(rows[index] > 1 or ends[f"trial-{index:05d}"] > 1 for index in results),
        "wrong": sum(not math.isclose(value, results.get(index, math.nan)) for index, value in means.items()),
        "best": min(means.values(), default=math.nan),
    }


KINDS: dict[str, tuple[Callable[[Path, float, float], None], Callable[[Path], dict[str, Any]]]] = {
    "loop": (control_loop, check_loop),
    "Ax": (control_ax, check_ax),
}


# ---------------------------------------------------------------------- report


def table(result: Result) -> str:
    """What was lost, told twice or told wrong, and memory."""
    names = ("kills", "asked", "finished", "failed", "doubles", "lost", "told twice", "wrong", "best")
    rows = [
        [
            kind,
            *(f"{unit[name]:.4g}" for name in names),
            " → ".join(f"{each:.0f}" for each in unit["MB"]),
            "" if unit["grown"] is None else f"{unit['grown']:+.1f}",
        ]
        for kind, unit in result["units"].items()
    ]
    shares = ", ".join(f"{100 * share:g} % {fate}" for fate, share in soak_worker.SHARES.items())
    return (
        f"A day is compressed to {SECONDS / 60:g} minutes.\n\n"
        f"- {WORKERS} workers minimise Branin's function, whose minimum is 0.3979. The median time of an evaluation is "
        f"a quarter of an hour of that day. Times are lognormal, so answers come out of order.\n"
        f"- What may happen to an evaluation: {shares}. 'dies' means killed by SIGKILL, at the first attempt only or "
        f"always; 'late' means that the answer comes after the evaluation was given up.\n"
        f"- The controller is killed by SIGKILL {KILLS} times at random moments of the first {100 * KILLED_FOR:g} % of "
        f"the time.\n"
        f"- `loop` is `Optimizer` with a journal, whose workers answer by files. `Ax` is `Client.run_trials` with "
        f"SQLite and `LocalRunner`. There, an evaluation that dies or is late is tried once more.\n"
        f"- 'doubles' are answers given twice, or by a second process. 'MB' is the resident memory of the last "
        f"controller, after the first fifth of its time and at its end. 'growth' is by regression, in MB per day.\n\n"
        + text.table(["", *names, "MB", "growth"], rows)
    )


def headline(result: Result) -> list[text.Row]:
    """Sums over both."""
    found = result["units"].values()
    if not found:
        return []
    total = {name: sum(unit[name] for unit in found) for name in ("asked", "kills", "lost", "told twice", "wrong")}
    sizes = ", ".join(f"{kind} {unit['MB'][0]:.0f} → {unit['MB'][1]:.0f} MB" for kind, unit in result["units"].items())
    what = f"a day of {total['asked']:g} evaluations by unreliable workers, {total['kills']:g} kills of the controller"
    ours = f"{total['lost']:g} lost, {total['told twice']:g} told twice, {total['wrong']:g} wrong; {sizes}"
    return [(what, ours, "")]


def plot(result: Result, folder: Path) -> None:
    """Memory against the hour of the day, a line for each life of a controller."""
    from benchmarks import plots

    with plots.figure(folder / "soak.png", panels=len(KINDS)) as axes:
        for axis, kind in zip(axes, KINDS, strict=True):
            unit = result["units"].get(kind)
            hour = SECONDS / 24
            for life in unit["lives"] if unit else ():
                times, sizes = zip(*life, strict=True)
                axis.plot([each / hour for each in times], sizes, color="C0")
                axis.plot(times[-1] / hour, sizes[-1], "x" if life is not unit["lives"][-1] else "o", color="C0")
            axis.set(title=kind, xlabel="Hour of the day", ylabel="Resident memory (MB)", ylim=(0, None))
