"""The case of rows in shards: a tiny run of it, and what it says of made-up results."""

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[2]))
from benchmarks import shards


def unit(n: int, processes: int, seconds: float) -> dict[str, Any]:
    taken = {"own": 1.0, "children": 3e-6 * n} if processes else {"own": 3e-6 * n, "children": 0.0}
    sizes = {"megabytes": 500.0, "children_megabytes": 700.0, "rmse": 1e-3, "making": 1e-6, "shards": n // (1 << 20)}
    return {"n": n, "processes": processes, "seconds": seconds, **taken, **sizes}


def test_a_tiny_run_sums_all_rows() -> None:
    found = shards.evaluate(900, 0, 400)
    assert found["shards"] == 3
    assert found["rmse"] < 0.1


def test_tables_say_what_rows_cost() -> None:
    runs = [unit(1 << 24, 0, 50.0), unit(1 << 24, 1, 60.0), unit(1 << 24, 2, 33.0), unit(100 << 20, 2, 200.0)]
    result: Any = {"units": {str(k): each for k, each in enumerate(runs)}}
    told = shards.table(result)
    assert "| 16,777,216 | 2 processes | 33 s | 2.0 µs | 1.9 % | 0.91 |" in told
    assert "10¹⁰ rows would take 8 minutes on 64 workers" in told
    assert shards.headline(result)[0][0].startswith("104,857,600 rows in 100 shards")
    assert shards.summing(runs[0]) == pytest.approx(2e-6)
    assert shards.headline({"units": {}}) == []  # type: ignore[typeddict-item]
