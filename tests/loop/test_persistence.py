from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from gpytorch.kernels import MaternKernel
from loops import BOX, CHEAP, asked, cheap, events, run_until, single_task, tell
from torch import Tensor

from bo_scale import WISKI
from bo_scale.errors import (
    JournalError,
    JournalLockedError,
    JournalWarning,
)
from bo_scale.loop import Optimizer


def test_a_path_may_begin_at_the_home_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, work = tmp_path / "home", tmp_path / "work"
    work.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(work)
    space: dict[str, Any] = {"x": (0.0, 1.0)}
    with Optimizer(space, objective="minimize", path="~/run") as loop:
        loop.tell({"x": 0.5}, 1.0)
        loop.to_csv("past.csv")
    assert (home / "run" / "journal.jsonl").exists()
    with Optimizer.open(Path("~") / "run") as loop:
        assert loop.num_observations == 1
    with Optimizer.from_csv("past.csv", space, objective="minimize", path="~/run") as loop:
        assert loop.num_observations == 1
    assert [file.name for file in work.iterdir()] == ["past.csv"]


@pytest.mark.parametrize("call", ["ask", "tell", "abandon"])
def test_an_event_that_is_written_and_not_taken_in_closes_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    loop = cheap(tmp_path, space={"x": (0.0, 1.0), "y": (0.0, 1.0)})
    points = loop.ask(2)

    def interrupted(*arguments: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(loop.history, call, interrupted)
        with pytest.raises(KeyboardInterrupt):
            {"ask": lambda: loop.ask(1), "tell": lambda: tell(loop, points), "abandon": lambda: loop.abandon(points)}[
                call
            ]()
    with pytest.raises(JournalError, match="closed"):
        loop.ask(1)
    with cheap(tmp_path, space={"x": (0.0, 1.0), "y": (0.0, 1.0)}) as resumed:
        assert len(resumed.pending) == {"ask": 3, "tell": 0, "abandon": 0}[call]


# ---------------------------------------------------------------- journal


def test_a_second_optimizer_on_a_path_is_refused_until_the_first_is_closed(tmp_path: Path) -> None:
    with cheap(tmp_path) as loop:
        X = loop.ask(2)
        with pytest.raises(JournalLockedError, match="another Optimizer"):
            cheap(tmp_path)
    with cheap(tmp_path) as again:
        assert torch.equal(again.pending, X)


@pytest.mark.parametrize(
    "call", [lambda o: o.tell([[0.5, 0.0]], [1.0]), lambda o: o.ask(), lambda o: o.abandon(o.pending)]
)
def test_a_closed_optimizer_records_nothing(tmp_path: Path, call: Callable[[Optimizer], Any]) -> None:
    loop = cheap(tmp_path)
    loop.ask(1)
    loop.close()
    before = events(tmp_path)
    with pytest.raises(JournalError, match="closed"):
        call(loop)
    assert loop.num_observations == 0
    assert len(loop.pending) == 1
    assert events(tmp_path) == before


DIFFERENT = [
    ({"objective": "minimize"}, "objective: 'maximize', now 'minimize'"),
    ({"space": [(0.0, 1.0), (-2.0, 4.0)]}, "space: "),
]


@pytest.mark.parametrize(("options", "message"), DIFFERENT, ids=[next(iter(o)) for o, _ in DIFFERENT])
def test_a_journal_begun_with_other_arguments_is_refused_with_the_difference(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    cheap(tmp_path).close()
    before = events(tmp_path)
    with pytest.raises(JournalError, match="begun with other arguments .*" + message):
        cheap(tmp_path, **options)
    assert events(tmp_path) == before
    cheap(tmp_path).close()


@pytest.mark.parametrize("bad", ["{", "{}", "5", "[]", '{"event":"tell"}', '{"event":"dance"}'])
def test_a_journal_damaged_before_its_last_line_is_refused(tmp_path: Path, bad: str) -> None:
    with cheap(tmp_path) as loop:
        asked(loop, 2)
    file = tmp_path / "journal.jsonl"
    lines = file.read_text().splitlines()
    lines[2] = bad
    file.write_text("\n".join(lines) + "\n")
    with pytest.raises(JournalError):
        cheap(tmp_path)


def test_a_torn_last_line_costs_only_what_was_not_acknowledged(tmp_path: Path) -> None:
    with cheap(tmp_path) as loop:
        X = loop.ask(4)
        tell(loop, X[:2])
        tell(loop, X[2:])
    file = tmp_path / "journal.jsonl"
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.warns(JournalWarning, match="tore"):
        again = cheap(tmp_path)
    assert again.num_observations == 2
    assert torch.equal(again.pending, X[2:])
    again.close()


def matern() -> dict[str, Any]:
    return {"covar_module": MaternKernel(2.5, ard_num_dims=2)}


CASES: dict[str, Callable[[], dict[str, Any]]] = {
    "wiski": dict,
    "SingleTaskGP": lambda: {"model": single_task},
    "statistics alone": lambda: {"model_options": {"keep_data": False}},
    "conservative": lambda: {"model_options": {"conservative": True}},
    "raw targets": lambda: {"model_options": {"outcome_transform": None}},
    "kernel of one's own": lambda: {"model_options": matern()},
    "refit often": lambda: {"refit_growth": 1.25},
    "Thompson": lambda: {"acquisition": "Thompson"},
}


@pytest.mark.parametrize(
    ("case", "noisy"),
    [(case, False) for case in CASES if case != "wiski"] + [(case, True) for case in ("wiski", "statistics alone")],
)
def test_a_resumed_run_is_the_run_that_was_never_stopped(tmp_path: Path, case: str, noisy: bool) -> None:
    """Closed and opened again three times, with points pending and abandoned."""
    with cheap(tmp_path / "whole", **CASES[case]()) as whole:
        run_until(whole, 6, noisy)
        expected = whole.best()
    for asks in (3, 5, 6):
        with cheap(tmp_path / "part", **CASES[case]()) as part:
            run_until(part, asks, noisy)
            found = part.best()
    assert events(tmp_path / "part") == events(tmp_path / "whole")
    assert (found.mean, found.sd, found.observed_y) == (expected.mean, expected.sd, expected.observed_y)


def test_resuming_is_no_event_and_the_steps_are_remembered(tmp_path: Path) -> None:
    with cheap(tmp_path) as loop:
        asked(loop, 4)
        loop.ask(1)
    before = (tmp_path / "journal.jsonl").read_bytes()
    with cheap(tmp_path) as again:
        assert again.steps == loop.steps
        assert torch.equal(again.pending, loop.pending)
        assert again.num_observations == 8
    assert (tmp_path / "journal.jsonl").read_bytes() == before


def test_another_tolerance_does_not_spoil_a_journal(tmp_path: Path) -> None:
    with cheap(tmp_path, match_tolerance=1e-2) as loop:
        X = loop.ask(2)
        loop.tell([[1.005, 0.0]], [1.0])
        loop.tell(X[:1] + 0.004, [1.0])
    with cheap(tmp_path) as again:
        assert again.num_observations == 2
        assert torch.equal(again.pending, X[1:])


def test_what_a_resumed_run_leaves_out_is_as_it_was_begun(tmp_path: Path) -> None:
    """Runs begun when the default model was WISKI, with other defaults, go on as they are."""
    cheap(tmp_path, num_initial=3).close()
    options = {name: value for name, value in CHEAP.items() if name != "num_initial"}
    with Optimizer(BOX, path=tmp_path, model_options={"grid_size": 10}, **options) as again:
        tell(again, again.ask(3))
        again.ask(1)
        assert isinstance(again.model, WISKI)


def test_an_automatic_run_goes_on_as_if_never_stopped(tmp_path: Path) -> None:
    def go(path: Path, stops: set[int]) -> list[Tensor]:
        loop, found = cheap(path, model="auto"), []
        for i in range(8):
            if i in stops:
                loop.close()
                loop = cheap(path, model="auto")
            found.append(loop.ask(2))
            tell(loop, found[-1])
        loop.close()
        return found

    whole, stopped = go(tmp_path / "whole", set()), go(tmp_path / "stopped", {3, 6})
    assert all(torch.equal(a, b) for a, b in zip(whole, stopped, strict=True))


@pytest.mark.parametrize("workers", [None, 2])
def test_a_run_whose_journal_was_deleted_stops_and_its_observations_are_saved(
    tmp_path: Path, workers: int | None
) -> None:
    space: dict[str, Any] = {"x": (0.0, 1.0)}
    loop = Optimizer(space, objective="minimize", path=tmp_path / "run", num_initial=8)
    loop.tell([{"x": 0.1}, {"x": 0.2}], [1.0, 2.0])
    (tmp_path / "run" / "journal.jsonl").unlink()
    with pytest.raises(JournalError, match="was deleted or moved"):
        loop.tell({"x": 0.3}, 3.0)
    with pytest.raises(JournalError, match="was deleted or moved"):
        loop.run(lambda points: [0.0] * len(points), 1, on_error="fail", workers=workers, progress=False)
    loop.to_csv(tmp_path / "rescued.csv")
    loop.close()
    with Optimizer.from_csv(tmp_path / "rescued.csv", space, objective="minimize", path=tmp_path / "run") as again:
        assert again.observations[1].tolist() == [1.0, 2.0]
