"""A run over mixtures: proposals, told points, fixed values, journals, tables and migrations keep to the equality."""

from pathlib import Path
from typing import Any

import pytest
import torch
from loops import cheap, events

from bo_scale.errors import InvalidArgumentError, SpaceError
from bo_scale.loop import Choice, Integer, Linear, Optimizer, Real, Space

SHARES = {"a": (0.0, 1.0), "b": (0.0, 1.0), "c": (0.0, 1.0)}
ONE = "a + b + c == 1"
TOP = {"a": 0.5, "b": 0.3, "c": 0.2}


def value(point: Any) -> float:
    return -sum((point[name] - top) ** 2 for name, top in TOP.items())


def begun(path: Path | None = None, space: Any = SHARES, **options: Any) -> Optimizer:
    given = {"objective": "maximize", "model": "softki", "parameter_constraints": [ONE], **options}
    return cheap(path, space=space, **given)


def assert_mixed(points: Any) -> None:
    for point in points:
        assert abs(sum(point[name] for name in SHARES) - 1) < 1e-15
        assert all(0 <= point[name] <= 1 for name in SHARES)


def go_on(loop: Optimizer, asks: int, q: int = 1) -> list[dict[str, Any]]:
    points: list[Any] = []
    for _ in range(asks):
        points += loop.ask(q)
        loop.tell(points[-q:], [value(point) for point in points[-q:]])
    return points


# ---------------------------------------------------------------- a run


@pytest.mark.parametrize("acquisition", ["qLogNEI", "qLogEI", "qUCB", "qNIPV", "Thompson"])
@pytest.mark.parametrize("q", [1, 4])
def test_every_proposal_is_a_mixture(acquisition: str, q: int) -> None:
    loop = begun(acquisition=acquisition)
    assert_mixed(go_on(loop, 8 // q, q))
    assert_mixed([loop.best().x, loop.best(fixed={"a": 0.3}).x])


def test_the_best_mixture_is_found() -> None:
    loop = begun(acquisition="qLogEI", model=None, acquisition_options={}, seed=0)
    go_on(loop, 20)
    assert [loop.best().x[name] for name in TOP] == pytest.approx([*TOP.values()], abs=0.02)


def test_the_first_point_is_the_centre_of_the_mixtures() -> None:
    assert list(begun().ask(1)[0].values()) == pytest.approx([1 / 3] * 3)
    uneven = begun(space={"a": (0.0, 1.0), "b": (0.0, 0.2), "c": (0.0, 0.1)})
    (centre,) = uneven.ask(1)
    assert sum(centre.values()) == pytest.approx(1, abs=1e-15)
    assert centre["a"] > 0.8
    limited = begun(parameter_constraints=[ONE, "a >= 0.6"])
    assert limited.ask(1)[0]["a"] >= 0.6
    first = begun(seed=3).ask(4)
    assert len({tuple(point.values()) for point in first}) == 4


def test_a_run_goes_on_from_its_journal(tmp_path: Path) -> None:
    with begun(tmp_path / "a", seed=1) as loop:
        go_on(loop, 6)
        after = loop.ask(2)
    with begun(tmp_path / "b", seed=1) as loop:
        go_on(loop, 6)
    (first, *_) = events(tmp_path / "b")
    assert "'equal': True" in str(first)
    with Optimizer.open(tmp_path / "b") as again:
        assert again.space.constraints == (Linear.of(ONE),)
        assert again.ask(2) == after
    with Optimizer.open(tmp_path / "b", mode="r") as seen:
        assert seen.num_observations == 6
        assert_mixed([seen.best().x])
    with pytest.raises(Exception, match="begun with other arguments"):
        begun(tmp_path / "b", parameter_constraints=["a + b + c <= 1"])


def test_several_objectives_over_mixtures() -> None:
    two = {"x": "maximize", "y": "minimize"}
    loop = begun(objective=None, objectives=two, acquisition="qLogNEHVI", constraints=["z >= 0.1"])
    for _ in range(3):
        points = loop.ask(2)
        assert_mixed(points)
        loop.tell(points, [{"x": p["a"], "y": p["a"] * p["b"], "z": p["c"]} for p in points])
    assert_mixed([each.x for each in loop.pareto()])


def test_integers_choices_and_inequalities_beside_an_equality() -> None:
    space = {**SHARES, "n": Integer(0, 4), "kind": Choice(("u", "v", "w")), "t": Real(1e-3, 1.0, log=True)}
    loop = begun(space=space, parameter_constraints=["a + b + c + n / 10 == 1", "a <= b"], acquisition="qLogEI")
    for point in go_on(loop, 6, 2):
        assert point["a"] + point["b"] + point["c"] + point["n"] / 10 == pytest.approx(1, abs=1e-15)
        assert point["a"] <= point["b"] + 1e-9
    (point,) = loop.ask(1, fixed={"n": 3, "kind": "v"})
    assert point["a"] + point["b"] + point["c"] == pytest.approx(0.7, abs=1e-15)


def test_parameters_without_names_and_in_other_units() -> None:
    bounds = torch.tensor([[10.0, -5.0], [20.0, 5.0]])
    loop = begun(space=bounds, parameter_constraints=[Linear({0: 1.0, 1: -2.0}, 12.0, equal=True)])
    for _ in range(5):
        X = loop.ask(2)
        torch.testing.assert_close(X[:, 0] - 2 * X[:, 1], torch.full((2,), 12.0).double(), rtol=0, atol=1e-13)
        loop.tell(X, X[:, 0])


# ---------------------------------------------------------------- fixed values


def test_fixed_shares_leave_the_others_to_make_up_the_rest() -> None:
    loop = begun()
    for asks in range(6):
        points = loop.ask(2, fixed={"b": 0.7})
        assert all(point["b"] == 0.7 for point in points)
        assert_mixed(points)
        loop.tell(points, list(map(value, points)))
        assert len(loop.steps) == asks + 1
    assert loop.ask(2, fixed={"b": 0.7, "c": 0.1}) == [{"a": pytest.approx(0.2), "b": 0.7, "c": 0.1}] * 2
    assert loop.ask(1, fixed={"a": 0.33, "b": 0.33, "c": 0.34}) == [{"a": 0.33, "b": 0.33, "c": 0.34}]
    best = loop.best(fixed={"b": 0.4})
    assert best.x["b"] == 0.4
    assert_mixed([best.x])
    with pytest.raises(SpaceError, match=r"fixed: no point with .* satisfies parameter_constraints: .* == 1"):
        loop.ask(1, fixed={"a": 0.7, "b": 0.7})


# ---------------------------------------------------------------- told points


def test_two_decimals_that_add_up_are_told_and_three_that_do_not_are_refused() -> None:
    loop = begun()
    loop.tell([{"a": 0.33, "b": 0.33, "c": 0.34}, {"a": 1, "b": 0, "c": 0}], [1.0, 2.0])
    loop.tell({"a": 0.3333333, "b": 0.3333333, "c": 0.3333333}, 3.0)
    with pytest.raises(SpaceError, match=r"== 1 is missed by -0.001, and 1.7e-06 is allowed. Correct a value"):
        loop.tell({"a": 0.333, "b": 0.333, "c": 0.333}, 3.0)
    assert loop.num_observations == 3
    lax = begun(match_tolerance=1e-3)
    lax.tell({"a": 0.333, "b": 0.333, "c": 0.333}, 3.0)
    assert_mixed(go_on(lax, 5))


def test_points_told_with_slack_can_be_predicted_and_come_back_from_a_table(tmp_path: Path) -> None:
    loop = begun()
    go_on(loop, 4)
    loop.tell({"a": 0.3333333, "b": 0.3333333, "c": 0.3333333}, 1.0)
    assert loop.predict([loop.best().x])[0].mean == pytest.approx(loop.best().mean)
    loop.to_csv(tmp_path / "all.csv")
    options: dict[str, Any] = {"objective": "maximize", "parameter_constraints": [ONE]}
    again = Optimizer.from_csv(tmp_path / "all.csv", SHARES, **options)
    assert again.observations[0] == loop.observations[0]
    with pytest.raises(SpaceError, match=r"all.csv: rows outside the space.* is missed by"):
        Optimizer.from_csv(tmp_path / "all.csv", SHARES, **options, match_tolerance=1e-9)


def test_an_inequality_that_is_missed_is_told_as_before() -> None:
    loop = begun(parameter_constraints=[ONE, "a <= 0.4"])
    with pytest.raises(SpaceError, match=r"rows \[0\] violate parameter_constraints: .*<= 0.4.$"):
        loop.tell({"a": 0.5, "b": 0.3, "c": 0.2}, 1.0)


# ---------------------------------------------------------------- migrations


def test_a_mixture_gets_another_component_and_an_equality_comes_and_goes(tmp_path: Path) -> None:
    with begun(tmp_path) as loop:
        points = go_on(loop, 5)
        loop.migrate({**SHARES, "d": (0.0, 0.5)}, values={"d": 0.0}, parameter_constraints=["a + b + c + d == 1"])
        assert loop.num_observations == 5
        (point,) = loop.ask(1)
        assert sum(point.values()) == pytest.approx(1, abs=1e-15)
        loop.abandon([point])
        loop.migrate({**SHARES, "d": (0.0, 0.5)}, parameter_constraints=["a + b + c == 0.9"])
        assert loop.num_observations == 0
        loop.migrate({**SHARES, "d": (0.0, 0.5)})
        assert [{name: each[name] for name in SHARES} for each in loop.observations[0]] == points
    with Optimizer.open(tmp_path) as again:
        assert again.num_observations == 5
        with pytest.raises(SpaceError, match=r"from 0 to 3\.5"):
            again.migrate({**SHARES, "d": (0.0, 0.5)}, parameter_constraints=["a + b + c + d == 4"])
        assert again.space.constraints == ()


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("space", "constraints", "message"),
    [
        (SHARES, ["a + b == 3"], r"1 \* a \+ 1 \* b == 3: within the bounds the left side is from 0 to 2"),
        (SHARES, [ONE, "a + b + c == 0.5"], "== 0.5 contradicts the other equalities"),
        (SHARES, ["a + b == 1", "b + c == 1", "a - c == 0.5"], "== 0.5 contradicts the other equalities"),
        ({"a": (0.0, 1.0), "b": (0.0, 1.0)}, ["a + b == 1", "a - b == 0.2"], "leave one point"),
        ({"n": Integer(0, 9), "m": Integer(0, 9)}, ["n + m == 5"], "leaves no continuous parameter to solve for"),
        ({"x": (0.0, 1.0), "n": Integer(0, 9), "m": Integer(0, 9)}, ["n + m == 5"], "no continuous parameter"),
        ({"a": Real(0, 1, digits=1), "b": Real(0, 1, digits=1)}, ["a + b == 1"], "a Real of its own, without digits"),
        (
            {"a": (0.0, 1.0), "n": Integer(0, 9), "b": (0.0, 1.0)},
            ["a + n / 10 == 1", "a - n / 10 == 0"],
            "with the other equalities leaves no continuous parameter",
        ),
        ({"a": Real(0.1, 1, log=True), "b": (0.0, 1.0)}, ["a + b == 1"], "'a' is on a logarithmic scale"),
        ({"a": Choice((1, 2, 4)), "b": (0.0, 1.0)}, ["a + b == 1"], "'a' takes one of"),
        (SHARES, ["a + b + z == 1"], r"\['z'\] are not parameters"),
        (SHARES, ["a = 1"], "constraint 'a = 1'"),
        (SHARES, ["a == b == c"], "exactly one <=, >= or =="),
    ],
)
def test_equalities_that_cannot_be_used_are_refused_with_the_space(
    space: Any, constraints: list[str], message: str
) -> None:
    with pytest.raises(SpaceError, match=f"parameter_constraints: .*{message}"):
        Space.of(space, constraints)


def test_no_room_beside_an_equality_is_refused_with_the_optimizer() -> None:
    with pytest.raises(SpaceError, match="no admissible point was found"):
        begun(parameter_constraints=[ONE, "a >= 0.6", "b >= 0.6"])


def test_equalities_said_twice_or_that_follow_from_others_change_nothing() -> None:
    loop = begun(parameter_constraints=[ONE, "2 * a + 2 * b == 2 - 2 * c", "a <= 0.5"])
    points = go_on(loop, 5)
    assert_mixed(points)
    assert all(point["a"] <= 0.5 for point in points)


def test_importance_and_outcomes_have_no_equalities() -> None:
    loop = begun()
    go_on(loop, 5)
    with pytest.raises(SpaceError, match="parameter_constraints: they make parameters depend on each other"):
        loop.importance()
    with pytest.raises(InvalidArgumentError, match=r"constraints: 1 \* z == 3: .*Give a range by two constraints"):
        Optimizer(SHARES, objectives={"y": "maximize"}, constraints=["z == 3"])
