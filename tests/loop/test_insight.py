"""What a person looks at: predictions, suspicious observations, cross-validation, importance of parameters."""

import logging
import warnings
from pathlib import Path

import pytest
import torch
from loops import cheap, f, single_task

from bo_scale.errors import ApproximationWarning, InvalidDataError, SpaceError
from bo_scale.loop import Choice, Optimizer
from bo_scale.loop.insight import Suspect

pytestmark = pytest.mark.usefixtures("whole_fits")

SPACE = {"x": (0.0, 1.0), "y": (-2.0, 3.0)}


def told(n: int = 24, model: object = "cagp", path: Path | None = None) -> Optimizer:
    """Values of a smooth function at a quasi-random design."""
    loop = cheap(path, space=SPACE, objective="minimize", model=model)
    points = loop.ask(n)
    loop.tell(points, f(loop.space.rows(points)))
    return loop


@pytest.mark.parametrize("model", ["cagp", "wiski", single_task])
def test_predictions_are_in_the_users_units(model: object) -> None:
    loop = told(model=model)
    points = [{"x": 0.4, "y": 0.5}, {"x": 0.9, "y": -1.5}]
    found, wider = loop.predict(points), loop.predict(points, observation=True, probability=0.99)
    truth = f(loop.space.rows(points)).tolist()
    for each, other, value, point in zip(found, wider, truth, points, strict=True):
        assert each.mean == pytest.approx(value, abs=0.1)
        assert each.x == point
        assert other.lower <= each.lower <= each.mean <= each.upper <= other.upper
    with pytest.raises(SpaceError):
        loop.predict([{"x": 2.0, "y": 0.0}])
    with pytest.raises(InvalidDataError, match="nothing has been told"):
        cheap(model=model).predict([[0.5, 0.5]])


def test_warnings_of_the_fit_that_is_kept_are_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "bo_scale.loop")
    options = {"num_actions": 4, "policy": "cg", "epochs": 0}
    loop = cheap(space=SPACE, objective="minimize", model="cagp", model_options=options)
    points = loop.ask(30)
    loop.tell(points, f(loop.space.rows(points)))
    with warnings.catch_warnings():
        warnings.simplefilter("error", ApproximationWarning)
        loop.ask(1)
    assert "CaGP: variances at the rows are" in caplog.text


def test_a_typing_error_is_found_said_and_corrected(caplog: pytest.LogCaptureFixture) -> None:
    loop = told()
    assert loop.suspects() == []
    right = loop.observations[1][7]
    loop.revise(7, 1e3 * right)
    loop.ask(1)
    assert "observation 7 is far from what the others predict" in caplog.text
    assert caplog.text.count("far from") == 1
    (suspect,) = loop.suspects()
    assert (suspect.id, suspect.row) == (7, 7)
    assert suspect.predicted == pytest.approx(float(right), abs=0.5)
    loop.tell(loop.pending, [0.5])
    loop.ask(1)
    assert caplog.text.count("observation 7 is far") == 1  # once
    loop.revise(suspect.id, right)
    assert loop.suspects() == []


def test_a_typing_error_between_two_fits_is_said_at_the_next_ask(caplog: pytest.LogCaptureFixture) -> None:
    loop = told()
    points = loop.ask(1)
    loop.tell(points, f(loop.space.rows(points)))
    loop.tell(loop.ask(1), [1e6])
    loop.ask(1)
    assert "observation 25 is far from what the others predict" in caplog.text
    assert [step.fitted for step in loop.steps] == [False, True, False, True]


def test_a_peak_between_flat_values_is_not_called_an_error_again_and_again(caplog: pytest.LogCaptureFixture) -> None:
    loop = cheap(space=SPACE, objective="maximize", model="cagp")
    points = loop.ask(40)
    X = loop.space.encode(points)
    loop.tell(points, (-60 * (X - 0.3).square().sum(-1)).exp() ** 3)
    loop.ask(1)
    assert len(loop.suspects()) > 4
    assert caplog.text.count("far from what the others predict") == 1
    assert "So many are seldom errors" in caplog.text
    loop.tell(loop.pending, [0.0])
    loop.ask(1)
    assert caplog.text.count("So many are seldom errors") == 1


@pytest.mark.parametrize(("error", "z", "said"), [(0.01, 9.0, ""), (2.0, 9.0, "9 standard"), (2.0, 1e13, "over 100")])
def test_an_error_is_said_if_it_matters_and_in_few_digits(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: float, z: float, said: str
) -> None:
    loop = told()
    value = float(loop.observations[1][7])
    found = Suspect(7, {"x": 0.0}, None, value, value + error, abs(error) / z, z, id=7)
    monkeypatch.setattr("bo_scale.loop.reports.suspects_of", lambda *_: [found])
    loop.ask(1)
    assert ("observation 7 is far" in caplog.text) == bool(said)
    assert said in caplog.text


def test_a_typing_error_in_a_table_is_said_before_the_first_ask(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    X = torch.rand(30, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    values = f(X).tolist()
    values[7] = 1e3
    rows = [f"{x},{y},{value}" for (x, y), value in zip(X.tolist(), values)]
    (tmp_path / "past.csv").write_text("\n".join(["x,y,value", *rows]))
    loop = Optimizer.from_csv(tmp_path / "past.csv", {"x": (0.0, 1.0), "y": (0.0, 1.0)}, model="cagp")
    loop.best()
    loop.best()
    assert caplog.text.count("observation 'past.csv:9' is far from") == 1


def test_a_typing_error_among_many_rows_is_said(caplog: pytest.LogCaptureFixture, short_fits: None) -> None:
    X = torch.rand(2500, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    values = f(X)
    values[7] = -9999.0
    loop = cheap(space=[(0.0, 1.0), (0.0, 1.0)], objective="maximize", model="wiski")
    loop.tell(X, values)
    loop.best()
    assert "observation 7 is far from what the others predict" in caplog.text


def test_suspects_have_the_users_ids() -> None:
    loop = told()
    loop.forget([0, 3])
    loop.tell([{"x": 0.5, "y": 0.5}], [500.0], id="run-17")
    assert [each.id for each in loop.suspects()] == ["run-17"]


def test_the_best_says_whether_its_value_may_be_an_error(tmp_path: Path) -> None:
    loop = told(path=tmp_path)
    assert not loop.best().suspect
    loop.tell([{"x": 0.5, "y": 0.5}], [-500.0], id="run-17")
    assert loop.best().suspect
    assert loop.best().observed_y == -500.0
    assert loop.best(fixed={"y": 0.5}).suspect
    assert Optimizer.open(tmp_path, mode="r").best().suspect
    loop.revise("run-17", 0.5)
    assert not loop.best().suspect


@pytest.mark.parametrize("refit", [False, True])
@pytest.mark.parametrize("model", ["cagp", "wiski", single_task])
def test_models_are_cross_validated(model: object, refit: bool) -> None:
    report = told(model=model).cross_validate(4, refit=refit)
    (fit,) = report.outcomes
    assert report.folds == 4
    assert fit.r2 > 0.8
    assert "RMSE" in str(report)


def test_parameters_that_matter_are_told_from_others() -> None:
    loop = cheap(space={**SPACE, "kind": Choice(("a", "b", "c"))}, model="cagp", acquisition="qLogEI")
    points = loop.ask(40)
    loop.tell(points, [point["x"] + 3.0 * (point["kind"] == "b") for point in points])
    (found,) = loop.importance()
    assert found.outcome is None
    assert found.total["kind"] > 0.8 > 0.2 > found.total["x"] > found.total["y"]
    assert "kind" in str(found)


def test_several_outcomes() -> None:
    loop = cheap(space=SPACE, objectives={"a": "minimize", "b": "maximize"}, acquisition="qLogNEHVI", model="cagp")
    points = loop.ask(20)
    loop.tell(points, [{"a": point["x"], "b": point["y"]} for point in points])
    assert [each.outcome for each in loop.importance()] == ["a", "b"]
    assert [each.outcome for each in loop.cross_validate(5, refit=True).outcomes] == ["a", "b"]
    (found,) = loop.predict(points[0])
    assert found.outcomes["b"].mean == pytest.approx(points[0]["y"], abs=0.1)
    loop.revise(4, {"a": points[4]["x"], "b": 1e5})
    assert {(each.id, each.outcome) for each in loop.suspects()} == {(4, "b")}


def test_a_run_that_is_only_read_is_looked_at(tmp_path: Path) -> None:
    told(path=tmp_path)
    reader = Optimizer.open(tmp_path, mode="r")
    assert reader.suspects() == []
    assert len(reader.predict([{"x": 0.4, "y": 0.5}])) == 1
    assert torch.equal(reader.observations[1], Optimizer.open(tmp_path, mode="r").observations[1])
