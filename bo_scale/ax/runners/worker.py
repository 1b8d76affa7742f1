"""Run one attempt at a trial in a process of its own: `python -P worker.py ATTEMPT`, the folder of the attempt.

A script of the standard library alone: neither Ax nor torch is imported before the function is, so that a worker starts
in a few hundredths of a second. Its files are written once and whole: who comes second finds that somebody was first.
"""

import errno
import importlib
import importlib.util
import json
import math
import operator
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

TASK, RESULT, STOPPED = "task.json", "result.json", "stopped.json"
"""Files of a trial: what is to be run, its outcomes, and that it is not to be run any more."""
CLAIM, FAILURE = "claim.json", "failure.json"
"""Files of an attempt: which process runs it, and why there is no result."""
BOOT = Path("/proc/sys/kernel/random/boot_id")
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def read(path: Path) -> dict[str, Any] | None:
    """Read a record; None if there is none."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    record: dict[str, Any] = json.loads(content)
    return record


def write_once(path: Path, record: dict[str, Any]) -> bool:
    """Write a record, whole and on disk, unless there is one; return whether it was written.

    A hard link is made of a file that is complete: of two processes, also on two machines, one succeeds.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}.", suffix=".partial")
    try:
        with os.fdopen(handle, "w") as file:
            json.dump(record, file, allow_nan=False)
            file.flush()
            os.fsync(file.fileno())
        return _linked(name, path)
    finally:
        os.unlink(name)


def _linked(name: str, path: Path) -> bool:
    """Give a file a second name, durably, unless that name is taken; return whether it was given."""
    try:
        os.link(name, path)
    except FileExistsError:
        if os.stat(name).st_nlink != 2:  # NFS may repeat a request that succeeded, and then says that it failed
            return False
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a file system that knows no such thing
            raise
    finally:
        os.close(folder)
    return True


def boot() -> str:
    """Return an identifier of this boot of the machine; empty where the system has none."""
    return BOOT.read_text().strip() if BOOT.exists() else ""


def started(pid: int) -> str | None:
    """Return an identifier of a process that no other process of this machine will ever have; None if it is over.

    A number of a process may be given to another one later; together with this it may not.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if fields[0] in "ZX" else f"{boot()} {fields[19]}"
    except ProcessLookupError:
        return None
    except FileNotFoundError:
        if Path("/proc/self/stat").exists():
            return None
    return _listed(pid)


def _listed(pid: int) -> str | None:
    """Return the same as `started` on systems without /proc, to the second, and independent of the locale."""
    command, plain = ["ps", "-o", "stat=,lstart=", "-p", str(pid)], {**os.environ, "LC_ALL": "C", "TZ": "UTC"}
    asked = subprocess.run(command, capture_output=True, text=True, check=False, env=plain)
    state, _, since = asked.stdout.strip().partition(" ")
    return since.strip() if since and not state.startswith("Z") else None


def checked(returned: Any) -> dict[str, list[float | None]]:
    """Check what a function returned; give outcomes by name, each a mean and its standard error, None if unknown.

    Raises:
        TypeError: for something else than a dictionary of numbers, or of pairs of them.
        ValueError: for NaN, inf, a negative standard error, or no outcome at all.
    """
    if not isinstance(returned, dict):
        raise TypeError(f"the function returned {type(returned).__name__}; return a dict of outcomes by name.")
    if not returned:
        raise ValueError("the function returned no outcome; return at least the objective by its name.")
    outcomes: dict[str, list[float | None]] = {}
    for name, value in returned.items():
        mean, sem = value if isinstance(value, tuple | list) else (value, None)
        pair = [float(mean), None if sem is None else float(sem)]
        if not all(each is None or math.isfinite(each) for each in pair) or (pair[1] or 0.0) < 0:
            raise ValueError(f"outcome {name!r} is {value}; return finite numbers, and standard errors of at least 0.")
        outcomes[str(name)] = pair
    return outcomes


def load(reference: str) -> Callable[[dict[str, Any]], Any]:
    """Import the function of a reference, "module:function" or "file.py:function".

    Raises:
        ImportError: if there is no such module or file.
        AttributeError: if it has no such function.
    """
    place, _, name = reference.rpartition(":")
    if place.endswith(".py"):
        path = Path(place)
        sys.path.append(str(path.parent))
        spec = importlib.util.spec_from_file_location(path.stem, path)
        if spec is None or spec.loader is None or not path.exists():
            raise ImportError(f"function={reference!r}: there is no file {place}.")
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module  # as an import does: what is defined there can be pickled
        spec.loader.exec_module(module)
    else:
        module = importlib.import_module(place)
    function: Callable[[dict[str, Any]], Any] = operator.attrgetter(name)(module)
    return function


def run_within(attempt: str) -> bool:
    """Run an attempt in a process that other things are done in, too, and leave its signals alone; see `run`."""
    return run(Path(attempt), alone=False)


def run(attempt: Path, alone: bool = True) -> bool:
    """Run an attempt unless another process has claimed it; return whether it was run and succeeded.

    Args:
        attempt: Its folder, in that of the trial.
        alone: Whether the process is there for this alone: then a signal to end is a failure that is written down.
    """
    trial = attempt.parent
    task = read(trial / TASK)
    since, pid, job_id = time.time(), os.getpid(), os.environ.get("SLURM_JOB_ID")
    who = {"pid": pid, "start": started(pid), "leads": os.getsid(0) == pid, "job_id": job_id, "time": since}
    if task is None or not write_once(attempt / CLAIM, who):
        return False
    if (trial / STOPPED).exists() or (trial / RESULT).exists():  # asked after the claim: who stops looks for one
        return False
    for number in (signal.SIGTERM, signal.SIGUSR2) if alone else ():
        signal.signal(number, _interrupted)
    try:
        outcomes = checked(_prepared(task)(task["parameters"]))
        record = {"outcomes": outcomes, "attempt": attempt.name, "seconds": time.time() - since}
        return write_once(trial / RESULT, record)
    except BaseException as error:
        traceback.print_exc()
        reason = " ".join(traceback.format_exception_only(error)).strip()
        write_once(attempt / FAILURE, {"reason": reason, "traceback": traceback.format_exc()})
        return False


def _prepared(task: dict[str, Any]) -> Callable[[dict[str, Any]], Any]:
    """Import the function in the environment in which the trial was started."""
    if task["threads"] is not None:
        os.environ.update(dict.fromkeys(THREADS, str(task["threads"])))
    if os.path.isdir(task["cwd"]):
        os.chdir(task["cwd"])
    sys.path.extend(each for each in task["path"] if each not in sys.path)
    return load(task["function"])


def _interrupted(number: int, _: Any) -> NoReturn:
    raise InterruptedError(
        f"interrupted by {signal.Signals(number).name}: the job was preempted, or hit the time limit of its queue"
    )


if __name__ == "__main__":
    if "--session" in sys.argv[2:]:
        os.setsid()
    sys.exit(0 if run(Path(sys.argv[1])) else 1)
