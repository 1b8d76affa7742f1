"""Replace files atomically: whole, or not at all."""

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def at_home(path: str | os.PathLike[str]) -> Path:
    """Return a path with the folder of the user in place of `~`.

    Args:
        path: A path.
    """
    return Path(os.path.expanduser(path))


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path in the same folder. It replaces `path` if the block ends without an error.

    Args:
        path: The file to make or replace.
    """
    target = Path(path)
    partial = target.with_name(f".{target.name}.{os.getpid()}-{threading.get_ident()}.partial")
    try:
        yield partial
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(partial, target)
        sync_folder(target.parent)
    finally:
        partial.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable, where the system can.

    Args:
        folder: The folder.
    """
    if hasattr(os, "O_DIRECTORY"):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        except OSError as error:
            if error.errno != errno.EINVAL:  # a file system that knows no such thing
                raise
        finally:
            os.close(handle)


def leftovers(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield the partial files of processes that were killed while they wrote a file.

    Args:
        path: The file, which nobody writes now.
    """
    return Path(path).parent.glob(f".{Path(path).name}.*.partial")
