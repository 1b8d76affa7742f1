from pathlib import Path

import pytest
from terminal import Terminal

from bo_scale.loop import Integer, Optimizer


@pytest.fixture
def cheap_and_dear(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A journal "cheap" of values far below those at the target."""
    monkeypatch.chdir(tmp_path)
    space = {"x": (0.0, 1.0), "epochs": Integer(1, 50)}
    with Optimizer(space, objective="minimize", fidelity={"epochs": 50}, path="cheap", model="cagp") as optimizer:
        points = [{"x": k / 10, "epochs": 1 + 3 * k} for k in range(9)]
        optimizer.tell(points, [point["x"] - 5 for point in points])
        optimizer.tell({"x": 0.5, "epochs": 50}, 0.25)


@pytest.mark.usefixtures("cheap_and_dear")
def test_what_counts_is_at_the_target(terminal: Terminal) -> None:
    said = terminal("status cheap")
    assert "acquisition qMFKG" in said
    assert "fidelity epochs = 50" in said
    assert "Best observed: value = 0.25 at x = 0.5, epochs = 50" in said
    assert terminal.json("status cheap")["settings"]["fidelity"] == [["epochs", 50]]
    assert terminal.json("best cheap")["point"]["epochs"] == 50
    assert "Best observed: value = 0.25" in terminal("best cheap")
    assert terminal.json("best cheap --fixed epochs=4")["point"]["epochs"] == 4
