"""Searches that learn from cheap approximations of what counts."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from botorch.models import SingleTaskGP
from loops import cheap, events
from torch import Tensor

from bo_scale import GRIEFBayes
from bo_scale.decisions.builtin import multi_fidelity_knowledge_gradient
from bo_scale.decisions.by_name import ACQUISITIONS
from bo_scale.decisions.setting import Fidelity, Setting
from bo_scale.errors import InvalidArgumentError, InvalidDataError, SpaceError
from bo_scale.loop import Choice, Fixed, Integer, Optimizer, Real
from bo_scale.loop.settings import Settings
from bo_scale.loop.surrogate.costs import FidelityCost
from bo_scale.models.errors import UnsupportedError

SPACE = {"x": (0.0, 1.0), "epochs": Integer(1, 50)}
TARGET = {"epochs": 50}
CHEAP: dict[str, Any] = {
    "objective": "minimize",
    "fidelity": TARGET,
    "acquisition": None,
    "model": "cagp",
    "acquisition_options": {"num_restarts": 2, "raw_samples": 32, "max_steps": 10, "num_maximizers": 8},
}
AT_TARGET = {**CHEAP, "acquisition": "qLogNEI", "acquisition_options": {"num_restarts": 2, "raw_samples": 32}}


def loss(point: Any) -> float:
    """Lowest at x = 0.66, and at 0.36 after one epoch, where all is lower by about one."""
    whole = point["epochs"] / 50
    return 6 * (point["x"] - 0.36 - 0.3 * whole) ** 2 + 0.2 * math.sin(15 * point["x"]) + whole


def steps(loop: Optimizer, asks: int, q: int = 1) -> list[Any]:
    """Ask and tell so many times; return the points."""
    found = []
    for _ in range(asks):
        points = loop.ask(q)
        loop.tell(points, [loss(point) for point in points])
        found += points
    return found


# ---------------------------------------------------------------- the acquisition


def test_the_points_compared_are_at_the_target() -> None:
    """Maximisers of posterior draws, and told points moved there."""
    loop = cheap(space={"x": (0.0, 1.0), "s": (0.0, 1.0)}, model="cagp", acquisition="qUCB")
    X = torch.rand(12, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    loop.tell(X, X[:, 0].sin() + X[:, 1])
    setting = Setting(loop.model, X, None, 1, 3, {"num_maximizers": 4}, fidelity=at_one(loop))
    made: Any = multi_fidelity_knowledge_gradient(setting)
    assert made.points.shape == (12, 2)
    assert bool((made.points[:, 1] == 1).all())


def at_one(loop: Optimizer) -> Fidelity:
    return Fidelity({1: 1.0}, FidelityCost(loop.space, {1: 1.0}))


def test_it_is_the_default_for_one_objective() -> None:
    assert cheap(space=SPACE, **CHEAP).settings.acquisition == "qMFKG"
    several = {**CHEAP, "objective": None, "objectives": {"a": "minimize", "b": "minimize"}}
    assert cheap(space=SPACE, **several).settings.acquisition == "qLogNEHVI"
    constrained = {**CHEAP, "objective": None, "objectives": {"a": "minimize"}, "constraints": ["c <= 1"]}
    assert cheap(space=SPACE, **constrained).settings.acquisition == "qLogNEI"
    assert cheap(space=SPACE, **CHEAP, failures="learn").settings.acquisition == "qLogNEI"
    assert cheap(space=SPACE, **{**CHEAP, "fidelity": {}}).settings.acquisition == "qLogNEI"


@pytest.mark.usefixtures("whole_fits")
def test_cheap_points_are_asked_for_and_less_is_spent() -> None:
    best = min(loss({"x": k / 1000, "epochs": 50}) for k in range(1001))
    spent = {}
    for name, options in (("cheap", CHEAP), ("target", AT_TARGET)):
        loop, spent[name], regret = cheap(space=SPACE, **options), 0, 1.0
        while (regret > 0.02 or loop.num_observations < 5) and spent[name] < 1000:
            spent[name] += sum(point["epochs"] for point in steps(loop, 1))
            regret = loss(loop.best().x) - best
    assert spent["cheap"] < 0.8 * spent["target"] < 800


@pytest.mark.parametrize("model", ["auto", "cagp", "wiski", "grief", "softki", "decoupled"])
def test_every_model_serves_batches_and_pending_points(model: str) -> None:
    loop = cheap(space=SPACE, **{**CHEAP, "model": model})
    steps(loop, 4)
    points = loop.ask(2) + loop.ask(1)
    assert len({(point["x"], point["epochs"]) for point in points}) == 3
    assert all(isinstance(point["epochs"], int) for point in points)


def test_ensembles_are_refused() -> None:
    def ensemble(X: Tensor, Y: Tensor, Yvar: Tensor | None) -> GRIEFBayes:
        bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
        return GRIEFBayes(X, Y, num_eigenfunctions=10, num_samples=2, bounds=bounds)

    loop = cheap(space=SPACE, **{**CHEAP, "model": ensemble})
    with pytest.raises(UnsupportedError, match="'qMFKG' needs a model with one joint Gaussian posterior, and GRIEF"):
        steps(loop, 5)


@pytest.mark.parametrize(
    "options",
    [
        {"fidelity": {}},
        {"objective": None, "objectives": {"a": "minimize", "b": "minimize"}},
        {"failures": "learn"},
        {"objective": None, "objectives": {"a": "minimize"}, "constraints": ["c <= 1"]},
    ],
)
def test_what_it_does_not_serve_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError, match=r"'qMFKG': (cannot handle|chooses a fidelity, and there is none)"):
        cheap(space=SPACE, **{**CHEAP, "acquisition": "qMFKG", **options})


def test_it_is_not_made_without_a_fidelity() -> None:
    loop = cheap(space=SPACE, **CHEAP)
    steps(loop, 4)
    with pytest.raises(InvalidDataError, match="needs a fidelity"):
        multi_fidelity_knowledge_gradient(Setting(loop.model, loop.history.told.first(4)[0], None, 1, 0))


# ---------------------------------------------------------------- other acquisitions


@pytest.mark.parametrize("acquisition", ["qLogNEI", "qLogEI", "qUCB", "Thompson", "qNIPV", "factory"])
def test_other_acquisitions_propose_at_the_target(acquisition: str) -> None:
    made: Any = ACQUISITIONS["qUCB"].make if acquisition == "factory" else acquisition
    loop = cheap(space=SPACE, **{**AT_TARGET, "acquisition": made})
    first = steps(loop, 4)
    assert len({point["epochs"] for point in first}) == 4
    assert {point["epochs"] for point in steps(loop, 1, 3)} == {50}


def test_they_compare_with_values_at_the_target() -> None:
    """Cheap points are better here; improvement over these would be nowhere."""
    loop = cheap(space=SPACE, **AT_TARGET)
    steps(loop, 6)
    X = loop.history.told.first(6)[0]
    told = Setting(loop.model, X, X[:1], 1, 0, admissible=loop.space.admissible, fidelity=at_one(loop))
    moved = told.at_target()
    assert bool((moved.observed[:, 1] == 1).all())
    assert bool((moved.pending[:, 1] == 1).all())
    assert moved.means.max() < told.means.max()
    assert replace(told, fidelity=None).at_target() is not moved


def test_the_fantasies_of_the_knowledge_gradient_are_at_the_target() -> None:
    """An input that alone matters and is the fidelity: where it is held, nothing is left to know."""
    loop = cheap(space={"x": (0.0, 1.0), "s": (0.0, 1.0)}, acquisition="qKG", fidelity={"s": 1.0}, model="cagp")
    X = torch.rand(6, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    loop.tell(X, 5 * (1 - X[:, 1]) - (X[:, 0] - 0.3) ** 2)
    (point,) = loop.ask()
    assert point["s"] == 1.0


def test_several_objectives_are_compared_at_the_target() -> None:
    options = {**AT_TARGET, "objective": None, "objectives": {"a": "minimize", "b": "minimize"}, "acquisition": None}
    loop = cheap(space=SPACE, **options)
    for _ in range(6):
        (point,) = loop.ask()
        loop.tell(point, {"a": loss(point), "b": point["x"]})
    assert point["epochs"] == 50
    assert {each.x["epochs"] for each in loop.pareto()} == {50}


def test_fixed_values_come_before_the_fidelity() -> None:
    for options in (CHEAP, AT_TARGET):
        loop = cheap(space=SPACE, **options)
        assert loop.ask(fixed={"epochs": 10})[0]["epochs"] == 10
        steps(loop, 4)
        assert {point["epochs"] for point in loop.ask(2, fixed={"epochs": 10})} == {10}
        (point,) = loop.ask(fixed={"x": 0.5})
        assert point["x"] == 0.5
        assert loop.best(fixed={"epochs": 10}).x["epochs"] == 10


def test_fixed_values_that_no_point_at_the_target_has_are_refused() -> None:
    space = {"x": (0.0, 1.0), "s": (0.0, 1.0)}
    for acquisition in ("qMFKG", "qLogNEI"):
        options = {**CHEAP, "fidelity": {"s": 1.0}, "acquisition": acquisition}
        loop = cheap(space=space, parameter_constraints=["x + s <= 1.5"], **options)
        points = [{"x": k / 10, "s": k / 5} for k in range(5)]
        loop.tell(points, [point["x"] for point in points])
        with pytest.raises(SpaceError, match="no point with"):
            loop.ask(fixed={"x": 0.9})
        assert loop.ask(fixed={"x": 0.4})[0]["x"] == 0.4
        assert loop.best().x["x"] <= 0.5


# ---------------------------------------------------------------- what is best


def test_the_best_is_at_the_target() -> None:
    loop = cheap(space=SPACE, **CHEAP)
    points = [{"x": k / 8, "epochs": 1 + 5 * k} for k in range(9)]
    loop.tell(points, [loss(point) for point in points])
    assert loop.best().x["epochs"] == 50
    assert loop.best().observed_x is None
    loop.tell({"x": 0.2, "epochs": 50}, 3.0)
    assert loop.best().observed_x == {"x": 0.2, "epochs": 50}
    assert loop.best().observed_y == 3.0


def test_the_progress_bar_shows_values_at_the_target(capsys: pytest.CaptureFixture[str]) -> None:
    loop = cheap(space=SPACE, **AT_TARGET)
    loop.tell([{"x": 0.1, "epochs": 1}, {"x": 0.1, "epochs": 50}], [-7.5, 7.25])
    loop.run(lambda points: [8.0 for _ in points], total=3, progress=True)
    shown = capsys.readouterr().err
    assert "7.25" in shown
    assert "-7.5" not in shown


# ---------------------------------------------------------------- costs


def test_the_cost_is_guessed_from_the_fidelity() -> None:
    def shares(parameter: Any, target: Any, values: Any) -> list[float]:
        loop = cheap(space={"p": parameter, "x": (0.0, 1.0)})
        cost = FidelityCost(loop.space, loop.space.held({"p": target}))
        X = loop.space.encode([{"p": value, "x": 0.5} for value in values])
        return [round(float(each), 9) for each in cost(X).exp().squeeze(-1) - 0.1]

    assert shares(Integer(1, 50), 50, [1, 10, 50]) == [0.02, 0.2, 1.0]
    assert shares(Integer(2, 64, log=True), 64, [2, 16, 64]) == [0.03125, 0.25, 1.0]
    assert shares(Real(0.01, 1.0, log=True), 1.0, [0.01, 0.1, 1.0]) == [0.01, 0.1, 1.0]
    assert shares(Real(0.0, 4.0), 4.0, [0.0, 1.0, 4.0]) == [0.0, 0.25, 1.0]
    assert shares(Real(-1.0, 1.0), 0.0, [-1.0, 0.0, 1.0]) == [0.0, 0.5, 1.0]
    assert shares(Real(1.0, 5.0), 1.0, [1.0, 2.0, 5.0]) == [1.0, 0.75, 0.0]
    assert shares(Real(0.1, 1.1, log=True), 0.1, [0.1, 0.6, 1.1]) == [1.0, 0.5, 0.0]
    assert shares(Choice(("low", "mid", "high"), ordered=True), "high", ["low", "high"]) == [round(1 / 3, 9), 1.0]
    assert shares(Choice(("full", "quick")), "full", ["full", "quick"]) == [1.0, 0.5]
    assert shares(Choice(("a", "b", "c")), "a", ["a", "b"]) == [0.9, 0.9]


def test_told_costs_take_the_place_of_the_guess() -> None:
    loop = cheap(space=SPACE, **CHEAP)
    made = []
    for n in range(6):
        point = {"x": n / 8, "epochs": 1 + (n * 37) % 50}
        loop.tell(point, loss(point), cost=float(point["epochs"]))
        setting = Setting(loop.model, loop.history.told.first(n + 1)[0], None, 1, 0)
        priced = loop._proposals._costed(setting)
        made.append(type(loop._proposals._log_cost(priced, {1: 1.0})))
    assert made == [FidelityCost] * 3 + [SingleTaskGP] * 3
    loop.ask()


# ---------------------------------------------------------------- the setting


@pytest.mark.parametrize(
    ("fidelity", "error", "message"),
    [
        ({"epochs": 51}, SpaceError, "fidelity: 'epochs' takes integers from 1 to 50, and got 51"),
        ({"epochs": 2.5}, SpaceError, "fidelity: 'epochs' takes"),
        ({"epochs": None}, SpaceError, "fidelity: 'epochs' takes"),
        ({"epoch": 50}, SpaceError, "fidelity: 'epoch' is no parameter. Did you mean 'epochs'"),
        ("epochs", InvalidArgumentError, "write {name: target}"),
        (50, InvalidArgumentError, "write {name: target}"),
    ],
)
def test_targets_that_cannot_be_are_refused(fidelity: Any, error: type[Exception], message: str) -> None:
    loop = cheap(space=SPACE, **AT_TARGET)
    with pytest.raises(error, match=message):
        loop.settings.updated({"fidelity": fidelity}).require(loop.space, loop.outcomes)


@pytest.mark.parametrize("options", [CHEAP, AT_TARGET])
def test_a_resumed_run_proposes_the_same(tmp_path: Path, options: dict[str, Any]) -> None:
    with cheap(tmp_path / "a", SPACE, **options) as whole:
        steps(whole, 5)
        whole.ask(2)
    with cheap(tmp_path / "b", SPACE, **options) as first:
        steps(first, 4)
    with Optimizer.open(tmp_path / "b") as again:
        assert again.settings.fidelity == TARGET
        steps(again, 1)
        again.ask(2)
    assert events(tmp_path / "a") == events(tmp_path / "b")


def test_it_changes_and_ends(tmp_path: Path) -> None:
    with cheap(tmp_path, SPACE, **CHEAP) as loop:
        steps(loop, 5)
        loop.change(fidelity={"epochs": 30})
        assert loop.best().x["epochs"] == 30
        with pytest.raises(InvalidArgumentError, match=r"chooses a fidelity, and there is none.*qLogNEI"):
            loop.change(fidelity={})
        loop.change(fidelity={}, acquisition="qLogNEI")
        assert loop.best().x in loop.observations[0]
        loop.change(fidelity={"epochs": 20})
    with Optimizer.open(tmp_path, mode="r") as again:
        assert again.settings.fidelity == {"epochs": 20}
        assert again.settings.acquisition == "qLogNEI"
        assert again.best().x["epochs"] == 20


def test_a_journal_keeps_columns_and_numbers_of_arrays(tmp_path: Path) -> None:
    with cheap(tmp_path, [(0.0, 1.0), (0.0, 2.0)], fidelity={1: torch.tensor(2.0)}) as loop:
        assert loop.settings.fidelity == {1: 2.0}
    with Optimizer.open(tmp_path) as again:
        assert again.settings.fidelity == {1: 2.0}
        again.change(fidelity={1: 2.0})
    assert len(events(tmp_path)) == 1


def test_settings_of_older_journals_have_none() -> None:
    described = cheap().settings.describe()
    del described["fidelity"]
    assert Settings.read(described).fidelity == {}


def test_a_migrated_space_holds_the_target() -> None:
    loop = cheap(space=SPACE, **CHEAP)
    steps(loop, 5)
    with pytest.raises(SpaceError, match="fidelity: 'epochs' takes integers from 1 to 40"):
        loop.migrate({"x": (0.0, 1.0), "epochs": Integer(1, 40)})
    loop.migrate({"x": (0.0, 1.0), "epochs": Integer(1, 80)})
    assert loop.best().x["epochs"] == 50
    loop.migrate({"x": (0.0, 1.0), "epochs": Fixed(50)})
    loop.tell([{"x": k / 4, "epochs": 50} for k in range(5)], [1.0, 0.5, 0.2, 0.4, 0.9])
    assert loop.ask()[0]["epochs"] == 50
    assert loop.best().observed_y == 0.2


def test_a_choice_is_a_fidelity() -> None:
    space = {"x": (0.0, 1.0), "kind": Choice(("none", "some", "all"))}
    loop = cheap(space=space, **{**CHEAP, "fidelity": {"kind": "all"}})
    for _ in range(6):
        (point,) = loop.ask()
        loop.tell(point, point["x"] ** 2 + ("none", "some", "all").index(point["kind"]))
    assert loop.best().x["kind"] == "all"
    loop.change(acquisition="qUCB")
    assert {point["kind"] for point in loop.ask(3)} == {"all"}
