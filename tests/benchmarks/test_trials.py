"""The case of a thousand workers: a tiny run of it, and what it says of made-up results."""

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[2]))
from benchmarks import trials


def test_a_tiny_run_tells_every_result() -> None:
    found = trials.evaluate("wiski", 1, 8, 0.05, 40)
    assert found["told"] == 40
    assert 0 < found["rate"] < 8 / 0.025
    assert found["largest"] == 8


def test_tables_say_how_busy_workers_were() -> None:
    unit = {"workers": 1000, "mean_seconds": 10.0, "told": 10_000, "seconds": 110.0, "processor": 55.0, "rate": 96.0}
    more = {"asks": 70, "largest": 1000, "slowest": 1.5, "value": -1e-4, "megabytes": 400.0}
    result: Any = {"units": {"a": {"model": "wiski", "d": 2, **unit, **more}}}
    told = trials.table(result)
    assert "| wiski, d = 2 | 10,000 | 110 s | 96.0 | 96 % | 70 | 1000 | 1.5 s | 50 % | 400 | 1.0e-04 |" in told
    assert trials.headline(result)[0][1] == "workers busy 96 to 96 %"
    assert trials.headline({"units": {}}) == []  # type: ignore[typeddict-item]
    assert trials._rate([0.1 * k for k in range(100)]) == pytest.approx(10.0)
