"""A lock that a killed build of BoTorch's kernel left does not stop anybody."""

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bo_scale.decisions import kernel_build
from bo_scale.decisions.kernel_build import EXTENSION, PATIENCE, await_kernel_build
from bo_scale.errors import BoScaleWarning


@pytest.fixture
def lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where torch keeps the lock of a build, in a folder of its own."""
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    await_kernel_build.cache_clear()
    path = tmp_path / EXTENSION / "lock"
    path.parent.mkdir()
    yield path
    await_kernel_build.cache_clear()


def test_an_abandoned_lock_is_removed_and_told(lock: Path) -> None:
    lock.touch()
    old = time.time() - PATIENCE - 1
    os.utime(lock, (old, old))
    with pytest.warns(BoScaleWarning, match="was removed: the process that held it must have been killed"):
        await_kernel_build()
    assert not lock.exists()


def test_a_build_under_way_is_awaited_and_told(lock: Path, caplog: pytest.LogCaptureFixture) -> None:
    lock.touch()
    threading.Timer(0.3, lock.unlink).start()
    await_kernel_build()
    assert not lock.exists()
    assert "Waiting for it" in caplog.text


def test_a_build_that_dies_while_awaited_is_found_out(lock: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_build, "PATIENCE", 0.3)
    lock.touch()
    with pytest.warns(BoScaleWarning, match="was removed"):
        await_kernel_build()
    assert not lock.exists()


def test_a_lock_that_cannot_be_removed_is_named(lock: Path) -> None:
    lock.mkdir()  # which unlink refuses
    old = time.time() - PATIENCE - 1
    os.utime(lock, (old, old))
    with pytest.warns(BoScaleWarning, match=r"lock .* could not be removed .*; remove it"):
        await_kernel_build()


def test_torch_locks_builds_there(lock: Path) -> None:
    from torch.utils.cpp_extension import _get_build_directory

    assert Path(_get_build_directory(EXTENSION, verbose=False)) == lock.parent


def test_no_build_is_nothing_to_wait_for(lock: Path) -> None:
    await_kernel_build()
