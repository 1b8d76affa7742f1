import json
import multiprocessing
import sys
import time
import types
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[2]))
from benchmarks import harness, report
from benchmarks.store import Store, StoreError, encode, rounded


def case(monkeypatch: pytest.MonkeyPatch, units: dict[str, Any]) -> None:
    module = types.ModuleType("benchmarks.toy")
    module.units = lambda data: units
    monkeypatch.setitem(sys.modules, "benchmarks.toy", module)


def test_units_there_are_skipped_unless_fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    case(monkeypatch, {name: lambda name=name: calls.append(name) or {"seed": 3} for name in ("a", "b")})
    harness.run_case("toy", None, folder=tmp_path)
    harness.run_case("toy", None, folder=tmp_path)
    assert calls == ["a", "b"]
    harness.run_case("toy", None, fresh=True, folder=tmp_path)
    assert calls == ["a", "b"] * 2
    found = json.loads((tmp_path / "toy.json").read_text())
    assert list(found) == ["case", "machine", "versions", "units"]
    assert found["units"]["b"]["seed"] == 3
    assert found["units"]["b"]["threads"] >= 1


def test_a_unit_that_fails_leaves_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case(monkeypatch, {"good": lambda: {"x": 1}, "bad": lambda: 1 / 0})
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            harness.run_case("toy", None, folder=tmp_path)
    assert list(Store("toy", tmp_path).read()["units"]) == ["good"]


@pytest.mark.parametrize("part", ["machine", "versions"])
def test_results_of_elsewhere_are_not_mixed(tmp_path: Path, part: str) -> None:
    store = Store("toy", tmp_path)
    store.add("a", {})
    found = store.read()
    store.path.write_text(json.dumps({**found, part: {"other": "x"}}))
    with pytest.raises(StoreError, match="--fresh"):
        store.add("b", {})


def test_a_case_may_take_units_from_several_machines_and_says_which(tmp_path: Path) -> None:
    store = Store("toy", tmp_path, anywhere=True)
    store.add("a", {"x": 1, "threads": 1})
    found = store.read()
    other = {"processor": "Another", "cores": 64, "gpu": None}
    store.path.write_text(json.dumps({**found, "machine": other}))
    store.add("b", {"x": 2, "threads": 1})
    units = store.read()["units"]
    assert "machine" not in units["a"]
    assert units["b"]["machine"] == found["machine"]
    line = report._provenance(store.read())
    assert "Another, 64 cores or " in line
    assert found["machine"]["processor"] in line
    store.path.write_text(json.dumps({**found, "versions": {"other": "x"}}))
    with pytest.raises(StoreError, match="--fresh"):
        store.add("c", {})


def _share(folder: Path) -> None:
    store = Store("toy", folder)
    for unit in map(str, range(20)):
        with store.claim(unit) as mine:
            if mine:
                time.sleep(0.01)
                store.add(unit, {"claims": 1 + store.read()["units"].get(unit, {}).get("claims", 0)})


def test_two_processes_share_a_case(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_share, args=(tmp_path,)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    units = Store("toy", tmp_path).read()["units"]
    assert {unit: found["claims"] for unit, found in units.items()} == {str(i): 1 for i in range(20)}


def test_files_are_small_and_lists_on_one_line() -> None:
    value = {"a": {"curve": [i / 7 for i in range(50)], "rows": [{"n": 1, "s": "é" * 60}, {"n": 2, "s": "é" * 60}]}}
    text = encode(rounded(value))
    assert json.loads(text) == rounded(value)
    assert rounded(1 / 7) == 0.142857
    assert len([line for line in text.splitlines() if "0.142857" in line and "0.285714" in line]) == 1
    assert len(text.splitlines()) == 9


def test_a_missing_data_set_says_what_to_do(tmp_path: Path) -> None:
    for folder in (None, tmp_path):
        with pytest.raises(harness.MissingDataError, match="--data"):
            harness.require_data(folder, "x.npz")
