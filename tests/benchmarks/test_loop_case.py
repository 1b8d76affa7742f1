"""The case of the loop's asks: what it says of made-up results, and tiny units."""

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[2]))
from benchmarks import loop_overhead, report
from benchmarks.harness import run_case
from benchmarks.store import Store


def unit(d: int, n: int, way: str, **asks: list[float]) -> tuple[str, dict[str, Any]]:
    taken = {q.removeprefix("q"): {"asks": each, "tells": [0.001] * len(each)} for q, each in asks.items()}
    return loop_overhead.name(d, n, way), {"d": d, "n": n, "asks": taken}


def test_medians_are_shown_beside_ax(tmp_path: Path) -> None:
    units = dict(
        [
            unit(2, 100_000, "qLogEI", q1=[0.1, 0.2, 9.0], q10=[0.8, 0.7, 0.9]),
            unit(2, 100_000, "Thompson", q10=[0.3], q100=[0.5]),
            unit(2, 3000, "Ax", q10=[4.0, 4.0, 5.0]),
        ]
    )
    loop_overhead.plot({"units": units}, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == set(loop_overhead.PLOTS)
    table = loop_overhead.table({"units": units})
    assert "| 2 | 100,000 | wiski | qLogEI | 1 | 200 ms | 1.0 ms |" in table
    assert "| 2 | 3,000 | wiski | Ax | 10 | 4.0 s | 1.0 ms |" in table
    ((what, ours, rival),) = loop_overhead.headline({"units": units})
    assert "10 points at n = 100,000, d = 2" in what
    assert ours == "qLogEI 800 ms, Thompson 300 ms (target: 1 s)"
    assert rival == "Ax at n = 3,000: 4.0 s"


def test_a_half_done_case_is_shown() -> None:
    units = dict([unit(10, 1000, "Thompson", q1=[0.3])])
    assert "| 10 | 1,000 | softki | Thompson | 1 | 300 ms |" in loop_overhead.table({"units": units})
    assert loop_overhead.headline({"units": units}) == []


def test_the_case_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"SIZES": (8,), "AX_SIZES": (8,), "MODELS": {1: "wiski"}, "REPEATS": 1, "HEADLINE": 8}
    few = {"BATCHES": {"qLogEI": (1,), "Thompson": (1, 10)}, "AX_BATCHES": (1,)}
    for name, value in {**small, **few}.items():
        monkeypatch.setattr(loop_overhead, name, value)
    run_case("loop_overhead", None, folder=tmp_path)
    result = Store("loop_overhead", tmp_path).read()
    assert set(result["units"]) == {f"d=1 n=8 {way}" for way in ("qLogEI", "Thompson", "Ax")}
    for way, qs in {"qLogEI": {"1"}, "Thompson": {"1", "10"}, "Ax": {"1"}}.items():
        assert set(result["units"][f"d=1 n=8 {way}"]["asks"]) == qs
    assert result["units"]["d=1 n=8 qLogEI"]["asks"]["1"]["fits"] == 0
    assert f"## {loop_overhead.TITLE}" in report.render_tables({"loop_overhead": result})
    assert len(loop_overhead.headline(result)) == 1
