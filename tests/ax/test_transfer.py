"""From Ax to the loop and home: nothing lost, nothing changed, and both sides go on."""

import json
import math
import warnings
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
import trainings
from ax.api.client import Client
from ax.api.configs import ChoiceParameterConfig, DerivedParameterConfig, RangeParameterConfig
from ax.core.experiment import Experiment
from ax.core.parameter import ParameterType, RangeParameter
from ax.core.search_space import SearchSpace
from ax.core.trial_status import TrialStatus
from botorch.exceptions.errors import UnsupportedError
from stores import tables

from bo_scale.ax import LocalRunner, attach, client_of, optimizer_from
from bo_scale.ax.transfer import space_of
from bo_scale.errors import InterpolationWarning, InvalidDataError, JournalError, SpaceError, TransferWarning
from bo_scale.loop import Choice, Fixed, Integer, Linear, Optimizer, Real, When

FLOATS = [RangeParameterConfig(name=name, parameter_type="float", bounds=(0.0, 2.0)) for name in ("x", "y")]
KINDS = [
    *FLOATS,
    RangeParameterConfig(name="rate", parameter_type="float", bounds=(1e-4, 1.0), scaling="log"),
    RangeParameterConfig(name="n", parameter_type="int", bounds=(1, 8)),
    RangeParameterConfig(name="wide", parameter_type="int", bounds=(1, 512), scaling="log"),
    ChoiceParameterConfig(name="kind", parameter_type="str", values=["a", "b", "c"], is_ordered=False),
    ChoiceParameterConfig(name="bias", parameter_type="bool", values=[False, True], is_ordered=True),
    ChoiceParameterConfig(name="size", parameter_type="int", values=[16, 32, 64], is_ordered=True),
    ChoiceParameterConfig(name="one", parameter_type="float", values=[3.0]),
]
DERIVED = DerivedParameterConfig(name="s", expression_str="x + y", parameter_type="float")
STEPS = RangeParameterConfig(name="step", parameter_type="float", bounds=(0.0, 1.0), step_size=0.1)
CHEAP: dict[str, Any] = {
    "model": "wiski",
    "model_options": {"grid_size": 8},
    "acquisition_options": {"num_restarts": 1, "raw_samples": 16, "max_steps": 5, "mc_samples": 16},
    "refit_growth": 10.0,
    "num_initial": 4,
}


def random(s: Any) -> torch.Tensor:
    """Points of any kind, as fast as can be."""
    return torch.rand(s.q, s.observed.shape[-1], dtype=torch.float64)


@pytest.fixture(autouse=True)
def _coarse_grids(_seed_and_strict_warnings: None) -> None:
    warnings.simplefilter("ignore", InterpolationWarning)


def outcomes(point: Any) -> dict[str, float]:
    return {"loss": (point["x"] - 1.2) ** 2 + point["y"], "gain": math.cos(point["x"]), "cost": point["y"]}


def made(
    parameters: Any = FLOATS,
    objective: str = "-loss",
    limits: list[str] | None = None,
    parameter_limits: list[str] | None = None,
) -> Client:
    client = Client(random_seed=0)
    client.configure_experiment(parameters=parameters, parameter_constraints=parameter_limits)
    client.configure_optimization(objective, outcome_constraints=limits)
    client.configure_generation_strategy(method="random_search")
    return client


def told(client: Client, index: int, point: Any, names: Any, sem: float | None = None) -> None:
    values = outcomes(point)
    client.complete_trial(index, {name: values[name] if sem is None else (values[name], sem) for name in names})


def lived(client: Client, names: Any = ("loss",), sem: float | None = None) -> Client:
    """Six trials: complete ones, a failed and an abandoned one, and two that run."""
    for index, point in client.get_next_trials(max_trials=6).items():
        if index == 1:
            client.mark_trial_failed(index)
        elif index == 3:
            client.mark_trial_abandoned(index)
        elif index not in (4, 5):
            told(client, index, point, names, sem)
    return client


def trials(client: Client) -> list[tuple[int, TrialStatus, dict[str, Any], dict[str, type]]]:
    return [
        (index, trial.status, dict(trial.arm.parameters), {k: type(v) for k, v in trial.arm.parameters.items()})
        for index, trial in client._experiment.trials.items()
    ]


def frame(client: Client) -> pd.DataFrame:
    data = client._experiment.lookup_data().full_df
    columns = ["trial_index", "metric_name", "mean", "sem", "step", "arm_name", "metric_signature"]
    return data[columns].sort_values(["trial_index", "metric_name"]).reset_index(drop=True)


CASES: dict[str, tuple[dict[str, Any], tuple[str, ...], dict[str, Any]]] = {
    "floats": ({}, ("loss",), CHEAP),
    "constraint": (
        {"limits": ["cost + 2 * gain <= 3"], "parameter_limits": ["x + 2 * y <= 3.5"]},
        ("loss", "cost", "gain"),
        CHEAP,
    ),
    "two": ({"objective": "-loss, gain", "limits": ["gain >= -2", "cost >= 0.1"]}, ("loss", "gain", "cost"), CHEAP),
    "kinds": ({"parameters": KINDS, "parameter_limits": ["x + n <= 6"]}, ("loss",), {"model": "softki"}),
    "steps": ({"parameters": [*FLOATS, STEPS], "parameter_limits": ["x + step <= 2"]}, ("loss",), CHEAP),
}
EACH = pytest.mark.parametrize("case", CASES)


def opened(case: str, client: Client, **options: Any) -> Optimizer:
    given = {**CASES[case][2], **options}
    if case == "kinds":
        given["acquisition"] = random
    return Optimizer.from_ax(client, **given)


@EACH
@pytest.mark.parametrize("sem", [None, 0.1], ids=["unknown", "known"])
def test_there_and_back_nothing_has_changed(case: str, sem: float | None) -> None:
    options, names, _ = CASES[case]
    client = lived(made(**options), names, sem)
    before, data = trials(client), frame(client)
    optimizer = opened(case, client)
    assert optimizer.to_ax() is client
    assert trials(client) == before
    pd.testing.assert_frame_equal(frame(client), data, check_exact=True)
    assert optimizer.num_observations == 2
    points = {index: point for index, _, point, _ in before}
    assert optimizer.pending == [points[4], points[5]]


@EACH
@pytest.mark.parametrize("sem", [None, 0.1], ids=["unknown", "known"])
def test_a_new_client_has_every_trial_datum_and_status(case: str, sem: float | None) -> None:
    options, names, _ = CASES[case]
    client = lived(made(**options), names, sem)
    optimizer = opened(case, client)
    optimizer.client = None
    copy = optimizer.to_ax()
    assert copy is not client
    failed = {TrialStatus.FAILED: TrialStatus.ABANDONED}
    assert trials(copy) == [(i, failed.get(status, status), *rest) for i, status, *rest in trials(client)]
    pd.testing.assert_frame_equal(frame(copy), frame(client), rtol=1e-15)
    ours, theirs = copy._experiment, client._experiment
    assert ours.search_space.parameters == theirs.search_space.parameters
    assert [(c.constraint_dict, c.bound) for c in ours.search_space.parameter_constraints] == [
        (c.constraint_dict, c.bound) for c in theirs.search_space.parameter_constraints
    ]
    again = opened(case, copy)
    assert again.space == optimizer.space
    assert again.outcomes == optimizer.outcomes
    assert again.num_observations == 2
    assert again.pending == optimizer.pending


@EACH
def test_both_sides_go_on(case: str) -> None:
    """The loop finishes what ran, asks, is told in another order and of a stranger; Ax then knows, and goes on."""
    options, names, _ = CASES[case]
    client = lived(made(**options), names)
    optimizer = opened(case, client)
    old = optimizer.pending
    asked = optimizer.ask(3)

    def tell(points: list[Any]) -> None:
        optimizer.tell(points, [{name: outcomes(point)[name] for name in names} for point in points])

    tell([old[1], asked[2]])
    optimizer.abandon(asked[0])
    stranger = {**old[0], "x": 0.123, "y": 0.456}
    tell([stranger])
    assert optimizer.to_ax() is client
    statuses = [status.name for _, status, *_ in trials(client)]
    assert statuses == [
        *("COMPLETED", "FAILED", "COMPLETED", "ABANDONED", "RUNNING", "COMPLETED"),
        *("ABANDONED", "RUNNING", "COMPLETED", "COMPLETED"),
    ]
    points = [point for _, _, point, _ in trials(client)]
    assert points[5:] == [old[1], *asked, stranger]
    assert [list(map(type, point.values())) for point in points[6:]] == [list(map(type, points[0].values()))] * 4
    data = frame(client)
    for index in (5, 8, 9):
        rows = data[data["trial_index"] == index].set_index("metric_name")["mean"].to_dict()
        assert rows == {name: outcomes(points[index])[name] for name in names}
    optimizer.to_ax()
    assert len(client._experiment.trials) == 10  # nothing twice
    pd.testing.assert_frame_equal(frame(client), data)
    tell([old[0]])
    tell(optimizer.ask(1))
    optimizer.to_ax()
    assert len(client._experiment.trials) == 11
    assert client._experiment.trials[4].status is TrialStatus.COMPLETED
    ((index, point),) = client.get_next_trials(max_trials=1).items()
    told(client, index, point, names)
    assert index == 11
    assert Optimizer.from_ax(client, **{**CASES[case][2]}).num_observations == 2 + 2 + 1 + 2 + 1


def test_what_ax_has_becomes_what_the_loop_has() -> None:
    client = made(KINDS, "loss", ["cost >= 0.1", "gain - 2 * cost <= 3"], ["x + n <= 6", "x >= y"])
    optimizer = opened("kinds", client)
    kinds = dict(zip(optimizer.space.names, optimizer.space.parameters, strict=True))
    assert kinds == {
        "x": Real(0.0, 2.0),
        "y": Real(0.0, 2.0),
        "rate": Real(1e-4, 1.0, log=True),
        "n": Integer(1, 8),
        "wide": Integer(1, 512, log=True),
        "kind": Choice(("a", "b", "c")),
        "bias": Choice((False, True), ordered=True),
        "size": Choice((16, 32, 64), ordered=True),
        "one": Fixed(3.0),
    }
    assert set(map(repr, optimizer.space.constraints)) == {
        repr(Linear({"n": 1.0, "x": 1.0}, 6.0)),
        repr(Linear({"y": 1.0, "x": -1.0}, 0.0)),
    }
    assert optimizer.outcomes.names == ("loss", "cost", "gain")
    assert optimizer.outcomes.signs == (1.0, 1.0, 1.0)
    assert optimizer.outcomes.constraints == (Linear({"cost": -1}, -0.1), Linear({"gain": 1, "cost": -2}, 3))


def test_thresholds_of_objectives_are_the_reference_point() -> None:
    optimizer = opened("floats", made(objective="-loss, gain", limits=["loss <= 4", "cost >= 1"]))
    assert optimizer.outcomes.reference == (4.0, None)
    assert optimizer.outcomes.signs == (-1.0, 1.0, 1.0)
    assert optimizer.outcomes.constraints == (Linear({"cost": -1}, -1),)


def test_known_standard_errors_are_the_noise_of_the_model() -> None:
    optimizer = opened("floats", lived(made(), sem=0.2))
    _, Y, Yvar = optimizer.history.told.first(2)
    torch.testing.assert_close(Yvar, torch.full((2, 1), 0.04, dtype=torch.float64))
    assert (Y < 0).all() or (Y != 0).any()
    optimizer.tell(optimizer.pending[0], [{"loss": 1.0}], [{"loss": 0.09}])
    client = optimizer.to_ax()
    data = frame(client)
    assert data[data["trial_index"] == 4]["sem"].tolist() == [0.3]


def test_an_experiment_will_do() -> None:
    client = lived(made())
    optimizer = Optimizer.from_ax(client._experiment, **CHEAP)
    home = optimizer.to_ax()
    assert home is not client
    assert home._experiment is client._experiment


def test_the_file_of_a_client_will_do(tmp_path: Path) -> None:
    client = lived(made())
    client.save_to_json_file(str(tmp_path / "client.json"))
    optimizer = optimizer_from(tmp_path / "client.json", **CHEAP)
    assert trials(client_of(optimizer)) == trials(client)


def test_a_journal_remembers_which_trial_is_which(tmp_path: Path) -> None:
    client = lived(made())
    with Optimizer.from_ax(client, path=tmp_path, **CHEAP) as optimizer:
        first = optimizer.ask(2)
        optimizer.tell(first[:1], [{"loss": 1.0}])
        optimizer.to_ax()
        second = optimizer.ask(1)
        best = optimizer.best()
    expected = trials(client)
    with Optimizer.from_ax(client, path=tmp_path, **CHEAP) as optimizer:
        assert optimizer.pending[-2:] == [first[1], *second]
        assert optimizer.best().mean == best.mean
        optimizer.to_ax()
    assert trials(client)[:8] == expected
    assert [point for _, _, point, _ in trials(client)[8:]] == second
    events = [json.loads(line) for line in (tmp_path / "journal.jsonl").read_text().splitlines()]
    assert [event["event"] for event in events] == ["begin", "import", "ask", "tell", "trials", "ask", "trials"]
    with pytest.raises(JournalError, match="its journal belongs to another experiment"):
        Optimizer.from_ax(made(), path=tmp_path, **CHEAP)
    with Optimizer.from_ax(client, path=tmp_path, **CHEAP):
        pass  # the refusal let go of it


@pytest.mark.parametrize("sem", [None, 0.1], ids=["unknown", "known"])
def test_a_journal_takes_up_what_became_of_the_experiment_meanwhile(tmp_path: Path, sem: float | None) -> None:
    client = lived(made(), sem=sem)
    variances = None if sem is None else [0.01]
    with Optimizer.from_ax(client, path=tmp_path, **CHEAP) as optimizer:
        own = optimizer.ask(2)
        optimizer.tell(own[:1], [{"loss": 1.0}], variances)
    points = {index: point for index, _, point, _ in trials(client)}
    told(client, 5, points[5], ("loss",), sem)
    client.mark_trial_failed(4)
    new = client.get_next_trials(max_trials=3)  # 6, 7, 8: the loop's own points are 9 and 10
    told(client, 7, new[7], ("loss",), sem)
    client.mark_trial_abandoned(8)
    for _ in range(2):  # the second time there is nothing new
        with Optimizer.from_ax(client, path=tmp_path, **CHEAP) as optimizer:
            assert optimizer.pending == [own[1], new[6]]
            known, values, _ = optimizer.observations
            assert known == [points[0], points[2], own[0], points[5], new[7]]
            assert values[2:] == [
                {"loss": value} for value in (1.0, outcomes(points[5])["loss"], outcomes(new[7])["loss"])
            ]
            before = len((tmp_path / "journal.jsonl").read_text().splitlines())
            assert optimizer.to_ax() is client
    assert [point for _, _, point, _ in trials(client)[9:]] == own
    assert len(trials(client)) == 11
    assert len((tmp_path / "journal.jsonl").read_text().splitlines()) == before
    with Optimizer.from_ax(client, path=tmp_path, **CHEAP) as optimizer:  # and a model is made of all of it
        assert len(optimizer.ask(1)) == 1
        assert optimizer.steps[-1].n == 5


def test_data_of_metrics_of_ones_own_are_no_curve(tmp_path: Path) -> None:
    """They have a step, 0."""
    client = made()
    attach(client, LocalRunner(f"{trainings.__file__}:quick", tmp_path, workers=1))
    client.run_trials(1, initial_seconds_between_polls=0.05)
    data = frame(client)
    assert data["step"].tolist() == [0.0]
    optimizer = Optimizer.from_ax(client, **CHEAP)
    assert optimizer.observations[1] == [{"loss": data["mean"].item()}]
    optimizer.tell(optimizer.ask(1), [{"loss": 2.0}])
    optimizer.to_ax()
    pd.testing.assert_frame_equal(frame(client)[:1], data)


def test_an_experiment_without_trials_is_resumed(tmp_path: Path) -> None:
    client = made()
    with Optimizer.from_ax(client, path=tmp_path, **CHEAP) as optimizer:
        points = optimizer.ask(2)
        optimizer.tell(points[:1], [{"loss": 1.0}])
    with Optimizer.from_ax(client, path=tmp_path, **CHEAP) as optimizer:
        assert optimizer.pending == points[1:]
    space = {"x": (0.0, 2.0), "y": (0.0, 2.0)}
    with Optimizer(space, objectives={"loss": "minimize"}, path=tmp_path / "other", **CHEAP) as own:
        own.ask(1)
    with pytest.raises(JournalError, match="belongs to another experiment"):
        Optimizer.from_ax(client, path=tmp_path / "other", **CHEAP)


def copied(client: Client, path: Path) -> Client:
    """As it is loaded in a new process."""
    client.save_to_json_file(str(path))
    return Client.load_from_json_file(str(path))


def test_trials_that_came_home_and_were_not_saved_come_home_again(tmp_path: Path) -> None:
    client = lived(made())
    saved = copied(client, tmp_path / "ax.json")
    with Optimizer.from_ax(client, path=tmp_path / "run", **CHEAP) as optimizer:
        own = optimizer.ask(2)
        optimizer.tell(own[:1], [{"loss": 1.0}])
        optimizer.to_ax()  # as trials 6 and 7, which a crash takes
    new = saved.get_next_trials(max_trials=1)
    told(saved, 6, new[6], ("loss",))
    for _ in range(2):
        with Optimizer.from_ax(saved, path=tmp_path / "run", **CHEAP) as optimizer:
            points, values, _ = optimizer.observations
            assert points[2:] == [own[0], new[6]]
            assert values[2:] == [{"loss": 1.0}, {"loss": outcomes(new[6])["loss"]}]
            optimizer.to_ax()
    assert [(index, status.name, point) for index, status, point, _ in trials(saved)[6:]] == [
        (6, "COMPLETED", new[6]),
        (7, "COMPLETED", own[0]),
        (8, "RUNNING", own[1]),
    ]
    again = copied(saved, tmp_path / "ax.json")  # with ten decimals
    with Optimizer.from_ax(again, path=tmp_path / "run", **CHEAP) as optimizer:
        optimizer.to_ax()
    assert len(trials(again)) == 9


def test_another_experiment_of_as_many_trials_is_refused(tmp_path: Path) -> None:
    with Optimizer.from_ax(lived(made()), path=tmp_path, **CHEAP):
        pass
    other = made()
    for x in range(6):
        other.attach_trial({"x": 0.1 * x, "y": 0.5})
    with pytest.raises(JournalError, match="belongs to another experiment"):
        Optimizer.from_ax(other, path=tmp_path, **CHEAP)


def test_what_comes_home_is_in_the_database(tmp_path: Path) -> None:
    config = tables(f"sqlite:///{tmp_path / 'ax.db'}")
    client = Client(config)
    client.configure_experiment(FLOATS, name="kept")
    client.configure_optimization("-loss")
    client.configure_generation_strategy(method="random_search")
    lived(client)
    with Optimizer.from_ax(client, path=tmp_path / "run", **CHEAP) as optimizer:
        optimizer.tell(optimizer.ask(1), [{"loss": 1.0}])
        optimizer.to_ax()
    loaded = Client.load_from_database("kept", config)
    assert trials(loaded) == trials(client)
    columns = ["trial_index", "mean"]
    pd.testing.assert_frame_equal(frame(loaded)[columns], frame(client)[columns])


def test_a_trial_that_the_loop_gave_up_and_ax_completed_is_told(tmp_path: Path) -> None:
    client = lived(made())
    with Optimizer.from_ax(client, path=tmp_path, **CHEAP) as optimizer:
        given_up = optimizer.pending[0]
        optimizer.abandon(given_up)
    told(client, 4, given_up, ("loss",))
    for _ in range(2):
        with Optimizer.from_ax(client, path=tmp_path, **CHEAP) as optimizer:
            assert optimizer.observations[0][2:] == [given_up]
            assert len(optimizer.pending) == 1
            optimizer.to_ax()
    assert len(trials(client)) == 6


def test_a_point_a_rounding_error_beyond_a_constraint_comes_home() -> None:
    client = made(parameter_limits=["x + y <= 2"])
    optimizer = Optimizer.from_ax(client, **CHEAP)
    x, y = torch.tensor([0.7, 1.3000001]).tolist()
    optimizer.tell({"x": x, "y": y}, {"loss": 1.0})
    for _ in range(2):
        optimizer.to_ax()
    assert [(status.name, point) for _, status, point, _ in trials(client)] == [("COMPLETED", {"x": x, "y": y})]


def test_standard_errors_may_come_and_go(tmp_path: Path) -> None:
    client = lived(made())
    with Optimizer.from_ax(client, path=tmp_path, **CHEAP):
        pass
    for trial in (0, 2):
        client._experiment.trials[trial].mark_abandoned(unsafe=True)
    told(client, 4, trials(client)[4][2], ("loss",), 0.1)
    with Optimizer.from_ax(client, path=tmp_path, **CHEAP) as again:
        variances = again.observations[2]
        known = [each for each in ([row["loss"] for row in variances] if isinstance(variances, list) else variances)]
        assert [round(float(each), 9) for each in known if not math.isnan(each)] == [0.01]
        assert len(known) > 1
        again.ask()


def test_a_loop_that_never_saw_ax_has_a_client_too() -> None:
    plain = Optimizer([(0.0, 1.0), Integer(1, 5)], objective="minimize", **CHEAP)
    points = plain.ask(3)
    plain.tell(points[:2], [3.0, 4.0])
    client = plain.to_ax()
    assert [status.name for _, status, *_ in trials(client)] == ["COMPLETED", "COMPLETED", "RUNNING"]
    assert [list(point.values()) for _, _, point, _ in trials(client)] == points.tolist()
    assert trials(client)[0][3] == {"x0": float, "x1": int}
    assert frame(client)["mean"].tolist() == [3.0, 4.0]
    assert client._experiment.optimization_config.objective.minimize


@pytest.mark.parametrize(
    ("parameters", "options", "message"),
    [
        (FLOATS, {"objective": "-loss + 2 * cost"}, "adds up no outcomes"),
        (FLOATS, {"limits": ["cost <= 1.1 * baseline"]}, "relative to a baseline"),
        (
            [
                FLOATS[0],
                ChoiceParameterConfig(name="one", parameter_type="float", values=[3.0]),
                ChoiceParameterConfig(
                    name="k",
                    parameter_type="str",
                    values=["a", "b"],
                    is_ordered=False,
                    dependent_parameters={"a": ["one"]},
                ),
            ],
            {},
            "'one': it is fixed and depends on 'k'",
        ),
    ],
)
def test_what_the_loop_has_not_is_refused_by_name(parameters: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        Optimizer.from_ax(made(parameters, **options), **CHEAP)


@pytest.mark.parametrize(
    ("traits", "message"),
    [
        ({"logit_scale": True}, "'f': .* logit scale"),
        ({"is_fidelity": True}, "support fidelity"),
    ],
)
def test_traits_of_parameters_that_the_loop_has_not_are_refused(traits: dict[str, Any], message: str) -> None:
    target = {"target_value": 0.5} if "is_fidelity" in traits else {}
    parameter = RangeParameter("f", ParameterType.FLOAT, 0.1, 0.9, **traits, **target)
    with pytest.raises(UnsupportedError, match=message):
        space_of(SearchSpace([parameter]))


BRANCHES = [
    FLOATS[0],
    RangeParameterConfig(name="y", parameter_type="float", bounds=(0.0, 2.0)),
    RangeParameterConfig(name="n", parameter_type="int", bounds=(1, 8)),
    ChoiceParameterConfig(
        name="deep", parameter_type="bool", values=[False, True], is_ordered=True, dependent_parameters={True: ["n"]}
    ),
    ChoiceParameterConfig(
        name="k",
        parameter_type="str",
        values=["a", "b"],
        is_ordered=False,
        dependent_parameters={"a": ["y"], "b": ["deep"]},
    ),
]
CONDITIONAL: dict[str, Any] = {
    "x": (0.0, 2.0),
    "y": When("k", "a", (0.0, 2.0)),
    "n": When("deep", True, Integer(1, 8)),
    "deep": When("k", "b", Choice([False, True], ordered=True)),
    "k": Choice(["a", "b"], ordered=True),
}
SERVED = {**CHEAP, "model": "cagp", "model_options": None}


def test_dependents_are_conditional_parameters_there_and_back(tmp_path: Path) -> None:
    client = made(BRANCHES)
    for index, point in client.get_next_trials(max_trials=5).items():
        if index < 3:
            client.complete_trial(index, {"loss": point["x"]})
    before = trials(client)
    with Optimizer.from_ax(client, path=tmp_path, **SERVED) as loop:
        assert {name: type(each) for name, each in zip(loop.space.labels, loop.space.parameters)}["n"] is When
        assert loop.observations[0] == [point for _, _, point, _ in before[:3]]
        assert loop.pending == [point for _, _, point, _ in before[3:]]
        points = loop.ask(3)
        loop.tell(points[:2], [{"loss": point["x"]} for point in points[:2]])
        loop.to_ax()
        assert trials(client)[:5] == before
        assert [point for _, _, point, _ in trials(client)[5:]] == points
        told = loop.observations[0]
    client.save_to_json_file(str(tmp_path / "client.json"))
    with Optimizer.from_ax(str(tmp_path / "client.json"), path=tmp_path, **SERVED) as again:
        assert again.num_observations == len(told) == 5
    client.get_next_trials(max_trials=1)


def test_conditional_parameters_of_a_loop_are_dependents() -> None:
    loop = Optimizer(CONDITIONAL, objective="minimize", **SERVED)
    points = loop.ask(6)
    loop.tell(points, [point["x"] for point in points])
    client = loop.to_ax()
    assert [point for _, _, point, _ in trials(client)] == points
    parameters = client._experiment.search_space.parameters
    assert parameters["k"].dependents == {"a": ["y"], "b": ["deep"]}
    assert parameters["deep"].dependents == {True: ["n"]}
    assert Optimizer.from_ax(client, **SERVED).observations[0] == points


@pytest.mark.parametrize(
    "other", [(Integer(1, 3), 2), (Choice(["a", "b", "c"]), ["a", "b"]), (Fixed("a"), "b"), (Choice(["a", "b"]), "ab")]
)
def test_conditions_that_ax_has_not_are_refused_by_name(other: Any) -> None:
    parameter, value = other
    space = {"k": parameter, "z": (0.0, 1.0), "x": When("k", [*value] if value == "ab" else value, (0.0, 1.0))}
    with pytest.raises(UnsupportedError, match="'x': Ax needs a condition on one value"):
        Optimizer(space, objective="minimize", **SERVED).to_ax()


def test_constraints_on_dependents_are_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"constraints on dependents, as \['y'\] are"):
        space_of(made(BRANCHES, parameter_limits=["x + y <= 2"])._experiment.search_space)


def test_derived_parameters_stay_in_ax(tmp_path: Path) -> None:
    client = lived(made([*FLOATS, DERIVED], parameter_limits=["x + y >= 0.5"]))
    with Optimizer.from_ax(client, path=tmp_path, **CHEAP) as loop:
        assert loop.space.names == ("x", "y")
        points = loop.ask(2)
        assert all(point["x"] + point["y"] >= 0.5 for point in points)
        loop.tell(points, [{"loss": 1.0}, {"loss": 2.0}])
        loop.to_ax()
    assert len(trials(client)) == 8
    assert all(point["s"] == pytest.approx(point["x"] + point["y"]) for *_, point, _ in trials(client))
    with Optimizer.from_ax(client, path=tmp_path, **CHEAP) as again:
        assert again.num_observations == 4


def test_equalities_come_and_go(tmp_path: Path) -> None:
    """Also a point told with slack, and points that Ax proposes itself."""
    shares = {"a": (0.0, 1.0), "b": (0.0, 1.0), "c": (0.0, 1.0)}
    limits = ["a + b + c == 1", "a <= 0.7"]
    loop = Optimizer(shares, objective="maximize", parameter_constraints=limits, **CHEAP)
    points = loop.ask(4)
    loop.tell(points, [point["a"] for point in points])
    loop.tell({"a": 0.3333333, "b": 0.3333333, "c": 0.3333333}, 0.3)
    client = loop.to_ax()
    there = client._experiment.search_space.parameter_constraints
    assert [each.is_equality for each in there] == [True, False]
    client.configure_generation_strategy(method="random_search")
    for index, point in client.get_next_trials(max_trials=2).items():
        client.complete_trial(index, {"objective": point["a"]})
    client.save_to_json_file(str(tmp_path / "ax.json"))
    back = Optimizer.from_ax(tmp_path / "ax.json", **CHEAP)
    assert back.space.constraints == loop.space.constraints
    assert back.num_observations == 7
    for point in back.ask(2):
        assert sum(point.values()) == pytest.approx(1, abs=1e-15)


def test_numbers_of_few_digits_come_and_go() -> None:
    space = SearchSpace([RangeParameter("x", ParameterType.FLOAT, 0.1, 0.9, digits=2, log_scale=True)])
    assert space_of(space).parameters == (Real(0.1, 0.9, True, digits=2),)
    client = Client()
    client.set_experiment(Experiment(search_space=space))
    client.configure_optimization("-loss")
    loop = Optimizer.from_ax(client, **CHEAP)
    loop.tell(loop.ask(2), [{"loss": 1.0}, {"loss": 2.0}])
    assert all(point["x"] == round(point["x"], 2) for *_, point, _ in trials(loop.to_ax()))
    alone = Optimizer({"x": Real(0.1, 0.9, digits=2)}, **CHEAP)
    assert alone.to_ax()._experiment.search_space.parameters["x"].digits == 2


def test_trials_from_before_a_parameter_have_the_value_that_ax_fills_in() -> None:
    client = made()
    client.complete_trial(client.attach_trial({"x": 0.1, "y": 0.2}), {"loss": 1.0})
    later = RangeParameter("z", ParameterType.FLOAT, 0.0, 1.0, backfill_value=0.25)
    client._experiment.search_space.add_parameters([later])
    assert Optimizer.from_ax(client, **CHEAP).observations[0] == [{"x": 0.1, "y": 0.2, "z": 0.25}]


def test_ordered_numbers_that_ax_would_sort_are_refused() -> None:
    loop = Optimizer({"x": (0.0, 1.0), "n": Choice((3, 1, 2), ordered=True)}, **CHEAP)
    with pytest.raises(UnsupportedError, match="'n': Ax needs ordered numbers to ascend"):
        loop.to_ax()


def test_an_experiment_without_an_objective_is_refused() -> None:
    client = Client()
    client.configure_experiment(parameters=FLOATS)
    with pytest.raises(UnsupportedError, match="configure_optimization"):
        Optimizer.from_ax(client, **CHEAP)


def partial(client: Client) -> None:
    client.complete_trial(client.attach_trial({"x": 0.1, "y": 0.2}), {"gain": 1.0})


def exact(client: Client) -> None:
    client.complete_trial(client.attach_trial({"x": 0.1, "y": 0.2}), {"loss": (1.0, 0.0)})


def curve(client: Client) -> None:
    index = client.attach_trial({"x": 0.1, "y": 0.2})
    client.attach_data(index, {"loss": 2.0}, progression=2)
    client.complete_trial(index, {"loss": 1.0}, progression=3)


def stopped(client: Client) -> None:
    index = client.attach_trial({"x": 0.1, "y": 0.2})
    client.attach_data(index, {"loss": 1.0})
    client.mark_trial_early_stopped(index)


def batch(client: Client) -> None:
    client._experiment.attach_trial(parameterizations=[{"x": 0.1, "y": 0.2}, {"x": 0.3, "y": 0.2}])


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        (partial, InvalidDataError, r"trials \[6\]: .* lack some of \['loss'\]"),
        (exact, InvalidDataError, "standard error"),
        (curve, UnsupportedError, "trial 6: it has data of several steps"),
        (stopped, UnsupportedError, "trial 6: .* status 'early_stopped'"),
        (batch, UnsupportedError, "trial 6: it has several arms"),
    ],
)
def test_trials_that_the_loop_cannot_tell_of_are_refused_by_number(
    tmp_path: Path, change: Any, kind: type[Exception], message: str
) -> None:
    client = lived(made())
    change(client)
    with pytest.raises(kind, match=message):
        Optimizer.from_ax(client, path=tmp_path, **CHEAP)
    assert not (tmp_path / "journal.jsonl").exists()


def test_trials_completed_with_nan_are_failed_points(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    client = lived(made())

    def broken(x: float) -> int:
        index = client.attach_trial({"x": x, "y": 0.2})
        client.complete_trial(index, {"loss": math.nan})
        return index

    first = broken(0.1)
    with optimizer_from(client, path=tmp_path) as optimizer:
        assert (optimizer.num_observations, len(optimizer.history.failures)) == (2, 1)
    assert f"trials [{first}] are completed with NaN" in caplog.text
    broken(0.2)
    for _ in range(2):
        with optimizer_from(client, path=tmp_path) as optimizer:
            assert (optimizer.num_observations, len(optimizer.history.failures)) == (2, 2)
            assert len(optimizer.pending) == 2
    client.attach_data(first, {"loss": 1.5})
    with optimizer_from(client, path=tmp_path) as optimizer:
        assert (optimizer.num_observations, len(optimizer.history.failures)) == (3, 1)
        assert optimizer.observations[1][-1] == {"loss": 1.5}


def test_the_remedy_for_trials_that_lack_data_works() -> None:
    client = lived(made())
    partial(client)
    with pytest.raises(InvalidDataError, match=r"`client.attach_data\(6, ...\)`, with NaN if the evaluation failed"):
        optimizer_from(client)
    client.attach_data(6, {"loss": math.nan})
    with optimizer_from(client) as optimizer:
        assert (optimizer.num_observations, len(optimizer.history.failures)) == (2, 1)


def test_a_model_that_does_not_serve_the_space_says_so() -> None:
    with pytest.raises(SpaceError, match="model='wiski': 10 parameters"):
        Optimizer.from_ax(made(KINDS), model="wiski")


def test_what_the_loop_took_out_stays_out(tmp_path: Path) -> None:
    client = lived(made())
    with optimizer_from(client, path=tmp_path) as optimizer:
        n = optimizer.num_observations
        optimizer.forget(0)
    for _ in range(2):
        with optimizer_from(client, path=tmp_path) as again:
            assert again.num_observations == n - 1
    trials = len(client._experiment.trials)
    with optimizer_from(client, path=tmp_path) as again:
        again.restore(0)
        assert again.num_observations == n
        again.to_ax()
        assert len(client._experiment.trials) == trials
        with pytest.raises(UnsupportedError, match="those of Ax trials"):
            again.revise(0, X=again.observations[0][0])
    with Optimizer.open(tmp_path) as opened_by_path, pytest.raises(UnsupportedError, match="Change it there"):
        opened_by_path.migrate({name: (0.0, 9.0) for name in opened_by_path.space.names or ()})


@pytest.mark.parametrize("sem", [None, 0.1], ids=["unknown", "known"])
def test_corrections_on_one_side_are_named_until_they_are_carried_over(tmp_path: Path, sem: float | None) -> None:
    client = lived(made(), sem=sem)
    with optimizer_from(client, path=tmp_path) as optimizer:
        optimizer.revise(1, {"loss": 20.0})
        with pytest.warns(TransferWarning, match=r"trials \[2\]: .*attach_data\(2, {'loss': .*20\.0"):
            optimizer.to_ax()
        client.attach_data(2, {"loss": 20.0 if sem is None else (20.0, sem)})
        optimizer.to_ax()
    client.attach_data(0, {"loss": 7.0 if sem is None else (7.0, sem)})
    with pytest.warns(TransferWarning, match=r"trials \[0\]: .*{'loss': \(7\.0, .*optimizer.revise\(0, "):
        optimizer = optimizer_from(client, path=tmp_path)
    with optimizer:
        optimizer.revise(0, {"loss": 7.0})
    with optimizer_from(client, path=tmp_path) as optimizer:
        optimizer.to_ax()


def test_forgotten_trials_that_ax_still_uses_are_named(tmp_path: Path) -> None:
    client = lived(made())
    with optimizer_from(client, path=tmp_path) as optimizer:
        optimizer.forget(1)
        with pytest.warns(
            TransferWarning, match=r"trials \[2\]: the loop has forgotten .*attach_data\(2, {'loss': nan}\)"
        ):
            optimizer.to_ax()
        client.attach_data(2, {"loss": math.nan})
        optimizer.to_ax()
    with optimizer_from(client, path=tmp_path) as optimizer:
        assert optimizer.num_observations == 1


def test_failed_and_forgotten_points_are_abandoned_trials() -> None:
    loop = Optimizer({"x": (0.0, 1.0)}, objective="minimize")
    points = loop.ask(3)
    loop.tell(points[:1], failed=True)
    loop.forget(loop.tell(points[1:2], [1.0]))
    statuses = [trial.status for trial in client_of(loop)._experiment.trials.values()]
    assert statuses == [TrialStatus.ABANDONED, TrialStatus.ABANDONED, TrialStatus.RUNNING]
