"""Maps by tiles: seconds, processor time, memory and the file against the number of sites, cells and processes."""

import resource
import time
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from benchmarks import text
from benchmarks.child import in_child, peak_megabytes
from benchmarks.harness import Unit
from benchmarks.store import Result

TITLE = "Maps by tiles"
RUNS = ((155, 10**6, 1), (1000, 10**6, 1), (5000, 10**6, 1), (5000, 10**8, 2))
"""Numbers of sites, cells and processes."""
SIDE, RANGE, NOISE, WAVES = 10_000.0, 400.0, 0.1, 4000
"""Width of the area, metres; range of the field and sd of the noise; waves that it is made of."""
CORNER, CRS = (180_000.0, 330_000.0), "EPSG:28992"
COMPARED = 500
"""Cells that are predicted apart, each from its own neighbours."""


def units(data: Path | None) -> dict[str, Unit]:
    """One for each number of sites, cells and processes."""
    return {
        f"sites={sites} cells={cells} processes={count}": partial(measure, sites, cells, count)
        for sites, cells, count in RUNS
    }


def measure(sites: int, cells: int, processes: int) -> dict[str, Any]:
    """A run in a fresh process."""
    return in_child(evaluate, sites, cells, processes)


def rough(xy: np.ndarray) -> np.ndarray:
    """Values of a field with an exponential covariance at places, by random waves."""
    rng = np.random.default_rng(0)
    waves = rng.normal(size=(WAVES, 2)) / np.sqrt(rng.chisquare(1, size=(WAVES, 1))) / RANGE
    phase = rng.uniform(0, 2 * np.pi, WAVES)
    parts = np.array_split(xy, -(-len(xy) // 500))
    return (2 / WAVES) ** 0.5 * np.concatenate([np.cos(part @ waves.T + phase).sum(1) for part in parts])


def evaluate(sites: int, cells: int, processes: int) -> dict[str, Any]:
    """Map a field of simulated measurements; compare some cells with what `predict_at` says of them."""
    import geopandas as gpd
    import pandas as pd
    import rasterio
    import shapely

    from bo_scale.survey import Survey

    torch.set_num_threads(1)
    rng = np.random.default_rng(1)
    xy = rng.uniform(0, SIDE, (sites, 2)).round(1)
    values = (rough(xy) + NOISE * rng.normal(size=sites)).round(4)
    with TemporaryDirectory() as folder:
        table, out = Path(folder) / "sites.csv", Path(folder) / "map.tif"
        east, north = (xy + CORNER).T
        pd.DataFrame({"x": east, "y": north, "value": values}).to_csv(table, index=False)
        area = shapely.box(*CORNER, *(SIDE + each for each in CORNER))
        gpd.GeoDataFrame(geometry=[area], crs=CRS).to_file(Path(folder) / "area.gpkg")
        survey = Survey.create(Path(folder) / "s.gpkg", table, "value", crs=CRS, area=Path(folder) / "area.gpkg")
        fitted = survey.fitted(False)
        tiles = survey.tiles(cells)
        told = tiles.costs
        start, before = time.perf_counter(), (_processor(), _processor(resource.RUSAGE_CHILDREN))
        tiles.write(out, processes, progress=False)
        seconds = time.perf_counter() - start
        own, children = _processor() - before[0], _processor(resource.RUSAGE_CHILDREN) - before[1]
        megabytes = peak_megabytes()
        with rasterio.open(out) as file:
            made = sum(int(file.read_masks(1, window=window).astype(bool).sum()) for _, window in file.block_windows(1))
            grid, places = tiles.grid, survey.region.points(COMPARED, 2)
            rows, columns = ((grid.top - places[:, 1]) // grid.size, (places[:, 0] - grid.left) // grid.size)
            there = np.stack([grid.x()[columns.astype(int)], grid.y()[rows.astype(int)]], -1)
            mean, sd = np.array(list(file.sample(there))).T.astype(np.float64)
        _ = fitted.surface.gaps.knots  # once for all cells of a map
        fitted.forecast(there[:50])
        begun = time.process_time()
        apart = fitted.forecast(there)
        alone = (time.process_time() - begun) / COMPARED
        known = np.isfinite(mean)
        return {
            "sites": sites,
            "cells": made,
            "processes": processes,
            "tiles": told.tiles,
            "seconds": seconds,
            "told": told.seconds / processes + told.writing,
            "own": own,
            "children": children,
            "megabytes": megabytes,
            "children_megabytes": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024,
            "bytes": out.stat().st_size,
            "told_bytes": told.bytes,
            "scattered": alone,
            "difference": float((np.abs(mean - apart[0]) / apart[1])[known].max()),
            "difference_sd": float(np.abs(sd / apart[1] - 1)[known].max()),
        }


def _processor(who: int = resource.RUSAGE_SELF) -> float:
    found = resource.getrusage(who)
    return found.ru_utime + found.ru_stime


# ---------------------------------------------------------------------- report


def table(result: Result) -> str:
    """Seconds, processor time a cell, memory and size of every run."""
    runs = sorted(result["units"].values(), key=lambda unit: (unit["sites"], unit["cells"], unit["processes"]))
    rows = [
        [
            f"{unit['sites']:,}",
            f"{unit['cells']:,}",
            f"{unit['processes']}",
            text.seconds(unit["seconds"]),
            text.seconds(unit["told"]),
            text.seconds(unit["children"] / unit["cells"]),
            text.seconds(unit["scattered"]) if "scattered" in unit else "–",
            text.seconds(unit["own"]),
            f"{unit['megabytes']:,.0f}",
            f"{unit['children_megabytes']:,.0f}",
            f"{unit['bytes'] / 1e6:,.0f}",
            f"{max(unit['difference'], unit['difference_sd']):.0e}",
        ]
        for unit in runs
    ]
    header = ["sites", "cells", "processes", "time", "told", "a cell", "apart", "one file", "MB", "MB of a process"]
    return (
        "`Survey.tiles(cells).write(path, processes)` maps mean and sd of a simulated rough field (exponential "
        f"covariance of range {RANGE:g} m, noise with a sd of {NOISE:g}) over {SIDE / 1000:g} km × {SIDE / 1000:g} km, "
        "into one cloud-optimised GeoTIFF.\n\n"
        "- 'told' is the time that `costs` says beforehand, from four squares of 128 × 128 cells.\n"
        "- 'a cell' is processor time of a cell in the processes that make tiles, all that they do included; 'apart' "
        f"is that of {COMPARED} scattered places, which share nothing, where it was measured.\n"
        "- 'one file' is processor time of the process that makes one file of the tiles and reads it back.\n"
        f"- 'difference' is the largest one of those {COMPARED} places from the file, in sd; the file has 32-bit "
        "numbers.\n"
        "- The machine had other work to do meanwhile: processor time tells more than time.\n\n"
        + text.table([*header, "MB of the file", "difference"], rows)
        + "\n\n"
        + _extrapolated(runs)
    )


def _extrapolated(runs: list[dict[str, Any]]) -> str:
    """What 10⁹ cells would take at the costs of the largest run."""
    if not runs:
        return ""
    unit = max(runs, key=lambda unit: unit["cells"])
    more = 1e9 / unit["cells"]
    return (
        f"At the costs of the largest run 10⁹ cells would take {more * unit['children'] / 3600:.1f} hours of one core, "
        f"{more * unit['own'] / 60:.0f} minutes to make one file, and {more * unit['bytes'] / 1e9:.0f} GB "
        "(computed, not measured)."
    )


def _rival(runs: list[dict[str, Any]], unit: dict[str, Any]) -> str:
    """What a cell costs that shares nothing with others, if it was measured with as many sites."""
    found = [each["scattered"] for each in runs if each["sites"] == unit["sites"] and "scattered" in each]
    ours = text.seconds(unit["children"] / unit["cells"])
    return f"each cell from its own neighbours: {text.seconds(found[0])} of a core instead of {ours}" if found else "–"


def headline(result: Result) -> list[text.Row]:
    """The largest run."""
    runs = list(result["units"].values())
    if not runs:
        return []
    unit = max(runs, key=lambda unit: unit["cells"])
    return [
        (
            f"a map of {unit['cells']:,} cells from {unit['sites']:,} sites, {unit['processes']} processes",
            f"{text.seconds(unit['seconds'])}, {unit['megabytes']:,.0f} MB and {unit['children_megabytes']:,.0f} MB a "
            f"process, {unit['bytes'] / 1e6:,.0f} MB on disk",
            _rival(runs, unit),
        )
    ]
