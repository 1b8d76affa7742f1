"""What may change at any time: settings given anew, changed, or lost with the process that had them."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gpytorch.kernels import MaternKernel
from loops import BOX, CHEAP, asked, cheap, events, run_until, single_task, tell

from bo_scale import CaGP
from bo_scale.errors import InvalidArgumentError, JournalError
from bo_scale.loop import Optimizer
from bo_scale.loop.problem.outcomes import Outcomes
from bo_scale.loop.problem.space import Space
from bo_scale.loop.settings import Lost, Settings, differences, normal
from bo_scale.loop.surrogate.builder import SurrogateBuilder

CHANGES: dict[str, dict[str, Any]] = {
    "seed": {"seed": 1},
    "acquisition": {"acquisition": "qLogEI"},
    "model": {"model": "cagp"},
    "num_initial": {"num_initial": 5},
    "refit_growth": {"refit_growth": 1.5},
    "model_options": {"model_options": {"grid_size": 11}},
    "acquisition_options": {"acquisition_options": {"beta": 3.0, "raw_samples": 16}},
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_an_event_and_the_future_is_determined_by_it(tmp_path: Path, name: str) -> None:
    futures = []
    for path, stops in ((tmp_path / "whole", ()), (tmp_path / "stopped", (1, 2))):
        loop, found = cheap(path), []
        found += asked(loop, 3)
        for i in range(3):
            if i in stops:
                loop.close()
                loop = Optimizer.open(path)
            if i == 1:
                loop.change(**CHANGES[name])
            found += asked(loop, 1)
        futures.append(found)
        loop.close()
    assert all(torch.equal(a, b) for a, b in zip(*futures, strict=True))
    assert events(tmp_path / "whole") == events(tmp_path / "stopped")
    changes = [event for event in events(tmp_path / "whole") if event["event"] == "change"]
    assert name in changes[0]["settings"]


@pytest.mark.parametrize("name", CHANGES)
def test_settings_given_anew_on_resuming_are_a_change(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    with cheap(tmp_path) as loop:
        asked(loop, 2)
    before = events(tmp_path)
    new = CHANGES[name]
    with Optimizer(BOX, path=tmp_path, **new) as again:
        assert again.num_observations == 4
    assert f"{name}: " in caplog.text
    assert "settings change from ask 2 on" in caplog.text
    with Optimizer(BOX, path=tmp_path) as again:  # as it was last
        assert again.settings.describe()[name] == Settings.read(again.history.settings).describe()[name]
    assert len(events(tmp_path)) == len(before) + 1


def test_the_same_settings_are_no_change(tmp_path: Path) -> None:
    with cheap(tmp_path) as loop:
        asked(loop, 1)
        loop.change(seed=0, acquisition="qUCB")
        before = events(tmp_path)
    cheap(tmp_path).close()
    Optimizer.open(tmp_path).close()
    assert events(tmp_path) == before


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("new", "message"),
    [
        ({"model": "wisky"}, "Did you mean 'wiski'"),
        ({"model_options": {"gridsize": 5}}, "Did you mean 'grid_size'"),
        ({"model_options": {"grid_size": "ten"}}, "model_options: no model can be made"),
        ({"acquisition": "qLogEl"}, "Did you mean 'qLogEI'"),
        ({"acquisition_options": {"betta": 1.0}}, "Did you mean 'beta'"),
        ({"acquisition_options": {"raw_samples": "many"}}, "raw_samples"),
        ({"acquisition_options": {"raw_samples": 0}}, "raw_samples"),
        ({"acquisition_options": {"beta": -1.0}}, "beta"),
        ({"seed": 1.5}, "seed"),
        ({"num_initial": "few"}, "num_initial"),
        ({"refit_growth": 0.5}, "growth"),
    ],
)
def test_what_cannot_be_is_refused_where_it_is_given_and_nothing_is_written(
    tmp_path: Path, new: dict[str, Any], message: str
) -> None:
    def refused(call: Any) -> None:
        with pytest.raises(InvalidArgumentError, match=message):
            call()

    refused(lambda: cheap(tmp_path / "none", **new))
    assert not (tmp_path / "none").exists()
    with cheap(tmp_path / "run") as loop:
        asked(loop, 2)
        before = events(tmp_path / "run")
        refused(lambda: loop.change(**new))
        loop.ask(1)
    refused(lambda: Optimizer(BOX, path=tmp_path / "run", **new))
    assert len(events(tmp_path / "run")) == len(before) + 1
    with cheap(tmp_path / "run") as again:  # which let go of the lock
        assert len(again.steps) == 3


def test_a_factory_is_given_again(tmp_path: Path) -> None:
    with cheap(tmp_path, model=single_task) as loop:
        asked(loop, 3)
        future = loop.ask(2)
    with Optimizer.open(tmp_path) as again:
        assert torch.equal(again.pending, future)
        with pytest.raises(InvalidArgumentError, match="Give them again"):
            again.ask(1)
        with pytest.raises(InvalidArgumentError, match="Give them again"):
            again.best()
        again.abandon(future)
    with Optimizer.open(tmp_path, model=single_task) as again:
        again.ask(1)
    assert [event["event"] for event in events(tmp_path)][-2:] == ["abandon", "ask"]


def test_objects_among_options_are_given_again(tmp_path: Path) -> None:
    options: dict[str, Any] = {"grid_size": 10, "covar_module": MaternKernel(2.5, ard_num_dims=2)}
    with cheap(tmp_path, model_options=options) as loop:
        asked(loop, 3)
    again = Optimizer.open(tmp_path)
    with again, pytest.raises(InvalidArgumentError, match=r"model_options \['covar_module'\]: "):
        again.ask(1)
    options["covar_module"] = MaternKernel(2.5, ard_num_dims=2)
    with Optimizer.open(tmp_path, model_options=options) as again:
        again.ask(1)
    assert "change" not in {event["event"] for event in events(tmp_path)}


def test_older_journals_have_the_same_settings() -> None:
    old = {
        "model": "wiski",
        "model_options": "[('grid_size', (10, 10)), ('keep_data', False)]",
        "acquisition": "qUCB",
        "acquisition_options": "[]",
        "seed": 3,
        "num_initial": 4,
        "refit_growth": 2.0,
    }
    read = Settings.read(old)
    assert read.model_options == {"grid_size": (10, 10), "keep_data": False}
    assert differences(normal(old), read.describe()) == {}
    lost = Settings.read({**old, "model": "factory", "model_options": "[('kernel', RBFKernel())]"})
    assert isinstance(lost.model, Lost)
    assert isinstance(lost.model_options["…"], Lost)


def test_options_of_another_model_are_dropped() -> None:
    space = Space.of(BOX)
    begun = Settings.default(space, Outcomes.of("minimize", None, (), None)).updated(
        {"model": "wiski", "model_options": {"grid_size": 9}, "acquisition_options": {"raw_samples": 16}}
    )
    assert begun.updated({"model": "cagp"}).model_options == {}
    assert begun.updated({"model": "wiski"}).model_options == {"grid_size": 9}
    assert begun.updated({"seed": 4}).acquisition_options == {"raw_samples": 16}
    assert begun.updated({"acquisition": "qUCB"}).acquisition_options == {}


def test_a_change_serves_the_next_model(tmp_path: Path) -> None:
    with cheap(tmp_path) as loop:
        asked(loop, 3)
        loop.change(model="cagp", acquisition="qLogEI", acquisition_options=CHEAP["acquisition_options"])
        tell(loop, loop.ask(1))
        assert isinstance(loop.model, CaGP)
    with Optimizer.open(tmp_path) as again:
        assert isinstance(again.model, CaGP)
        run_until(again, 6)


# ---------------------------------------------------------------- open


def test_a_run_is_opened_with_nothing_but_its_path(tmp_path: Path) -> None:
    with cheap(tmp_path, space={"x": (0.0, 1.0), "y": (-2.0, 3.0)}, objective="minimize") as loop:
        asked(loop, 3)
        loop.ask(1)
    with Optimizer.open(tmp_path) as again:
        assert again.space.describe() == loop.space.describe()
        assert again.outcomes == loop.outcomes
        assert again.pending == loop.pending
        assert again.observations[0] == loop.observations[0]
        assert again.best().mean == pytest.approx(loop.best().mean, abs=1e-12)
        assert again.ask(1) == loop.history.space.points([list(again.pending[-1].values())])


def test_a_run_is_looked_at_while_another_process_writes(tmp_path: Path) -> None:
    with cheap(tmp_path) as writer:
        asked(writer, 3)
        reader = Optimizer.open(tmp_path, mode="r")
        assert reader.num_observations == 6
        assert reader.best().mean == pytest.approx(writer.best().mean, abs=1e-9)
        asked(writer, 1)
        calls = (
            lambda: reader.ask(1),
            lambda: reader.tell([[0.5, 0.5]], [1.0]),
            lambda: reader.tell([[0.5, 0.5]], failed=True),
            lambda: reader.forget(0),
            lambda: reader.revise(0, 1.0),
            lambda: reader.change(seed=1),
            lambda: reader.migrate([(0.0, 2.0), (-2.0, 3.0)]),
        )
        before = events(tmp_path)
        for call in calls:
            with pytest.raises(JournalError, match="mode='r'"):
                call()
        assert events(tmp_path) == before
        assert Optimizer.open(tmp_path, mode="r").num_observations == 8


def test_a_run_with_a_name_registered_elsewhere_is_looked_at(tmp_path: Path) -> None:
    with cheap(tmp_path) as loop:
        asked(loop, 3)
    file = tmp_path / "journal.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    lines[0]["acquisition"] = "mine"
    bare = [{name: value for name, value in line.items() if name not in ("crc", "version")} for line in lines]
    file.write_text("".join(json.dumps(line) + "\n" for line in bare))
    with pytest.raises(InvalidArgumentError, match="'mine'"):
        Optimizer.open(tmp_path)
    assert Optimizer.open(tmp_path, mode="r").num_observations == 6


def test_what_is_no_run_cannot_be_opened(tmp_path: Path) -> None:
    for mode in ("a", "r"):
        with pytest.raises(JournalError, match="no journal"):
            Optimizer.open(tmp_path / "none", mode=mode)
    assert not (tmp_path / "none").exists()


def test_nothing_is_fitted_before_a_model_is_asked_for(tmp_path: Path) -> None:
    fits = []

    def counted(X: Any, Y: Any, Yvar: Any) -> Any:
        fits.append(len(X))
        return single_task(X, Y, Yvar)

    with cheap(tmp_path, model=counted) as loop:
        asked(loop, 5)
        future = loop.ask(2)
        loop.abandon(future)
    (tmp_path / "snapshot.pt").unlink()
    fits.clear()
    with cheap(tmp_path, model=counted) as again:
        assert again.num_observations == 10
        assert again.pending.numel() == 0
        assert fits == []
        again.ask(1)
        assert len(fits) > 0


def test_a_change_that_changes_nothing_is_none(tmp_path: Path) -> None:
    with cheap(tmp_path, refit_growth=4.0) as loop:
        asked(loop, 3)
        before = events(tmp_path)
        loop.change(acquisition="qUCB")
        loop.change()
        assert events(tmp_path) == before
        asked(loop, 1)
        assert not loop.steps[-1].fitted
        loop.change(model=single_task)
        loop.change(model=single_task)  # which may be another function
    assert [event["settings"] for event in events(tmp_path) if event["event"] == "change"][1:] == [{}]


def test_an_interrupted_rebuilding_begins_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with cheap(tmp_path / "run") as loop:
        asked(loop, 6)
    shutil.copytree(tmp_path / "run", tmp_path / "calm")
    for path in ("run", "calm"):
        (tmp_path / path / "snapshot.pt").unlink()
    calls, advance = [], SurrogateBuilder.advance

    def interrupted(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return advance(*arguments)

    with cheap(tmp_path / "run") as again, cheap(tmp_path / "calm") as calm:
        with monkeypatch.context() as patch:
            patch.setattr(SurrogateBuilder, "advance", interrupted)
            with pytest.raises(KeyboardInterrupt):
                again.ask(1)
        assert torch.equal(again.ask(1), calm.ask(1))


def test_numbers_of_numpy_among_options_are_numbers(tmp_path: Path) -> None:
    cheap(tmp_path, acquisition_options={"beta": np.float64(2.0)}).close()
    with Optimizer.open(tmp_path) as again:
        assert again.settings.acquisition_options == {"beta": 2.0}


def test_the_tolerance_is_that_of_the_run(tmp_path: Path) -> None:
    with cheap(tmp_path, match_tolerance=0.1) as loop:
        loop.tell([[0.5, 0.5]], failed=True)
        loop.tell([[0.55, 0.5]], [1.0])
        assert loop.history.pending.avoided(2) is None
    with Optimizer.open(tmp_path) as again:
        assert again.history.pending.avoided(2) is None


def test_a_new_run_is_not_begun_to_read(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="no journal"):
        Optimizer(BOX, path=tmp_path / "new", mode="r")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("growth", [0.5, float("inf"), float("nan")])
def test_growths_that_cannot_be_are_refused(growth: float) -> None:
    with pytest.raises(InvalidArgumentError, match="refit_growth"):
        cheap(refit_growth=growth)
    loop = cheap()
    with pytest.raises(InvalidArgumentError, match="refit_growth"):
        loop.change(refit_growth=growth)


def test_options_that_are_not_read_are_said(caplog: pytest.LogCaptureFixture) -> None:
    loop = cheap(acquisition="qLogNEI", acquisition_options={"beta": 2.0, "raw_samples": 16})
    assert "qLogNEI does not read ['beta']" in caplog.text
    caplog.clear()
    loop.change(acquisition="qUCB", acquisition_options={"beta": 2.0})
    assert "does not read" not in caplog.text
    with pytest.raises(InvalidArgumentError, match="Did you mean 'qUCB'"):
        cheap(acquisition="ucb")
