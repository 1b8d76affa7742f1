"""The case of large grids: tiny units, and what its tables say of made-up results."""

import math
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

sys.path.append(str(Path(__file__).parents[2]))
from benchmarks import grid, report, rivals
from benchmarks.grid import Part, Scaled, fit_svgp, fit_wiski
from benchmarks.harness import run_case

FINE, COARSE = Part(0.5, 0.2, (14, 12)), Part(1.5, 0.4, (7, 6))
TARGET = Scaled(2.5, 0.3, (6, 6, 6), 20)


TINY: dict[str, Any] = {
    "MODELS": {
        grid.MAIN: partial(fit_wiski, parts=(FINE, COARSE), rank=30, basis="keys"),
        "fine": partial(fit_wiski, parts=(FINE,), rank=30),
        "SVGP": partial(fit_svgp, parts=(FINE, COARSE)),
    },
    "FIT": {"maxiter": 3},
    "SVGP_SECONDS": 0.3,
    "STRETCH": 20,
    "CELLS": (10, 6),
    "TARGET": TARGET,
    "SCALED": (TARGET, Scaled(2.5, 0.3, (6, 6, 6), 40), Scaled(2.5, 0.3, (8, 8), 20), Scaled(0.5, 0.3, (10, 8))),
    "ROWS": 100,
    "REPEATS": 1,
    "RIVAL_ROWS": 20,
    "STREAM": 8_000,
    "BATCH": 1_000,
    "MARKS": 2_000,
    "STREAM_GRID": 30,
    "WAVES": 300,
    "STREAM_LENGTHSCALE": 0.3,
    "TEST": 200,
    "SINGLES": 2,
    "SINGLE_GRIDS": ((6, 6, 6),),
}


@pytest.fixture
def tiny(in_process: None, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in TINY.items():
        monkeypatch.setattr(grid, name, value)
    monkeypatch.setattr(rivals, "SVGP_POINTS", 20)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A rough field with a gap, and the same as the track of a ship."""
    g = torch.Generator().manual_seed(0)
    X = torch.rand(400, 2, generator=g, dtype=torch.float64) * torch.tensor([4.0, 2.0]) + torch.tensor([-90.0, 30.0])
    y = 40 + 3 * torch.sin(2 * X[:, 0]) + X[:, 1] + 0.3 * torch.randn(400, generator=g, dtype=torch.float64)
    gap = ((X - torch.tensor([-88.0, 31.0])).abs() < 0.4).all(-1, keepdim=True)
    for name in grid.DATA:
        np.savez(tmp_path / f"{name}.npz", X=X.numpy(), y=y.numpy(), test_mask=gap.numpy())
    return tmp_path


@pytest.mark.usefixtures("tiny")
def test_it_measures_and_is_shown(data: Path) -> None:
    run_case("grid", data, folder=data)
    results = report.load_results(data)
    found = results["grid"]["units"]
    assert not [unit["error"] for unit in found.values() if "error" in unit]
    assert set(found) == set(grid.units(data))
    main, fine = found["satellite_temp gaps fine and coarse"], found["satellite_temp gaps fine"]
    assert main["rmse"] < 1.0
    assert 3 < main["evaluations"] < 15
    assert (main["m"], main["s"], fine["s"]) == ([168, 42], 30, 0)
    assert [len(main["field"][key]) for key in ("seen", "mean")] == [60, 60]
    assert main["field"]["seen"].count(None) > main["field"]["mean"].count(None)
    assert found["evidence Matérn-5/2 6×6×6 s=20"]["s"] == 20
    assert found["evidence Matérn-1/2 10×8"]["rank"] is None
    stream = found["stream"]
    assert stream["n"] == [2000, 4000, 6000, 8000]
    assert stream["posterior"]["rmse"] < 0.05
    assert stream["posterior"]["coverage"] > 0.8
    assert len(grid.headline(results["grid"])) == 3
    assert report.render_tables(results).count("\n\n| ") == 4
    grid.plot(results["grid"], data / "docs")
    assert {path.name for path in (data / "docs").iterdir()} == set(grid.PLOTS)


@pytest.mark.usefixtures("tiny")
def test_stretches_are_of_consecutive_rows() -> None:
    test = grid.held_out("stretches", {"y": np.zeros(410)})
    assert test[:400].view(20, 20).double().mean(-1).unique().tolist() == [0, 1]
    assert test.sum() in (4 * 20, 3 * 20 + 10)
    assert grid.held_out("rows", {"y": np.zeros(410)}).sum() == 82


@pytest.mark.usefixtures("tiny")
def test_means_over_cells_are_in_their_place() -> None:
    bounds = torch.tensor([[-90.0, 30.0], [-80.0, 36.0]], dtype=torch.float64)
    X = torch.tensor([[-89.5, 30.5], [-89.6, 30.4], [-80.0, 36.0]], dtype=torch.float64)
    cells = grid.averaged(X, torch.tensor([1.0, 2.0, 7.0], dtype=torch.float64), bounds)
    assert (cells[0], cells[-1]) == (1.5, 7.0)
    assert cells[1:-1] == [None] * 58


@pytest.mark.usefixtures("in_process")
def test_a_model_that_fails_is_said_to(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*arguments: Any) -> Any:
        raise FloatingPointError("no factor of this matrix")

    monkeypatch.setattr(grid, "MODELS", {grid.MAIN: failing})
    name = f"satellite_temp gaps {grid.MAIN}"
    run_case("grid", data, pattern=name, folder=data)
    shown = report.render_tables(report.load_results(data))
    assert f"- {name}: FloatingPointError: no factor of this matrix" in shown


def field(model: str, **values: Any) -> dict[str, Any]:
    described = {"data": "satellite_temp", "held": "gaps", "model": model, "n": 1000, "test": 200, "m": [13500, 154]}
    scored = {"rmse": 1.58, "mae": 1.1, "crps": 0.871, "nll": 2.0, "coverage_95": 0.929, "width": 5.0}
    cost = {"evaluations": 30, "fit_seconds": 20.0, "predict_seconds": 1.0, "megabytes": 700.0, "megabytes_before": 300}
    return {**described, **scored, **cost, "grids": ["150×90", "14×11"], "s": 64, **values}


def test_half_a_case_is_shown(tmp_path: Path) -> None:
    evidence = {"nu": 2.5, "lengthscale": 0.2, "size": [47] * 3, "rank": 1024, "s": 1024, "seconds": 0.9}
    evidence |= {"posterior_seconds": 0.5, "megabytes": 900.0, "megabytes_before": 300.0, "rank_loss": 0.002}
    marks: dict[str, Any] = {"n": [1_000_000, 10_000_000], "seconds": [0.4, 0.41], "megabytes": [500.0, 501.0]}
    marks["megabytes_peak"] = 900.0
    posterior = {"seconds": 1.0, "rmse": 1e-3, "sd": 1e-3, "coverage": 0.95}
    result: Any = {
        "units": {
            f"satellite_temp gaps {grid.MAIN}": field(grid.MAIN),
            "satellite_temp gaps SVGP": field("SVGP", rmse=2.5, m=[1024], s=1024, grids=[]),
            grid.TARGET.name: {**evidence, "megabytes_expected": 800.0},
            "evidence SingleTaskGP": {"n": 2000, "seconds": 0.6, "megabytes": 500.0, "megabytes_before": 300.0},
            "stream": {"size": [100, 100], "s": 700, **marks, "posterior": posterior},
        }
    }
    shown = grid.table(result)
    scored = "1.580 | 1.100 | 0.871 | 92.9% | 5.00 | 30 | 20 s | 1.0 s | 400 |"
    assert f"| satellite_temp, gaps | fine and coarse | 150×90 + 14×11 | 64 | {scored}" in shown
    assert "| satellite_temp, gaps | SVGP | 1,024 points | 1024 | 2.500 |" in shown
    assert "| Matérn-5/2, ℓ = 0.2 | 47×47×47 = 103,823 | 1024 | 900 ms | 500 ms | 0.2 % | 600 | 800 |" in shown
    assert "| 10,000,000 | 410 ms | 501 |" in shown
    satellite, evidence_row, stream = grid.headline(result)
    assert satellite[1:] == ("1.58 °C, 0.87, 93%, 21 s", "SVGP 2.50 °C, 0.87, 93%, 21 s")
    assert evidence_row[2] == "`SingleTaskGP` at n = 2,000: 600 ms; a kernel matrix over the grid alone: 86 GB"
    assert stream[1] == "400 ms and 500 MB at 1,000,000 rows, 410 ms and 501 MB at 10,000,000"
    grid.plot(result, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == set(grid.PLOTS)
    assert grid.table({"units": {}}) == ""
    assert math.prod(grid.TARGET.size) == 103_823
