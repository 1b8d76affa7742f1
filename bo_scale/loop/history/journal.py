"""A journal of events: one line of JSON each, on disk before the call that wrote it returns."""

import json
import os
import warnings
import zlib
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from bo_scale.errors import InvalidArgumentError, JournalError, JournalLockedError, JournalWarning
from bo_scale.files import sync_folder

Event = dict[str, Any]

JOURNAL = "journal.jsonl"
"""Name of the file in its folder."""


class Journal:
    """Append-only lines in `folder/journal.jsonl`, held by one process at a time.

    A line counts once its newline is on disk. A process killed while writing leaves a torn last line, of an event that
    nobody was told had happened: it is cut off, with a warning, when the journal is opened again.

    Attributes:
        events: The events that were there when it was opened.
        checksums: The checksum of the lines up to each of them.
        checksum: The checksum of all lines.

    Args:
        folder: Made if absent.

    Raises:
        JournalLockedError: if somebody else holds it.
        JournalError: if a line before the last cannot be read.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder, self._owner = Path(folder), os.getpid()
        if self.folder.is_file():
            raise JournalError(f"path={str(folder)!r} is a file. Give a folder; it is made if absent.")
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = FileLock(self.folder / "lock", thread_local=False)
        try:
            self._lock.acquire(timeout=0)
        except Timeout as error:
            raise JournalLockedError(
                f"path={str(folder)!r}: another Optimizer holds this journal. Stop it or call its close() first, or "
                f"use another path. The lock ends with its process; there is no file to remove."
            ) from error
        self.checksum = 0
        self.checksums: list[int] = []
        try:
            self.events = self._read()
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
            os.ftruncate(self._file, self._end)
            sync_folder(self.folder)
        except BaseException:
            self._lock.release()
            raise

    @property
    def _path(self) -> Path:
        return self.folder / JOURNAL

    def _read(self) -> list[Event]:
        content = self._path.read_bytes() if self._path.exists() else b""
        self._end = content.rfind(b"\n") + 1
        if self._end < len(content):
            warnings.warn(
                f"{self._path}: a crash tore off the last line after {len(content) - self._end} bytes. The line is "
                f"dropped; its event was never acknowledged: {content[self._end : self._end + 80]!r}",
                JournalWarning,
                stacklevel=5,
            )
        events = []
        for number, line in enumerate(content[: self._end].splitlines(keepends=True), start=1):
            self.checksum = zlib.crc32(line, self.checksum)
            try:
                event = json.loads(line)
                if not isinstance(event, dict):
                    raise InvalidArgumentError(f"{event!r} is not an event")
                events.append(event)
                self.checksums.append(self.checksum)
            except ValueError as error:
                raise JournalError(
                    f"{self._path}: line {number} is damaged. Restore the file from a copy. Or cut it before that "
                    f"line, which loses all later events."
                ) from error
        return events

    def append(self, event: Event) -> None:
        """Write one event, and return when it is on disk. O(size of the event).

        Raises:
            OSError: of the disk; then nothing of the event is kept.
            JournalError: if the journal was closed.
        """
        if os.getpid() != self._owner:
            raise JournalLockedError(
                f"{self._path}: the Optimizer belongs to process {self._owner}, and this is a fork of it. Call the "
                f"Optimizer in its own process."
            )
        if not self._lock.is_locked:
            raise JournalError(
                f"{self._path}: closed. To continue, make a new Optimizer with the same arguments and path."
            )
        line = json.dumps(event, separators=(",", ":"), allow_nan=False).encode() + b"\n"
        try:
            os.lseek(self._file, self._end, os.SEEK_SET)
            written = 0
            while written < len(line):
                written += os.write(self._file, line[written:])
            os.fsync(self._file)
        except BaseException:
            os.ftruncate(self._file, self._end)
            raise
        self._end += len(line)
        self.checksum = zlib.crc32(line, self.checksum)

    def close(self) -> None:
        """Let go of the file and the lock."""
        if self._lock.is_locked:
            os.close(self._file)
            self._lock.release()
