"""The case of maps by tiles: what it says of made-up results."""

import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).parents[2]))
from benchmarks import tiles


def unit(sites: int, cells: int, processes: int) -> dict[str, Any]:
    about = {"sites": sites, "cells": cells, "processes": processes, "difference": 3e-7, "difference_sd": 1e-7}
    costs = {"seconds": 600.0, "told": 500.0, "own": 40.0, "children": 8e-6 * cells, "scattered": 2e-4}
    sizes = {
        "megabytes": 900.0,
        "children_megabytes": 700.0,
        "bytes": 7 * cells,
        "told_bytes": 8.0 * cells,
        "tiles": 100,
    }
    return {**about, **costs, **sizes}


def test_tables_say_what_cells_cost() -> None:
    result: Any = {"units": {"a": unit(155, 10**6, 1), "b": unit(5000, 10**8, 2)}}
    told = tiles.table(result)
    assert "| 5,000 | 100,000,000 | 2 | 600 s | 500 s | 8.0 µs | 200 µs | 40 s | 900 | 700 | 700 | 3e-07 |" in told
    assert "10⁹ cells would take 2.2 hours of one core, 7 minutes to make one file, and 7 GB" in told
    assert tiles.headline(result)[0][0] == "a map of 100,000,000 cells from 5,000 sites, 2 processes"
    assert tiles.headline(result)[0][2].endswith("200 µs of a core instead of 8.0 µs")
    assert tiles.headline({"units": {}}) == []  # type: ignore[typeddict-item]


def test_the_field_is_rough_and_of_unit_variance() -> None:
    x = np.linspace(0, 1e4, 2000)
    values = tiles.rough(np.stack([x, 0.3 * x], -1))
    assert 0.3 < values.std() < 2.0
    assert np.array_equal(values, tiles.rough(np.stack([x, 0.3 * x], -1)))
