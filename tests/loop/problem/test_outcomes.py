"""Several objectives and constraints on outcomes: read, ranked, modelled one by one, searched and resumed."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from botorch.utils.multi_objective.pareto import is_non_dominated
from loops import CHEAP, events, single_task
from outcomes import CONSTRAINED, SPACE, cheap, go, measured
from torch import Tensor

from bo_scale import WISKI
from bo_scale.decisions.acquisition import qLogPlugInExpectedImprovement
from bo_scale.decisions.by_name import acquisition_kind
from bo_scale.errors import InvalidDataError, JournalError
from bo_scale.loop import Best, Choice, Integer, Optimizer, Setting
from bo_scale.loop.problem.outcomes import Outcomes

TWO: dict[str, Any] = {"objectives": {"loss": "minimize", "gain": "maximize"}, "acquisition": None}


COARSE = [{"x": i / 3, "y": j / 3} for i in range(4) for j in range(4)]
"""Points that say where to search: what a search of many steps ends with depends on how each of them was rounded."""


def informed(**options: Any) -> Optimizer:
    """Told of a coarse mesh."""
    loop = cheap(space=SPACE, **options)
    loop.tell(COARSE, measured(COARSE, loop.outcomes.names or ()))
    return loop


def test_observations_have_the_names_of_points_and_outcomes() -> None:
    loop = cheap(space=SPACE, **TWO)
    asked = go(loop, 1)[0]
    assert loop.observations == (asked, measured(asked, ("loss", "gain")), None)


def exact(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


# ---------------------------------------------------------------- reading


OUTCOMES = Outcomes.of(None, {"loss": "minimize", "gain": "maximize"}, ["cost + 2 * loss <= 3"], {"gain": 1})


@pytest.mark.parametrize(
    "values",
    [
        [{"cost": 3.0, "loss": 1.0, "gain": 2.0}, {"loss": 4.0, "gain": 5.0, "cost": 6.0}],
        [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]],
        exact([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]),
    ],
)
def test_values_are_dictionaries_or_rows(values: Any) -> None:
    assert torch.equal(OUTCOMES.read("Y", values, 2), exact([[1, 2, 3], [4, 5, 6]]))
    assert torch.equal(OUTCOMES.read("Y", values[0], 1), exact([[1, 2, 3]]))
    assert torch.equal(OUTCOMES.inner(exact([[1, 2, 3]])), exact([[-1, 2, 3]]))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([{"loss": 1.0, "gain": 2.0}], r"row 0 lacks the outcomes \['cost'\]; .*together"),
        ([{"loss": 1.0, "gain": 2.0, "cost": 3.0, "size": 4.0}], r"unknown outcomes \['size'\]"),
        ([{"loss": 1.0, "gain": math.nan, "cost": 3.0}], r"NaN or inf in rows \[0\].*abandon"),
        ([{"loss": 1.0, "gain": 1e308, "cost": 3.0}], r"values beyond ±1e\+150 in rows \[0\].*abandon"),
        ([{"loss": 1.0, "gain": 10**400, "cost": 3.0}], "not numbers .*too large"),
        ([[1.0, 2.0]], r"shape \(1, 2\); expected 3 values, one for each of \['loss', 'gain', 'cost'\]"),
        ([1.0, 2.0, 3.0, 4.0], r"shape \(4,\)"),
    ],
)
def test_values_that_do_not_fit_are_refused_and_nothing_is_recorded(tmp_path: Path, values: Any, message: str) -> None:
    with pytest.raises(InvalidDataError, match="Y: .*" + message):
        OUTCOMES.read("Y", values, 1)
    loop = cheap(
        tmp_path,
        SPACE,
        objectives={"loss": "minimize", "gain": "maximize"},
        constraints=["cost <= 1"],
        acquisition=None,
    )
    point = loop.ask(1)
    before = events(tmp_path)
    with pytest.raises(InvalidDataError):
        loop.tell(point, values)
    assert events(tmp_path) == before
    assert loop.pending == point


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"objectives": {}}, "pass one of the two"),
        ({"objectives": ["loss", "gain"]}, "pass one of the two.*objectives={'loss': 'minimize'"),
        ({"objective": "minimize", "objectives": {"a": "minimize"}}, "pass one of the two"),
        ({"constraints": ["a <= 1"]}, "they need names"),
        ({"objectives": {"a": "minimize"}, "constraints": ["a < 1"]}, "constraint 'a < 1'"),
        ({"objectives": {"a": "minimize"}, "reference_point": {"a": 1.0}}, "reference_point: there is one objective"),
        ({**TWO, "reference_point": {"size": 1.0}}, r"reference_point: \['size'\]"),
        (
            {**TWO, "acquisition": "qLogEI"},
            r"acquisition='qLogEI': cannot handle 2 objectives.*\['qLogNEHVI', 'qLogEHVI'\]",
        ),
        (
            {**CONSTRAINED, "acquisition": "Thompson"},
            r"cannot handle 1 objective and 1 outcome constraint.*\['qLogEI', 'qLogNEI'\]",
        ),
        ({"acquisition": "qLogNEHVI"}, r"'qLogNEHVI': cannot handle 1 objective and 0"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Optimizer(SPACE, **options)


@pytest.mark.parametrize(
    ("model", "acquisition"), [("wiski", "qLogEI"), (single_task, "qLogNEI")], ids=["wiski", "SingleTaskGP"]
)
def test_constraints_on_outcomes_lead_to_the_best_that_is_feasible(model: Any, acquisition: str) -> None:
    """Least loss with a cost of at most 0.5 is at (0.5, 0.3), 0.09; of the mesh, 0.22."""
    options = {} if model == "wiski" else {"model_options": None}
    loop = informed(model=model, **options, **{**CONSTRAINED, "acquisition": acquisition})
    go(loop, 2)
    best = loop.best()
    assert best.feasible
    assert best.outcomes["cost"][0] <= 0.5
    assert best.mean == best.outcomes["loss"][0]
    assert best.sd == best.outcomes["loss"][1]
    assert best.mean < 0.12
    assert best.observed_x["x"] <= 0.5
    assert best.observed_y == pytest.approx(measured([best.observed_x], ("loss",))[0]["loss"])
    feasible = [point for point in loop.space.decode(loop.history.told.first(20)[0]) if point["x"] <= 0.5]
    assert best.observed_y == pytest.approx(min(each["loss"] for each in measured(feasible, ("loss",))))


def test_the_acquisition_under_constraints_is_plug_in_improvement() -> None:
    seen: list[Setting] = []

    def acquisition(setting: Setting) -> Tensor:
        seen.append(setting)
        return torch.rand(setting.q, 2, dtype=torch.float64)

    loop = cheap(space=SPACE, **{**CONSTRAINED, "acquisition": acquisition})
    go(loop, 3)
    made = acquisition_kind("qLogEI").make(seen[-1])
    assert isinstance(made, qLogPlugInExpectedImprovement)
    means = seen[-1].outcomes
    feasible = means[:, 1] <= 0.5
    torch.testing.assert_close(made.best_f.squeeze(), seen[-1].goal.value(means)[feasible].max())


def test_nothing_feasible_is_said() -> None:
    loop = cheap(space=SPACE, **{**CONSTRAINED, "constraints": ["cost <= -1"]})
    go(loop, 3)
    best = loop.best()
    assert not best.feasible
    told = loop.history.told.first(6)[0]
    assert best.x == loop.space.decode(told)[loop.model.models[1].posterior(told).mean.argmin()]


@pytest.mark.parametrize("acquisition", ["qLogNEHVI", "qLogEHVI"])
def test_several_objectives_find_trade_offs(acquisition: str) -> None:
    """The front is the line from (0.8, 0.3) to (0.2, 0.7)."""
    loop = informed(**{**TWO, "acquisition": acquisition, "reference_point": {"loss": 1.0}})
    asked = go(loop, 1, q=4)[0]
    front = loop.pareto()
    off = [abs(3 * (p["y"] - 0.3) + 2 * (p["x"] - 0.8)) / 13**0.5 for p in asked]
    assert max(off) < 0.05
    assert sum(t.x in asked for t in front) >= 2
    values = exact([[-t.outcomes["loss"][0], t.outcomes["gain"][0]] for t in front])
    assert is_non_dominated(values).all()
    assert all(sd >= 0 for t in front for _, sd in t.outcomes.values())
    with pytest.raises(InvalidDataError, match=r"best: .*pareto\(\)"):
        loop.best()


def test_a_run_returns_the_front_of_several_objectives_and_the_best_of_one() -> None:
    loop, names = cheap(space=SPACE, **TWO), ("loss", "gain")
    front = loop.run(lambda points: measured(points, names), batches=3, q=2, progress=False)
    assert loop.num_observations == 6
    assert front
    assert [(t.x, t.outcomes) for t in front] == [(t.x, t.outcomes) for t in loop.pareto()]
    single = cheap(space=SPACE, **CONSTRAINED)
    best = single.run(lambda points: measured(points, ("loss", "cost")), batches=3, q=2, progress=False)
    assert isinstance(best, Best)
    assert best.x == single.best().x


def test_constraints_hold_on_the_front() -> None:
    loop = cheap(space=SPACE, **TWO, constraints=["cost >= 0.4"])
    go(loop, 4)
    front = loop.pareto()
    assert front
    assert all(t.outcomes["cost"][0] >= 0.4 - 1e-9 for t in front)


def test_one_value_has_no_front() -> None:
    with pytest.raises(InvalidDataError, match="pareto: it needs outcomes with names"):
        cheap().pareto()


@pytest.mark.parametrize(("options", "noisy"), [(CONSTRAINED, False), (TWO, True)], ids=["constrained", "two"])
def test_a_resumed_run_is_the_run_that_was_never_stopped(tmp_path: Path, options: dict[str, Any], noisy: bool) -> None:
    whole, asks = cheap(space=SPACE, **options), 3
    names = whole.outcomes.names
    expected = []
    for _ in range(asks):
        expected.append(whole.ask(2))
        whole.tell(expected[-1], measured(expected[-1], names), [dict.fromkeys(names, 0.01)] * 2 if noisy else None)
    for points in expected:
        with cheap(tmp_path, SPACE, **options) as part:
            assert part.ask(2) == points
            part.tell(points, measured(points, names), [dict.fromkeys(names, 0.01)] * 2 if noisy else None)
    begin, told = events(tmp_path)[0], events(tmp_path)[2]
    assert begin["format"] == 3
    assert begin["objective"] == json.loads(json.dumps(whole.outcomes.describe()))
    assert told["Y"] == [list(each.values()) for each in measured(expected[0], names)]
    with pytest.raises(JournalError, match="objective: "):
        cheap(tmp_path, SPACE, **{**options, "constraints": ["cost <= 0.4"]})


def test_a_named_single_objective_is_the_plain_one() -> None:
    named, plain = cheap(space=SPACE, objectives={"loss": "minimize"}), cheap(space=SPACE, objective="minimize")
    for _ in range(3):
        points = named.ask(2)
        assert points == plain.ask(2)
        named.tell(points, measured(points, ("loss",)))
        plain.tell(points, [each["loss"] for each in measured(points, ("loss",))])
    assert named.best().mean == plain.best().mean
    assert named.best().outcomes == {"loss": (plain.best().mean, plain.best().sd)}
    assert isinstance(named.model, WISKI)


def test_choices_and_integers_with_constraints_on_outcomes() -> None:
    space = {"x": (0.0, 1.0), "n": Integer(0, 4), "kind": Choice(("a", "b"))}
    options = {**CHEAP["acquisition_options"], "raw_samples": 32}
    loop = cheap(space=space, acquisition_options=options, **CONSTRAINED)
    for _ in range(4):
        points = loop.ask(2)
        assert len({tuple(p.values()) for p in points}) == 2
        loop.tell(
            points,
            [
                {"loss": (p["x"] - 0.8) ** 2 + (p["kind"] == "a") - p["n"] / 8, "cost": p["x"] * p["n"] / 4}
                for p in points
            ],
        )
    best = loop.best()
    assert best.feasible
    assert best.x["kind"] == "b"


@pytest.mark.parametrize(
    "outcomes",
    [
        Outcomes.of("minimize", None, (), None),
        Outcomes.of(None, {"loss": "minimize"}, ["cost <= 3", "loss + cost >= 1"], None),
        Outcomes.of(None, {"a": "minimize", "b": "maximize"}, (), {"b": 2.0}),
        Outcomes.of(None, {"a": "minimize", "b": "maximize"}, ["c <= 1"], {}),
    ],
)
def test_outcomes_are_read_from_their_description(outcomes: Outcomes) -> None:
    assert Outcomes.described(json.loads(json.dumps(outcomes.describe()))) == outcomes
