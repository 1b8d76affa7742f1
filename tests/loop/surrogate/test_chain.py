import os
import shutil
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from loops import asked, cheap, single_task, tell

from bo_scale.errors import (
    InterpolationWarning,
    JournalWarning,
)

pytestmark = pytest.mark.usefixtures("whole_fits")

MODELS = pytest.mark.parametrize("model", ["wiski", single_task], ids=["wiski", "SingleTaskGP"])


def same(a: Any, b: Any) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@MODELS
def test_looking_at_the_best_and_the_model_does_not_change_the_future(model: Any) -> None:
    quiet, curious = cheap(model=model, refit_growth=1.5), cheap(model=model, refit_growth=1.5)
    for _ in range(5):
        X = quiet.ask(2)
        assert torch.equal(curious.ask(2), X)
        for x in X.split(1):
            tell(quiet, x)
            tell(curious, x)
            curious.best()
            curious.model.posterior(torch.rand(3, 2, dtype=torch.float64))


@MODELS
def test_a_look_fits_what_the_next_ask_would_and_that_ask_takes_it(model: Any) -> None:
    loop = cheap(model=model, refit_growth=1.25)
    asked(loop, 3)
    looked = loop.model
    assert loop.model is looked
    loop.ask(1)
    assert loop.steps[-1].fitted
    assert loop.model is looked


def test_looks_before_first_points_change_no_future() -> None:
    quiet, curious = cheap(num_initial=6), cheap(num_initial=6)
    for _ in range(4):
        X = quiet.ask(2)
        assert torch.equal(curious.ask(2), X)
        tell(quiet, X)
        tell(curious, X)
        curious.best()
    assert [step.fitted for step in curious.steps] == [step.fitted for step in quiet.steps]


@MODELS
def test_a_value_far_off_is_fitted_at_the_next_ask_and_on_resuming(tmp_path: Path, model: Any) -> None:
    with cheap(tmp_path / "run", model=model) as loop:
        asked(loop, 4)
        loop.tell(loop.ask(1), [1e3])
        wrong = loop.best()
        asked(loop, 2)
        assert [step.fitted for step in loop.steps] == [False, False, True, False, True, True, False]
        assert wrong.mean > 1.0
        shutil.copytree(tmp_path / "run", tmp_path / "again")
        future = loop.ask(2)
    (tmp_path / "again" / "snapshot.pt").unlink()
    with cheap(tmp_path / "again", model=model) as again:
        assert torch.equal(again.ask(2), future)


def test_a_snapshot_that_cannot_be_written_costs_no_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loop, calm = cheap(tmp_path), cheap()
    asked(loop, 2)
    asked(calm, 2)
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", lambda *paths: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        with pytest.warns(JournalWarning, match="snapshot"):
            X = loop.ask(2)
    assert torch.equal(X, calm.ask(2))


@dataclass
class Reference:
    """Points of six asks, and the folder as it was after some of them."""

    points: list[Any]
    after: dict[int, Path]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    base = tmp_path_factory.mktemp("reference")
    points, after = [], {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InterpolationWarning)
        with cheap(base / "run") as loop:
            for asks in (3, 5, 6):
                points += asked(loop, asks - len(points))
                after[asks] = shutil.copytree(base / "run", base / str(asks))
    return Reference(points, after)


def spoil(snapshot: Path, how: str) -> bool:
    """Do something to a snapshot; whether a warning is due."""
    content = snapshot.read_bytes()
    if how == "missing":
        snapshot.unlink()
        return False
    snapshot.write_bytes({"empty": b"", "half": content[: len(content) // 2], "noise": b"x" * 999}[how])
    return True


@pytest.mark.parametrize("how", ["missing", "empty", "half", "noise"])
def test_without_a_readable_snapshot_the_future_is_the_same(tmp_path: Path, reference: Reference, how: str) -> None:
    path = shutil.copytree(reference.after[5], tmp_path / "run")
    due = spoil(path / "snapshot.pt", how)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        with cheap(path) as again:
            assert same(asked(again, 1), reference.points[5:])
    assert any(issubclass(w.category, JournalWarning) and "snapshot" in str(w.message) for w in found) == due


def test_an_old_snapshot_gives_the_same_future(tmp_path: Path, reference: Reference) -> None:
    path = shutil.copytree(reference.after[5], tmp_path / "run")
    old = (reference.after[3] / "snapshot.pt").read_bytes()
    assert old != (path / "snapshot.pt").read_bytes()
    (path / "snapshot.pt").write_bytes(old)
    with cheap(path) as again:
        assert same(asked(again, 1), reference.points[5:])


def test_a_snapshot_of_another_past_is_not_believed(tmp_path: Path) -> None:
    """A journal cut back to an earlier line, as the message of a damaged one advises, and gone on with other data."""
    with cheap(tmp_path) as loop:
        asked(loop, 5)
    file = tmp_path / "journal.jsonl"
    file.write_text("".join(line + "\n" for line in file.read_text().splitlines()[:7]))  # up to the third tell
    with cheap(tmp_path) as loop:
        assert len(loop.steps) == 3
        with pytest.warns(JournalWarning, match="another journal"):
            loop.ask(1)
        for _ in range(3):
            loop.ask(1)
        loop.tell(loop.pending[:1], [-1.0])
        loop.ask(1)
        present, future = loop.best(), loop.ask(2)
    file.write_text("".join(line + "\n" for line in file.read_text().splitlines()[:-1]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", JournalWarning)
        with cheap(tmp_path) as again:
            assert again.best().mean == pytest.approx(present.mean, rel=1e-9)
            torch.testing.assert_close(again.ask(2), future, rtol=0, atol=1e-9)
