"""A run in a folder, and a terminal."""

from pathlib import Path

import pytest
from terminal import Terminal

from bo_scale.loop import Choice, Integer, Optimizer

SPACE = {"x": (0.0, 1.0), "kind": Choice(["a", "b", "c"]), "n": Integer(1, 100, log=True), "t": (100.0, 101.0)}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Optimizer:
    """A run of four observations and two pending points, in the folder "run". It is closed: commands may hold it."""
    monkeypatch.chdir(tmp_path)
    with Optimizer(SPACE, objective="minimize", path="run", num_initial=8) as optimizer:
        for _ in range(2):
            points = optimizer.ask(2)
            optimizer.tell(points, [(p["x"] - 0.3) ** 2 + (p["kind"] == "b") + p["n"] / 100 for p in points])
        optimizer.ask(2)
    return optimizer


@pytest.fixture
def terminal(capsys: pytest.CaptureFixture[str]) -> Terminal:
    return Terminal(capsys)
