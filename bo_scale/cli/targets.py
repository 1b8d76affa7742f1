"""Files that a command may write, and which of them it wrote: for what is said when it ends early."""

import argparse
from collections.abc import Iterable
from pathlib import Path

Mark = tuple[int, int, int] | None
"""Inode, size and time of the last change in nanoseconds; None for no file. Files are replaced by other inodes."""


class Targets:
    """Files that a command may write, as they were before it began.

    Args:
        given: Parsed arguments.
        names: Names of the arguments that are such files; each is a path, several, or None.
    """

    def __init__(self, given: argparse.Namespace, names: Iterable[str]) -> None:
        found = [getattr(given, name) for name in names]
        paths = [each for one in found for each in (one if isinstance(one, list) else [one]) if each is not None]
        self._before = {Path(path): _mark(Path(path)) for path in dict.fromkeys(paths)}

    def unfinished(self) -> bool:
        """Return whether some files are as they were."""
        return any(_mark(path) == before for path, before in self._before.items())

    def summary(self) -> str:
        """Return sentences on what was written and what was not."""
        told: dict[str, list[str]] = {"Written": [], "Unchanged": [], "Not written": []}
        for path, before in self._before.items():
            now = _mark(path)
            told["Written" if now != before else "Not written" if now is None else "Unchanged"].append(str(path))
        return " ".join(f"{what}: {', '.join(paths)}." for what, paths in told.items() if paths)


def _mark(path: Path) -> Mark:
    try:
        seen = path.stat()
    except OSError:
        return None
    return seen.st_ino, seen.st_size, seen.st_mtime_ns
