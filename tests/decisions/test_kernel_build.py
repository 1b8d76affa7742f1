"""BoTorch's kernel is built once, not in silence, and a lock that a killed build left does not stop anybody."""

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from botorch.acquisition.multi_objective import logei
from filelock import FileLock

from bo_scale.decisions import kernel_build
from bo_scale.decisions.kernel_build import EXTENSION, PATIENCE, build_kernel
from bo_scale.errors import BoScaleWarning

LINUX = pytest.mark.skipif(not Path("/proc/self/mountinfo").exists(), reason="needs Linux's /proc")
HOLD = """
import os, sys, time
os.open(sys.argv[1], os.O_CREAT | os.O_EXCL)
print(flush=True)
time.sleep(60)
"""
"""A process that holds a lock as torch does."""


@pytest.fixture
def lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where torch keeps the lock of a build, in a folder of its own; nothing is built."""
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    monkeypatch.setattr(logei, "_load_attempted", False)
    monkeypatch.setattr(logei, "_try_load_fused_kernel", lambda: None)
    build_kernel.cache_clear()
    path = tmp_path / EXTENSION / "lock"
    path.parent.mkdir()
    yield path
    build_kernel.cache_clear()


@pytest.fixture
def unseen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A system that says nothing of its processes."""
    monkeypatch.setattr(kernel_build, "PROCESSES", tmp_path / "nothing")


@pytest.fixture
def holder(lock: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-c", HOLD, str(lock)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def age(lock: Path) -> None:
    old = time.time() - PATIENCE - 1
    os.utime(lock, (old, old))


@LINUX
def test_the_lock_of_a_process_that_was_killed_is_removed_at_once_and_told(lock: Path) -> None:
    lock.touch()
    with pytest.warns(BoScaleWarning, match="was removed: the process that held it must have been killed"):
        build_kernel()
    assert not lock.exists()


@LINUX
def test_the_lock_of_a_process_that_lives_is_kept_however_old(
    lock: Path, holder: subprocess.Popen[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    age(lock)
    threading.Timer(1.0, holder.kill).start()
    started = time.monotonic()
    with pytest.warns(BoScaleWarning, match="was removed"):
        build_kernel()
    assert time.monotonic() - started > 0.9
    assert "Waiting for it" in caplog.text


@LINUX
def test_compilers_that_outlive_their_process_are_awaited(lock: Path) -> None:
    lock.touch()
    with subprocess.Popen(["sleep", "1"], cwd=lock.parent) as compiler:
        threading.Thread(target=compiler.wait).start()
        with pytest.warns(BoScaleWarning, match="removed"):
            build_kernel()
        assert compiler.poll() is not None


@pytest.mark.usefixtures("unseen")
def test_where_processes_are_not_seen_an_old_lock_is_removed(lock: Path) -> None:
    lock.touch()
    age(lock)
    with pytest.warns(BoScaleWarning, match="was removed: the process that held it must have been killed"):
        build_kernel()
    assert not lock.exists()


@LINUX
@pytest.mark.parametrize("kind", ["nfs4", "fuse.sshfs"])
def test_other_machines_are_not_seen(
    lock: Path, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "proc" / "self").mkdir(parents=True)
    mounts = f"1 0 8:1 / / rw - ext4 /dev/sda rw\n2 1 0:9 / {lock.parent} rw shared:1 - {kind} host:/home rw\n"
    (tmp_path / "proc" / "self" / "mountinfo").write_text(mounts)
    monkeypatch.setattr(kernel_build, "PROCESSES", tmp_path / "proc")
    lock.touch()
    threading.Timer(0.3, lock.unlink).start()
    build_kernel()
    assert "Waiting for it" in caplog.text


@pytest.mark.usefixtures("unseen")
def test_a_build_under_way_is_awaited_and_told(lock: Path, caplog: pytest.LogCaptureFixture) -> None:
    lock.touch()
    threading.Timer(0.3, lock.unlink).start()
    build_kernel()
    assert not lock.exists()
    assert caplog.text.count("Waiting for it") == 1


@pytest.mark.usefixtures("unseen")
def test_a_build_that_dies_while_awaited_is_found_out(lock: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_build, "PATIENCE", 0.3)
    lock.touch()
    with pytest.warns(BoScaleWarning, match="was removed"):
        build_kernel()
    assert not lock.exists()


def test_of_our_own_processes_one_builds_at_a_time(lock: Path, caplog: pytest.LogCaptureFixture) -> None:
    held = threading.Event()

    def other() -> None:
        with FileLock(lock.parent / "bo_scale.lock"):
            held.set()
            time.sleep(2.5)

    threading.Thread(target=other).start()
    held.wait()
    build_kernel()
    assert "Waiting for it" in caplog.text


def test_a_lock_that_cannot_be_removed_is_named(lock: Path) -> None:
    lock.mkdir()  # which unlink refuses
    age(lock)
    with pytest.warns(BoScaleWarning, match=r"lock .* could not be removed .*; remove it"):
        build_kernel()


def test_the_first_build_is_told_with_its_seconds(
    lock: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def build() -> None:
        assert "Compiling BoTorch's hypervolume kernel" in caplog.text
        (lock.parent / f"{EXTENSION}.so").touch()
        monkeypatch.setattr(logei, "_C", object())

    monkeypatch.setattr(logei, "_try_load_fused_kernel", build)
    build_kernel()
    assert "was compiled in 0 s" in caplog.text
    assert len(caplog.records) == 2


def test_what_botorch_has_loaded_is_left_alone(lock: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logei, "_load_attempted", True)
    lock.touch()
    build_kernel()
    assert lock.exists()


def test_torch_locks_builds_there(lock: Path) -> None:
    from torch.utils.cpp_extension import _get_build_directory

    assert Path(_get_build_directory(EXTENSION, verbose=False)) == lock.parent


def test_a_folder_that_cannot_be_locked_is_botorchs_to_complain_of(lock: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError("read-only")

    called: list[int] = []
    monkeypatch.setattr(FileLock, "acquire", refuse)
    monkeypatch.setattr(logei, "_try_load_fused_kernel", lambda: called.append(1))
    build_kernel()
    assert called == [1]


def test_no_build_is_nothing_to_wait_for(lock: Path, caplog: pytest.LogCaptureFixture) -> None:
    (lock.parent / f"{EXTENSION}.so").touch()
    with caplog.at_level(logging.INFO):
        build_kernel()
    assert caplog.records == []
