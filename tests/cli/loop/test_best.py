from pathlib import Path

import pytest
import torch
from terminal import Terminal

from bo_scale.loop import Optimizer


def _model(X: torch.Tensor, Y: torch.Tensor, Yvar: torch.Tensor | None) -> object:
    raise AssertionError("it is not here")


def test_the_best_point_and_the_best_observed(run: Optimizer, terminal: Terminal) -> None:
    best = Optimizer.open("run", mode="r").best()
    said = terminal("best run")
    assert f"Best by posterior mean: value = {best.mean:.6g} ± {best.sd:.6g} at x = {best.x['x']:.6g}" in said
    assert f"Best observed: value = {best.observed_y:.6g} at x = {best.observed_x['x']:.6g}" in said
    told = terminal.json("best run")
    assert told["point"] == best.x
    assert told["outcomes"] == {"value": {"mean": pytest.approx(best.mean), "sd": pytest.approx(best.sd)}}
    assert told["observed"] == {"point": best.observed_x, "outcomes": {"value": best.observed_y}}


def test_values_can_be_held(run: Optimizer, terminal: Terminal) -> None:
    told = terminal.json("best run --fixed t=100.25 kind=c")
    assert (told["point"]["t"], told["point"]["kind"], told["observed"]) == (100.25, "c", None)
    assert "Best observed: none with these values." in terminal("best run --fixed t=100.25 --fixed kind=c")
    assert "Did you mean 'kind'?" in terminal.refused("best run --fixed kid=c")


def test_before_the_first_observation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, terminal: Terminal) -> None:
    monkeypatch.chdir(tmp_path)
    with Optimizer({"x": (0.0, 1.0)}, objective="minimize", path="run"):
        assert "nothing has been told yet" in terminal.refused("best run")


def test_several_objectives_have_trade_offs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, terminal: Terminal
) -> None:
    monkeypatch.chdir(tmp_path)
    objectives = {"loss": "minimize", "gain": "maximize"}
    with Optimizer({"x": (0.0, 1.0)}, objectives=objectives, path="run", model="cagp") as optimizer:
        xs = torch.linspace(0, 1, 6).tolist()
        optimizer.tell([{"x": x} for x in xs], [{"loss": (x - 0.2) ** 2, "gain": -((x - 0.6) ** 2)} for x in xs])
        front = optimizer.pareto()
        found = terminal.json("best run")
        assert [each["point"] for each in found] == [each.x for each in front]
        said = terminal("best run")
        assert "loss (mean ± sd)" in said
        assert said.endswith(f"Best trade-offs by posterior mean: {len(front)}.\n")
        assert "--fixed: with several objectives" in terminal.refused("best run --fixed x=0.5")


def test_a_run_of_a_python_function_can_be_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, terminal: Terminal
) -> None:
    monkeypatch.chdir(tmp_path)
    with Optimizer([(0.0, 1.0)], objective="minimize", path="run", model=_model, num_initial=2) as optimizer:
        optimizer.ask(2)
        optimizer.tell([[0.5], [0.25]], [2.0, 1.0])
    assert "model a Python function" in terminal("status run")
    assert terminal("best run") == "Best observed: value = 1 at x0 = 0.25.\n"
    assert "only the best observed is known here. model: a journal holds no functions" in terminal.errors
    assert terminal.json("best run") == {
        "point": None,
        "outcomes": None,
        "observed": {"point": {"x0": 0.25}, "outcomes": {"value": 1.0}},
    }
    assert "it needs the model" in terminal.refused("best run --fixed x0=0.5")
    assert "model: a journal holds no functions" in terminal.refused("suspects run")
    said = terminal.refused("ask run")
    assert "ask: this run must be asked in Python. model: " in said
    assert "Optimizer.open(path, model=…)" in said
    assert len(terminal.json("pending run")) == 1
    assert "Told value = 3 under the id 2" in terminal("tell run --point x0=0.75 --value 3")
