"""A run killed anywhere and taken up again is the run that was never killed, and has everything it acknowledged."""

import io
import json
import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import seeds
import torch
from loops import act, cheap, events, run_until

from bo_scale.errors import InterpolationWarning, JournalWarning
from bo_scale.files import replacing

pytestmark = pytest.mark.usefixtures("whole_fits")

ASKS = 6
FOLDER = {"journal.jsonl", "lock", "snapshot.pt"}


@dataclass
class Disk:
    """The folder of a run as it is between any two of the calls that change it, or change it durably.

    Attributes:
        folder: Of the run.
        images: Where its copies go.
        acknowledged: Events that were over when each copy was made.
        over: Events that are over now.
    """

    folder: Path
    images: Path
    acknowledged: list[int] = field(default_factory=list)
    over: int = 0
    last: dict[str, bytes] = field(default_factory=dict)

    def copy(self) -> None:
        """What a process killed now leaves behind, where that is something new."""
        content = {file.name: file.read_bytes() for file in self.folder.glob("*")}
        if content == self.last:
            self.acknowledged[-1:] = [self.over]
        else:
            shutil.copytree(self.folder, self.images / str(len(self.acknowledged)))
            self.acknowledged.append(self.over)
        self.last = content

    def watch(self, patch: pytest.MonkeyPatch) -> None:
        """Copy before every call that writes, and where writing is half done."""
        real = {name: getattr(os, name) for name in ("write", "fsync", "ftruncate", "replace")}
        save = torch.save

        def write(handle: int, content: bytes) -> int:
            self.copy()
            half = real["write"](handle, content[: len(content) // 2])
            self.copy()
            return half + int(real["write"](handle, content[half:]))

        def saved(content: Any, file: Any) -> None:
            buffer = io.BytesIO()
            save(content, buffer)
            self.copy()
            file.write(buffer.getvalue()[: buffer.tell() // 2])
            file.flush()
            self.copy()
            file.write(buffer.getvalue()[buffer.tell() // 2 :])

        def before(name: str) -> Any:
            def call(*args: Any) -> Any:
                self.copy()
                return real[name](*args)

            return call

        patch.setattr(os, "write", write)
        patch.setattr(torch, "save", saved)
        for name in ("fsync", "ftruncate", "replace"):
            patch.setattr(os, name, before(name))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Disk]:
    """A run that nobody stops, and images of its folder."""
    base = tmp_path_factory.mktemp("crashes")
    disk = Disk(base / "run", base)
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore", InterpolationWarning)
        disk.watch(patch)
        with cheap(disk.folder) as loop:
            while len(loop.steps) < ASKS:
                act(loop)
                disk.over += 1
    yield disk
    shutil.rmtree(base)


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, "subprocess.Popen[str]"]]:
    """A run killed three times, in processes beside the tests."""
    folder = tmp_path_factory.mktemp("killed") / "run"
    lives = [sys.executable, str(Path(__file__).with_name("lives.py")), str(folder), str(ASKS), "1", "3", "5"]
    output: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": seeds.environment()}
    with subprocess.Popen(lives, **output) as process:
        yield folder, process


@pytest.mark.usefixtures("killed")  # which starts here, and works while the next test does
def test_a_crash_between_any_two_writes_loses_nothing_and_changes_nothing(whole: Disk) -> None:
    expected, torn = events(whole.folder), 0
    assert len(whole.acknowledged) > 2 * whole.over
    assert {e["event"] for e in expected} == {"begin", "ask", "tell", "abandon"}
    for k, acknowledged in enumerate(whole.acknowledged):
        image = whole.images / str(k)
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always", JournalWarning)
            loop = cheap(image)
        torn += len([w for w in found if issubclass(w.category, JournalWarning)])
        with loop:
            survived = events(image)
            assert survived == expected[: len(survived)], f"crash {k}"
            assert acknowledged <= len(survived) - 1 <= acknowledged + 1, f"crash {k}"
            if k % 3 == 0:  # of any three images that follow each other one goes on
                run_until(loop, min(ASKS, len(loop.steps) + 1 + k % 2))
        found_events = events(image)
        assert found_events == expected[: len(found_events)], f"crash {k}"
        shutil.rmtree(image)
    assert torn >= whole.over - 1  # a line half written each


def test_a_snapshot_half_written_is_cleared_away(whole: Disk, tmp_path: Path) -> None:
    path = tmp_path / "run"
    shutil.copytree(whole.folder, path)
    replacing(path / "snapshot.pt").__enter__().write_bytes(b"half")
    with cheap(path) as loop:
        loop.ask(1)
    assert set(os.listdir(path)) == FOLDER


def test_three_kills_lose_nothing_and_change_nothing(whole: Disk, killed: tuple[Path, "subprocess.Popen[str]"]) -> None:
    folder, process = killed
    output, errors = process.communicate()
    assert process.returncode == 0, errors
    lives = [json.loads(line) for line in output.splitlines()]
    assert [life["killed"] for life in lives] == [True, True, True, False], errors
    assert [life["status"] for life in lives][-1] == 0, errors
    assert all(life["refused"] for life in lives)
    found, expected = events(folder), events(whole.folder)
    assert len(found) == len(expected)
    assert sum(life["acknowledged"] for life in lives) <= len(found) - 1
    assert found == expected
