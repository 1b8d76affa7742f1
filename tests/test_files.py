"""Files are replaced whole, and durably."""

import errno
import os
from pathlib import Path

import pytest

from bo_scale.files import replacing, sync_folder


def test_a_file_is_on_disk_before_its_name_and_its_name_before_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = []
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append((os.fstat(handle).st_ino, target.exists())))
    target = tmp_path / "model.pt"
    with replacing(target) as partial:
        partial.write_text("content")
    assert synced == [(target.stat().st_ino, False), (tmp_path.stat().st_ino, True)]
    assert [path.name for path in tmp_path.iterdir()] == ["model.pt"]


def test_where_folders_cannot_be_synced_it_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fsync(handle: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fsync)
    number = errno.EINVAL
    sync_folder(tmp_path)
    number = errno.EIO
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        sync_folder(tmp_path)
