"""A search that learns where evaluations fail, and one that counts what they cost."""

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from botorch.acquisition.logei import qLogExpectedImprovement
from botorch.models.model import Model
from loops import cheap, events, f, run_until, tell

from bo_scale.decisions.by_name import AcquisitionKind, require_served
from bo_scale.decisions.propose import propose
from bo_scale.decisions.setting import Setting
from bo_scale.errors import InvalidArgumentError, InvalidDataError, SpaceError
from bo_scale.loop import Choice, Optimizer

UNIT = {"x": (0.0, 1.0), "y": (0.0, 1.0)}
LEARN: dict[str, Any] = {"failures": "learn", "acquisition": "qLogNEI", "model": "cagp"}


def half(loop: Optimizer, asks: int) -> list[bool]:
    """Ask one by one; values rise with y, and points with y above 0.5 fail. Return which failed."""
    failed = []
    for _ in range(asks):
        (point,) = loop.ask()
        failed.append(point["y"] > 0.5)
        if failed[-1]:
            loop.tell(point, failed=True)
        else:
            loop.tell(point, math.sin(6 * point["x"]) + point["y"])
    return failed


# ---------------------------------------------------------------- failures


def test_the_search_learns_where_points_fail() -> None:
    """The model of values sees no reason to stay away from where points fail; that of success does."""
    points = [{"x": x / 4, "y": y / 8} for x in range(5) for y in range(9)]
    good, bad = ([each for each in points if (each["y"] > 0.5) == fails] for fails in (False, True))
    failed = {}
    for mode in ("avoid", "learn"):
        loop = cheap(space=UNIT, **{**LEARN, "failures": mode})
        loop.tell(good, [math.sin(6 * each["x"]) + each["y"] for each in good])
        loop.tell(bad, failed=True)
        failed[mode] = sum(point["y"] > 0.625 for point in loop.ask(4))
    assert failed["avoid"] == 4
    assert failed["learn"] == 0


def test_a_failed_point_has_no_value(tmp_path: Path) -> None:
    space: dict[str, Any] = {"x": (0.0, 1.0)}
    with Optimizer(space, objective="minimize", path=tmp_path) as loop:
        before = events(tmp_path)
        for argument, values in (("Y", [0.1, 0.2]), ("Y", [0.1, math.nan]), ("Yvar", [None, 2.0])):
            with pytest.raises(InvalidArgumentError, match=rf"{argument}: a failed point has none.* Leave it out"):
                loop.tell([{"x": 0.1}, {"x": 0.2}], failed=True, **{argument: values})
        assert events(tmp_path) == before
        for nothing in (None, math.nan, [None], torch.tensor([math.nan])):
            assert loop.tell([{"x": 0.5}], nothing, failed=True) == []
        assert len(events(tmp_path)) == len(before) + 1
    several = Optimizer(space, objectives={"loss": "minimize", "gain": "maximize"})
    with pytest.raises(InvalidArgumentError, match="Y: a failed point has none"):
        several.tell([{"x": 0.5}], [{"loss": 1.0, "gain": None}], failed=True)
    several.tell([{"x": 0.5}], [{"loss": None, "gain": None}], failed=True)


def test_the_probability_of_success_is_shown(tmp_path: Path) -> None:
    with cheap(tmp_path, UNIT, **LEARN) as loop:
        points = [{"x": x / 5, "y": y / 5} for x in range(6) for y in range(6)]
        assert loop.success(points[:2]) == [1.0, 1.0]
        loop.tell([each for each in points if each["y"] > 0.5], failed=True)
        assert max(loop.success(points)) < 0.6
        good = [each for each in points if each["y"] < 0.5]
        loop.tell(good, [1.0] * len(good))
    with Optimizer.open(tmp_path, mode="r") as reader:
        low, high = reader.success([{"x": 0.4, "y": 0.1}, {"x": 0.4, "y": 0.9}])
        assert high < 0.05
        assert low > 0.95
        with pytest.raises(SpaceError):
            reader.success([{"x": 2.0, "y": 0.0}])


def test_a_point_told_a_value_has_not_failed() -> None:
    loop = cheap(space=UNIT, **LEARN)
    points = loop.ask(4)
    loop.tell(points[:2], failed=True)
    assert len(loop.history.failures) == 2
    loop.tell(points[0], 1.0)
    assert len(loop.history.failures) == 1
    torch.testing.assert_close(loop.history.failures, loop.space.encode(points[1:2]))


def test_a_resumed_search_has_learned_the_same(tmp_path: Path) -> None:
    with cheap(tmp_path / "a", UNIT, **LEARN) as whole:
        half(whole, 9)
    with cheap(tmp_path / "b", UNIT, **LEARN) as first:
        half(first, 6)
    with Optimizer.open(tmp_path / "b") as again:
        assert again.settings.failures == "learn"
        half(again, 3)
    assert events(tmp_path / "a") == events(tmp_path / "b")


def test_failures_move_with_the_space() -> None:
    loop = cheap(space=UNIT, **LEARN)
    loop.tell([{"x": 0.8, "y": 0.5}, {"x": 0.1, "y": 0.5}], failed=True)
    loop.migrate({"x": (0.2, 1.2), "y": (0.0, 1.0)})
    torch.testing.assert_close(loop.history.failures, torch.tensor([[0.6, 0.5]], dtype=torch.float64))


def test_failed_points_of_a_small_space_are_not_asked_again() -> None:
    loop = cheap(space={"k": Choice(("a", "b", "c", "d", "e", "f")), "n": (0.0, 1.0)}, **LEARN)
    failed = []
    for _ in range(9):
        (point,) = loop.ask()
        if point["k"] in "ab":
            failed.append((point["k"], round(point["n"], 9)))
            loop.tell(point, failed=True)
        else:
            loop.tell(point, point["n"] + "abcdef".index(point["k"]))
    assert len(set(failed)) == len(failed) > 0


@pytest.mark.parametrize("acquisition", ["qUCB", "Thompson", "qNIPV", "qKG"])
def test_acquisitions_without_constraints_do_not_learn_failures(acquisition: str) -> None:
    with pytest.raises(InvalidArgumentError, match=r"1 outcome constraint; choose one of .*qLogNEI"):
        cheap(acquisition=acquisition, failures="learn")
    loop = cheap(acquisition=acquisition)
    with pytest.raises(InvalidArgumentError, match="outcome constraint"):
        loop.change(failures="learn")
    loop.change(failures="learn", acquisition="qLogNEI")


def test_several_objectives_learn_failures() -> None:
    options = {**LEARN, "acquisition": "qLogNEHVI"}
    loop = cheap(space=UNIT, objectives={"a": "maximize", "b": "minimize"}, **options)
    for _ in range(6):
        (point,) = loop.ask()
        if point["x"] > 0.7:
            loop.tell(point, failed=True)
        else:
            loop.tell(point, {"a": point["x"], "b": point["y"]})
    assert loop.pareto()


@pytest.mark.parametrize(("name", "value"), [("failures", "ignore"), ("per_cost", "yes"), ("per_cost", 1)])
def test_unknown_flags_are_refused(name: str, value: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=f"{name}={value!r}: choose"):
        cheap().settings.updated({name: value})


# ---------------------------------------------------------------- costs


@pytest.mark.usefixtures("whole_fits")
def test_cheap_points_are_preferred_at_equal_promise() -> None:
    """A wave in x, the same in y, whose cost grows a thousandfold with y."""
    options = {**LEARN, "failures": "avoid"}
    found = []
    for per_cost in (False, True):
        loop = cheap(space=UNIT, per_cost=per_cost, **options)
        for _ in range(14):
            (point,) = loop.ask()
            loop.tell(point, math.sin(9 * point["x"]), cost=1000 ** point["y"])
        points = loop.observations[0][6:]
        found.append(sum(point["y"] for point in points) / len(points))
    assert found[1] < 0.5 * found[0]


def test_the_value_is_the_improvement_by_unit_of_cost() -> None:
    """Beside BoTorch's function divided by the cost by hand, at every point."""
    loop = cheap(space=UNIT, model="cagp")
    X = torch.rand(8, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    loop.tell(X, f(X))
    setting = Setting(loop.model, X, None, 1, 0, {"raw_samples": 256})
    best = propose(log_ei, replace(setting, log_cost=LogCost()))
    grid = torch.cartesian_prod(*2 * [torch.linspace(0, 1, 101, dtype=torch.float64)])
    with torch.no_grad():
        value = [log_ei(setting)(points.unsqueeze(1)) - 3 * points[:, 0] for points in (best, grid)]
    assert value[0].item() >= value[1].max().item() - 1e-3


class LogCost(Model):
    """A cost of exp(3 x)."""

    def posterior(self, X: torch.Tensor, *args: Any, **options: Any) -> Any:
        return SimpleNamespace(mean=3 * X[..., :1])


def log_ei(setting: Setting) -> Any:
    return qLogExpectedImprovement(setting.model, setting.means.max(), setting.sampler())


def test_costs_come_back_and_are_corrected(tmp_path: Path) -> None:
    with cheap(tmp_path) as loop:
        X = loop.ask(3)
        loop.tell(X, f(X), cost=[1.0, None, 3.0], id=["a", "b", "c"])
        loop.tell(X[:1] * 0.5, [1.0], cost=2)
        assert loop.tell(X[:1], f(X[:1]), id="a", cost=1.0) == ["a"]
        with pytest.raises(InvalidDataError, match="'a' was told before"):
            loop.tell(X[:1], f(X[:1]), id="a", cost=4.0)
        loop.revise("b", cost=5.0)
        before = loop.observations
        torch.testing.assert_close(before[1][:3], f(X))
    with Optimizer.open(tmp_path) as again:
        assert list(again.history.told.costs) == [1.0, 5.0, 3.0, 2.0]
        assert list(again.observations_frame()["cost"]) == [1.0, 5.0, 3.0, 2.0]
        again.forget("b")
        assert list(again.history.told.costs) == [1.0, 3.0, 2.0]
        again.migrate([(0.0, 1.0), (-2.0, 4.0)])
        assert list(again.history.told.costs) == [1.0, 3.0, 2.0]


def test_costs_go_through_tables_and_migrations(tmp_path: Path) -> None:
    loop = cheap(space=UNIT)
    loop.tell(
        [{"x": 0.2, "y": 0.5}, {"x": 0.9, "y": 0.5}, {"x": 0.4, "y": 0.1}], [1.0, 2.0, 3.0], cost=[4.0, 5.0, None]
    )
    loop.to_csv(tmp_path / "past.csv")
    other = Optimizer.from_csv(tmp_path / "past.csv", UNIT, model="wiski")
    assert list(other.history.told.costs)[:2] == [4.0, 5.0]
    assert math.isnan(other.history.told.costs[2])
    loop.migrate({"x": (0.0, 0.5), "y": (0.0, 1.0)})
    loop.revise(1, 2.5, cost=6.0)
    loop.migrate(UNIT)
    assert loop.history.told.costs[loop.history.told.ids.index(1)] == 6.0


@pytest.mark.parametrize(
    ("cost", "message"),
    [
        ([1.0], "cost: 1 for 2 points"),
        ([1.0, 0.0], "cost: 0.0 is not a positive number"),
        ([1.0, -1.0], "not a positive number"),
        ([1.0, float("inf")], "not a positive number"),
        ([1.0, "a"], "not a positive number"),
        ([1.0, True], "not a positive number"),
    ],
)
def test_costs_that_cannot_be_are_refused(tmp_path: Path, cost: Any, message: str) -> None:
    with cheap(tmp_path) as loop:
        before = events(tmp_path)
        with pytest.raises(InvalidDataError, match=message):
            loop.tell([[0.1, 0.2], [0.3, 0.4]], [1.0, 2.0], cost=cost)
        assert events(tmp_path) == before


def test_failed_points_have_no_cost_and_nothing_is_no_correction() -> None:
    loop = cheap()
    with pytest.raises(InvalidArgumentError, match="cost: failed points"):
        loop.tell([[0.1, 0.2]], failed=True, cost=1.0)
    loop.tell([[0.1, 0.2]], [1.0])
    with pytest.raises(InvalidDataError, match="nothing to correct"):
        loop.revise(0)


@pytest.mark.parametrize("acquisition", ["qUCB", "qLogEI", "Thompson", lambda setting: None])
def test_only_improvements_by_a_point_are_divided_by_cost(acquisition: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"per_cost: acquisition=.* choose one of .'qLogNEI'"):
        cheap(acquisition=acquisition, per_cost=True)


def test_a_kind_of_ones_own_is_divided_by_cost() -> None:
    require_served(AcquisitionKind("mine", log_ei, per_cost=True), 1, 0, per_cost=True)


def test_settings_for_costs_and_failures_change_and_come_back(tmp_path: Path) -> None:
    with cheap(tmp_path, acquisition="qLogNEI") as loop:
        run_until(loop, 5)
        loop.change(per_cost=True)
        loop.change(failures="learn")
        tell(loop, loop.ask(1))
    with Optimizer.open(tmp_path) as again:
        assert again.settings.per_cost
        assert again.settings.failures == "learn"
        again.change(per_cost=False, failures="avoid")
    with Optimizer.open(tmp_path, mode="r") as last:
        assert not last.settings.per_cost
        assert last.settings.failures == "avoid"
