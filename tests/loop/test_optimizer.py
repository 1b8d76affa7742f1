"""Ask and tell, as a user sees them."""

import math
import threading
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from botorch.models import SingleTaskGP
from loops import BOX, CHEAP, asked, cheap, events, f, single_task, tell, variances
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import bo_scale
from bo_scale import WISKI, LinearProjection
from bo_scale.errors import (
    BoScaleError,
    InvalidArgumentError,
    InvalidDataError,
    SpaceError,
)
from bo_scale.loop import Choice, Fixed, Integer, Optimizer, Setting
from bo_scale.loop.proposals import Proposals

MODELS = pytest.mark.parametrize("model", ["wiski", single_task], ids=["wiski", "SingleTaskGP"])


def same(a: Any, b: Any) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


# ---------------------------------------------------------------- asking


@pytest.mark.parametrize("acquisition", ["qUCB", "qLogEI", "qLogNEI", "qKG", "qNIPV", "Thompson"])
@MODELS
def test_every_acquisition_with_every_model(model: Any, acquisition: str) -> None:
    options = {**CHEAP["acquisition_options"], "num_fantasies": 2, "mc_points": 16}
    loop = cheap(model=model, acquisition=acquisition, acquisition_options=options)
    lower, upper = torch.tensor(BOX, dtype=torch.float64).mT
    for X in asked(loop, 4):
        assert X.shape == (2, 2)
        assert torch.equal(X.clamp(lower, upper), X)
        assert not torch.equal(X[0], X[1])
    assert [step.fitted for step in loop.steps[:3]] == [False, False, True]
    assert loop.num_observations == 8


@pytest.mark.parametrize("d", [1, 2, 3])
def test_any_dimension_is_searched(d: int) -> None:
    loop = cheap(space=[(-1.0, 3.0)] * d, model_options={"grid_size": 7}, acquisition="qLogEI")
    best = loop.run(lambda X: -(X - 0.5).square().sum(-1), batches=6, q=2, progress=False)
    assert torch.equal(best.x, loop.best().x)
    others = 4 * torch.rand(1000, d, dtype=torch.float64) - 1
    assert best.observed_y > -(others - 0.5).square().sum(-1).quantile(0.7)  # above 0.71 of them over 50 seeds
    assert best.x.shape == (d,)


def test_a_projection_serves_many_dimensions(tmp_path: Path) -> None:
    """Of eight inputs one direction matters."""
    weights = torch.linspace(-1.0, 1.0, 8, dtype=torch.float64)
    options = {"space": [(0.0, 1.0)] * 8, "num_initial": 16, "acquisition": "qLogEI", "model": "wiski"}
    options["model_options"] = {"grid_size": 12, "projection": LinearProjection(8, 1)}
    loop = cheap(tmp_path, **options)
    best = loop.run(lambda X: -(X @ weights - 1.5).square(), batches=10, q=2, progress=False)
    others = -(torch.rand(10_000, 8, dtype=torch.float64) @ weights - 1.5).square()
    assert best.observed_y > others.quantile(0.95)
    assert loop.model.projection.weight.shape == (1, 8)
    loop.close()
    again = cheap(tmp_path, **options)
    assert again.num_observations == loop.num_observations
    again.close()


def test_first_points_do_not_depend_on_how_many_are_asked_at_once() -> None:
    one, many = cheap(num_initial=50), cheap(num_initial=50)
    single = torch.cat([one.ask() for _ in range(12)])
    assert torch.equal(torch.cat([many.ask(1), many.ask(4), many.ask(7)]), single)
    assert torch.pdist(single).min() > 0.05
    assert not torch.equal(cheap(seed=1).ask(3), cheap(seed=2).ask(3))


def test_a_seed_says_everything_and_the_global_randomness_nothing() -> None:
    runs = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        loop = cheap(seed=5)
        points = []
        for _ in range(5):
            before = torch.random.get_rng_state()
            points.append(loop.ask(2))
            tell(loop, points[-1])
            loop.best()
            assert torch.equal(torch.random.get_rng_state(), before)
            torch.rand(seed)
        runs.append(points)
    assert same(*runs)


def test_the_model_is_fitted_when_n_has_grown_by_the_factor() -> None:
    loop = cheap(refit_growth=1.5)
    asked(loop, 9)
    assert [(s.ask, s.n, s.q) for s in loop.steps] == [(i, 2 * i, 2) for i in range(9)]
    assert [s.n for s in loop.steps if s.fitted] == [4, 6, 10, 16]
    assert all(s.model_seconds >= 0 and s.acquisition_seconds >= 0 for s in loop.steps)


def test_points_under_way_are_not_asked_again() -> None:
    loop = cheap(acquisition="qLogEI")
    asked(loop, 3)
    X = torch.cat([loop.ask(1) for _ in range(4)])
    assert torch.equal(loop.pending, X)
    unit = loop.space.encode(X)
    assert torch.pdist(unit, p=float("inf")).min() > 1e-3


@pytest.mark.parametrize("q", [0, -1])
def test_asking_for_nothing_is_refused(q: int) -> None:
    with pytest.raises(ValueError, match=f"q={q}: must be at least 1"):
        cheap().ask(q)


def test_a_factory_of_acquisitions_sees_the_setting() -> None:
    seen: list[Setting] = []

    def acquisition(setting: Setting) -> Tensor:
        seen.append(setting)
        return torch.full((setting.q, 2), 0.5, dtype=torch.float64)

    loop = cheap(acquisition=acquisition, acquisition_options={"a": 1})
    asked(loop, 2)
    under_way = loop.ask(1)
    torch.testing.assert_close(under_way, torch.tensor([[0.5, 0.5]], dtype=torch.float64))
    loop.ask(3)
    assert [(s.q, s.options, None if s.pending is None else len(s.pending)) for s in seen] == [
        (1, {"a": 1}, None),
        (3, {"a": 1}, 1),
    ]
    assert len({s.seed for s in seen}) == 2
    assert seen[0].observed.shape == (4, 2)


def failing(loop: Optimizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """One ask that is interrupted while it looks for points."""
    with monkeypatch.context() as patch:
        patch.setattr("bo_scale.loop.proposals.propose", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            loop.ask(2)


def test_an_ask_that_fails_leaves_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not in the points, nor in when the model is fitted: a resumed run would not know of it."""
    calm, harmed = cheap(refit_growth=1.25), cheap(refit_growth=1.25)
    assert same(asked(harmed, 2), asked(calm, 2))
    for _ in range(4):
        X = calm.ask(2)
        assert torch.equal(harmed.ask(2), X)
        for x in X.split(1):
            tell(calm, x)
            tell(harmed, x)
            failing(harmed, monkeypatch)
    assert [(s.n, s.fitted) for s in calm.steps] == [(s.n, s.fitted) for s in harmed.steps]


def test_points_slightly_outside_are_taken_within_the_tolerance() -> None:
    loop = cheap(match_tolerance=1e-4)
    loop.tell([[1.00005, -2.0], [0.0, 3.0004]], [0.0, 1.0])
    with pytest.raises(SpaceError):
        loop.tell([[1.0002, 0.0]], [0.0])


def test_names_are_kept_all_the_way() -> None:
    loop = cheap(space={"x": (0.0, 1.0), "y": (-2.0, 3.0)})
    plain = cheap()
    for _ in range(3):
        X, points = plain.ask(2), loop.ask(2)
        assert points == [{"x": x, "y": y} for x, y in X.tolist()]
        assert loop.pending == points
        tell(loop, points[::-1])
        tell(plain, X.flip(0))
    assert loop.best().x == dict(zip("xy", plain.best().x.tolist(), strict=True))
    loop.tell([{"y": 0.0, "x": 1.0}, {"x": 0.5, "y": 1.0}], [1.0, 2.0])
    loop.tell({"y": 0.0, "x": 1.0}, 1.0)
    assert loop.num_observations == 9


@pytest.mark.parametrize("empty", [[], torch.empty(0, 2)])
def test_telling_nothing_changes_nothing(tmp_path: Path, empty: Any) -> None:
    loop = cheap(tmp_path)
    loop.ask(1)
    before = events(tmp_path)
    loop.tell(empty, [])
    assert events(tmp_path) == before
    assert loop.num_observations == 0


NAN, INF = float("nan"), float("inf")
GOOD = torch.tensor([[0.2, 0.0], [0.4, 1.0], [0.6, 2.0]], dtype=torch.float64)


REFUSED = [
    (GOOD + torch.tensor([0.0, 2.0]), [1, 2, 3], None, r"rows \[2\] lie outside"),
    (GOOD.clone().index_fill_(0, torch.tensor([1]), NAN), [1, 2, 3], None, r"X: NaN or inf in rows \[1\]"),
    (GOOD[:, :1], [1, 2, 3], None, r"X: shape \(3, 1\); expected n × 2"),
    (GOOD, [1, NAN, INF], None, r"Y: NaN or inf in rows \[1, 2\]; nothing was recorded.*abandon"),
    (GOOD, [1, 2], None, r"Y: shape \(2,\); expected 3 values"),
    (GOOD, [[1, 2, 3]], None, r"Y: shape \(1, 3\)"),
    (GOOD, 1.0, None, "expected 3 values"),
    (GOOD, torch.zeros(3, 2), None, r"Y: shape \(3, 2\)"),
    (GOOD, [1, 2, 3], [0.1, 0.0, -0.1], r"Yvar: variances in rows \[1, 2\] are not positive"),
    (GOOD, [1, 2, 3], [0.1, float("inf"), 0.1], r"Yvar: NaN or inf in rows \[1\]"),
    (GOOD, [1, 2, 3], [0.1], r"Yvar: shape"),
    ([{"x": 1.0}], [1.0], None, "no names"),
]


def wrong(loop: Optimizer, X: Any, Y: Any, Yvar: Any, message: str) -> None:
    with pytest.raises(BoScaleError, match=message):
        loop.tell(X, Y, Yvar)


@pytest.fixture(scope="module")
def waiting(tmp_path_factory: pytest.TempPathFactory) -> tuple[Optimizer, Path]:
    """A run with four observations and two pending points."""
    folder = tmp_path_factory.mktemp("waiting")
    loop = cheap(folder)
    asked(loop, 2)
    loop.ask(2)
    return loop, folder / "journal.jsonl"


@pytest.mark.parametrize(("X", "Y", "Yvar", "message"), REFUSED)
def test_what_does_not_fit_is_refused_by_row_and_nothing_recorded(
    waiting: tuple[Optimizer, Path], X: Any, Y: Any, Yvar: Any, message: str
) -> None:
    loop, journal = waiting
    before, pending = journal.read_bytes(), loop.pending
    wrong(loop, X, Y, Yvar, message)
    assert loop.num_observations == 4
    assert torch.equal(loop.pending, pending)
    assert journal.read_bytes() == before


def test_what_was_refused_changes_no_later_ask() -> None:
    calm, told_wrong = cheap(), cheap()
    for loop in (calm, told_wrong):
        asked(loop, 2)
        loop.ask(2)
    for case in REFUSED:
        wrong(told_wrong, *case)
    assert torch.equal(told_wrong.ask(1), calm.ask(1))


def test_known_variances_reach_the_model() -> None:
    """Of two values at one point the more certain one counts."""
    X = torch.tensor([[x, y] for x in (0.1, 0.5, 0.9) for y in (-1.0, 0.5, 2.0)], dtype=torch.float64)
    means = []
    for certain in (0.0, 1.0):
        loop = cheap()
        loop.tell(X, f(X), torch.full((9,), 0.01))
        loop.tell(X[4].expand(2, 2), [0.0, 1.0], [1e-4 if certain == v else 1.0 for v in (0.0, 1.0)])
        means.append(loop.model.posterior(loop.space.encode(X[4])).mean.item())
    assert means[0] == pytest.approx(0.0, abs=0.1)
    assert means[1] == pytest.approx(1.0, abs=0.1)


class Elements(TorchDispatchMode):
    """Counts the numbers that torch computes, views of others not among them."""

    count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        given = {v.untyped_storage().data_ptr() for v in args if isinstance(v, Tensor)}
        for v in out if isinstance(out, tuple | list) else [out]:
            if isinstance(v, Tensor) and v.untyped_storage().data_ptr() not in given:
                self.count += v.numel()
        return out


def test_the_cost_of_a_tell_is_free_of_n(tmp_path: Path) -> None:
    loop, costs = cheap(tmp_path), []
    for n in (21, 2001):
        X = torch.rand(n - loop.num_observations, 2, dtype=torch.float64)
        tell(loop, X)
        loop.tell([[0.25, 0.5]], [1.0])  # rows have room again: what they grow by is a constant share
        size = (tmp_path / "journal.jsonl").stat().st_size
        with Elements() as elements:
            loop.tell([[0.25, 0.5]], [1.0])
        costs.append(((tmp_path / "journal.jsonl").stat().st_size - size, elements.count))
    assert costs[0][0] == costs[1][0] < 200
    assert costs[0][1] == pytest.approx(costs[1][1], abs=30)


@MODELS
def test_minimising_is_maximising_the_negative(model: Any) -> None:
    up, down = cheap(model=model, objective="maximize"), cheap(model=model, objective="minimize")
    for _ in range(4):
        X = up.ask(2)
        assert torch.equal(down.ask(2), X)
        up.tell(X, f(X))
        down.tell(X, -f(X))
    a, b = up.best(), down.best()
    assert torch.equal(a.x, b.x)
    assert torch.equal(a.observed_x, b.observed_x)
    assert (a.mean, a.sd, a.observed_y) == (-b.mean, b.sd, -b.observed_y)
    assert b.observed_y == min((-f(b.observed_x.unsqueeze(0))).tolist())


@pytest.mark.parametrize("values", [[1.0], [2.0] * 5, [0.0, 0.0], [1e8] * 3 + [1e8 + 1]])
@MODELS
def test_few_or_constant_values_are_served(model: Any, values: list[float]) -> None:
    loop = cheap(model=model, num_initial=1)
    X = loop.ask(len(values))
    loop.tell(X, values)
    assert loop.ask(2).shape == (2, 2)
    best = loop.best()
    assert best.mean == pytest.approx(values[0], rel=1e-6, abs=1)
    assert best.observed_y == max(values)


# ---------------------------------------------------------------- arguments


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"acquisition": "EI"}, "acquisition='EI'"),
        ({"model": "gp"}, "model='gp'"),
        ({"refit_growth": 0.5}, "refit_growth"),
        ({"model": single_task, "model_options": {"a": 1}}, "model_options"),
        ({"space": [(0.0, 1.0)] * 5, "model": "wiski"}, "5 parameters"),
    ],
)
def test_arguments_that_cannot_be_used_are_refused_at_once(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        cheap(tmp_path, **options)
    assert not (tmp_path / "journal.jsonl").exists()


def test_the_device_of_the_model_is_the_cpu_unless_told_otherwise() -> None:
    runs = [asked(cheap(device=device), 3) for device in (None, "cpu", torch.device("cpu"))]
    assert same(runs[0], runs[1])
    assert same(runs[0], runs[2])


# ---------------------------------------------------------------- several threads


def test_tells_from_many_threads_while_asking_are_all_there(tmp_path: Path) -> None:
    loop = cheap(tmp_path)
    asked(loop, 2)
    X = torch.rand(8, 10, 2, dtype=torch.float64)
    failures: list[BaseException] = []

    def work(points: Tensor) -> None:
        try:
            for x in points.split(1):
                tell(loop, x)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(part,)) for part in X]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        loop.ask(1)
        loop.best()
    for thread in threads:
        thread.join()
    assert failures == []
    assert loop.num_observations == 84
    told = [tuple(x) for event in events(tmp_path) if event["event"] == "tell" for x in event["X"]]
    assert len(told) == 84
    assert set(told) >= {tuple(x) for x in X.flatten(0, 1).tolist()}
    after, best = loop.ask(2), loop.best()
    loop.close()
    with cheap(tmp_path) as again:
        assert again.best().mean == best.mean
        assert torch.equal(again.pending[-2:], after)


def test_a_tell_does_not_wait_for_an_ask_under_way() -> None:
    told, looking = threading.Event(), threading.Event()

    def acquisition(setting: Setting) -> Tensor:
        looking.set()
        assert told.wait(30), "the tell waited for the ask"
        return torch.full((setting.q, 2), 0.5, dtype=torch.float64)

    loop = cheap(acquisition=acquisition)
    tell(loop, loop.ask(4))
    asking = threading.Thread(target=loop.ask)
    asking.start()
    assert looking.wait(30)
    loop.tell([[0.5, 0.5]], [0.0])
    told.set()
    asking.join()
    assert loop.steps[-1].n == 4
    assert loop.num_observations == 5


def test_asks_of_several_threads_come_one_after_the_other() -> None:
    loop = cheap(acquisition="qLogEI")
    asked(loop, 2)
    threads = [threading.Thread(target=loop.ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [step.ask for step in loop.steps] == list(range(5))
    assert torch.pdist(loop.space.encode(loop.pending), p=float("inf")).min() > 1e-3


# ---------------------------------------------------------------- run


def test_run_takes_up_pending_points_first_and_variances_with_values(tmp_path: Path) -> None:
    calls: list[Tensor] = []

    def evaluate(X: Tensor) -> tuple[Tensor, Tensor]:
        calls.append(X)
        if len(calls) == 3:
            raise RuntimeError("the machine is on fire")
        return f(X), variances(X)

    with cheap(tmp_path) as loop, pytest.raises(RuntimeError, match="fire"):
        loop.run(evaluate, batches=5, q=2, progress=False)
    with cheap(tmp_path) as again:
        best = again.run(evaluate, batches=2, q=2, progress=False)
        assert again.num_observations == 10
    assert torch.equal(calls[3], calls[2])
    assert best.observed_y == pytest.approx(max(f(torch.cat([c for i, c in enumerate(calls) if i != 2])).tolist()))


def test_a_model_of_either_kind_is_what_the_user_gets() -> None:
    for model, kind in (("wiski", WISKI), (single_task, SingleTaskGP)):
        loop = cheap(model=model)
        asked(loop, 2)
        assert isinstance(loop.model, kind)


@pytest.mark.parametrize("acquisition", ["qLogEI", "qLogNEI"])
@pytest.mark.parametrize("discrete", [False, True])
def test_every_point_of_a_batch_is_worth_an_experiment(acquisition: str, discrete: bool) -> None:
    """A batch used to have one good point, others from nowhere, or copies of the first."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.rand(60, 3, generator=generator, dtype=torch.float64)
    kinds = [("A", "B", "C")[k % 3] for k in range(60)] if discrete else ["B"] * 60
    points = [dict(zip("abc", row), **({"kind": kind} if discrete else {})) for row, kind in zip(rows.tolist(), kinds)]

    def height(point: dict[str, Any]) -> float:
        penalty = {"A": 1.0, "B": 0.0, "C": 0.3}[point.get("kind", "B")]
        return math.cos(4 * (point["a"] - 0.5)) - (point["c"] - 0.7) ** 2 + 0.2 * point["b"] - penalty

    space: dict[str, Any] = dict.fromkeys("abc", (0.0, 1.0))
    if discrete:
        space["kind"] = Choice(("A", "B", "C"))
    options = {"num_eigenfunctions": 200}
    optimizer = Optimizer(space, objective="maximize", model="grief", model_options=options, acquisition=acquisition)
    optimizer.tell(points, [height(point) + 0.1 * math.sin(37 * k) for k, point in enumerate(points)])
    batch = optimizer.ask(5)
    typical = sorted(map(height, points))
    assert sum(height(point) > typical[48] for point in batch) >= 3  # better than four fifths of random points
    asked = torch.tensor([[point[name] for name in "abc"] for point in batch], dtype=torch.float64)
    assert torch.pdist(asked).min() > 1e-4 or discrete


def test_the_journal_records_every_choice_of_the_model(tmp_path: Path) -> None:
    with Optimizer([(0.0, 1.0)], path=tmp_path, num_initial=4, refit_growth=1.0, seed=0) as loop:
        for _ in range(9):
            X = loop.ask(1)
            loop.tell(X, [-((row[0] - 0.3) ** 2) for row in torch.as_tensor(X).tolist()])
    asks = [event for event in events(tmp_path) if event["event"] == "ask"]
    assert len(asks) == 9
    with_choice = [event for event in asks if "choice" in event]
    assert [event["n"] for event in with_choice] == [4, 8]
    assert with_choice[0]["choice"][0]["family"] == "exact"
    assert "reason" in with_choice[0]["choice"][0]
    with Optimizer([(0.0, 1.0)], path=tmp_path, num_initial=4, refit_growth=1.0, seed=0) as again:
        assert again.num_observations == 9


def test_the_default_serves_any_number_of_inputs_and_reports_its_choice() -> None:
    loop = Optimizer([(0.0, 1.0)] * 7, seed=1)
    X = loop.ask(12)
    loop.tell(X, [float(x.sum()) for x in X])
    assert loop.ask(1).shape == (1, 7)
    assert loop.choice.plan.family == "exact"
    assert "exact GP" in str(loop.choice)


def test_options_for_one_model_need_its_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"\['grid_size'\] are not options of every model.*model='wiski'"):
        Optimizer([(0.0, 1.0)], model_options={"grid_size": 9}, path=tmp_path)
    assert not (tmp_path / "journal.jsonl").exists()


@pytest.mark.parametrize(("space", "count"), [([(0.0, 1.0)], 4), ([(0.0, 1.0)] * 6, 7), ([(0.0, 1.0)] * 30, 8)])
def test_the_initial_design_is_small(space: Any, count: int) -> None:
    assert Optimizer(space).settings.num_initial == count


def test_it_counts_parameters_not_one_hot_columns() -> None:
    space = {"x": (0.0, 1.0), "kind": Choice(tuple("abcdefgh")), "fixed": Fixed(3.0)}
    assert Optimizer(space).settings.num_initial == 4


# ---------------------------------------------------------------- what users pass


SPACE = {"x": (0.0, 1.0), "kind": Choice(("a", "b"))}


def test_tables_of_pandas_are_told() -> None:
    frame = pd.DataFrame({"kind": ["a", "b"], "x": [0.25, 0.5], "y": [1.0, 2.0], "z": [3.0, 4.0]})
    points = frame[["kind", "x"]]
    plain, told = Optimizer(SPACE, seed=1), Optimizer(SPACE, seed=1)
    plain.tell(points.to_dict("records"), [1.0, 2.0])
    told.tell(points, frame["y"])
    assert told.history.told.count == 2
    assert repr(told.best()) == repr(plain.best())
    one = Optimizer(SPACE, seed=1)
    one.tell(points, frame[["y"]])
    assert repr(one.best()) == repr(plain.best())
    several = [Optimizer(SPACE, seed=1, objectives={"z": "minimize", "y": "maximize"}) for _ in range(2)]
    several[0].tell(points, frame[["y", "z"]])
    several[1].tell(points.to_dict("records"), [{"y": 1.0, "z": 3.0}, {"y": 2.0, "z": 4.0}])
    assert repr(several[0].pareto()) == repr(several[1].pareto())


@pytest.mark.parametrize("value", [np.float32(1), np.array(1.0), np.array([1.0]), torch.tensor(1.0), torch.ones(1)])
def test_numbers_of_any_library_are_told(value: Any) -> None:
    several = Optimizer(SPACE, objectives={"y": "minimize", "z": "maximize"})
    several.tell([{"x": 0.5, "kind": "a"}], [{"y": value, "z": 2.0}])
    one = Optimizer(SPACE)
    one.tell([{"x": 0.5, "kind": "a"}], [value])
    assert several.num_observations == one.num_observations == 1


@pytest.mark.parametrize("value", [None, "1.0", 1j])
def test_what_is_no_number_is_refused_by_name(value: Any) -> None:
    loop = Optimizer(SPACE)
    with pytest.raises(InvalidDataError, match=r"Y: not numbers .*nothing was recorded"):
        loop.tell([{"x": 0.5, "kind": "a"}], [value])
    if value is not None:  # which stands for an unknown variance
        with pytest.raises(InvalidDataError, match="Yvar: not numbers"):
            loop.tell([{"x": 0.5, "kind": "a"}], [1.0], [value])
    assert loop.num_observations == 0


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("q", [2.5, "2", True, None])
def test_numbers_of_points_and_seeds_are_whole(q: Any) -> None:
    loop = Optimizer(SPACE)
    with pytest.raises(InvalidArgumentError, match="q"):
        loop.ask(q)
    if q is not None:
        with pytest.raises(InvalidArgumentError, match="seed"):
            Optimizer(SPACE, seed=q)


def test_it_says_its_sizes() -> None:
    loop = Optimizer(SPACE)
    loop.tell([{"x": 0.5, "kind": "a"}], [1.0])
    loop.ask(2)
    assert repr(loop) == "Optimizer(2 parameters, 1 observations, 2 pending, acquisition qLogNEI)"
    assert version("bo_scale") == bo_scale.__version__


@pytest.mark.parametrize("acquisition", ["qLogNEI", "qUCB", "Thompson"])
def test_while_all_values_are_equal_points_fill_the_space(acquisition: str) -> None:
    """A model of equal values is the least sure at the corners: of 30 points 18 lay there, half of them twice."""
    loop = cheap(acquisition=acquisition)
    for _ in range(12):
        loop.tell(loop.ask(1), [1.0])
    X = loop.history.told.first(12)[0]
    assert bool(((X > 1e-3) & (X < 1 - 1e-3)).all())
    assert len(X.unique(dim=0)) == 12
    assert loop.history.initial_points == 12
    loop.tell(loop.ask(1), [0.5])
    loop.ask(1)
    assert loop.history.initial_points == 13


def test_when_no_new_first_points_are_left_the_model_proposes_others() -> None:
    loop = cheap(space={"a": Choice(("x", "y", "z")), "b": Integer(1, 3)}, num_initial=2)
    for _ in range(12):
        loop.tell(loop.ask(1), [1.0])
    assert loop.history.initial_points == 9
    assert len(loop.history.told.first(9)[0].unique(dim=0)) == 9


FEW = {"a": Integer(1, 4), "b": Choice(("u", "v", "w"))}


def few_value(point: dict) -> float:
    return -((point["a"] - 2.2) ** 2) + {"u": 0.0, "v": 2.0, "w": -1.0}[point["b"]]


@pytest.mark.usefixtures("whole_fits")
@pytest.mark.parametrize("options", [{}, {"acquisition": "Thompson"}, {"acquisition": "qUCB"}])
def test_without_noise_no_point_is_proposed_again_while_others_are_left(options: dict) -> None:
    loop = Optimizer(FEW, objective="maximize", seed=1, **options)
    points = [{"a": 2, "b": "v"}]  # the best, and one of the centres
    loop.tell(points, [few_value(points[0])])
    for _ in range(11):
        (point,) = loop.ask(1)
        points.append(point)
        loop.tell([point], [few_value(point)])
    assert len({tuple(point.values()) for point in points}) == 12
    assert loop.ask(1)[0] in points  # none is left


@pytest.mark.usefixtures("whole_fits")
def test_nor_with_the_continuous_parameters_held() -> None:
    loop = Optimizer({**FEW, "x": (0.0, 1.0)}, objective="maximize", seed=1, num_initial=2)
    points = []
    for _ in range(12):
        (point,) = loop.ask(1, fixed={"x": 0.25})
        points.append(point)
        loop.tell([point], [few_value(point)])
    assert len({tuple(point.values()) for point in points}) == 12


@pytest.mark.usefixtures("whole_fits")
def test_points_are_known_by_every_outcome() -> None:
    """Of the first outcome the model is sure. The second has noise, so that another measurement would tell of it."""
    loop = Optimizer(FEW, objectives={"y": "maximize"}, constraints=["z <= 1"], seed=1, num_initial=4)
    points = loop.ask(8)
    values = [{"y": few_value(point), "z": float(point["a"])} for point in points]
    loop.tell(points, values, Yvar=[{"y": 1e-8, "z": 1.0}] * 8)
    X, Y, _ = loop.history.told.first(8)
    setting = Setting(loop.model, X, None, 1, 0, admissible=loop.space.admissible, goal=loop.history.outcomes.goal(Y))
    assert len(Proposals._knowing(setting).known) == 0
    setting = Setting(loop.model.models[0], X, None, 1, 0, admissible=loop.space.admissible)
    assert len(Proposals._knowing(setting).known) == 8
