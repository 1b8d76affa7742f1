"""The processes of trials: recognise them, and end them."""

import logging
import os
import signal
import time
from contextlib import suppress
from typing import Any

from bo_scale.ax.runners.worker import boot, started

logger = logging.getLogger("bo_scale.ax")
Record = dict[str, Any]


def process_ended(claim: Record | None, launch: Record | None) -> str | None:
    """Return why the process of an attempt is over; None while it lives."""
    who = claim or launch or {}
    if "given_up" in who:
        return str(who["given_up"])
    code = reaped(who["pid"])
    if who["start"] is not None and started(who["pid"]) == who["start"]:
        return None
    code = reaped(who["pid"]) if code is None else code  # it may have ended since
    how = "" if code is None else f", exit code {code}" if code >= 0 else f", killed by {signal.Signals(-code).name}"
    return f"process {who['pid']} ended without a result{how}"


def kill_processes(claim: Record | None, launch: Record | None, seconds: float = 5.0) -> bool:
    """Kill the processes of an attempt with their groups, no others; return whether they are gone.

    If something else killed the worker, its children are left behind: they are killed too.
    """
    gone = [_kill_one(who["pid"], who["start"], seconds) for who in (claim, launch) if who and who.get("start")]
    if claim and claim.get("leads"):
        _kill_left(claim["pid"], claim["start"])
    return all(gone)


def _kill_one(pid: int, start: str, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while started(pid) == start:
        try:
            if os.getpgid(pid) == pid:
                os.killpg(pid, signal.SIGKILL)
            else:
                os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        if time.monotonic() > deadline:
            logger.error("Process %d has survived SIGKILL so far. Waiting for it to end.", pid)
            return False
        time.sleep(0.005)
    reaped(pid)
    return True


def _kill_left(leader: int, start: str) -> None:
    """Kill what is left of a group whose leader is gone.

    Its number is that of no new process as long as the group exists, but only until the next boot.
    """
    if started(leader) is None and boot() and start.startswith(f"{boot()} "):
        with suppress(ProcessLookupError, PermissionError):  # there is no such group, or none of ours
            os.killpg(leader, signal.SIGKILL)


def reaped(pid: int) -> int | None:
    """Return the exit code of a child that ended, negative for a signal, and leave no zombie; None for others."""
    try:
        found, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return None
    return os.waitstatus_to_exitcode(status) if found else None
