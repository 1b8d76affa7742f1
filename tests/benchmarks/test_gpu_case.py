"""The case of a GPU: each task on the CPU with tiny sizes, and what is said where there is no GPU."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).parents[2]))
from benchmarks import gpu
from benchmarks.harness import MissingDataError, run_case
from benchmarks.store import Store

TINY = {
    "ROWS": 40, "GRID": 8, "RIVAL_ROWS": 20, "BATCHES": 2, "Q": 2, "INTEGRATED": 20, "THOMPSON": 3,
    "FITTED": {"cpu": 60}, "POINTS": 10, "ACTIONS": 8, "COMPUTED": {"cpu": 60}, "STREAMED": {"cpu": 300}, "ASKS": 1,
    "CHOSEN": (12,), "BEFORE": 9, "LOOP_ROWS": 12, "REPEATS": 1, "PRECISIONS": {"float64": torch.float64},
}  # fmt: skip


def on_devices(names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in TINY.items():
        each = isinstance(value, dict) and "cpu" in value  # a number of each device
        monkeypatch.setattr(gpu, name, dict.fromkeys(names, value["cpu"]) if each else value)
    monkeypatch.setattr(gpu, "DEVICES", names)


@pytest.mark.usefixtures("short_fits", "gpu")
@pytest.mark.parametrize("task", gpu.TASKS)
def test_every_task_runs_on_a_gpu(task: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that it does on the first day with one; pretended ones compute in one precision, to save time."""
    on_devices(("cuda", "cpu"), monkeypatch)
    both = (torch.float64, torch.float32) if request.node.callspec.params["gpu"] == "real" else (torch.float32,)
    for precision in (torch.float64,) if task in gpu.DOUBLE else both:
        found = gpu.measure(task, precision)["ways"]
        assert any("cuda" in name for name in found)
        assert all(each["seconds"] > 0 for each in found.values())


def test_every_task_is_measured_and_shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    on_devices(("cpu",), monkeypatch)
    run_case("gpu", None, folder=tmp_path)
    result = Store("gpu", tmp_path).read()
    assert set(result["units"]) == {f"{task} float64" for task in gpu.TASKS}
    shown = gpu.table(result)
    for task in gpu.TASKS:
        assert f"| {task} | float64 |" in shown
    assert gpu.headline(result)[0][0] == "one observation on a GPU"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_nothing_is_measured_and_the_page_says_so(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match="no CUDA device"):
        run_case("gpu", None, folder=tmp_path)
    assert not Store("gpu", tmp_path).read()["units"]
