"""Build BoTorch's kernel of hypervolumes, not in silence, and not behind the lock of a process that was killed."""

import logging
import os
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from botorch.acquisition.multi_objective import logei
from filelock import FileLock, Timeout
from torch.utils.cpp_extension import _get_build_directory

from bo_scale.errors import BoScaleWarning

logger = logging.getLogger("bo_scale")
EXTENSION = "logei_fused_ext"
PATIENCE = 300.0
"""Seconds a build may take, where its process cannot be seen; it takes 50 on a slow core."""
NETWORK = ("nfs", "cifs", "smb", "lustre", "gpfs", "beegfs", "ceph", "afs", "9p", "fuse")
"""Beginnings of the names of file systems that other machines may share."""
WAITING = "Another process is building BoTorch's hypervolume kernel (%s). Waiting for it."
PROCESSES = Path("/proc")


@cache
def build_kernel() -> None:
    """Load BoTorch's kernel of hypervolumes, which its acquisition functions use; build it if this is the first time.

    BoTorch would do so itself, in silence, for up to minutes. torch locks a build by a file that a killed process
    leaves behind, and then waits for ever: it is removed, with a warning, when no process builds any more. Where this
    cannot be known, as on file systems of several machines, it is removed when it is older than `PATIENCE`. Without a
    compiler BoTorch warns, and computes the same in torch.
    """
    if logei._load_attempted:  # noqa: SLF001  (by BoTorch itself)
        return
    folder = Path(_get_build_directory(EXTENSION, verbose=False))
    with _alone(folder):
        _await(folder / "lock")
        new = not any(folder.glob(f"{EXTENSION}.*"))
        if new:
            logger.warning("Compiling BoTorch's hypervolume kernel, once: usually in less than a minute.")
        started = time.perf_counter()
        logei._try_load_fused_kernel()  # noqa: SLF001
        if new and logei._C is not None:  # noqa: SLF001
            logger.warning("BoTorch's hypervolume kernel was compiled in %.0f s.", time.perf_counter() - started)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep other processes of ours from building; the system frees them when this one dies."""
    lock = FileLock(folder / "bo_scale.lock")
    try:
        try:
            lock.acquire(timeout=2.0)
        except Timeout:
            logger.warning(WAITING, folder)
            lock.acquire()
    except OSError:
        yield  # a folder that cannot be written to: BoTorch will say so
        return
    try:
        yield
    finally:
        lock.release()


def _await(lock: Path) -> None:
    """Wait for whoever has torch's lock; remove it when nobody has."""
    said = False
    try:
        while _held(lock):
            if not said:
                logger.warning(WAITING, lock)
            said = True
            time.sleep(0.1)
        lock.unlink()
    except FileNotFoundError:
        return  # there was none, or the other process is done
    except OSError as error:
        remedy = f"could not be removed ({error}); remove it yourself, or BoTorch may wait for ever."
    else:
        remedy = "was removed: the process that held it must have been killed."
    message = f"The lock {lock} of a build of BoTorch's hypervolume kernel {remedy}"
    warnings.warn(message, BoScaleWarning, stacklevel=4)


def _held(lock: Path) -> bool:
    """Return whether somebody builds: as the processes say, or the age of the lock where they do not.

    Raises:
        FileNotFoundError: if the lock is gone.
    """
    status = lock.stat()
    if _all_seen(lock.parent, status.st_uid):
        return any(_builds(process, lock.parent, status) for process in PROCESSES.glob("[0-9]*"))
    return time.time() - status.st_mtime < PATIENCE


def _all_seen(folder: Path, owner: int) -> bool:
    """Return whether every process that may build in a folder can be seen from here."""
    mounts = PROCESSES / "self" / "mountinfo"
    if not mounts.exists() or os.getuid() not in (0, owner):
        return False
    here, kinds = os.path.realpath(folder), dict[str, str]()
    for line in mounts.read_text().splitlines():
        place, _, source = line.partition(" - ")
        kinds[place.split()[4]] = source.split()[0]
    holding = max((point for point in kinds if os.path.commonpath([point, here]) == point), key=len)
    return not kinds[holding].startswith(NETWORK)


def _builds(process: Path, folder: Path, lock: os.stat_result) -> bool:
    """Return whether a process has the lock open, as who builds has, or works in its folder, as compilers do."""
    with suppress(OSError):  # it has ended, or is somebody else's
        if os.path.samefile(process / "cwd", folder):
            return True
    with suppress(OSError):
        return any(_same(file, lock) for file in (process / "fd").iterdir())
    return False


def _same(file: Path, other: os.stat_result) -> bool:
    try:
        return os.path.samestat(file.stat(), other)
    except OSError:
        return False
