import functools
import subprocess
from pathlib import Path

import pytest
from trainings import said
from trials import alive, batch, begun, failures, local, until_gone, wait

from bo_scale.ax.runners import processes, worker


@pytest.mark.parametrize("cluster", [None, "local"])
def test_children_of_a_worker_that_was_killed_are_killed(tmp_path: Path, cluster: str | None) -> None:
    name = "is_killed_with_a_child"
    runner = local(tmp_path, name, retries=1) if cluster is None else batch(tmp_path, name, cluster=cluster, retries=1)
    runner.run_trial(0, {"x": 1.0})
    assert wait(runner) == "FAILED"
    assert len(said("begun")) == 2
    until_gone(*said("begun"))


def test_of_another_boot_nothing_is_killed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    command = ["sh", "-c", "sleep 60 > /dev/null & echo $!"]
    leader = subprocess.Popen(command, start_new_session=True, stdout=subprocess.PIPE)
    child = int(leader.communicate()[0])
    kill = functools.partial(processes.kill_processes, launch=None)
    claim = {"pid": leader.pid, "start": f"{worker.boot()} 1", "leads": True}
    try:
        assert kill({**claim, "start": f"x{worker.boot()} 1"})
        assert kill({**claim, "leads": False})
        with monkeypatch.context() as patched:
            patched.setattr(worker, "BOOT", tmp_path / "absent")
            assert kill({**claim, "start": " 1"})
        assert alive(child)
    finally:
        assert kill(claim)
    until_gone(child)


def test_a_number_of_a_process_given_to_another_one_deceives_nobody(tmp_path: Path) -> None:
    attempt = begun(tmp_path)
    other = subprocess.Popen(["sleep", "60"], start_new_session=True)
    try:
        since = worker.started(other.pid)
        assert since is not None
        before = since.rpartition(" ")[0] + " " + str(int(since.rpartition(" ")[2]) - 1)
        worker.write_once(attempt / worker.CLAIM, {"pid": other.pid, "start": before, "time": 0.0})
        runner = local(tmp_path, "good", timeout_seconds=5.0, retries=1)
        assert wait(runner) == "COMPLETED"
        assert runner.metadata(0)["attempt"] == 2
        assert failures(tmp_path) == [f"process {other.pid} ended without a result"]
        runner.stop_trial(0, {})
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_a_process_that_ends_between_two_looks_has_its_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    codes = iter([None, 3])
    monkeypatch.setattr(processes, "reaped", lambda pid: next(codes))
    monkeypatch.setattr(processes, "started", lambda pid: None)
    why = processes.process_ended({"pid": 7, "start": "boot 1"}, None)
    assert why == "process 7 ended without a result, exit code 3"
