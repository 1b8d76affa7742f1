"""The case of interpolation: what it measures on tiny grids, and what its table says of made-up results."""

import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from botorch.test_functions import Levy

sys.path.append(str(Path(__file__).parents[2]))
from benchmarks import interpolation, report
from benchmarks.harness import run_case

TINY: dict[str, Any] = {
    "LENGTHSCALES": {1: 0.5, 2: 0.5},
    "ROWS": {1: 20, 2: 30},
    "CELLS": {1: (1, 2), 2: (2,)},
    "KERNELS": {name: interpolation.KERNELS[name] for name in ("RBF", "Matérn-1/2")},
    "TEST": 20,
    "SEEDS": range(2),
    "FINEST": 32,
    "FUNCTIONS": {"Levy-2": (partial(Levy, dim=2), 5.0, 8)},
    "RUNS": range(1),
    "BATCHES": 1,
}


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in TINY.items():
        monkeypatch.setattr(interpolation, name, value)
    monkeypatch.setattr(interpolation, "drawn", interpolation.drawn.__wrapped__)


@pytest.mark.usefixtures("tiny")
def test_it_measures_and_is_shown(tmp_path: Path) -> None:
    run_case("interpolation", None, folder=tmp_path)
    results = report.load_results(tmp_path)
    found = results["interpolation"]["units"]
    assert len(found) == 4 + 4 * (2 * 3 + 1)
    assert report.render_tables(results).count("\n\n| ") == 5
    interpolation.plot(results["interpolation"], tmp_path / "docs")
    assert {path.name for path in (tmp_path / "docs").iterdir()} == set(interpolation.PLOTS)


@pytest.mark.usefixtures("tiny")
def test_a_fine_grid_is_the_exact_gp() -> None:
    found = interpolation.compare("RBF", 1, 20, "spline")
    assert found["mean_error"] < 1e-3
    assert found["sd_low"] == pytest.approx(1, abs=1e-3)
    assert found["coverage"] == found["coverage_exact"]
    assert found["share"] < 1e-3


@pytest.mark.usefixtures("tiny")
def test_the_grid_needed_is_the_coarsest_that_is_fine_enough() -> None:
    cells = interpolation.needed("RBF", 2)["spline"]
    X, Y = torch.rand(5, 2, dtype=torch.float64), torch.zeros(5, dtype=torch.float64)
    shares = [
        interpolation.surrogate("RBF", 2, each, "spline", X, Y).interpolation_share for each in (cells, cells - 0.5)
    ]
    assert shares[0] <= 0.01 < shares[1]
    assert interpolation.needed("Matérn-1/2", 2)["keys"] is None


def compared(variant: str, **values: Any) -> dict[str, Any]:
    described = {"kernel": "RBF", "d": 1, "variant": variant, "cells": 2, "points": 13, "share": 0.02}
    return {**described, "mean_error": 0.123, "sd_median": 0.98765, "deficit": 0.25, **values}


def test_half_a_case_is_shown(tmp_path: Path) -> None:
    run = {"function": "Levy-2", "seed": 0, "cells": 2.0, "share": 0.5}
    units = [
        {"kernel": "RBF", "d": 1, "keys": None, "spline": 2.4},
        compared("spline", coverage=0.94, coverage_exact=0.95),
        compared("missing", coverage=0.96, coverage_exact=0.95, deficit=-0.1),
        *({**run, "variant": "spline", "seed": seed, "value": 1.0 + seed} for seed in range(3)),
        *({**run, "variant": "keys", "seed": seed, "value": 1.5 + seed} for seed in range(2)),
    ]
    result: Any = {"units": {str(i): each for i, each in enumerate(units)}}
    shown = interpolation.table(result)
    assert "| RBF | > 205 / 2.4 | – | – | – |" in shown
    assert "| RBF, 2 (13) | –, 2.0 % | – | 0.12 / 0.988 | – | 0.12 / 0.988 |" in shown
    assert "| RBF, d = 1 | 95.0 % | – | 94.0 % / 25.0 % | – | 96.0 % / -10.0 % |" in shown
    assert "| Levy-2 | keys | 2 | 2.000 ± 0.500 | +0.500 ± 0.000 | 2.0 | 50 % |" in shown
    assert "| Levy-2 | missing | 0 | – | – | – | – |" in shown
    interpolation.plot(result, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == set(interpolation.PLOTS)
    assert interpolation.table({"units": {}})
