import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from trainings import said
from trials import begun, failures, local, wait

from bo_scale.ax.runners import worker


def test_a_worker_that_comes_after_the_stop_runs_nothing(tmp_path: Path) -> None:
    attempt = begun(tmp_path)
    worker.write_once(attempt.parent / worker.STOPPED, {})
    assert not worker.run(attempt)
    assert said("begun") == []


def test_of_many_processes_for_one_attempt_one_runs_it(tmp_path: Path) -> None:
    attempt = begun(tmp_path)
    command = [sys.executable, "-P", worker.__file__, str(attempt)]
    processes = [subprocess.Popen(command) for _ in range(6)]
    codes = [process.wait() for process in processes]
    assert sorted(codes) == [0, 1, 1, 1, 1, 1]
    assert said("begun") == [1.0]
    assert wait(local(tmp_path, "good")) == "COMPLETED"
    assert list(attempt.parent.glob("**/*.partial")) == []


def test_a_worker_that_comes_when_its_attempt_was_given_up_runs_nothing(tmp_path: Path) -> None:
    attempt = begun(tmp_path)
    gone = subprocess.Popen(["true"])
    gone.wait()
    (attempt / "launch.json").write_text(json.dumps({"pid": gone.pid, "start": "long ago", "time": 0.0}))
    runner = local(tmp_path, "good", retries=0)
    assert wait(runner) == "FAILED"
    assert not worker.run(attempt)
    assert said("begun") == []
    assert failures(tmp_path) == [f"process {gone.pid} ended without a result"]


@pytest.mark.skipif(shutil.which("ps") is None, reason="needs ps")
def test_processes_are_known_without_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "America/New_York")
    child = subprocess.Popen(["sleep", "60"])
    since = worker._listed(child.pid)
    assert since is not None
    assert re.search(r"\d\d:\d\d:\d\d", since)
    for name, value in {"TZ": "Asia/Tokyo", "LC_ALL": "de_DE.UTF-8"}.items():
        monkeypatch.setenv(name, value)
        assert worker._listed(child.pid) == since
    child.kill()
    while (state := worker.started(child.pid)) is not None:
        time.sleep(0.01)
    assert state == worker._listed(child.pid)  # a zombie
    child.wait()
    assert worker._listed(child.pid) is None


def test_processes_are_known_without_a_boot_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = worker.started(os.getpid())
    assert whole is not None
    monkeypatch.setattr(worker, "BOOT", tmp_path / "absent")
    assert worker.started(os.getpid()) == " " + whole.rpartition(" ")[2]


def test_a_record_counts_as_written_when_its_link_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link, synced = os.link, []

    def repeated(source: str, target: Path) -> None:
        """As NFS, where the answer to the first request was lost."""
        link(source, target)
        raise FileExistsError(target)

    monkeypatch.setattr(os, "link", repeated)
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(os.fstat(handle).st_ino))
    assert worker.write_once(tmp_path / "claim.json", {"pid": 1})
    assert not worker.write_once(tmp_path / "claim.json", {"pid": 2})
    assert worker.read(tmp_path / "claim.json") == {"pid": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["claim.json"]
    assert synced[:2] == [(tmp_path / "claim.json").stat().st_ino, tmp_path.stat().st_ino]
    assert len(synced) == 3  # of the second record only the file
