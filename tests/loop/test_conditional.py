"""Parameters that exist only where others have certain values, from the first ask to the tables."""

import itertools
import math
import threading
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from loops import cheap, events

from bo_scale.errors import InvalidArgumentError, InvalidDataError, SpaceError
from bo_scale.loop import Choice, Fixed, Integer, Optimizer, Real, Space, When

SPACE = {
    "solver": Choice(["adam", "sgd"]),
    "rate": Real(1e-4, 1e-1, log=True),
    "momentum": When("solver", "sgd", (0.0, 0.99)),
    "warm": When("solver", "adam", Integer(0, 5)),
    "kind": When("warm", [3, 4], Choice(["a", "b", "c"])),
}
NAMES = list(SPACE)
ADAM = {"solver": "adam", "rate": 0.01, "warm": 2}
SGD = {"solver": "sgd", "rate": 0.01, "momentum": 0.5}


def value(point: dict[str, Any]) -> float:
    """Of the two branches adam's is higher: 0.5 at its kind b and a warm-up of 4."""
    rate = 0.1 * (math.log10(point["rate"]) + 2) ** 2
    if point["solver"] == "adam":
        return 0.5 * (point.get("kind") == "b") - 0.02 * (point["warm"] - 4) ** 2 - rate
    return 0.2 - (point["momentum"] - 0.8) ** 2 - rate


def require_whole(points: list[dict[str, Any]]) -> None:
    """Every point has exactly the parameters that exist there."""
    for point in points:
        wanted = {"solver", "rate", "momentum"} if point["solver"] == "sgd" else {"solver", "rate", "warm"}
        assert set(point) == wanted | ({"kind"} if point.get("warm") in (3, 4) else set()), point
        assert None not in point.values()


def loop(path: Path | None = None, **options: Any) -> Optimizer:
    return cheap(path, SPACE, **{"model": "cagp", "acquisition": "qLogEI", **options})


def lived(path: Path | None = None, **options: Any) -> Optimizer:
    """Twelve observations, and two pending points by a model of them."""
    made = loop(path, **{"num_initial": 12, **options})
    for _ in range(3):
        points = made.ask(4)
        made.tell(points, list(map(value, points)))
    made.ask(2)
    return made


@pytest.mark.usefixtures("whole_fits")
def test_the_better_branch_is_found() -> None:
    made = Optimizer(SPACE, objective="maximize", seed=1)
    for _ in range(10):
        points = made.ask(2)
        require_whole(points)
        made.tell(points, list(map(value, points)))
    best = made.best()
    assert (best.x["solver"], best.x["warm"], best.x["kind"]) == ("adam", 4, "b")
    assert best.observed_y > 0.45


@pytest.mark.parametrize("acquisition", ["qLogEI", "qLogNEI", "qUCB", "qNIPV", "Thompson"])
def test_every_acquisition_proposes_points_with_what_exists_and_none_twice(acquisition: str) -> None:
    made = loop(acquisition=acquisition)
    for _ in range(3):
        points = made.ask(4)
        require_whole(points)
        made.tell(points, list(map(value, points)))
    require_whole(made.pending + made.observations[0])
    assert len(made.observations[0]) == len({tuple(point.items()) for point in made.observations[0]}) == 12


def test_qkg_is_refused_as_with_any_choice() -> None:
    with pytest.raises(InvalidArgumentError, match="needs continuous parameters"):
        loop(acquisition="qKG")


def test_several_objectives() -> None:
    made = loop(acquisition="qLogNEHVI", objectives={"gain": "maximize", "cost": "minimize"})
    for _ in range(4):
        points = made.ask(2)
        made.tell(points, [{"gain": value(point), "cost": point["rate"]} for point in points])
    require_whole([each.x for each in made.pareto()])


def test_a_small_discrete_space_is_gone_through_once() -> None:
    small = {"a": Choice(list("xyz")), "b": When("a", ["x", "y"], Integer(1, 3)), "c": When("b", 2, Choice([1, 2, 4]))}
    made = cheap(space=small, model="cagp", acquisition="qLogEI")
    lists = itertools.product("xyz", (1, 2, 3), (1, 2, 4))
    wanted = {(a,) if a == "z" else (a, b, c) if b == 2 else (a, b) for a, b, c in lists}
    first = made.ask(4)
    made.tell(first, [len(point) for point in first])
    seen = [tuple(point.values()) for point in made.ask(6) + made.ask(5)]
    assert len(wanted) == len(seen) == 11
    assert set(seen) == wanted


@pytest.mark.parametrize("parent", [Choice([1, 2, 3]), Choice([1, 2, 3], ordered=True), Integer(1, 3), Choice([1, 2])])
def test_parents_of_every_kind(parent: Any) -> None:
    made = cheap(space={"n": parent, "x": When("n", 2, (0.0, 1.0))}, model="cagp", acquisition="qLogEI")
    for _ in range(3):
        points = made.ask(3)
        assert all(("x" in point) == (point["n"] == 2) for point in points)
        made.tell(points, [point.get("x", 0.0) for point in points])
    assert made.best().x["n"] == 2


# ---------------------------------------------------------------- told


def test_values_that_do_not_exist_are_ignored() -> None:
    made = loop()
    given = [ADAM, {**ADAM, "momentum": None}, {**ADAM, "momentum": math.nan}, {**ADAM, "momentum": 7, "kind": "?"}]
    made.tell(given, [1.0] * 4)
    assert made.observations[0] == [ADAM] * 4
    assert len(made.history.told.first(4)[0].unique(dim=0)) == 1
    made.tell([["sgd", 0.01, 0.5, None, None]], [2.0])
    assert made.observations[0][-1] == SGD


def test_the_same_observation_is_one_whatever_is_said_of_what_does_not_exist() -> None:
    made = loop()
    made.tell([ADAM], [1.0], id="a")
    made.tell([{**ADAM, "momentum": 0.3}], [1.0], id="a")
    made.tell([{**ADAM, "kind": None}], [1.0], id="a")
    assert made.num_observations == 1
    with pytest.raises(InvalidDataError, match="told before"):
        made.tell([{**ADAM, "warm": 3, "kind": "a"}], [1.0], id="a")


def test_a_pending_point_is_matched_whatever_is_said_of_what_does_not_exist() -> None:
    made = loop()
    points = made.ask(6)
    for point in points:
        made.tell([{"momentum": 0.7, "warm": 5, "kind": "c", **point}], [1.0])
    assert made.pending == []
    assert made.observations[0] == points


@pytest.mark.parametrize(
    ("point", "message"),
    [
        ({"solver": "sgd", "rate": 0.01}, r"rows \[1\] lack the parameter 'momentum', which exists there.*'solver' is"),
        ({**SGD, "momentum": None}, "lack the parameter 'momentum'"),
        ({**SGD, "momentum": math.nan}, "lack the parameter 'momentum'"),
        ({**ADAM, "warm": 3}, "lack the parameter 'kind'.*'warm' is 3 or 4"),
        ({**SGD, "momentum": 2.0}, r"rows \[1\] lie outside.*'momentum' takes numbers from 0.0 to 0.99, only where"),
        ({**ADAM, "solver": "rms"}, "'solver' takes one of"),
        ({**SGD, "momentm": 0.3}, "unknown parameters.*Did you mean 'momentum'"),
    ],
)
def test_what_exists_must_be_told(point: dict[str, Any], message: str) -> None:
    made = loop()
    with pytest.raises(SpaceError, match=message):
        made.tell([ADAM, point], [1.0, 2.0])
    assert made.num_observations == 0


# ---------------------------------------------------------------- fixed


@pytest.mark.parametrize(
    "fixed", [{"solver": "sgd"}, {"solver": "adam"}, {"momentum": 0.3}, {"kind": "a"}, {"warm": 4}]
)
@pytest.mark.parametrize("told", [False, True])
def test_fixed_values_are_held_where_they_exist(fixed: dict[str, Any], told: bool) -> None:
    made = lived() if told else loop()
    points = made.ask(3, fixed=fixed)
    if told:
        best = made.best(fixed=fixed)
        points += [best.x] + ([] if best.observed_x is None else [best.observed_x])
    require_whole(points)
    for point in points:
        assert {name: point[name] for name in fixed} == fixed


def test_the_best_observation_with_a_fixed_value_is_one_that_has_it() -> None:
    """0.495, the middle of the momentum, is where it stands for the model if it does not exist."""
    made = loop()
    made.tell([ADAM, {**ADAM, "warm": 1}, {**SGD, "momentum": 0.495}, SGD], [3.0, 4.0, 1.0, 2.0])
    best = made.best(fixed={"momentum": 0.495})
    assert best.observed_y == 1.0
    assert best.x["solver"] == "sgd"


@pytest.mark.parametrize(
    "fixed", [{"solver": "adam", "momentum": 0.3}, {"kind": "a", "warm": 1}, {"momentum": 2.0}, {"kind": None}]
)
def test_fixed_values_of_no_point_are_refused(fixed: dict[str, Any]) -> None:
    with pytest.raises(SpaceError, match=r"fixed: .* takes .*, only where"):
        loop().ask(1, fixed=fixed)


def test_what_exists_at_no_point_is_not_searched_and_cannot_be_fixed() -> None:
    """The search is then one over intervals, which "qKG" serves."""
    space = {"n": Fixed("a"), "x": When("n", "b", (0.0, 1.0)), "y": (0.0, 1.0), "z": When("n", "a", (0.0, 1.0))}
    made = cheap(space=space, model="cagp", acquisition="qKG")
    for _ in range(3):
        points = made.ask(2)
        assert all(set(point) == {"n", "y", "z"} for point in points)
        made.tell(points, [point["y"] for point in points])
    assert (made.history.told.first(6)[0][:, 0] == 0.5).all()
    assert made.ask(1, fixed={"z": 0.5})[0]["z"] == 0.5
    with pytest.raises(SpaceError, match="fixed: no point with"):
        made.ask(1, fixed={"x": 0.5})


# ---------------------------------------------------------------- journals and tables


def test_a_journal_has_null_where_nothing_exists_and_goes_on_as_if_never_left(tmp_path: Path) -> None:
    whole, parted = lived(tmp_path / "a"), lived(tmp_path / "b")
    parted.close()
    row = events(tmp_path / "a")[1]["X"][0]
    assert row[:2] == ["adam", pytest.approx(10**-2.5)]
    assert row[2] is row[4] is None
    with Optimizer.open(tmp_path / "a", mode="r") as seen:
        assert seen.observations[0] == whole.observations[0]
        assert seen.pending == whole.pending
        assert seen.space == whole.space
        require_whole([seen.best().x])
    again = Optimizer.open(tmp_path / "b")
    assert again.pending == parted.pending
    assert again.ask(2) == whole.ask(2)
    again.abandon(again.pending[:1])
    again.tell(again.pending, failed=True)
    assert again.pending == []


def test_a_frame_and_a_csv_have_empty_cells_that_are_read_back(tmp_path: Path) -> None:
    made = lived()
    made.to_csv(tmp_path / "told.csv")
    lines = (tmp_path / "told.csv").read_text().splitlines()
    assert lines[0].startswith("id,solver,rate,momentum,warm,kind,value")
    assert lines[1].startswith("0,adam,")
    assert ",,2,," in lines[1]
    again = Optimizer.from_csv(tmp_path / "told.csv", SPACE, objective="maximize")
    assert again.observations[0] == made.observations[0]
    frame = made.observations_frame()
    for table in (frame, frame.convert_dtypes()):
        again.tell(table[NAMES], frame["value"], id=list(frame["id"]))
        assert again.num_observations == 12
    other = Optimizer(SPACE, objective="maximize")
    other.tell(pd.DataFrame(made.observations[0]), frame["value"])
    assert other.observations[0] == made.observations[0]


def test_cells_that_say_nothing_are_empty_unless_a_choice_takes_them(tmp_path: Path) -> None:
    space = {"n": Choice([1, 2]), "x": When("n", 2, (0.0, 1.0)), "k": When("n", 1, Choice(["none", "some"]))}
    (tmp_path / "t.csv").write_text("n,x,k,value\n1,NA,none,1\n2,0.5,n/a,2\n")
    made = Optimizer.from_csv(tmp_path / "t.csv", space, objective="maximize")
    assert made.observations[0] == [{"n": 1, "k": "none"}, {"n": 2, "x": 0.5}]
    (tmp_path / "u.csv").write_text("n,x,value\n2,,1\n")
    with pytest.raises(SpaceError, match=r"rows outside the space: \['u.csv:2'\].*lack the parameter 'x'"):
        Optimizer.from_csv(tmp_path / "u.csv", space, objective="maximize")


# ---------------------------------------------------------------- migration


def test_a_parameter_becomes_unconditional_with_a_value_for_the_past_and_conditional_again(tmp_path: Path) -> None:
    made = lived(tmp_path)
    before, waiting = made.observations[0], made.pending
    always = {**SPACE, "momentum": Real(0.0, 0.99)}
    with pytest.raises(SpaceError, match=r"'momentum' exists at \d+ points of the past.*values=\{'momentum': …\}"):
        made.migrate(always)
    with pytest.raises(SpaceError, match=r"\['rate'\] are not new"):
        made.migrate(always, values={"rate": 0.1})
    with pytest.raises(SpaceError, match="'momentum' takes"):
        made.migrate(always, values={"momentum": 3.0})
    made.migrate(always, values={"momentum": 0.2})
    assert [point["momentum"] for point in made.observations[0]] == [point.get("momentum", 0.2) for point in before]
    made.migrate(SPACE)
    assert made.observations[0] == before
    assert made.pending == waiting
    made.close()
    with Optimizer.open(tmp_path) as again:
        assert again.observations[0] == before
        require_whole(again.ask(2))


def test_a_new_conditional_parameter_needs_a_value_only_where_it_exists() -> None:
    made = lived()
    n = made.num_observations
    with pytest.raises(SpaceError, match="'drop' exists at"):
        made.migrate({**SPACE, "drop": When("solver", "adam", (0.0, 1.0))})
    wider = {**SPACE, "solver": Choice(["adam", "sgd", "rms"]), "decay": When("solver", "rms", (0.0, 1.0))}
    made.migrate(wider)
    assert made.num_observations == n
    assert "decay" in made.ask(1, fixed={"solver": "rms"})[0]


def test_where_the_other_parameter_varies_no_longer_the_branch_stays_or_is_set_aside() -> None:
    made = lived()
    adam = [point for point in made.observations[0] if point["solver"] == "adam"]
    made.migrate({**SPACE, "solver": Fixed("adam")})
    assert made.observations[0] == adam
    assert len(made.history.aside) == 12 - len(adam) > 0
    points = made.ask(4)
    require_whole(points)
    made.tell(points, list(map(value, points)))
    made.migrate(SPACE)
    assert made.num_observations == 16


# ---------------------------------------------------------------- insight


def test_predictions_and_checks_serve_and_shares_of_variance_are_refused() -> None:
    made = lived(model=None)
    points = [point for point in made.observations[0] if point["solver"] == "adam"]
    assert [each.x for each in made.predict([{**point, "momentum": 0.4} for point in points])] == points
    assert "12 observations" in str(made.cross_validate(folds=4))
    made.tell([SGD], [50.0], id="typo")
    require_whole([each.x for each in made.suspects(threshold=1.0)])
    with pytest.raises(SpaceError, match=r"importance: \['momentum', 'warm', 'kind'\] exist only where"):
        made.importance()


def test_several_threads_ask_and_tell() -> None:
    made = loop()

    def work() -> None:
        for _ in range(3):
            points = made.ask(2)
            require_whole(points)
            made.tell(points, list(map(value, points)))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert made.num_observations == 18


# ---------------------------------------------------------------- spaces


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ({"a": Choice([1, 2]), "x": When("b", 1, (0.0, 1.0))}, "'x' depends on 'b', which is no parameter"),
        ({"a": Choice([1, 2]), "x": When("a", 3, (0.0, 1.0))}, "'x' depends on 'a' being 3, but that takes one of"),
        ({"a": Choice([1, 2]), "x": When("a", [1, "z"], (0.0, 1.0))}, "'a' being 'z'"),
        ({"a": Integer(1, 3), "x": When("a", "z", (0.0, 1.0))}, "'a' being 'z', but that takes integers"),
        ({"a": (0.0, 1.0), "x": When("a", 0.5, (0.0, 1.0))}, "'x' depends on 'a'.*must be a Choice or an Integer"),
        ({"a": When("b", 1, Choice([1, 2])), "b": When("a", 1, Choice([1, 2]))}, "circle: 'a' on 'b' on 'a'"),
        ({"a": When("a", 1, Choice([1, 2])), "b": (0.0, 1.0)}, "circle: 'a' on 'a'"),
        ([Choice([1, 2]), When("x0", 1, (0.0, 1.0))], "a When needs names"),
        ({"a": Fixed("u"), "x": When("a", "v", (0.0, 1.0))}, "nothing to search"),
    ],
)
def test_conditions_that_cannot_be_are_refused_by_name(space: Any, message: str) -> None:
    with pytest.raises(SpaceError, match=message):
        Space.of(space)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("a", [], (0.0, 1.0)), "no value"),
        (("a", 1, Fixed(2)), "the parameter is a Fixed"),
        (("a", 1, When("b", 1, (0.0, 1.0))), "the parameter is a When.*to nest conditions"),
        (("a", 1, "x"), "needs a pair"),
        (("a", 1, (1.0, 0.0)), "when.*is 1.*lower one smaller"),
        (("a", [[1]], (0.0, 1.0)), "must be a finite number, a string or a bool"),
    ],
)
def test_a_when_is_of_a_value_and_a_parameter(arguments: Any, message: str) -> None:
    with pytest.raises(SpaceError, match=message):
        When(*arguments)


def test_values_may_be_given_in_any_collection() -> None:
    for values in ([2, 3], (2, 3), range(2, 4), torch.tensor([2, 3])):
        assert When("n", values, (0.0, 1.0)).value == (2, 3)
    assert When("n", torch.tensor(2), (0.0, 1.0)).value == (2,)
    assert When("n", True, (0.0, 1.0)).value == (True,)


def test_a_constraint_on_what_may_not_exist_is_refused_and_one_beside_it_holds() -> None:
    with pytest.raises(SpaceError, match="'momentum' exists only where 'solver' has certain values"):
        Space.of(SPACE, ["momentum + rate <= 1"])
    space = Space.of({"n": Integer(1, 4), "y": (0.0, 4.0), "x": When("n", [1, 2], (0.0, 1.0))}, ["n + y <= 4"])
    made = cheap(space=space, model="cagp", acquisition="qLogEI")
    for _ in range(3):
        points = made.ask(3) + made.ask(1, fixed={"x": 0.25})
        assert all(point["n"] + point["y"] <= 4 + 1e-9 for point in points)
        assert all(("x" in point) == (point["n"] <= 2) for point in points)
        made.tell(points, [point["y"] for point in points])


def test_a_space_is_read_from_its_description_and_rows_from_their_numbers() -> None:
    space = Space.of(SPACE)
    assert Space.described(space.describe()) == space
    points = space.decode(space.admissible.sample(30, 0)) if space.admissible is not None else []
    require_whole(points)
    rows = space.settled(points)
    assert [space.unpacked(numbers) for numbers in space.packed(rows)] == rows
    assert space.points(rows) == points
    assert space.holds([*points, {"solver": "sgd", "rate": 0.01}]).tolist() == [True] * 30 + [False]


def test_conditions_mixtures_failures_and_costs_go_together(tmp_path: Path) -> None:
    """Shares that add up, a parameter of one solver alone, points that fail, and costs."""
    space = {"a": (0.0, 1.0), "b": (0.0, 1.0), "kind": Choice(["p", "q"]), "t": When("kind", "q", (1.0, 3.0))}
    options = {"model": "cagp", "acquisition": "qLogNEI", "failures": "learn", "per_cost": True}
    seen = []
    with cheap(tmp_path, space=space, parameter_constraints=["a + b == 1"], **options) as loop:
        for _ in range(8):
            (point,) = loop.ask()
            seen.append(point)
            assert abs(point["a"] + point["b"] - 1) < 1e-12
            assert ("t" in point) == (point["kind"] == "q")
            if point["a"] > 0.8:
                loop.tell(point, failed=True)
            else:
                loop.tell(point, point["a"] - (point.get("t", 2.0) - 2) ** 2, cost=1 + point["b"])
        best = loop.best(fixed={"kind": "q"}).x
        assert abs(best["a"] + best["b"] - 1) < 1e-9
    with Optimizer.open(tmp_path) as again:
        assert len(again.observations[0]) + len(again.history.failures) == len(seen)
        again.ask(2)
