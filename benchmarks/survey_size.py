"""A survey by its commands, from a table to a plan and a map: time and memory of each, imports included."""

import os
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import text
from benchmarks.harness import Unit, require_data
from benchmarks.store import Result
from bo_scale.datasets import load_malaria

TITLE = "Surveys"
DATA = "malaria_central_africa_2017.npz"
SIZES = {200: (60_000, 3), 2_000: (60_000, 1), 20_000: (250_000, 1), 250_000: (1_000_000, 1)}
"""Measurements, with the cells of the map, and how often."""
SHIPPED = 2_000
"""Measurements up to which the sample that is shipped is enough."""
BATCH, THRESHOLD = 6, 0.3
COMMANDS = ("init", "plan with map", "predict")
SMALL, LARGE = 200, 250_000
LIMITS = {SMALL: 30.0, LARGE: 120.0}
"""Seconds for the whole, as asked for."""


def units(data: Path | None) -> dict[str, Unit]:
    """One for every number of measurements."""
    return {f"n={n}": partial(measure, data, n) for n in SIZES}


def measure(data: Path | None, n: int) -> dict[str, Any]:
    """Run the commands one after the other, in an empty folder; medians over repeats."""
    places = load_malaria() if n <= SHIPPED else load_malaria(require_data(data, DATA))
    rows = np.sort(np.random.default_rng(0).permutation(len(places))[:n])
    table = np.concatenate([places.X.numpy()[rows], places.Y.numpy()[rows]], -1)
    cells, repeats = SIZES[n]
    with tempfile.TemporaryDirectory() as folder:
        sites = Path(folder) / "sites.csv"
        np.savetxt(sites, table, "%.6f", ",", header="longitude,latitude,incidence", comments="")
        runs = [_commands(Path(folder), cells) for _ in range(repeats)]
    middle = sorted(runs, key=lambda run: sum(each["seconds"] for each in run.values()))[repeats // 2]
    return {"n": n, "cells": cells, "seed": 0, "commands": middle}


def _commands(folder: Path, cells: int) -> dict[str, dict[str, float]]:
    init = ["init", "sites.csv", "--value", "incidence", "--threshold", str(THRESHOLD), "--out", "s.gpkg"]
    plan = ["plan", "s.gpkg", "--batch", str(BATCH), "--out", "next.csv", "--map", "map.html"]
    predict = ["predict", "s.gpkg", "--cells", str(cells), "--out", "grid.tif"]
    lines = ([*init, "--overwrite"], plan, predict)
    return {name: _timed(folder, line) for name, line in zip(COMMANDS, lines, strict=True)}


def _timed(folder: Path, line: list[str]) -> dict[str, float]:
    """Seconds and the largest memory of one command.

    Raises:
        RuntimeError: with what it said, if it failed.
    """
    start = time.perf_counter()
    with tempfile.TemporaryFile() as said:
        code = "import sys; from bo_scale.cli import main; sys.exit(main())"
        child = subprocess.Popen([sys.executable, "-c", code, "survey", *line], cwd=folder, stdout=said, stderr=said)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        said.seek(0)
        if child.returncode:
            raise RuntimeError(said.read().decode()[-1000:])
    unit = 1 if sys.platform == "darwin" else 1024
    return {"seconds": time.perf_counter() - start, "megabytes": unit * usage.ru_maxrss / 1e6}


def table(result: Result) -> str:
    """Seconds of each command, and the largest memory of any."""
    rows = []
    for unit in sorted(result["units"].values(), key=lambda unit: unit["n"]):
        commands = unit["commands"]
        whole = sum(each["seconds"] for each in commands.values())
        memory = max(each["megabytes"] for each in commands.values())
        shown = [text.seconds(commands[name]["seconds"]) for name in COMMANDS]
        rows.append([f"{unit['n']:,}", f"{unit['cells']:,}", *shown, text.seconds(whole), f"{memory:,.0f} MB"])
    return (
        f"These are commands of `bo-scale survey` on malaria incidence, each in a process of its own. `init` reads a "
        f"CSV. `plan` fits, chooses {BATCH} sites by integrated variance, and draws a map of 60,000 cells. `predict` "
        f"writes the given number of cells into a GeoTIFF, with the probability of exceeding a threshold.\n\n"
        + text.table(["measurements", "cells", *COMMANDS, "together", "memory"], rows)
    )


def headline(result: Result) -> list[text.Row]:
    """The smallest and the largest."""
    shown = []
    for n, limit in LIMITS.items():
        if unit := result["units"].get(f"n={n}"):
            whole = sum(each["seconds"] for each in unit["commands"].values())
            memory = max(each["megabytes"] for each in unit["commands"].values())
            shown.append(
                f"{n:,} sites, {unit['cells']:,} cells: {text.seconds(whole)}, {memory / 1000:.1f} GB "
                f"(target: {limit:g} s)"
            )
    return [("a survey: table, plan of 6 with map, GeoTIFF", "; ".join(shown), "")] if shown else []
